"""What a thread does while a driver takes its time.

Loading the drivers and opening a device take two tenths of a second, in a few calls that leave Python alone.
A second thread that opens the device beside this one would take longer: it lets go of the interpreter at each
of a hundred short calls, and has it back only after this thread's turn of 5 ms. So only the long calls leave
the thread.
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
    """Pieces of work in their order; after one that raises there are none."""

    def __init__(self, pieces: tuple[Callable[[], Any], ...]):
        self.left = deque(pieces)
        self._error: BaseException | None = None

    def step(self) -> None:
        try:
            self.left.popleft()()
        except BaseException as error:  # the driver's call is not to be given up for it
            self._error = error
            self.left.clear()

    def finish(self) -> None:
        while self.left:
            self.step()
        if self._error is not None:
            raise self._error


_pieces: ContextVar[_Pieces | None] = ContextVar("_pieces", default=None)


@contextlib.contextmanager
def meanwhile(*pieces: Callable[[], Any]) -> Iterator[None]:
    """This thread does the pieces while it waits in the block for `long` calls, and at its end those that are
    left; then the first error of one is raised."""
    mine = _Pieces(pieces)
    token = _pieces.set(mine)
    try:
        yield
    finally:
        _pieces.reset(token)
        mine.finish()


def long(call: Callable[[], T]) -> T:
    """What *call* returns, which takes long and leaves the interpreter alone."""
    work = _pieces.get()
    if work is None or not work.left:
        return call()
    with ThreadPoolExecutor(1, "vkq-driver") as beside:
        waiting = begun(beside, call)
        while work.left and not waiting.done():
            work.step()
        return waiting.result()
