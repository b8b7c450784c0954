"""The worker thread of a session, for runs in the background and runs with a timeout."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

# an alias of the built-in TimeoutError from Python 3.11 on
from concurrent.futures import TimeoutError as Late
from typing import Any, TypeVar

from ..errors import ArgumentError, TimedOutError
from ..turns import Turns

T = TypeVar("T")


class Worker:
    """One thread that runs calls one after the other. It is started by the first call."""

    def __init__(self) -> None:
        self._lock = Turns("the thread of a session", again=True)
        self._pool: ThreadPoolExecutor | None = None

    def begin(self, call: Callable[[], T]) -> Future[T]:
        """Run *call* on the thread, after all earlier calls."""
        with self._lock:
            self._pool = self._pool or ThreadPoolExecutor(1, "vkq-session")
            return self._pool.submit(call)

    def within(self, call: Callable[[], T], seconds: Any, what: str) -> T:
        """Run *call* on the thread and return its result. Raises TimedOutError after *seconds*. The call is
        then cancelled, or continues if it has begun."""
        if not seconds > 0:
            raise ArgumentError(f"{what}: timeout is {seconds}; it must be above 0 seconds, or None")
        future = self.begin(call)
        try:
            return future.result(seconds)
        except Late as error:
            if future.done():  # *call* itself raised a TimeoutError
                raise
            waited = "had not begun" if future.cancel() else "goes on, and later runs wait for it"
            raise TimedOutError(
                f"{what}: no result within {seconds:g} s; the work {waited}. The first run of a set of shapes"
                " also prepares the model for these shapes: run each set once without a timeout"
            ) from error

    def close(self) -> None:
        """Accept no more calls. A call that has begun still completes; calls that wait are cancelled."""
        with self._lock:
            if self._pool is not None:
                self._pool.shutdown(wait=False, cancel_futures=True)
                self._pool = None
