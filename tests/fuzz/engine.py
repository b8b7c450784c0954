"""Limits on the time and memory that one input may need, and inputs that hypothesis mutates from a corpus.
Hypothesis minimizes and can reproduce a failing input. (`guided` uses atheris to generate inputs.)"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
from hypothesis import strategies as st

from tests.effort import steps_at_most

from .targets import Target, once

WATCH_S = 1.0  # seconds of processor time; a slower input runs again with its instructions counted
STEPS = 10_000_000  # bytecode instructions that any input may run
STEPS_A_BYTE = 2_000  # more instructions for each byte of the input (PyYAML runs 1,300 for short numbers)
MEGABYTES = 300  # maximum memory that an input may allocate
MOST_BYTES = 60_000  # maximum size of an input in bytes
# A folder in memory for the files that the targets read; None for the usual temporary folder.
MEMORY = next((path for path in ("/dev/shm",) if os.access(path, os.W_OK)), None)


@st.composite
def inputs(draw: st.DrawFn, corpus: list[bytes], tokens: tuple[bytes, ...]) -> bytes:
    """Draw a file of the corpus with up to eight edits: cut or double a part, move it to another file, flip
    bytes, insert or repeat tokens."""
    data = draw(st.sampled_from(corpus))
    for _ in range(draw(st.integers(0, 8))):
        at = draw(st.integers(0, max(0, len(data))))
        length = draw(st.sampled_from((1, 2, 4, 16, 64, 1024)))
        kind = draw(st.integers(0, 6))
        if kind == 0:
            data = data[:at] + data[at + length :]
        elif kind == 1:
            data = (
                data[:at] + data[at : at + length] * draw(st.sampled_from((2, 3, 50))) + data[at + length :]
            )
        elif kind == 2:
            data = data[:at] + draw(st.binary(min_size=1, max_size=8)) + data[at + 1 :]
        elif kind == 3:
            other = draw(st.sampled_from(corpus))
            begin = draw(st.integers(0, len(other)))
            data = data[:at] + other[begin : begin + length] + data[at:]
        elif kind == 4:
            data = (
                data[:at]
                + draw(st.sampled_from(tokens)) * draw(st.sampled_from((1, 1, 2, 30, 1000)))
                + data[at:]
            )
        elif kind == 5 and at < len(data):
            data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        else:
            data = b"".join(draw(st.lists(st.sampled_from(tokens), max_size=30)))
        data = data[:MOST_BYTES]
    return data


@contextlib.contextmanager
def bounded_memory() -> Iterator[None]:
    """Context manager: raise a MemoryError if the process allocates `MEGABYTES` more than it has."""
    with open("/proc/self/statm") as statm:
        have = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (have + (MEGABYTES << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class TookLong(BaseException):
    """Raised if an input ran longer than `WATCH_S`. No handler in the tested code catches it."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Context manager: raise `TookLong` inside the block after `WATCH_S` of processor time."""

    def stop(number: int, frame: object) -> None:
        raise TookLong

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, WATCH_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextlib.contextmanager
def checking(target: Target) -> Iterator[Callable[[bytes], None]]:
    """Context manager: yield a function that runs a target on one input and raises the input's exception.

    An input that takes longer than `WATCH_S` of processor time is stopped, and run again while its
    instructions are counted. More than `STEPS` instructions and `STEPS_A_BYTE` for each byte give an
    AssertionError. So the speed of the machine does not change the verdict.
    """
    with tempfile.TemporaryDirectory(prefix="vkq-fuzz-", dir=MEMORY) as folder, bounded_memory():

        def check(data: bytes) -> None:
            try:
                with watched():
                    once(target, data, Path(folder))
            except TookLong:
                with steps_at_most(STEPS + STEPS_A_BYTE * len(data)):
                    once(target, data, Path(folder))

        yield check


def fuzz(name: str, target: Target, examples: int) -> int:
    """Try the corpus, then *examples* inputs, which do not change from run to run; return the number of
    inputs. Raise the error of the smallest failing input."""
    tried = 0
    corpus = target.corpus(name)
    with checking(target) as check:

        def counted(data: bytes) -> None:
            nonlocal tried
            tried += 1
            check(data)

        for data in corpus:
            counted(data)
        hypothesis.settings(
            max_examples=examples, deadline=None, database=None, derandomize=True,
            suppress_health_check=list(hypothesis.HealthCheck),
        )(hypothesis.given(inputs(corpus, target.tokens))(counted))()  # fmt: skip
    return tried
