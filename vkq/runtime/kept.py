"""What is made once for each key and kept, up to a number."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ..turns import Turns

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")
PLANS_KEPT = 1024  # of operators without weights on a device, and of each layer


def keep(values: dict[K, V], key: K, value: V) -> V:
    """Keeps the value of a key, and forgets the others where there are `PLANS_KEPT`, as for images that all
    have sizes of their own. For what is read more often than a lock should be taken."""
    if len(values) >= PLANS_KEPT:
        values.clear()
    values[key] = value
    return value


class Kept(Generic[V]):
    """Values by key; of more than *most* the least recently used goes. Thread-safe."""

    def __init__(self, most: int):
        self._most = most
        self._values: OrderedDict[Hashable, V] = OrderedDict()
        self._lock = Turns("what a device keeps", again=True)

    def get(self, key: Hashable, make: Callable[[], V]) -> V:
        """The value of a key, or what *make* returns, which is not called under the lock: where two threads
        make one, the first one's counts."""
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
        """Keeps nothing."""
        with self._lock:
            self._values.clear()
