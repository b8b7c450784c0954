"""Attention without the matrix of scores (online softmax). Keys are processed in tiles, one after the
other, with a running maximum of the scores. NumPy and devices execute the same sequence of steps, which
depends only on the sizes (`Tile`).

A score is a sum over the elements of a head, from first to last. A row is the scores of one query. Several
lanes (invocations) share a row: each lane adds the weights of every lanes-th key, and a tree of additions
adds the sums of the lanes. A result adds weight * value, key by key. If a tile raises the maximum, all sums
of earlier tiles are first multiplied by exp(old maximum - new maximum).

The keys are divided into parts (`span_of`), whose results are joined in order. Parts are smaller if there
are fewer tiles of rows: many workgroups then share the keys of a few queries.

A result differs from a softmax of all scores at once by at most (keys + 4 tiles + 2 D + 8) 2^-24 times the
sum of the magnitudes of its terms. D is the difference of the largest and the smallest score, at most 104,
because smaller weights are zero. Subnormal values may count as zero.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from .elementary import maximum
from .exponential import exp
from .rational import add, divide, multiply, subtract
from .steps import INFINITY, Array, Number, computed, is_nan, magnitude

SPAN = 128  # minimum number of keys of a part; a multiple of the number of keys of every tile
LANES = 128  # number of invocations of a workgroup
MOST_WIDTH = 512  # maximum number of elements of a value vector (of one head)
# (maximum elements of a value vector, maximum rows of a tile)
ROWS_OF_WIDTH = ((64, 32), (128, 16), (MOST_WIDTH, 8))
HIDDEN = -np.inf


@dataclasses.dataclass(frozen=True)
class Tile:
    """The number of rows and of keys that a workgroup processes at once. The rows are the queries of all
    heads that share keys."""

    rows: int
    keys: int

    @classmethod
    def of(cls, lines: int, width: int) -> Tile:
        """Return the tile for *lines* rows and value vectors of *width* elements."""
        rows = next(most for limit, most in ROWS_OF_WIDTH if width <= limit)
        while rows > 1 and rows >= 2 * lines:
            rows //= 2
        return cls(rows, 32 if rows >= 16 else 64 if rows >= 4 else 128)

    @property
    def lanes(self) -> int:
        """The number of invocations that share a row."""
        return LANES // self.rows


def span_of(lines: int, width: int) -> int:
    """Return the number of keys of a part, a power of two: `SPAN` if the *lines* rows fit into one tile,
    more for more tiles."""
    tiles = -(-lines // Tile.of(lines, width).rows)
    return SPAN << (tiles - 1).bit_length()


def spans(keys: int, lines: int, width: int) -> list[range]:
    """Return the parts of the keys, for *lines* rows and values of *width* elements."""
    size = span_of(lines, width)
    return [range(first, min(first + size, keys)) for first in range(0, max(keys, 1), size)]


@dataclasses.dataclass(frozen=True)
class Seen:
    """The keys to which a query attends: all keys without ``causal``. With ``causal``, query i has position
    ``start`` + i and attends to the keys up to its position, or only to the last *window* of them if
    *window* is not 0."""

    causal: bool = False
    start: int = 0
    window: int = 0

    def flags(self, queries: int, keys: int, places: Array | None = None) -> Array:
        """Return a Boolean array (queries, keys), True where the query attends to the key. *places* (batch,
        queries): the positions of the queries among the keys; the result is then (batch, queries, keys)."""
        given = self.start + np.arange(queries) if places is None else places
        place, key = given[..., None], np.arange(keys)
        if not self.causal:
            return np.ones((queries, keys), np.bool_)
        found: Array = (key <= place) & ((key > place - self.window) | (self.window == 0))
        return found


def score(total: Number, scale: Number, bias: Number | None) -> Number:
    """Return the score for *total*, the sum of the products of a query and a key: total * scale + bias."""
    scaled = multiply(total, scale)
    return scaled if bias is None else add(scaled, bias)


def base(largest: Number) -> Number:
    """Return the number to subtract from all scores of a row: the row's largest score, or 0 if its query
    attends to no key."""
    return largest.u.equals(0xFF800000).where(0.0, largest)


def weight(score: Number, base: Number) -> Number:
    return exp(subtract(score, base))


def weighed(total: Number, inverse: Number, guarded: bool) -> Number:
    """Return total * inverse, where *inverse* is 1 / the sum of the weights. Adding 0.0 turns -0.0 into
    0.0, so that hidden keys do not change the sign of a zero. *guarded*: a result with NaN weights is 0."""
    y = multiply(total, inverse) + 0.0
    y = (magnitude(inverse).u >= INFINITY).where(0.0, y) if guarded else y
    return is_nan(y).where(np.nan, y)


def attention(
    q: Array, k: Array, v: Array, scale: float, seen: Seen | None = None, bias: Array | None = None,
    guarded: bool = False, places: Array | None = None,
) -> Array:  # fmt: skip
    """Return softmax(q k^T * scale + bias) v, (B, H, S, e), in the steps of the devices.

    The operands are float32, for B batch elements, H heads, G heads of keys (H is a multiple of G), S
    queries and T keys.

    - q (B, H, S, d), k (B, G, T, d), v (B, G, T, e).
    - bias: broadcasts to (B, H, S, T).
    - guarded: replace NaN weights by 0; a query that attends to no key has NaN weights.
    - places: int32 (B or 1, S), the positions of the queries; with a causal *seen*, they replace seen.start.
    """
    (batch, heads, queries, d), (groups, keys) = q.shape, k.shape[1:3]
    lines, count = heads // groups * queries, batch * groups
    flags = (seen or Seen()).flags(queries, keys, places).reshape(-1, 1, 1, queries, keys)
    shown = np.broadcast_to(flags, (batch, groups, heads // groups, queries, keys)).reshape(
        count, lines, keys
    )
    own = None
    if bias is not None:
        own = np.broadcast_to(bias, (batch, heads, queries, keys)).reshape(count, lines, keys)
    with np.errstate(all="ignore"):
        y = _rows(
            q.reshape(count, lines, d), k.reshape(count, keys, d), v.reshape(count, keys, -1),
            np.float32(scale), shown, own, guarded,
        )  # fmt: skip
    return y.reshape(batch, heads, queries, -1)


def _rows(
    q: Array, k: Array, v: Array, scale: np.float32, shown: Array, bias: Array | None, guarded: bool
) -> Array:
    def scores_of(part: slice) -> Array:
        own = None if bias is None else bias[:, :, part]
        return np.where(shown[:, :, part], _scores(q, k[:, part], scale, own), HIDDEN)

    tile = Tile.of(q.shape[1], v.shape[2])
    parts = spans(v.shape[1], q.shape[1], v.shape[2])
    states = [accumulated(v, q.shape[1], tile, part, scores_of) for part in parts]
    if len(states) > 1:
        return joined(states, None, guarded)
    _, sums, found = states[0]
    inverse = computed(divide, np.ones_like(sums), sums)
    return computed(lambda x, other: weighed(x, other, guarded), found, inverse)


def accumulated(
    v: Array, lines: int, tile: Tile, span: range, scores_of: Callable[[slice], Array],
    kept: Callable[[Array, slice], Array] = lambda weights, part: weights,
) -> tuple[Array, Array, Array]:  # fmt: skip
    """For each of *lines* rows, return (largest score, sums of weights by lane, sums of factor * value)
    over the keys in *span*. v: (count, keys, width).

    ``scores_of(part)`` returns the scores (count, lines, keys) of the keys in the slice *part*.
    ``kept(weights, part)`` returns the factors of the values of these keys, by default the weights."""
    count, _, width = v.shape
    largest = np.full((count, lines, 1), HIDDEN, np.float32)
    sums, found = (np.zeros((count, lines, n), np.float32) for n in (tile.lanes, width))
    for first in range(span.start, span.stop, tile.keys):
        part = slice(first, min(first + tile.keys, span.stop))
        scores = np.full((count, lines, tile.keys), HIDDEN, np.float32)
        scores[:, :, : part.stop - first] = scores_of(part)
        before = largest
        for key in range(tile.keys):
            largest = computed(maximum, largest, scores[:, :, key, None])
        subtracted = computed(base, largest)
        weights, shrunk = computed(weight, scores, subtracted), computed(weight, before, subtracted)
        sums, found = computed(multiply, sums, shrunk), computed(multiply, found, shrunk)
        for key in range(0, tile.keys, tile.lanes):
            sums = computed(add, sums, weights[:, :, key : key + tile.lanes])
        factors = kept(weights[:, :, : part.stop - first], part)
        for key in range(part.stop - first):
            found = found + factors[:, :, key, None] * v[:, None, first + key]
    while sums.shape[2] > 1:
        half = sums.shape[2] // 2
        sums = computed(add, sums[:, :, :half], sums[:, :, half:])
    return largest, sums, found


def _scores(q: Array, k: Array, scale: np.float32, bias: Array | None) -> Array:
    total = np.zeros((*q.shape[:2], k.shape[1]), np.float32)
    for c in range(q.shape[2]):
        total = total + q[:, :, c, None] * k[:, None, :, c]
    if bias is None:
        return computed(lambda x: score(x, x.of(float(scale)), None), total)
    return computed(lambda x, more: score(x, x.of(float(scale)), more), total, bias)


def joined(states: list[tuple[Array, Array, Array]], sink: Array | None, guarded: bool) -> Array:
    """Return the results of attention to all keys. *states*: the results of `accumulated` for each part of
    the keys. *sink*: the score of an additional key whose value is 0, or None."""
    largest = np.full_like(states[0][0], HIDDEN) if sink is None else sink
    for one, _, _ in states:
        largest = computed(maximum, largest, one)
    subtracted = computed(base, largest)
    total = np.zeros_like(largest) if sink is None else computed(weight, sink, subtracted)
    found = np.zeros_like(states[0][2])
    for one, sums, results in states:
        factor = computed(weight, one, subtracted)
        total = computed(add, total, computed(multiply, sums, factor))
        found = found + results * factor
    inverse = computed(divide, np.ones_like(total), total)
    return computed(lambda x, other: weighed(x, other, guarded), found, inverse)
