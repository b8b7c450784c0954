"""Caches of limited size."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..turns import Turns

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
PLANS_KEPT = 1024  # most cached plans: of all operators without weights on a device, and of each layer


def keep(values: dict[K, V], key: K, value: V) -> V:
    """Cache a value under a key. If `PLANS_KEPT` values are cached, drop all of them first, which happens if
    images always have new sizes. For values that are read too often for a lock."""
    if len(values) >= PLANS_KEPT:
        values.clear()
    values[key] = value
    return value


class LruCache(Generic[V]):
    """A cache by key. If it has more than *most* values, the least recently used value is dropped.
    Thread-safe."""

    def __init__(self, most: int):
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Turns("what a device keeps", again=True)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """Return the value of a key; compute it with *make* if there is none. *make* is called without the
        lock: if two threads call it at the same time, both get the first value."""
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
