"""Locks that raise an error where a plain lock would wait for ever: the holder is a thread that a fork left
behind, or the waiting thread itself. Also a function that runs work in other threads, or in this thread if
no other can start."""

from __future__ import annotations

import itertools
import os
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from .errors import DeviceError

T = TypeVar("T")

FORKED = (
    "this process was forked after Vulkan was opened, or while another thread was at work, and neither"
    " survives a fork: open no device or session before the fork (gunicorn: without --preload), or start the"
    " child with multiprocessing's 'spawn' method"
)
# All locks, by number. A WeakSet removes entries in callbacks, in which a KeyboardInterrupt would be lost.
_all: dict[int, weakref.ref[Turns]] = {}
_numbers = itertools.count()
_most = 256  # number of references after which dead references are removed


class Turns:
    """A lock as a context manager: one thread at a time executes the block.

    Args:
        what: what the lock guards, for the message.
        again: whether the thread that is inside may enter again, as from a signal handler.

    Entering raises DeviceError if waiting would never end: in a process that was forked while another
    thread was inside and, without *again*, if the thread inside enters again from a signal handler or a
    callback.

    >>> with (turns := Turns("the example")):  # doctest: +ELLIPSIS
    ...     with turns:
    ...         pass
    Traceback (most recent call last):
        ...
    vkq.errors.DeviceError: the example: this thread is inside it already, ...
    """

    def __init__(self, what: str, again: bool = False):
        self._what, self._again = what, again
        self._lock = threading.RLock()
        self._left_behind = False
        _all[next(_numbers)] = weakref.ref(self)
        if len(_all) > _most:
            _drop_dead()

    def check(self) -> None:
        """Raise an error if the lock's holder is a thread that a fork left behind."""
        if self._left_behind:
            raise DeviceError(f"{self._what}: {FORKED}")

    # `with` calls the lock's own C methods, and Python delivers signals only between bytecodes. So a signal
    # handler cannot raise an exception between entering the lock and the body, or between the body and
    # leaving the lock.
    @property
    def __enter__(self) -> Callable[[], bool]:
        self.check()
        if not self._again and self._lock._is_owned():  # type: ignore[attr-defined]
            raise DeviceError(
                f"{self._what}: this thread is inside it already, and came back through a signal handler"
                " or a callback (progress); let it return first, or hand the work to another thread"
            )
        return self._lock.__enter__

    @property
    def __exit__(self) -> Callable[..., None]:
        return self._lock.__exit__

    def close(self) -> None:
        """Wait until no thread holds the lock, and let no thread enter again."""
        self._lock.acquire()

    def _forked(self) -> None:
        """Repair this lock in a forked child. The child's only thread keeps the locks that it holds. A lock
        of another thread is left behind."""
        if not self._lock.acquire(blocking=False):
            self._left_behind, self._lock = True, threading.RLock()
        else:
            self._lock.release()


def _drop_dead() -> None:
    """Remove references to deleted locks; a service that creates many sessions would accumulate them."""
    global _most
    for number, each in list(_all.items()):
        if each() is None:
            _all.pop(number, None)
    _most = 2 * len(_all) + 256


def _after_fork() -> None:
    for each in list(_all.values()):
        if (turns := each()) is not None:
            turns._forked()


def begun(pool: ThreadPoolExecutor, call: Callable[[], T]) -> Future[T]:
    """Start *call* in a pool. At the exit of the process, when no thread can start, run it in this thread."""
    try:
        return pool.submit(call)
    except RuntimeError:
        done: Future[T] = Future()
        try:
            done.set_result(call())
        except Exception as error:
            done.set_exception(error)
        return done


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
