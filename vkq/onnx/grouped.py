"""Rewrites com.microsoft's GroupQueryAttention, as onnxruntime-genai's models use it
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GroupQueryAttention)."""

from __future__ import annotations

import math

from ..errors import ModelError
from .int8_caches import attended
from .rewriting import Rewriting
from .rotary import angles_at, turned
from .scores import Scores, append, attend, joined, places

ATTRIBUTES = {"do_rotary", "kv_num_heads", "local_window_size", "num_heads", "rotary_interleaved", "scale",
         "sliding_window_cache", "smooth_softmax", "softcap"}  # fmt: skip
# vkq accepts these attributes only with these values. With these values, attention is causal, the cache is
# not quantized, and the scores are not an output.
UNUSED = {
    "causal": 1,
    "qk_output": 0,
    "k_quant_type": "NONE",
    "v_quant_type": "NONE",
    "kv_cache_bit_width": 0,
}


def group_query_attention(w: Rewriting) -> bool:
    """Rewrite GroupQueryAttention; return False if vkq does not support its attributes or inputs. Inputs, in
    order:

    - q, k, v (or all three packed in q)
    - past keys and past values
    - the index of each batch element's last key, and the number of keys
    - tables of cosines and of sines, and positions
    - a bias that is added to the scores
    - for each head, the score of an additional key (sink)"""
    sizes = _sizes(w)
    if sizes is None:
        return False
    a, dtype = w.node.attributes, w.given[0].dtype
    batch, tokens, heads, kv_heads, width = sizes
    held = w.given[3].shape[2] if 3 in w.given else 0
    total = w.number(6)
    if a.get("sliding_window_cache", 0) and held < total:
        return False  # the cache would drop old keys to make room for new ones
    # True if the cache holds tokens of earlier runs.
    follows = held > 0 and tokens != total
    lengths = _lengths(w, batch, (tokens if follows else 1, max(held, total)))
    start = w.emit("Sub", [lengths, w.constant(tokens, "int32")]) if follows else 0
    at = Scores(
        batch, heads, kv_heads, tokens, max(held, total), a.get("scale", 0.0) or 1 / math.sqrt(width),
        causal=True, start=start, window=max(a.get("local_window_size", -1), 0), lengths=lengths,
        softcap=a.get("softcap", 0.0), bias=tuple(filter(None, [w.name(10)])),
        sink=_sink(w, heads),
    )  # fmt: skip
    q, k, v = _split(w, sizes)
    if a.get("do_rotary", 0):
        place = w.name(9) or places(w, start, batch, tokens)
        angles = angles_at(w, (7, 8), place, tokens)
        mixed = bool(a.get("rotary_interleaved", 0))
        q, k = turned(w, q, angles, mixed), turned(w, k, angles, mixed)
        k = k if w.int8_cache else w.cast(k, dtype)
    if w.int8_cache:
        y = attended(w, at, [q, k, v], (width, width), 3)
        w.cast(w.reshape(y, (0, 0, -1)), dtype, w.result(0))
        return True
    q, k, v = (w.transpose(x, 0, 2, 1, 3) for x in (q, k, v))
    k, v = (append(w, w.name(3 + i), held, x, at, w.result(1 + i)) for i, x in enumerate((k, v)))
    joined(w, attend(w, at, q, k, v), dtype, w.result(0))
    return True


def _sizes(w: Rewriting) -> tuple[int, int, int, int, int] | None:
    """Return (batch, tokens, query heads, key heads, width of a head), or None if the node is not
    supported."""
    a, given = dict(w.node.attributes), w.given
    if any(a.pop(key, value) != value for key, value in UNUSED.items()) or not set(a) <= ATTRIBUTES:
        return None
    heads, kv_heads = a.get("num_heads", 0), a.get("kv_num_heads", 0)
    caches = () if w.int8_cache else (3, 4)
    floats = {given[i].dtype for i in (0, 1, 2, *caches, 10, 11) if i in given}
    if not {0, 5, 6} <= set(given) or max(given) > 11 or w.result(3):
        return None
    if floats not in ({"float32"}, {"float16"}) or len(given[0].shape) != 3 or 0 in given[0].shape:
        return None
    if not heads or not kv_heads or heads % kv_heads or (3 in given) != (4 in given):
        return None
    packed = not given.keys() & {1, 2}
    if not packed and (not {1, 2} <= set(given) or any(len(given[i].shape) != 3 for i in (1, 2))):
        return None
    if a.get("do_rotary", 0) and not {7, 8} <= set(given):
        return None
    batch, tokens, width = given[0].shape
    return batch, tokens, heads, kv_heads, width // (heads + (2 * kv_heads if packed else 0))


def _lengths(w: Rewriting, batch: int, limits: tuple[int, int]) -> str:
    """Return the number of keys of each batch element, int32 (batch,). *limits*: the smallest and the largest
    number allowed. Raises ModelError if a constant number is outside the limits. Numbers computed at run time
    are checked in each run."""
    low, high = (limit - 1 for limit in limits)
    known = w.arrays[5]
    if known is not None and ((known < low) | (known > high)).any():
        raise ModelError(
            f"{w.node}: seqlens_k holds {known.min()} to {known.max()}; with these tokens and this cache they"
            f" must be from {low} to {high}"
        )
    last = w.reshape(w.name(5), (batch,))
    last = w.emit("Max", [last, w.constant(low, "int32")], within=(low, high))
    last = w.emit("Min", [last, w.constant(high, "int32")])
    return w.emit("Add", [last, w.constant(1, "int32")])


def _sink(w: Rewriting, heads: int) -> str:
    if w.name(11):
        return w.name(11)
    return w.constant([0] * heads) if w.node.attributes.get("smooth_softmax", 0) == 1 else ""


def _split(w: Rewriting, sizes: tuple[int, int, int, int, int]) -> list[str]:
    """Return q, k and v, each as (batch, tokens, heads, width)."""
    batch, tokens, heads, kv_heads, width = sizes
    names, counts = [w.name(i) for i in range(3)], (heads, kv_heads, kv_heads)
    if not w.name(1):
        names = w.parts(names[0], 2, [n * width for n in counts])
    return [w.reshape(x, (batch, tokens, n, width)) for x, n in zip(names, counts, strict=True)]
