"""Rewrites rotary embeddings: RotaryEmbedding of com.microsoft, and of ONNX
(https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html)."""

from __future__ import annotations

from .rewriting import Rewriting
from .scores import places

ATTRIBUTES = {"interleaved", "num_heads", "rotary_embedding_dim"}
# attributes that ONNX Runtime's CPU provider ignores, with their defaults
UNUSED = {"scale": 1.0, "is_packed_batching": 0}


def turned(w: Rewriting, x: str, angles: tuple[str, str], interleaved: bool) -> str:
    """Emit a node that rotates the first 2 * width elements of each head of x (batch, tokens, heads, d) in
    pairs, in float32. A pair is elements i and i + width, or elements 2 i and 2 i + 1 if *interleaved*.
    *angles*: cosines and sines (batch or 1, tokens, 1, width)."""
    return w.emit("rotate", [w.cast(x, "float32"), *angles], interleaved=interleaved)


def angles_at(w: Rewriting, tables: tuple[int, int], place: str, tokens: int) -> tuple[str, str]:
    """Emit Gathers of the cosines and of the sines at the positions *place* (batch or 1, tokens). Return the
    names of the two results. *tables*: the indices of the inputs with the cosines and with the sines, one
    row for each position."""
    cos, sin = (
        w.reshape(w.emit("Gather", [w.cast(w.name(i), "float32"), place], axis=0), (0, 0, 1, -1))
        for i in tables
    )
    return cos, sin


def microsoft_rotary(w: Rewriting) -> bool:
    """Rewrite com.microsoft's RotaryEmbedding. Inputs: x, positions (batch, tokens) or the position of the
    first token, cosines, sines."""
    return {0, 1, 2, 3} == set(w.given) and _rotary(w, 1, (2, 3))


def onnx_rotary(w: Rewriting) -> bool:
    """Rewrite ONNX's RotaryEmbedding. Inputs: x, cosines, sines, positions (batch, tokens). If positions
    are omitted, cosines and sines have a row for each token."""
    return {0, 1, 2} <= set(w.given) and _rotary(w, 3, (1, 2))


def _rotary(w: Rewriting, at: int, tables: tuple[int, int]) -> bool:
    a, given = dict(w.node.attributes), w.given
    if any(a.pop(key, value) != value for key, value in UNUSED.items()) or not set(a) <= ATTRIBUTES:
        return False
    x, cos = given[0], given[tables[0]]
    shape: tuple[int, ...]
    width, heads = cos.shape[-1], a.get("num_heads", 0)
    if x.dtype not in ("float32", "float16") or 0 in x.shape or len(x.shape) not in (3, 4):
        return False
    if len(x.shape) == 4:
        shape = (x.shape[0], x.shape[2], x.shape[1], x.shape[3])
        name = w.transpose(w.name(0), 0, 2, 1, 3)
    else:
        heads = heads or x.shape[2] // (2 * width)
        shape = (*x.shape[:2], heads, x.shape[2] // heads)
        name = w.reshape(w.name(0), shape)
    if 2 * width > shape[3]:
        return False
    angles = _angles(w, at, tables, shape)
    y = w.cast(turned(w, name, angles, bool(a.get("interleaved", 0))), x.dtype)
    if len(x.shape) == 4:
        w.emit("Transpose", [y], w.result(0), perm=(0, 2, 1, 3))
    else:
        w.reshape(y, x.shape, w.result(0))
    return True


def _angles(w: Rewriting, at: int, tables: tuple[int, int], shape: tuple[int, ...]) -> tuple[str, str]:
    """Return the names of the cosines and of the sines of the tokens. These are the rows of the tables at the
    tokens' positions, or the complete tables if positions are omitted."""
    place = w.spec(at)
    if place is None:
        cos, sin = (w.reshape(w.cast(w.name(i), "float32"), (0, 0, 1, -1)) for i in tables)
        return cos, sin
    batch, tokens = shape[:2]
    name = w.name(at)
    if len(place.shape) < 2:  # only the position of the first token is given
        name = places(w, w.emit("Expand", [name, w.constant([batch], "int64")]), batch, tokens)
    return angles_at(w, tables, w.reshape(name, (-1, tokens)), tokens)
