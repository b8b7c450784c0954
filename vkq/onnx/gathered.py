"""Rewrites com.microsoft's GatherBlockQuantized, which gathers rows of a table that is quantized in blocks
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.GatherBlockQuantized)."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..graph.graph import Array
from ..numerics.grouped import packed, unpacked
from .rewriting import Rewriting

ATTRIBUTES = {"bits", "block_size", "gather_axis", "quantize_axis"}
FLOATS = ("float32", "float16")


def gather_block_quantized(w: Rewriting) -> bool:
    """Rewrite GatherBlockQuantized. Return False if vkq does not support its attributes or inputs.

    Its inputs are a table, indices, scales and zero points. Its result is (code - zero point) * scale,
    computed in float32 and converted to the type of the scales. On the device, a byte holds two codes if all
    codes fit 4 bits and a row has an even number of them; else a byte holds one."""
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
    width = codes.array.shape[1] * (2 if codes.paired else 1)
    rows = w.emit(
        "Gather", [w.name(0) if codes.array is table else w.constant(codes.array, "uint8"), w.name(1)]
    )
    rows = _apart(w, rows, (*ids.shape, width)) if codes.paired else rows
    sizes = (*ids.shape, scales.shape[1]), block, width
    scale = _along(w, w.name(2) if scales.dtype == np.float32 else w.constant(scales), *sizes)
    whole = isinstance(middles, int)
    middle = w.constant(middles) if whole else _along(w, w.constant(middles), *sizes)
    y = w.emit("Mul", [w.emit("Sub", [w.cast(rows, "float32"), middle]), scale])
    w.cast(y, scales.dtype.name, w.result(0))
    return True


@dataclasses.dataclass(frozen=True)
class _Codes:
    """A table of codes. *array* has a uint8 for each code or, if *paired*, a uint8 for two codes of 4 bits.
    If possible, *array* is the table of the model, which is in host memory anyway. For any other table, each
    preparation of the model would need additional host memory."""

    array: Array
    paired: bool

    @classmethod
    def of(cls, codes: Array) -> _Codes:
        paired = codes.shape[1] % 2 == 0 and codes.max(initial=0) <= 15
        return cls(packed(codes, 4), True) if paired else cls(codes, False)


def _codes(
    table: Array, scales: Array, points: Array | None, bits: int, block: int
) -> tuple[_Codes, Array | int] | None:
    """Return (codes, zero points) of the table. The zero points are an array with one number for each block,
    or one int for all blocks. Return None if the sizes of table, scales and zero points do not match. Also
    return None if these sizes match both packings (one code per byte, several codes per byte)."""
    blocks, own = scales.shape[1], table.shape[1]
    apart, several = (-(-size // block) == blocks if block > 0 else False for size in (own, own * 8 // bits))
    zeros: Array | int | None
    if table.dtype == np.int8 and apart:  # each int8 element has one int4 code
        zeros = 8 if points is None else points.astype(np.int32) + 8
        return _Codes.of((table.view(np.uint8) + np.uint8(8)) & np.uint8(15)), zeros
    if table.dtype != np.uint8 or bits not in (2, 4, 8) or (apart == several and bits < 8):
        return None
    if bits < 8 and several:
        codes = _Codes(table, True) if bits == 4 else _Codes.of(unpacked(table, bits))
        zeros = None if points is None else unpacked(points, bits)[:, :blocks]
    else:
        codes, zeros = _Codes.of(table), points
    if zeros is None:
        # The default zero point is the middle of the range; it is 0 for 2- and 4-bit codes stored one per
        # byte.
        return codes, 1 << bits - 1 if several else 0
    return (codes, zeros) if zeros.shape == scales.shape else None


def _apart(w: Rewriting, pairs: str, shape: tuple[int, ...]) -> str:
    """Emit nodes that unpack gathered rows: each byte of *pairs* holds two codes, and each element of the
    result holds one. Return the result's name."""
    both, sixteen = w.cast(pairs, "int32"), w.constant(16, "int32")
    parts = [w.reshape(w.emit(op, [both, sixteen]), (math.prod(shape[:-1]), -1, 1)) for op in ("Mod", "Div")]
    return w.reshape(w.emit("Concat", parts, axis=2), shape)


def _along(w: Rewriting, each: str, shape: tuple[int, ...], block: int, width: int) -> str:
    """Gather rows of *each*, an array (rows, blocks). Repeat each gathered value for the *block* elements
    of its block along the last axis."""
    rows = w.reshape(w.emit("Gather", [each, w.name(1)], axis=0), (*shape, 1))
    whole = w.emit("Expand", [rows, w.constant((*shape, block), "int64")])
    line = w.reshape(whole, (*shape[:-1], shape[-1] * block))
    return w.part(line, len(shape) - 1, 0, width) if shape[-1] * block > width else line
