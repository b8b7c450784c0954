"""Models of operators that change shapes or types, copy values, or compute functions that no network of the
tests contains."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operators import Case, One, Random, binary, unary


def tile(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale, zero = one.shape(1, 5), one.scale(), one.zero()
    counts = rng.integers(1, 4, 4).astype(np.int32)
    inputs = [one.input(shape, scale, zero), one.w.constant(counts)]
    y = one.output(tuple(int(d) for d in shape * counts), scale, zero)
    one.w.operator("TILE", inputs, [y], "", 2)
    return one.case(y)


def broadcast_to(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    wanted, scale, zero = one.shape(2, 7), one.scale(), one.zero()
    kept = rng.integers(0, 2, 4)
    shape = tuple(d if keep else 1 for d, keep in zip(wanted, kept, strict=True))
    inputs = [one.input(shape, scale, zero), one.w.constant(np.array(wanted, np.int32))]
    y = one.output(wanted, scale, zero)
    one.w.operator("BROADCAST_TO", inputs, [y], "", 2)
    return one.case(y)


def squeeze(rng: Random, dtype: str) -> Case:
    """Return a model of a SQUEEZE that removes an axis of size 1, and an EXPAND_DIMS that adds one
    elsewhere."""
    one = One(rng, dtype)
    (n, h, _, c), scale, zero, axis = one.shape(), one.scale(), one.zero(), int(rng.integers(-4, 4))
    x, middle = one.input((n, 1, h, c), scale, zero), one.output((n, h, c), scale, zero)
    one.w.operator("SQUEEZE", [x], [middle], "SqueezeOptions", squeeze_dims=[1 - 4 * int(rng.integers(0, 2))])
    wide = [n, h, c]
    wide.insert(axis if axis >= 0 else axis + 4, 1)
    y = one.output(tuple(wide), scale, zero)
    one.w.operator("EXPAND_DIMS", [middle, one.w.constant(np.array(axis, np.int32))], [y])
    return one.case(y)


def known(rng: Random, dtype: str) -> Case:
    """Return a model with two results: x concatenated with a filled tensor of x's shape, and this
    concatenation as int32."""
    one = One(rng, dtype)
    shape, scale, zero = one.shape(), one.scale(), one.zero()
    x, sizes = one.input(shape, scale, zero), one.w.tensor((4,), "int32")
    one.w.operator("SHAPE", [x], [sizes], "ShapeOptions", out_type=2)
    value, filled = one.w.tensor((), dtype, scale, zero, data=one.numbers(())), one.output(shape, scale, zero)
    one.w.operator("FILL", [sizes, value], [filled], "", 3)
    whole = one.output((2 * shape[0], *shape[1:]), scale, zero)
    one.w.operator("CONCATENATION", [x, filled], [whole], "ConcatenationOptions", 2, axis=0)
    y = one.w.tensor((2 * shape[0], *shape[1:]), "int32")
    one.w.operator("CAST", [whole], [y], "", 1)
    return one.case(whole, y)


def resize_by_computed_size(rng: Random, dtype: str) -> Case:
    """Return a model of a RESIZE_BILINEAR whose size is the size of another input's image. uint8 has no such
    case, because vkq refuses it."""
    one = One(rng, dtype)
    shape, other, scale, zero = one.shape(), one.shape(1, 20), one.scale(), one.zero()
    x, like = one.input(shape, scale, zero), one.input(other, scale, zero)
    sizes, size = one.w.tensor((4,), "int32"), one.w.tensor((2,), "int32")
    one.w.operator("SHAPE", [like], [sizes], "ShapeOptions", out_type=2)
    one.w.operator("SLICE", [sizes, *(one.w.constant(np.array([v], np.int32)) for v in (1, 2))], [size])
    y = one.output((shape[0], *other[1:3], shape[3]), scale, zero)
    corners = int(rng.integers(0, 3))
    one.w.operator(
        "RESIZE_BILINEAR", [x, size], [y], "ResizeBilinearOptions", 3, align_corners=int(corners == 1),
        half_pixel_centers=int(corners == 2),
    )  # fmt: skip
    return one.case(y)


SHAPED: dict[str, Callable[[Random, str], Case]] = {
    "EXP": unary("EXP", "", 2), "LOG": unary("LOG", "", 2), "TILE": tile, "BROADCAST_TO": broadcast_to,
    "SQUEEZE": squeeze, "SHAPE": known, "ADD-beyond": binary("ADD", 10, 12),
    "SUB-beyond": binary("SUB", -12, -8), "MUL-beyond": binary("MUL", 9, 14),
    "QUANTIZE-beyond": unary("QUANTIZE", "", 2, 9, 8.1),
    "LEAKY_RELU-beyond": unary("LEAKY_RELU", "LeakyReluOptions", 2, 3, alpha=(1e-4, 4e-4)),
    "HARD_SWISH-beyond": unary("HARD_SWISH", "", 1, 12, 8),
    "RESIZE_BILINEAR-computed": resize_by_computed_size,
}  # fmt: skip
