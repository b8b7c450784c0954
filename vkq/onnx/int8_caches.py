"""Rewrites attention with int8 caches (`vkq.numerics.attention_cache`): new tokens are appended to the
caches, and attention reads the words of the caches."""

from __future__ import annotations

import numpy as np

from ..errors import ModelError
from ..graph.passes.ranges import INT32
from ..numerics.attention import MOST_WIDTH
from ..numerics.attention_cache import words_of
from ..numerics.attention_int8 import Int8Rules
from .rewriting import Rewriting
from .scores import Scores

REMEDY = "leave kv_cache out"


def attended(w: Rewriting, at: Scores, qkv: list[str], widths: tuple[int, int], past: int) -> str:
    """Append k and v to int8 caches, and compute the attention of q to the extended caches. Return it as
    float32 (batch, queries, heads, d). Results 1 and 2 of the node are the new caches.

    - qkv: q (batch, queries, heads, d), k and v (batch, tokens, kv_heads, d)
    - widths: the sizes of a key and of a value, which must be equal
    - past: inputs *past* and *past* + 1 of the node are the old caches"""
    width, other = widths
    if width != other:
        _refuse(w, f"its keys have {width} numbers and its values {other}; both must have the same number")
    if width > MOST_WIDTH:
        _refuse(w, f"its heads have {width} numbers; the most is {MOST_WIDTH}")
    _check_follows(w, at)
    held = 0
    for i in (past, past + 1):
        spec = w.spec(i)
        held = 0 if spec is None else spec.shape[2]
        _check_words(w, i, at, width)
    q, *both = qkv
    k, v = (append_int8(w, w.name(past + i), held, x, at, w.result(1 + i)) for i, x in enumerate(both))
    return attend_int8(w, at, q, k, v, width)


def append_cache(w: Rewriting) -> bool:
    """Rewrite a Concat of a past cache and new tokens (batch, heads, tokens, d). Its results become the int8
    cache and, for nodes that read floats, the unpacked cache in the dtype of the new tokens. Return False if
    the inputs are not supported."""
    past, new = w.specs
    if not w.int8_cache or past is None or new is None or len(new.shape) != 4:
        return False
    batch, heads, tokens, width = new.shape
    held = past.shape[2]
    at = Scores(batch, heads, heads, tokens, held + tokens, 1.0, start=held)
    _check_words(w, 0, at, width)
    x = w.transpose(w.name(1), 0, 2, 1, 3)
    words = append_int8(w, w.name(0), held, x, at, w.result(0))
    w.cast(w.emit("unpack_cache", [words], width=width), new.dtype, w.result(1))
    return True


def attend_int8(w: Rewriting, at: Scores, q: str, k: str, v: str, width: int) -> str:
    """Emit attention. *at*: the sizes and rules of the attention (`vkq.onnx.scores.Scores`). k and v are int8
    caches of vectors with *width* elements; for float caches use `vkq.onnx.scores.attend`. q, of any float
    type, and the float32 result have the shape (batch, queries, heads, width)."""
    bias = ""
    for one in at.bias:
        wide = w.cast(one, "float32")
        bias = w.emit("Add", [bias, wide]) if bias else wide
    if at.shown:
        low, zero = (w.constant(x) for x in (np.finfo(np.float32).min, 0))
        bias = w.emit("Where", [at.shown, bias or zero, low])
    scale, softcap = (float(np.float32(x)) for x in (at.scale, at.softcap))
    rules = Int8Rules(width, scale, at.start != 0, at.window, softcap, at.causal)
    lengths = at.lengths or w.constant([at.keys] * at.batch, "int32")
    sink = w.cast(at.sink, "float32") if at.sink else ""
    inputs = [w.cast(q, "float32"), k, v, lengths, bias, sink]
    return w.emit("attention_int8", inputs, rules=rules, fused="reads the int8 cache up to its length")


def append_int8(w: Rewriting, past: str, held: int, x: str, at: Scores, output: str) -> str:
    """Append x (batch, tokens, kv_heads, d) to the int8 cache *past*, which holds *held* keys; ``at.start``
    is the position of the first new token. Return the new cache, which holds ``at.keys`` keys."""
    start = at.start if isinstance(at.start, str) else ""
    if at.start and not start:
        start = w.constant([at.start] * at.batch, "int32")
    inputs = [w.cast(x, "float32"), start, past if held else ""]
    return w.emit("append_cache", inputs, output, total=at.keys, range=INT32)


def _check_follows(w: Rewriting, at: Scores) -> None:
    """Raise ModelError if the attention is causal, and the queries are neither the first nor the last tokens
    of the cache."""
    if at.causal and isinstance(at.start, int) and at.start not in (0, at.keys - at.queries):
        _refuse(
            w, f"its {at.queries} causal queries begin at position {at.start} of {at.keys} keys; they must"
            " be the last tokens"
        )  # fmt: skip


def _check_words(w: Rewriting, i: int, at: Scores, width: int) -> None:
    """Raise ModelError if input *i* is not an int8 cache for the sizes of *at* and vectors of *width*
    numbers."""
    spec, words = w.spec(i), words_of(width)
    if spec is not None and (spec.shape[:2], *spec.shape[3:]) != ((at.batch, at.kv_heads), words):
        raise ModelError(
            f"{w.node}: the cache {w.name(i)!r} has shape {spec.shape}; with kv_cache='int8' it must be"
            f" ({at.batch}, {at.kv_heads}, keys, {words}), with {words - 1} words for the codes of {width}"
            " numbers and one for their scale. Give a result of an earlier run with kv_cache='int8', or zeros"
        )


def _refuse(w: Rewriting, why: str) -> None:
    raise ModelError(f"{w.node}: kv_cache='int8' does not support this form: {why}; {REMEDY}")
