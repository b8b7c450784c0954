"""Finds the order in which one kernel's packed weights must be read to equal another kernel's, so that a
file stores these weights once.

The weight of a layer is a matrix of n output channels with k inputs each. A word (32 bits) holds four
consecutive inputs of a channel. In these orders of words (layouts/README.md), k counts words:

- ``[k][n]`` (kPackedInt8_4N4K) for dot products
- ``[k/4][n][k%4]`` (kPackedInt8_16K) or ``[n/16][k/8][n%16][k%8]`` (kPackedInt8_32K) for matrix units

In a convolution, k is (tap, channel) for dot products, and (chunk of channels, tap, channel in the chunk) for
matrix units."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint32]
# An order: the sizes of its axes, and their strides in stored words.
Order = tuple[tuple[int, ...], tuple[int, ...]]
AS_IT_IS: Order = ((), ())
# Number of words that are compared first, which rejects most orders.
LOOKED_AT = 512


def reordered(words: Words, order: Order) -> Words:
    """Return a view of the words in *order*, without a copy. The order must not read beyond the words."""
    sizes, strides = order
    if not sizes:
        return words
    return np.lib.stride_tricks.as_strided(words, sizes, [4 * s for s in strides], writeable=False)


def found(wanted: bytes, given: bytes) -> Order | None:
    """Return the order in which the words of *given* must be read to equal *wanted*, which has equally many
    words. Return None if there is no such order."""
    if wanted == given:
        return AS_IT_IS
    to, words = np.frombuffer(wanted, np.uint32), np.frombuffer(given, np.uint32)
    for order in (*_of_matrices(to, words), *_of_lines(to, words)):
        begins_alike = np.array_equal(words[_positions(order)], to[:LOOKED_AT])
        if begins_alike and np.array_equal(reordered(words, order).ravel(), to):
            return order
    return None


def _positions(order: Order) -> npt.NDArray[np.int64]:
    """Return the positions of the first `LOOKED_AT` words that the order reads."""
    rest, at = np.arange(min(LOOKED_AT, math.prod(order[0]))), np.int64(0)
    for size, stride in zip(reversed(order[0]), reversed(order[1]), strict=True):
        at, rest = at + rest % size * stride, rest // size
    return np.asarray(at)


def key(data: bytes) -> tuple[int, int]:
    """Return a hash key that does not depend on the order of the words."""
    return len(data), int(np.frombuffer(data, np.uint32).sum(dtype=np.uint64))


def _of_matrices(lines: Words, matrices: Words) -> Iterator[Order]:
    """Yield the possible orders in which stored 16K or 32K weights are read as 4N4K weights."""
    for n, k in _channels(lines, matrices):
        for taps, chunks in _chunks(k // 4):
            run = k // taps // chunks * n
            yield (taps, chunks, run // n // 4, 4, n), (run, taps * run, 4 * n, 1, 4)
        if n % 16 == 0 and k % 8 == 0:
            yield (k // 8, 8, n // 16, 16), (128, 1, 16 * k, 8)


def _of_lines(matrices: Words, lines: Words) -> Iterator[Order]:
    """Yield the possible orders in which stored 4N4K weights are read as 16K or 32K weights."""
    for n, k in _channels(lines, matrices):
        for taps, chunks in _chunks(k // 4):
            run = k // taps // chunks * n
            yield (chunks, taps, run // n // 4, n, 4), (run, chunks * run, 4 * n, 1, n)
        if n % 16 == 0 and k % 8 == 0:
            yield (n // 16, k // 8, 16, 8), (16, 8 * n, 1, n)


def _channels(lines: Words, matrices: Words) -> Iterator[tuple[int, int]]:
    """Yield each pair (n channels, k words per channel) for which the first four words of channel 0 are
    equal in both layouts."""
    for n in _divisors(lines.size // 4):
        if np.array_equal(matrices[:4], lines[: 4 * n : n][:4]):
            yield n, lines.size // n


def _chunks(k: int) -> Iterator[tuple[int, int]]:
    """Yield each possible (number of taps, number of channel chunks) for k; (1, 1) comes first."""
    yield 1, 1
    for taps in _divisors(k)[1:]:
        for chunks in _divisors(k // taps)[1:]:
            yield taps, chunks


def _divisors(n: int) -> list[int]:
    small = [d for d in range(1, int(n**0.5) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
