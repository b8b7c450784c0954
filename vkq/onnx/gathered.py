"""Rewrites com.microsoft's GatherBlockQuantized, which gathers rows of a table that is quantized in blocks
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GatherBlockQuantized)."""

from __future__ import annotations

import math

import numpy as np

from ..graph.graph import Array
from ..numerics.grouped import packed, unpacked
from .rewriting import Rewriting

ATTRIBUTES = {"bits", "block_size", "gather_axis", "quantize_axis"}
FLOATS = ("float32", "float16")


def gather_block_quantized(w: Rewriting) -> bool:
    """Rewrite GatherBlockQuantized. Return False if vkq does not support the node's form.

    Its inputs are a table, indices, scales and zero points. Its result is (code - zero point) * scale,
    computed in float32 and converted to the type of the scales. On the device a byte holds two 4-bit codes;
    2-bit codes are widened to 4 bits."""
    a, ids = w.node.attributes, w.spec(1)
    table, scales, points = (w.arrays[i] if i < len(w.arrays) else None for i in (0, 2, 3))
    if (
        not set(a) <= ATTRIBUTES
        or ids is None
        or table is None
        or scales is None
        or (w.name(3) and points is None)
    ):
        return False
    axes = a.get("gather_axis", 0), a.get("quantize_axis", 1)
    if axes not in ((0, 1), (0, -1)) or {table.ndim, scales.ndim} != {2} or scales.dtype.name not in FLOATS:
        return False
    block = int(a.get("block_size", 128))
    found = _codes(table, scales, points, int(a.get("bits", 4)), block)
    if found is None or 0 in (*ids.shape, *scales.shape):
        return False
    codes, middles = found
    width = codes.shape[1]
    rows = _rows(w, codes) if codes.max(initial=0) > 15 or width % 2 else _pairs(w, codes, ids.shape)
    scale, middle = (
        _along(w, w.constant(each), (*ids.shape, scales.shape[1]), block, width) for each in (scales, middles)
    )
    y = w.emit("Mul", [w.emit("Sub", [w.cast(rows, "float32"), middle]), scale])
    w.cast(y, scales.dtype.name, w.result(0))
    return True


def _codes(
    table: Array, scales: Array, points: Array | None, bits: int, block: int
) -> tuple[Array, Array] | None:
    """Return the uint8 code of each element of the table, and the zero point of each block. Return None if
    the sizes of table and scales do not fit, or if both one code and several codes in a byte would fit."""
    blocks, own = scales.shape[1], table.shape[1]
    apart, several = (-(-size // block) == blocks if block > 0 else False for size in (own, own * 8 // bits))
    zeros: Array | None
    if table.dtype == np.int8 and apart:  # int4 codes, each in an int8
        middle = np.full(scales.shape, 8) if points is None else points.astype(np.int32) + 8
        return (table.view(np.uint8) + np.uint8(8)) & np.uint8(15), middle
    if table.dtype != np.uint8 or bits not in (2, 4, 8) or (apart == several and bits < 8):
        return None
    if bits < 8 and several:
        codes = unpacked(table, bits)
        zeros = None if points is None else unpacked(points, bits)[:, :blocks]
    else:
        codes, zeros = table, points
    # the default zero point is the middle of the range for packed codes, and 0 for uint4
    usual = 1 << bits - 1 if several else 0
    found = np.full(scales.shape, usual) if zeros is None else zeros
    return (codes, found) if found.shape == scales.shape else None


def _rows(w: Rewriting, codes: Array) -> str:
    return w.emit("Gather", [w.constant(codes, "uint8"), w.name(1)], axis=0)


def _pairs(w: Rewriting, codes: Array, shape: tuple[int, ...]) -> str:
    """Gather rows of 4-bit codes. The table holds two codes in a byte; the result has one element for each
    code."""
    both = w.cast(_rows(w, packed(codes, 4)), "int32")
    sixteen = w.constant(16, "int32")
    parts = [w.reshape(w.emit(op, [both, sixteen]), (math.prod(shape), -1, 1)) for op in ("Mod", "Div")]
    return w.reshape(w.emit("Concat", parts, axis=2), (*shape, codes.shape[1]))


def _along(w: Rewriting, each: str, shape: tuple[int, ...], block: int, width: int) -> str:
    """Gather rows of *each* (rows, blocks), and repeat each value for the *block* elements of its block
    along K."""
    rows = w.reshape(w.emit("Gather", [each, w.name(1)], axis=0), (*shape, 1))
    whole = w.emit("Expand", [rows, w.constant((*shape, block), "int64")])
    line = w.reshape(whole, (*shape[:-1], shape[-1] * block))
    return w.part(line, len(shape) - 1, 0, width) if shape[-1] * block > width else line
