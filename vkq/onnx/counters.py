"""Counters of a session, which a service may export as metrics."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from ..turns import Turns


@dataclasses.dataclass
class Counters:
    """Counters of a session, which only grow. Threads may count at the same time.

    - runs: completed calls of `run` and similar methods, and completed batches of `map`
    - shapes_prepared: calls whose set of input shapes had to be prepared first
    - cache_hits: calls whose set of input shapes was already prepared
    - bytes_uploaded, bytes_downloaded: the bytes of inputs and results that were arrays on the host
    """

    runs: int = 0
    shapes_prepared: int = 0
    cache_hits: int = 0
    bytes_uploaded: int = 0
    bytes_downloaded: int = 0

    def __post_init__(self) -> None:
        self._lock = Turns("the counters of a session", again=True)

    def prepared(self, hit: bool) -> None:
        """Count a request for a set of input shapes. *hit* is True if the set was already prepared."""
        with self._lock:
            self.cache_hits += hit
            self.shapes_prepared += not hit

    def ran(self, uploaded: int, downloaded: int) -> None:
        """Count a run that uploaded and downloaded these numbers of bytes."""
        with self._lock:
            self.runs += 1
            self.bytes_uploaded += uploaded
            self.bytes_downloaded += downloaded

    def as_dict(self) -> dict[str, int]:
        """Return all counters at one moment, by name."""
        with self._lock:
            return dataclasses.asdict(self)


def host_bytes(values: Iterable[Any]) -> int:
    """Return the total bytes of the arrays on the host among *values*."""
    return sum(int(x.nbytes) for x in values if hasattr(x, "__array_interface__"))
