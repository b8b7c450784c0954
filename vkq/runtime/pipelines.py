"""Making many pipelines at once: a driver compiles each on one core, and without the GIL."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

MOST_THREADS = 16  # a network has 20 to 60 pipelines

Progress = Callable[[int, int], None]


class Pipelines:
    """A block in which pipelines are made by threads. At its end all are made, and the first that could not
    be made raises, unless something else did."""

    def __init__(self, progress: Progress | None = None):
        self._pool = ThreadPoolExecutor(min(MOST_THREADS, os.cpu_count() or 1), "vkq-pipelines")
        self._futures: list[Future[Any]] = []
        self._progress = progress

    def submit(self, make: Callable[[], Any]) -> Future[Any]:
        """Begins one."""
        future = self._pool.submit(make)
        self._futures.append(future)
        return future

    def __enter__(self) -> Pipelines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                for done, future in enumerate(self._futures, 1):
                    future.result()
                    if self._progress:
                        self._progress(done, len(self._futures))
        finally:
            self._pool.shutdown()
