"""Caches of limited size."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..turns import Turns

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# Maximum number of plans in a cache. Each layer has a separate cache; the operators without weights share
# one cache for each device.
PLANS_KEPT = 1024


def keep(values: dict[K, V], key: K, value: V) -> V:
    """Cache a value under a key without a lock, for values that are read often. If `PLANS_KEPT` values are
    cached (for example because every image has a new size), drop all of them first."""
    if len(values) >= PLANS_KEPT:
        values.clear()
    values[key] = value
    return value


class LruCache(Generic[V]):
    """A cache of at most *most* values by key. It drops the least recently used value. Thread-safe."""

    def __init__(self, most: int):
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Turns("the cache of a device", again=True)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key, or compute it with *make*. *make* is called without the lock: two
        threads may compute a value at the same time, but both get the value that is stored first."""
        with self._lock:
            found = self._values.get(key)
            if found is not None:
                self._values.move_to_end(key)
                return found
        made = make()
        with self._lock:
            found = self._values.setdefault(key, made)
            if len(self._values) > self._most:
                self._values.popitem(last=False)
        return found

    def clear(self) -> None:
        with self._lock:
            self._values.clear()


class WeakLruCache(Generic[V]):
    """A cache of values by key that keeps the latest *most* values alive. An older value stays cached while
    something else refers to it. Thread-safe."""

    def __init__(self, most: int):
        self._most = most
        self._latest: OrderedDict[Hashable, V] = OrderedDict()
        # A WeakValueDictionary removes entries in callbacks, in which a KeyboardInterrupt would be lost.
        self._living: dict[Hashable, weakref.ref[V]] = {}
        self._limit = 2 * most  # more references than this: remove dead ones
        self._lock = Turns("the list of latest values", again=True)

    def __len__(self) -> int:
        """Return the number of values that exist."""
        with self._lock:
            return len(self._alive())

    def get(self, key: Hashable) -> V | None:
        """Return the value of a key, or None. A value that is found becomes the latest."""
        known = self._living.get(key)
        found = None if known is None else known()
        return None if found is None else self.put(key, found)

    def put(self, key: Hashable, value: V) -> V:
        """Store and return a value, which becomes the latest."""
        old: V | None = None
        with self._lock:
            self._living[key], self._latest[key] = weakref.ref(value), value
            self._latest.move_to_end(key)
            if len(self._latest) > self._most:
                _, old = self._latest.popitem(last=False)
            if len(self._living) > self._limit:
                self._living = self._alive()
                self._limit = 2 * max(self._most, len(self._living))
        del old  # may run the value's destructor, which must not happen with the lock held
        return value

    def pop(self, key: Hashable) -> None:
        """Drop the value of a key."""
        with self._lock:
            self._latest.pop(key, None)
            self._living.pop(key, None)

    def clear(self) -> None:
        """Drop all values, including those that something else refers to."""
        with self._lock:
            self._latest.clear()
            self._living.clear()

    def _alive(self) -> dict[Hashable, weakref.ref[V]]:
        return {key: known for key, known in self._living.items() if known() is not None}
