"""Rewrites com.microsoft's Attention and QAttention, once shapes are known. Both operators first multiply x
by one weight; q, k and v are consecutive columns of the product
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from .attention import ATTRIBUTES, plain, scores_of
from .rewriting import Rewriting
from .scores import append, attend, heads_first, joined


def projected_attention(w: Rewriting) -> bool:
    """Rewrite Attention. Return False if vkq does not support its attributes or inputs. Inputs: x, weights of
    q, k and v, their bias, a mask, past keys and values, and a bias of the scores."""
    a = w.node.attributes
    widths = _widths(w, a.get("qkv_hidden_sizes"))
    known = set(a) <= {*ATTRIBUTES, "qkv_hidden_sizes"} and plain(w, 6, 3, a.get("num_heads", 0))
    if not known or widths is None:
        return False
    y = w.emit("MatMul", [w.name(0), w.name(1)])
    y = w.emit("Add", [y, w.name(2)]) if w.name(2) else y
    return _attended(w, y, _Rest(widths, 3, 4, 5))


def quantized_attention(w: Rewriting) -> bool:
    """Rewrite QAttention. Return False if vkq does not support its attributes or inputs. Inputs: 8-bit x,
    8-bit weights, bias, the scales of x and weights, a mask, the zero points of x and weights, and past keys
    and values. q, k and v are the exact int32 product times both scales plus the bias, in float32."""
    a, widths = w.node.attributes, _widths(w, None)
    if not set(a) <= ATTRIBUTES or not plain(w, 9, 5, a.get("num_heads", 0), (0, 1, 6, 7)) or widths is None:
        return False
    if not {2, 3, 4} <= set(w.given) or w.given[2].dtype != "float32":
        return False
    sums = w.emit("MatMulInteger", [w.name(0), w.name(1), w.name(6), w.name(7)])
    scale = w.emit("Mul", [w.name(3), w.name(4)])
    y = w.emit("Add", [w.emit("Mul", [w.cast(sums, "float32"), scale]), w.name(2)])
    return _attended(w, y, _Rest(widths, 5, 8, 9))


@dataclasses.dataclass(frozen=True)
class _Rest:
    """The widths of q, k and v, and the indices of the inputs that hold the mask, the past, and the bias of
    the scores."""

    widths: tuple[int, ...]
    mask: int
    past: int
    added: int


def _widths(w: Rewriting, given: Sequence[int] | None) -> tuple[int, ...] | None:
    """Return the widths of q, k and v, or None if these do not match the weights or the number of heads."""
    x, weights, heads = w.spec(0), w.spec(1), w.node.attributes.get("num_heads", 0)
    if x is None or weights is None or len(x.shape) != 3 or len(weights.shape) != 2 or heads < 1:
        return None
    widths = tuple(given or (weights.shape[1] // 3,) * 3)
    fit = len(widths) == 3 and sum(widths) == weights.shape[1] and widths[0] == widths[1]
    return widths if fit and not any(width % heads for width in widths) else None


def _attended(w: Rewriting, y: str, rest: _Rest) -> bool:
    """Emit the attention of q, k and v, which are consecutive columns of y. Return False, and emit nothing,
    if vkq cannot compute this attention."""
    (batch, tokens, _), heads, widths = w.given[0].shape, w.node.attributes["num_heads"], rest.widths
    past = w.spec(rest.past)
    if past and (len(past.shape) != 5 or widths[0] != widths[2]):
        return False
    held = past.shape[3] if past else 0
    sizes = batch, heads, tokens, held + tokens
    at = scores_of(w, sizes, held, widths[0] // heads, (rest.mask, rest.added))
    if at is None:
        return False
    q, k, v = (heads_first(w, part, heads) for part in w.parts(y, 2, widths))
    olds = ["", ""]
    if held:
        lines = w.reshape(w.name(rest.past), (2, batch * heads, held, -1))
        olds = [w.reshape(one, (batch, heads, held, -1)) for one in w.parts(lines, 0, (1, 1))]
    k, v = (append(w, old, held, one, at) for old, one in zip(olds, (k, v), strict=True))
    if w.result(1):
        pair = [w.reshape(one, (1, batch, heads, at.keys, -1)) for one in (k, v)]
        w.emit("Concat", pair, w.result(1), axis=0)
    joined(w, attend(w, at, q, k, v), w.given[2].dtype if w.name(2) else w.given[0].dtype, w.result(0))
    return True
