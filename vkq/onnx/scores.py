"""Scaled dot-product attention for all attention operators: `attend` emits the attention, and `append`
extends a key-value cache. For int8 caches, `vkq.onnx.int8_caches` does both."""

from __future__ import annotations

import dataclasses

import numpy as np

from .rewriting import Rewriting


@dataclasses.dataclass(frozen=True)
class Scores:
    """The sizes and rules of one attention operator. A query of head h reads the keys of head h // (heads /
    kv_heads). A field that is a string is the name of a value in the graph, or "" if there is no such value.

    - start: the position of the first query among the keys, a number or an int32 value (batch,)
    - causal: True if a query sees only the keys up to its own position
    - window: if it is not 0, a causal query sees only the last *window* keys up to its own position
    - lengths: an int32 value (batch,), the number of visible keys
    - softcap: if it is not 0, scores become softcap * tanh(score / softcap)
    - bias: values that are added to the scores after the softcap; broadcast to (batch, heads, queries, keys)
    - shown: Booleans, True for visible keys; broadcast to (batch, heads, queries, keys)
    - sink: a value (heads,), the score of an additional key whose value vector is 0
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
    """Emit softmax(q k^T * scale ...) v in float32, with the rules of *at*.

    q: (batch, heads, queries, d). k: (batch, kv_heads, keys, d). v: (batch, kv_heads, keys, e). The result:
    (batch, heads, queries, e). q, k and v may have any float type. A hidden key gets the lowest float32 as
    its score, so that a query that sees no key gets the mean of all value vectors."""
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


def _weights(w: Rewriting, at: Scores, scores: str) -> str:
    if not at.sink:
        return w.emit("Softmax", [scores], axis=-1)
    shape = w.constant((at.batch, at.heads, at.queries, 1), "int64")
    sink = w.reshape(w.cast(at.sink, "float32"), (1, at.heads, 1, 1))
    both = w.emit("Concat", [scores, w.emit("Expand", [sink, shape])], axis=-1)
    return w.part(w.emit("Softmax", [both], axis=-1), 3, 0, at.keys)


def places(w: Rewriting, start: int | str, batch: int, count: int) -> str:
    """Return the name of the int32 positions of *count* consecutive tokens, the first at *start*: (1,
    count) if *start* is a number, else (batch, count)."""
    line = np.arange(count)[None]
    if isinstance(start, int):
        return w.constant(line + start, "int32")
    return w.emit("Add", [w.reshape(start, (batch, 1)), w.constant(line, "int32")])


def _seen(w: Rewriting, at: Scores) -> str:
    """Emit a bool mask of the keys that each query may attend to, broadcastable to (batch, 1, queries, keys).
    A query attends to the keys within the sequence's length. If the attention is causal, the keys must also
    be within the window and not after the query. Return the mask's name; "" if every query attends to every
    key."""
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
    """Emit a cache (batch, kv_heads, keys, d). It has the *held* keys of *past* ("" if there is no past).
    From position ``at.start`` on, it has x (batch, kv_heads, count, d)."""
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
    """Emit x (batch, tokens, heads * d) rearranged to (batch, heads, tokens, d)."""
    return w.transpose(w.reshape(x, (0, 0, heads, -1)), 0, 2, 1, 3)


def joined(w: Rewriting, y: str, dtype: str, output: str) -> None:
    """Rearrange y (batch, heads, tokens, d) to (batch, tokens, heads * d) and cast it to *dtype*. The result
    has the name *output*."""
    w.cast(w.reshape(w.transpose(y, 0, 2, 1, 3), (0, 0, -1)), dtype, output)
