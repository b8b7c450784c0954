"""Attention to an int8 cache (`attention_cache`). The number of tokens in the cache is an input; it gives
the positions of the queries. NumPy and devices execute the same sequence of steps.

A score is ``(sum of query * code) * key scale * scale``, then the softcap, then the bias. A weight is
multiplied by the scale of its value, and the product by the codes. Keys are accumulated in parts
(`vkq.numerics.attention.span_of`). A sink is the score of an additional key whose value is 0; it is added
before the first part.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from .attention import HIDDEN, Tile, accumulated, joined, spans
from .attention_cache import unpacked
from .exponential import tanh
from .rational import add, divide, multiply
from .steps import Array, Number, computed


@dataclasses.dataclass(frozen=True)
class Int8Rules:
    """The rules of attention to an int8 cache. If *follows* is False, a query beyond the cache's length has
    the position of the last token."""

    width: int  # elements of a key and of a value
    scale: float
    follows: bool  # True: the queries are the last tokens of the cache. False: its first tokens
    window: int = 0  # if not 0, causal queries attend to only the last `window` of their keys
    softcap: float = 0.0  # if not 0, scores become softcap * tanh(score / softcap)
    causal: bool = True  # a query attends to the keys up to its own position. False: to all in the cache
    guarded: bool = False  # replace NaN weights by 0; a query has them if all its keys have the bias -inf

    def flags(self, lengths: Array, queries: int, keys: int) -> Array:
        """Return a Boolean array (batch, queries, keys): True if the query attends to the key."""
        ends = lengths.reshape(-1, 1, 1)
        place = np.arange(queries)[:, None] + (ends - queries if self.follows else 0)
        place, key = np.minimum(place, ends - 1) if self.causal else ends - 1, np.arange(keys)
        found: Array = (key <= place) & ((key > place - self.window) | (self.window == 0))
        return found


def score_of(total: Number, key_scale: Number, scale: Number, softcap: float, bias: Number | None) -> Number:
    """Return the score for *total*, the sum of the products of a query and the codes of a key."""
    found = multiply(multiply(total, key_scale), scale)
    if softcap:
        found = multiply(tanh(divide(found, found.of(softcap))), found.of(softcap))
    return found if bias is None else add(found, bias)


def factor_of(weight: Number, value_scale: Number) -> Number:
    """Return weight * value_scale, or 0 for a weight of 0, because a hidden key may have a NaN scale."""
    return weight.u.equals(0).where(0.0, multiply(weight, value_scale))


def attention_int8(
    q: Array, k: Array, v: Array, lengths: Array, rules: Int8Rules, bias: Array | None = None,
    sink: Array | None = None,
) -> Array:  # fmt: skip
    """Return attention to an int8 cache, float32 (B, S, H, d), in the steps of the devices.

    - q: float32 (B, S, H, d): batch elements, queries, heads, elements of a head.
    - k, v: the words of a cache, (B, G, T, words): batch elements, heads of the cache, tokens, words of a
      vector. H is a multiple of G.
    - lengths (B,): the number of tokens in the cache of each batch element.
    - bias: broadcasts to (B, H, S, T).
    - sink: None, or the scores of the sinks (H,)."""
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

    parts, tile = spans(keys, lines, d), Tile.of(lines, d)
    with np.errstate(all="ignore"):
        states = [accumulated(values, lines, tile, part, scores_of, kept) for part in parts]
        of_row = None
        if sink is not None:  # repeat the sinks to the shape of the largest scores, (count, lines, 1)
            of_row = np.repeat(np.tile(sink.reshape(groups, -1), (batch, 1)), queries, 1)[..., None]
        y = joined(states, of_row, rules.guarded).reshape(batch, heads, queries, d)
    found: Array = y.transpose(0, 2, 1, 3)
    return found
