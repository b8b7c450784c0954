"""Rewrites ONNX's Attention, once shapes are known (https://onnx.ai/onnx/operators/onnx__Attention.html)."""

from __future__ import annotations

import math

from .int8_caches import attended
from .rewriting import Rewriting
from .scores import Scores, append, attend, heads_first, joined

ATTRIBUTES = {
    "is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap",
    "softmax_precision",  # has no effect, because vkq computes the softmax in float32 or float64
}  # fmt: skip


def onnx_attention(w: Rewriting) -> bool:
    """Rewrite ONNX's Attention. Return False if vkq does not support its attributes or inputs. The inputs are
    q, k, v, a mask, past keys, past values, and the number of valid keys of each batch element."""
    at = _scores(w)
    if at is None:
        return False
    q, k, v = (w.name(i) for i in range(3))
    flat, dtype = len(w.given[0].shape) == 3, w.given[0].dtype
    if w.int8_cache:
        _to_int8(w, at, [q, k, v], flat)
        return True
    if flat:
        q, k, v = (heads_first(w, x, n) for x, n in ((q, at.heads), (k, at.kv_heads), (v, at.kv_heads)))
    held = w.given[4].shape[2] if 4 in w.given else 0
    k, v = (append(w, w.name(4 + i), held, x, at, w.result(1 + i)) for i, x in enumerate((k, v)))
    y = attend(w, at, q, k, v)
    if flat:
        joined(w, y, dtype, w.result(0))
    else:
        w.cast(y, dtype, w.result(0))
    return True


def _to_int8(w: Rewriting, at: Scores, qkv: list[str], flat: bool) -> None:
    """Emit attention that reads int8 caches. *flat*: True if q, k and v have 3 axes, False if they have 4."""
    counts, dtype = (at.heads, at.kv_heads, at.kv_heads), w.given[0].dtype
    sizes = [w.given[i].shape[-1] // (n if flat else 1) for i, n in enumerate(counts)]
    if flat:
        rows = [w.reshape(x, (0, 0, n, -1)) for x, n in zip(qkv, counts, strict=True)]
    else:
        rows = [w.transpose(x, 0, 2, 1, 3) for x in qkv]
    y = attended(w, at, rows, (sizes[1], sizes[2]), 4)
    y = w.reshape(y, (0, 0, -1)) if flat else w.transpose(y, 0, 2, 1, 3)
    w.cast(y, dtype, w.result(0))


def _scores(w: Rewriting) -> Scores | None:
    """Return the `Scores` of the attention. Return None if vkq does not support the node, for example because
    the scores are a result, or the mask does not cover all keys. ONNX's definition then replaces the node."""
    a, given = w.node.attributes, w.given
    others = (3, 4, 5, 6) if w.int8_cache else (3, 6)
    floats = {spec.dtype for i, spec in given.items() if i not in others}
    if not set(a) <= ATTRIBUTES or w.result(3) or floats not in ({"float32"}, {"float16"}):
        return None
    if not {0, 1, 2} <= set(given) or (4 in given) != (5 in given):
        return None
    shapes, mask = [given[i].shape for i in range(3)], given.get(3)
    (batch, *q), k, rank = shapes[0], shapes[1], len(shapes[0])
    if any(len(shape) != rank or 0 in shape for shape in shapes) or rank not in (3, 4):
        return None
    flat = rank == 3
    heads, kv_heads = (a.get("q_num_heads", 0), a.get("kv_num_heads", 0)) if flat else (q[0], k[1])
    held = given[4].shape[2] if 4 in given else 0
    keys = held + k[-2]
    if not heads or not kv_heads or heads % kv_heads or (mask and mask.shape[-1] != keys):
        return None
    flags = mask is not None and mask.dtype == "bool"
    lengths = w.cast(w.name(6), "int32") if w.name(6) else ""
    # The queries are the last tokens of each sequence: the first query has the position length - queries.
    start = w.emit("Sub", [lengths, w.constant(q[-2], "int32")]) if lengths else held
    return Scores(
        batch, heads, kv_heads, q[-2], keys,
        scale=a.get("scale") or 1 / math.sqrt(q[-1] // (heads if flat else 1)),
        causal=bool(a.get("is_causal", 0)), start=start, softcap=a.get("softcap", 0.0),
        lengths=lengths,
        bias=(w.name(3),) if mask and not flags else (), shown=w.name(3) if flags else "",
    )  # fmt: skip
