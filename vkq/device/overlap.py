"""Run Python functions while another thread waits in a long call of a driver.

Loading the drivers and opening a device take 0.2 s, most of it in a few long calls, which release the
interpreter lock. Only these calls run in another thread. There are also a hundred short calls; in another
thread, each would release the lock and wait up to 5 ms to get it back.
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
    """A queue of functions. An error in a function drops the remaining ones, and `finish` raises it."""

    def __init__(self, pieces: tuple[Callable[[], Any], ...]):
        self.left = deque(pieces)
        self._error: BaseException | None = None

    def step(self) -> None:
        try:
            self.left.popleft()()
        except BaseException as error:  # raised by `finish`, after the driver's call
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
    """Context manager: run the functions *pieces* in this thread while the block waits in `long_call`. Run
    the remaining ones at the end of the block. An error in a function is raised at the end of the block."""
    mine = _Pieces(pieces)
    token = _pieces.set(mine)
    try:
        yield
    finally:
        _pieces.reset(token)
        mine.finish()


def long_call(call: Callable[[], T]) -> T:
    """Return the result of *call*, a long call that releases the interpreter lock. Meanwhile run the
    functions of `overlapped`."""
    work = _pieces.get()
    if work is None or not work.left:
        return call()
    with ThreadPoolExecutor(1, "vkq-driver") as beside:
        waiting = begun(beside, call)
        while work.left and not waiting.done():
            work.step()
        return waiting.result()
