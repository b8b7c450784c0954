"""Caches of limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..turns import Turns

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
# maximum number of plans in the cache of a layer, or of a device (all operators without weights)
PLANS_KEPT = 1024


def keep(values: dict[K, V], key: K, value: V) -> V:
    """Cache a value under a key without a lock, for values that are read often. If `PLANS_KEPT` values are
    cached, drop all of them first; this happens if images always have new sizes."""
    if len(values) >= PLANS_KEPT:
        values.clear()
    values[key] = value
    return value


class LruCache(Generic[V]):
    """A cache of at most *most* values by key. It drops the least recently used value. Thread-safe."""

    def __init__(self, most: int):
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Turns("what a device keeps", again=True)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key; compute it with *make* if there is none. *make* is called without the
        lock: two threads may compute a value at the same time, but both get the one that is stored first."""
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
        """Clear the cache."""
        with self._lock:
            self._values.clear()
