"""Bounds on work instead of time, so that a slow or busy machine does not change a result."""

from __future__ import annotations

import contextlib
import sys
import tracemalloc
from collections.abc import Iterator
from types import FrameType
from typing import Any


class TooMuchWork(BaseException):
    """Raised if more work was done than allowed. No handler in the tested code catches this exception."""


@contextlib.contextmanager
def calls_at_most(most: int) -> Iterator[None]:
    """Context manager: raise AssertionError once more than *most* functions of Python and C were called in
    the block."""
    called = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal called
        called += event in ("call", "c_call")
        if called > most:
            raise TooMuchWork

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    except TooMuchWork:
        raise AssertionError(f"more than {most} calls") from None
    finally:
        sys.setprofile(before)


@contextlib.contextmanager
def steps_at_most(most: int) -> Iterator[None]:
    """Context manager: raise AssertionError once functions called in the block have run more than *most*
    bytecodes.

    Unlike `calls_at_most`, this also detects a loop without calls; it is about 50 times slower.
    """
    ran = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal ran
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        ran += event == "opcode"
        if ran > most:
            raise TooMuchWork
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    except TooMuchWork:
        raise AssertionError(f"more than {most} bytecode instructions ran") from None
    finally:
        sys.settrace(before)


@contextlib.contextmanager
def memory_at_most(most: int) -> Iterator[None]:
    """Context manager: raise AssertionError if the block allocated more than *most* bytes of Python memory
    at a time."""
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak <= most, f"{peak} bytes at once; at most {most} are allowed"


@contextlib.contextmanager
def little_work(calls: int = 2_000_000, memory: int = 32 << 20) -> Iterator[None]:
    """Context manager: limit calls and memory to what a malicious input may cost before it is refused."""
    with memory_at_most(memory), calls_at_most(calls):
        yield
