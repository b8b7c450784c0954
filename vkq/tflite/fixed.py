"""Layers that LiteRT computes in its own kernels: exact int32 sums, multiplied by fixed-point numbers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array
from ..numerics.fixed import coded
from ..numerics.qparams import QParams
from .arithmetic import fixed_bounds, fixed_multiplier
from .lowering import Lowering, Unsupported

EXACT = 1 << 24  # float32 represents all integers up to this value


def scaled(
    low: Lowering, sums: str, factors: list[tuple[int, int]], up: Array | bool, y: QParams,
    limits: tuple[float, float],
) -> str:  # fmt: skip
    """Emit the requantization of int32 sums by fixed-point multiplication. *factors*: one pair (multiplier,
    shift) for all sums, or one for each slice along axis 1. *up*: a mask with True for each element whose
    ties are rounded up; the ties of all other elements are rounded away from zero."""
    whole = np.array([m for m, _ in factors], np.int32)
    codes = np.array([coded(shift) for _, shift in factors], np.int32)
    if len(factors) > 1:
        whole, codes = (v.reshape(-1, *(1,) * (len(low.specs[sums].shape) - 2)) for v in (whole, codes))
    codes = codes + np.asarray(up, np.int32)
    pair = [low.constant(v.reshape(()) if v.size == 1 else v, "multiplier") for v in (whole, codes)]
    name = low.emit("fixed_point", [sums, *pair])
    name = low.emit("Add", [name, low.constant(np.int32(y.zero_point), "zero_point")])
    name = low.emit("Clip", [name, *(low.constant(np.int32(v), "bound") for v in fixed_bounds(limits, y))])
    return low.emit("Cast", [name], to=y.dtype)


def fixed_layer(
    low: Lowering, op: str, inputs: list[str], weight: Array, layer: Mapping[str, Any],
    limits: tuple[float, float], up: Array | bool = False, **window: Any,
) -> str:  # fmt: skip
    """Emit a convolution with the results of LiteRT's own kernel. inputs: x, the weight and an optional bias.
    weight: the elements of the weight (O, I, H, W)."""
    x, y, single = layer["x"], layer["y"], weight.dtype == np.uint8
    factors = [
        fixed_multiplier(
            (float(np.float32(x.scale) * scale) if single else x.scale * float(scale)) / float(y.scale)
        )
        for scale in layer["w_scale"]
    ]
    sums = exact_sums(low, op, inputs, weight, x, layer["w_zero_point"], window)
    return scaled(low, sums, factors, up, y, limits)


def fixed_dense(
    low: Lowering, inputs: list[str], weight: Array, layer: Mapping[str, Any], limits: tuple[float, float],
    shape: Sequence[int],
) -> str:  # fmt: skip
    """Emit a FULLY_CONNECTED with the results of LiteRT's own kernel, as a 1x1 convolution. shape: the shape
    of x."""
    n, k = weight.shape
    if k == 1:
        raise Unsupported("its weights have 4 bits and one element in a row; there must be more")
    data = weight.reshape(n, k, 1, 1)
    images = [low.reshape(inputs[0], (-1, k, 1, 1)), low.constant(data, "OIHW"), *inputs[2:]]
    window: dict[str, Any] = {"stride": (1, 1), "padding": (0,) * 4, "dilation": (1, 1), "groups": 1}
    name = fixed_layer(low, "conv2d", images, data, layer, limits, True, **window)
    return low.reshape(name, (*shape[:-1], n))


def exact_sums(
    low: Lowering, op: str, inputs: list[str], weight: Array, x: QParams, point: Array | None,
    window: Mapping[str, Any],
) -> str:  # fmt: skip
    """Emit the int32 sums of a convolution, and return their name. A layer with scales of 1 computes them in
    float32, which is exact up to 2^24. Larger sums are computed in several parts, which are added in int32.
    """
    unit: dict[str, Any] = {
        "x": QParams(1.0, x.zero_point, x.dtype), "y": None, "activation": None, "w_zero_point": point,
        "w_scale": np.ones(1, np.float32), **window,
    }  # fmt: skip
    data = low.constants[inputs[1]]
    none = data.dtype.type(0 if point is None else point.reshape(-1)[0])
    total = ""
    for kept in _parts(weight.reshape(len(weight), -1), x, int(none)):
        mask = np.broadcast_to(kept.reshape(weight.shape[1:]), weight.shape)
        if op == "conv_transpose2d":
            mask = mask.transpose(1, 0, 2, 3)
        name = inputs[1] if kept.all() else low.constant(np.where(mask, data, none), "part")
        made = low.emit("Cast", [low.emit(op, [inputs[0], name], **unit)], to="int32")
        total = low.emit("Add", [total, made]) if total else made
    if len(inputs) == 2 or not low.constants[inputs[2]].any():
        return total
    return low.emit("Add", [total, low.constant(low.constants[inputs[2]].reshape(-1, 1, 1), "bias")])


def _parts(weight: Array, x: QParams, point: int) -> Iterator[Array]:
    """Divide the elements of a weight row into parts whose sums cannot exceed `EXACT`. For each part, yield
    a mask with True for its elements."""
    span = max(x.qmax - x.zero_point, x.zero_point - x.qmin)
    sizes = np.abs(weight.astype(np.int64) - point) * span
    for count in range(1, weight.shape[1] + 1):
        turn = np.arange(weight.shape[1]) % count
        if all((sizes[:, turn == i].sum(1) < EXACT).all() for i in range(count)):
            yield from (turn == i for i in range(count))
            return


def in_vectors(shape: Sequence[int], unsigned: bool) -> Array:
    """Return a mask with True for each result that LiteRT's own TRANSPOSE_CONV computes with vector
    instructions. For int8, the mask also holds for LiteRT's own DEPTHWISE_CONV_2D. A vector has 16 elements
    for uint8 (*unsigned*), and 8 channels for int8. *shape*: (N, H, W, C)."""
    n, h, w, channels = shape
    if not unsigned:
        return np.asarray((np.arange(channels) < channels - channels % 8).reshape(-1, 1, 1))
    size = n * h * w * channels
    flags = np.asarray(np.arange(size) < size - size % 16)
    return np.asarray(flags.reshape(n, h, w, channels).transpose(0, 3, 1, 2))
