"""Rewrites com.microsoft's MultiHeadAttention, once shapes are known. Also has helpers for all attention
operators of com.microsoft (https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..graph.graph import Spec
from .int8_caches import attended
from .rewriting import Rewriting
from .scores import Scores, append, attend, heads_first, joined, places

FILTER = -10000.0  # default of ``mask_filter_value``, which is added to the scores of masked keys
ATTRIBUTES = {"num_heads", "scale", "mask_filter_value", "unidirectional"}
IDS = ("int32", "int64")


def multi_head_attention(w: Rewriting) -> bool:
    """Rewrite com.microsoft's MultiHeadAttention. Return False if vkq does not support its attributes or
    inputs.

    Inputs: q, k, v, the bias of q, k and v, a mask, a bias of the scores, past keys, past values. q may
    also contain k and v, and k may contain v."""
    a, given, heads = w.node.attributes, w.given, w.node.attributes.get("num_heads", 0)
    known = plain(w, 8, 4, heads, (6, 7) if w.int8_cache else ())
    if not set(a) <= ATTRIBUTES or not known or (6 in given) != (7 in given):
        return False
    found = _heads(w, heads)
    if found is None:
        return False
    (q, k, v), tokens, own, widths = found
    batch, held = given[0].shape[0], given[6].shape[2] if 6 in given else 0
    at = scores_of(w, (batch, heads, tokens, held + own), held, widths[0], (4, 5))
    if at is None:
        return False
    if w.int8_cache:
        y = attended(w, at, [w.transpose(x, 0, 2, 1, 3) for x in (q, k, v)], widths, 6)
        w.cast(w.reshape(y, (0, 0, -1)), given[0].dtype, w.result(0))
        return True
    k, v = (append(w, w.name(6 + i), held, one, at, w.result(1 + i)) for i, one in enumerate((k, v)))
    joined(w, attend(w, at, q, k, v), given[0].dtype, w.result(0))
    return True


def plain(w: Rewriting, most: int, mask: int, heads: object, integers: Sequence[int] = ()) -> bool:
    """Return True if vkq supports the types and shapes of the node's inputs:

    - there are at most *most* inputs, inputs 0 to 3 are not empty, and *heads* is a positive integer
    - input *mask* has integers
    - all other inputs, except those with an index in *integers*, have the same float type"""
    given = w.given
    if 0 not in given or any(i >= most for i in given) or not isinstance(heads, int) or heads < 1:
        return False
    if {spec.dtype for i, spec in given.items() if i not in (mask, *integers)} not in (
        {"float32"},
        {"float16"},
    ):
        return False
    if mask in given and given[mask].dtype not in IDS:
        return False
    return all(0 not in spec.shape for i, spec in given.items() if i < 4) and 0 not in given[0].shape


def _heads(w: Rewriting, heads: int) -> tuple[list[str], int, int, tuple[int, int]] | None:
    """Return (names, queries, keys, sizes), or None if vkq does not support the inputs.

    - names: the names of q, k and v (batch, heads, tokens, size)
    - queries, keys: the number of queries and of keys
    - sizes: the size of a key and of a value"""
    given, names = w.given, [w.name(i) for i in range(3)]
    x, k = given[0].shape, given.get(1)
    tokens = x[1]
    # q, k and v in one input (batch, tokens, heads, 3, width)
    if len(x) == 5 and len(given.keys() & {1, 2}) == 0:
        names, own, width, other = _unpacked(w, names[0], x), tokens, x[4], x[4]
    elif len(x) != 3 or k is None or x[2] % heads:
        return None
    elif len(k.shape) == 5 and 2 not in given:  # k and v in one input (batch, tokens, heads, 2, width)
        names, own, width = [names[0], *_unpacked(w, names[1], k.shape)], k.shape[1], x[2] // heads
        other = width
    # k and v are already (batch, heads, tokens, width).
    elif 2 in given and len(k.shape) == len(given[2].shape) == 4:
        names[0] = heads_first(w, _biased(w, names[:1], x[2])[0], heads)
        return names, tokens, k.shape[2], (x[2] // heads, given[2].shape[3])
    elif 2 not in given or len(k.shape) != 3 or k.shape[2] != x[2] or given[2].shape[2] % heads:
        return None
    else:
        own, width, other = k.shape[1], x[2] // heads, given[2].shape[2] // heads
    names = _biased(w, names, width * heads)
    return [heads_first(w, name, heads) for name in names], tokens, own, (width, other)


def _unpacked(w: Rewriting, x: str, shape: tuple[int, ...]) -> list[str]:
    batch, tokens, heads, count, width = shape
    return [w.reshape(one, (batch, tokens, heads * width)) for one in w.parts(x, 3, (1,) * count)]


def _biased(w: Rewriting, names: list[str], width: int) -> list[str]:
    """Add the bias to q, k and v. The first *width* elements of the bias are for q, the next *width* for k,
    and all others for v."""
    bias = w.spec(3)
    if bias is None:
        return names
    parts = w.parts(w.name(3), 0, (width, width, bias.shape[0] - 2 * width))
    return [w.emit("Add", pair) for pair in zip(names, parts, strict=False)]


def scores_of(
    w: Rewriting, sizes: tuple[int, int, int, int], held: int, width: int, inputs: tuple[int, int]
) -> Scores | None:
    """Return the `Scores` of an attention operator of com.microsoft. Return None if vkq does not support its
    mask. *inputs*: the index of the mask, and the index of the bias of the scores."""
    a, (batch, heads, queries, keys), (mask, added) = w.node.attributes, sizes, inputs
    bias = [w.name(added)] if w.name(added) else []
    spec = w.spec(mask)
    if spec is not None:
        shown = _shown(w, w.name(mask), spec, batch, queries, keys)
        if not shown:
            return None
        numbers = (w.constant(n) for n in (0, a.get("mask_filter_value", FILTER)))
        bias.append(w.emit("Where", [shown, *numbers]))
    scale = a.get("scale", 0.0) or 1 / math.sqrt(width)
    causal = bool(a.get("unidirectional", 0))
    return Scores(*sizes[:2], heads, queries, keys, scale, causal, held, bias=tuple(bias))


def _shown(w: Rewriting, mask: str, spec: Spec, batch: int, queries: int, keys: int) -> str:
    """Emit nodes that convert a mask to Booleans (batch, 1, queries or 1, keys), True for visible keys.
    Return the name of their result; "" for an unsupported mask. The supported masks are:

    - (batch, keys) or (batch, queries, keys): a key is visible if its integer is positive
    - (batch,): for each batch element, the index after its last visible key
    - (2 * batch,): these indices, then for each batch element the index of its first visible key"""
    shape = spec.shape
    if shape in ((batch, keys), (batch, queries, keys)):
        flags = w.emit("Greater", [mask, w.constant(0, spec.dtype)])
        return w.reshape(flags, (batch, 1, -1, keys))
    if shape not in ((batch,), (2 * batch,)):
        return ""
    lengths = w.cast(mask, "int32")
    ends = [w.reshape(one, (batch, 1)) for one in w.parts(lengths, 0, (batch,) * (shape[0] // batch))]
    key = places(w, 0, batch, keys)
    shown = w.emit("Less", [key, ends[0]])
    if len(ends) > 1:
        shown = w.emit("And", [shown, w.emit("GreaterOrEqual", [key, ends[1]])])
    return w.reshape(shown, (batch, 1, 1, keys))
