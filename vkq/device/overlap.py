"""Run Python functions (pieces of work) while another thread waits in a long call of a driver.

Loading the drivers and opening a device take two tenths of a second, most of it in a few calls that release
the interpreter lock. Only these long calls run in another thread. If all calls did, the thread would release
the lock at each of a hundred short calls, and wait up to 5 ms to get it back.
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
    """A queue of pieces of work. If a piece raises an error, the remaining pieces are dropped, and `finish`
    raises the error."""

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
    """Context manager: run the pieces in this thread whenever the block waits in `long_call`, and the
    remaining pieces at the end of the block. If a piece raises an error, raise it at the end of the
    block."""
    mine = _Pieces(pieces)
    token = _pieces.set(mine)
    try:
        yield
    finally:
        _pieces.reset(token)
        mine.finish()


def long_call(call: Callable[[], T]) -> T:
    """Call *call*, which takes long and releases the interpreter lock, and return its result. Meanwhile run
    the pieces of `overlapped`, if there are any."""
    work = _pieces.get()
    if work is None or not work.left:
        return call()
    with ThreadPoolExecutor(1, "vkq-driver") as beside:
        waiting = begun(beside, call)
        while work.left and not waiting.done():
            work.step()
        return waiting.result()
