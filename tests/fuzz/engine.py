"""Inputs by mutation of a corpus, drawn by hypothesis so that a failure is made small and can be seen
again."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Iterator

import hypothesis
from hypothesis import strategies as st

from .targets import Target, once

SECONDS = 1.0  # of processor time that one input may take
MEGABYTES = 300  # of memory, above what the process has before
MOST_BYTES = 60_000  # of an input


@st.composite
def inputs(draw: st.DrawFn, corpus: list[bytes], tokens: tuple[bytes, ...]) -> bytes:
    """A file of the corpus with up to eight edits: parts cut, doubled, moved to another file, bytes
    flipped, tokens put in or repeated."""
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
    """A MemoryError above `MEGABYTES` more than the process has."""
    with open("/proc/self/statm") as statm:
        have = int(statm.read().split()[0]) * resource.getpagesize()
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (have + (MEGABYTES << 20), before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def fuzz(name: str, target: Target, examples: int, seed: int | None = None) -> int:
    """Tries the corpus, then *examples* inputs; how many. Raises what an input raised, with the smallest
    input found."""
    tried = 0

    def check(data: bytes) -> None:
        nonlocal tried
        tried += 1
        took = []
        while len(took) < 3 and (
            not took or took[-1] >= SECONDS
        ):  # a collection of garbage may fall into one
            begun = time.process_time()
            once(target, data)
            took.append(time.process_time() - begun)
        assert min(took) < SECONDS, f"{min(took):.1f} s for {len(data)} bytes"

    corpus = target.corpus(name)
    with bounded_memory():
        for data in corpus:
            check(data)
        test = hypothesis.given(inputs(corpus, target.tokens))(check)
        if seed is not None:
            test = hypothesis.seed(seed)(test)
        hypothesis.settings(
            max_examples=examples, deadline=None, database=None, derandomize=seed is None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )(test)()  # fmt: skip
    return tried
