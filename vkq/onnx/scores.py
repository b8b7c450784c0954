"""Scaled dot-product attention: `attend` computes it for every attention operator of a model, and `append`
extends its cache; `attend_int8` and `append_int8` do so for int8 caches."""

from __future__ import annotations

import dataclasses

import numpy as np

from ..graph.passes.ranges import INT32
from ..numerics.attention_int8 import Int8Rules
from .rewriting import Rewriting


@dataclasses.dataclass(frozen=True)
class Scores:
    """The sizes and rules of one attention. A query of head h reads keys of head h // (heads / kv_heads).

    Query s has the position ``start + s`` among the keys; ``start`` is a number, or an int32 value of shape
    (batch,). causal: a query sees the keys up to its own position, or only the last *window* of them if
    window is not 0. lengths: an int32 value (batch,); keys from this position on are hidden. softcap: scores
    become softcap * tanh(score / softcap). bias: values that are then added to the scores; they broadcast to
    (batch, heads, queries, keys). shown: flags of visible keys, which broadcast to the same shape. sink: a
    value (heads,), the score of an additional key whose value is 0.
    """

    batch: int
    heads: int
    kv_heads: int
    queries: int
    keys: int
    scale: float
    causal: bool = False
    start: int | str = 0
    window: int = 0
    lengths: str = ""
    softcap: float = 0.0
    bias: tuple[str, ...] = ()
    shown: str = ""
    sink: str = ""


def attend(w: Rewriting, at: Scores, q: str, k: str, v: str) -> str:
    """Emit softmax(q k^T * scale ...) v in float32. q: (batch, heads, queries, d), k: (batch, kv_heads, keys,
    d), v: (batch, kv_heads, keys, e), of any float type; the result: (batch, heads, queries, e). The score of
    a hidden key is the lowest float32, so that a query that sees no key gets the mean of all values."""
    q, k, v = (w.cast(x, "float32") for x in (q, k, v))
    lines = at.heads // at.kv_heads * at.queries
    q = w.reshape(q, (at.batch, at.kv_heads, lines, -1))
    scores = w.emit("MatMul", [q, w.transpose(k, 0, 1, 3, 2)])
    scores = w.reshape(scores, (at.batch, at.heads, at.queries, at.keys))
    scores = w.emit("Mul", [scores, w.constant(at.scale)])
    if at.softcap:
        cap = w.constant(at.softcap)
        scores = w.emit("Mul", [w.emit("Tanh", [w.emit("Div", [scores, cap])]), cap])
    for bias in at.bias:
        scores = w.emit("Add", [scores, w.cast(bias, "float32")])
    for shown in (at.shown, _seen(w, at)):
        if shown:
            scores = w.emit("Where", [shown, scores, w.constant(np.finfo(np.float32).min)])
    weights = w.reshape(_weights(w, at, scores), (at.batch, at.kv_heads, lines, at.keys))
    return w.reshape(w.emit("MatMul", [weights, v]), (at.batch, at.heads, at.queries, -1))


def attend_int8(w: Rewriting, at: Scores, q: str, k: str, v: str, width: int) -> str:
    """Emit attention like `attend`, to keys and values that are int8 caches of vectors of *width* numbers,
    with causal queries and lengths. q and the result: (batch, queries, heads, width), float32."""
    bias = ""
    for one in at.bias:
        wide = w.cast(one, "float32")
        bias = w.emit("Add", [bias, wide]) if bias else wide
    scale, softcap = (float(np.float32(x)) for x in (at.scale, at.softcap))
    rules = Int8Rules(width, scale, isinstance(at.start, str), at.window, softcap)
    sink = w.cast(at.sink, "float32") if at.sink else ""
    inputs = [w.cast(q, "float32"), k, v, at.lengths, bias, sink]
    return w.emit("attention_int8", inputs, rules=rules, fused="reads the int8 cache up to its length")


def append_int8(w: Rewriting, past: str, held: int, x: str, at: Scores, output: str) -> str:
    """Append x (batch, tokens, kv_heads, d), from position ``start`` on, to *past* with *held* keys; return
    the int8 cache."""
    start = at.start if isinstance(at.start, str) else ""
    inputs = [w.cast(x, "float32"), start, past if held else ""]
    return w.emit("append_cache", inputs, output, total=at.keys, range=INT32)


def _weights(w: Rewriting, at: Scores, scores: str) -> str:
    if not at.sink:
        return w.emit("Softmax", [scores], axis=-1)
    shape = w.constant((at.batch, at.heads, at.queries, 1), "int64")
    sink = w.reshape(w.cast(at.sink, "float32"), (1, at.heads, 1, 1))
    both = w.emit("Concat", [scores, w.emit("Expand", [sink, shape])], axis=-1)
    return w.part(w.emit("Softmax", [both], axis=-1), 3, 0, at.keys)


def places(w: Rewriting, start: int | str, batch: int, count: int) -> str:
    """Return the positions of *count* tokens, int32: (batch, count), or (1, count) if *start* is a number."""
    line = np.arange(count)[None]
    if isinstance(start, int):
        return w.constant(line + start, "int32")
    return w.emit("Add", [w.reshape(start, (batch, 1)), w.constant(line, "int32")])


def _seen(w: Rewriting, at: Scores) -> str:
    """Return flags (batch or 1, 1, queries, keys); "" if every query sees every key."""
    key = w.constant(np.arange(at.keys), "int32")
    end = w.reshape(at.lengths, (at.batch, 1)) if at.lengths else ""
    if not at.causal:
        return w.emit("Less", [key, w.reshape(end, (at.batch, 1, 1, 1))]) if end else ""
    place = places(w, at.start, at.batch, at.queries)
    if end:
        place = w.emit("Min", [place, w.emit("Sub", [end, w.constant(1, "int32")])])
    place = w.reshape(place, (-1, 1, at.queries, 1))
    seen = w.emit("LessOrEqual", [key, place])
    if not at.window:
        return seen
    first = w.emit("Sub", [place, w.constant(at.window, "int32")])
    return w.emit("And", [seen, w.emit("Greater", [key, first])])


def append(w: Rewriting, past: str, held: int, x: str, at: Scores, output: str = "") -> str:
    """Return a cache (batch, kv_heads, keys, d): *past* with *held* keys ("" if there is none), and x (batch,
    kv_heads, count, d) from position ``start`` on."""
    if not past or not held:
        return w.emit("Identity", [x], output) if output else x
    if isinstance(at.start, int) and at.start == held:
        return w.emit("Concat", [past, x], output, axis=2)
    if held < at.keys:
        pads = w.constant([0, 0, 0, 0, 0, 0, at.keys - held, 0], "int64")
        past = w.emit("Pad", [past, pads])
    start = w.constant([at.start] * at.batch, "int32") if isinstance(at.start, int) else at.start
    return w.emit("TensorScatter", [past, x, start], output, axis=-2)


def heads_first(w: Rewriting, x: str, heads: int) -> str:
    """Rearrange x (batch, tokens, heads * d) to (batch, heads, tokens, d)."""
    return w.transpose(w.reshape(x, (0, 0, heads, -1)), 0, 2, 1, 3)


def joined(w: Rewriting, y: str, dtype: str, output: str) -> None:
    """Rearrange y (batch, heads, tokens, d) to (batch, tokens, heads * d), with the name *output*."""
    w.cast(w.reshape(w.transpose(y, 0, 2, 1, 3), (0, 0, -1)), dtype, output)
