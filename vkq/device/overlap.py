"""Run Python functions (pieces of work) during a long driver call, which runs in another thread.

Loading the drivers and opening a device take two tenths of a second, in a few calls that do not need Python.
Running the whole sequence of calls in a second thread would take longer: that thread would release the
interpreter at each of a hundred short calls, and wait 5 ms to get the interpreter back. So only the long
calls run in another thread.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Any, TypeVar

from ..turns import begun

T = TypeVar("T")


class _Pieces:
    """A queue of pieces of work; an error in a piece clears the queue."""

    def __init__(self, pieces: tuple[Callable[[], Any], ...]):
        self.left = deque(pieces)
        self._error: BaseException | None = None

    def step(self) -> None:
        try:
            self.left.popleft()()
        except BaseException as error:  # the driver's call must finish before the error is raised
            self._error = error
            self.left.clear()

    def finish(self) -> None:
        while self.left:
            self.step()
        if self._error is not None:
            raise self._error


_pieces: ContextVar[_Pieces | None] = ContextVar("_pieces", default=None)


@contextlib.contextmanager
def overlapped(*pieces: Callable[[], Any]) -> Iterator[None]:
    """Context manager: run the pieces in this thread while calls in the block wait in `long_call`, and run
    the remaining pieces at the end of the block; then raise the first error of a piece."""
    mine = _Pieces(pieces)
    token = _pieces.set(mine)
    try:
        yield
    finally:
        _pieces.reset(token)
        mine.finish()


def long_call(call: Callable[[], T]) -> T:
    """Return the result of *call*, which takes long and does not need the interpreter."""
    work = _pieces.get()
    if work is None or not work.left:
        return call()
    with ThreadPoolExecutor(1, "vkq-driver") as beside:
        waiting = begun(beside, call)
        while work.left and not waiting.done():
            work.step()
        return waiting.result()
