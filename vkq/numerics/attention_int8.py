"""Attention to an int8 cache (`attention_cache`), whose lengths, and so the positions of the queries, are
inputs. NumPy and devices compute the same steps in the same order.

A score is ``(sum of query * code) * key scale * scale``, then the softcap and a bias. A weight is multiplied
by its value's scale, then by the codes. Keys are accumulated in parts (`span_of`). With fewer tiles of rows
the parts are smaller, so that many workgroups share the keys even if there is a single token. The largest
scores and the sums of the parts are then joined in order, after the sink, which is the score of a further key
whose value is 0.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .attention import HIDDEN, Tile, accumulated, base, weighed, weight
from .attention_cache import unpacked
from .elementary import maximum
from .exponential import tanh
from .rational import add, divide, multiply
from .steps import Array, Number, computed

SPAN = 128  # minimum number of keys of a part, a multiple of every tile's keys


@dataclasses.dataclass(frozen=True)
class Int8Rules:
    """The rules of attention to an int8 cache. width: the size of a key and of a value. A query attends to
    the keys up to its own position, or to the last *window* of them if window is not 0. follows: the queries
    are the last tokens of the cache; otherwise they are the first tokens, and queries beyond the cache's
    length have the position of its last token. softcap: scores become softcap * tanh(score / softcap), unless
    it is 0."""

    width: int
    scale: float
    follows: bool
    window: int = 0
    softcap: float = 0.0

    def flags(self, lengths: Array, queries: int, keys: int) -> Array:
        """Return flags (batch, queries, keys): True if the query attends to the key."""
        ends = lengths.reshape(-1, 1, 1)
        place = np.arange(queries)[:, None] + (ends - queries if self.follows else 0)
        place, key = np.minimum(place, ends - 1), np.arange(keys)
        found: Array = (key <= place) & ((key > place - self.window) | (self.window == 0))
        return found


def span_of(lines: int, width: int) -> int:
    """Return how many keys are accumulated together, a power of two: `SPAN` for one tile of rows, and
    proportionally more for more tiles."""
    tiles = -(-lines // Tile.of(lines, width).rows)
    return SPAN << (tiles - 1).bit_length()


def score_of(total: Number, key_scale: Number, scale: Number, softcap: float, bias: Number | None) -> Number:
    """Return a score from the sum of the products of a query and a key's codes."""
    found = multiply(multiply(total, key_scale), scale)
    if softcap:
        found = multiply(tanh(divide(found, found.of(softcap))), found.of(softcap))
    return found if bias is None else add(found, bias)


def factor_of(weight: Number, value_scale: Number) -> Number:
    """Return weight * scale. It is 0 for weight 0, even if a hidden key's scale is NaN."""
    return weight.u.equals(0).where(0.0, multiply(weight, value_scale))


def attention_int8(
    q: Array, k: Array, v: Array, lengths: Array, rules: Int8Rules, bias: Array | None = None,
    sink: Array | None = None,
) -> Array:  # fmt: skip
    """Return attention in the steps of devices: float32 (B, S, H, d). q (B, S, H, d) is float32; k and v are
    the words of a cache (B, G, T, words), and H is a multiple of G. lengths (B,): the tokens of each batch
    element's cache. bias is broadcast to (B, H, S, T); sink: (H,)."""
    (batch, queries, heads, d), (groups, keys) = q.shape, k.shape[1:3]
    lines, count = heads // groups * queries, batch * groups
    rows = q.transpose(0, 2, 1, 3).reshape(count, lines, d)
    (codes, k_scale), (values, v_scale) = (unpacked(x.reshape(count, keys, -1), d) for x in (k, v))
    whole = batch, heads, queries, keys
    flags = np.broadcast_to(rules.flags(lengths, queries, keys)[:, None], whole).reshape(count, lines, keys)
    own = None if bias is None else np.broadcast_to(bias, whole).reshape(count, lines, keys)

    def scores_of(part: slice) -> Array:
        total = np.zeros((count, lines, part.stop - part.start), np.float32)
        for c in range(d):
            total = total + rows[:, :, c, None] * codes[:, None, part, c]
        arrays = [total, k_scale[:, None, part], *([] if own is None else [own[:, :, part]])]

        def step(total: Number, key_scale: Number, more: Number | None = None) -> Number:
            return score_of(total, key_scale, total.of(rules.scale), rules.softcap, more)

        found: Array = np.where(flags[:, :, part], computed(step, *arrays), HIDDEN)
        return found

    def kept(weights: Array, part: slice) -> Array:
        return computed(factor_of, weights, v_scale[:, None, part])

    size, tile = span_of(lines, d), Tile.of(lines, d)
    with np.errstate(all="ignore"):
        ranges = [range(first, min(first + size, keys)) for first in range(0, keys, size)]
        states = [accumulated(values, lines, tile, span, scores_of, kept) for span in ranges]
        of_row = None
        if sink is not None:  # shape (count, lines, 1), like the largest scores
            of_row = np.repeat(np.tile(sink.reshape(groups, -1), (batch, 1)), queries, 1)[..., None]
        y = _joined(states, of_row).reshape(batch, heads, queries, d)
    found: Array = y.transpose(0, 2, 1, 3)
    return found


def _joined(states: list[tuple[Array, Array, Array]], sink: Array | None) -> Array:
    """Join the largest scores, sums of weights, and results of parts of the keys."""
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
    return computed(lambda x, other: weighed(x, other, False), found, inverse)
