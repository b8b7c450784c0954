"""Replaces convolutions, products and softmax of dequantized values by vkq's layers, at first with float32
results.

Weights are constants, quantized per tensor or per output channel. An int32 bias must have the scale x_scale
* w_scale (within 1 %). Any other bias stays float32; if a quantize follows, `integers` rounds the bias to
int32 with that scale.

ONNX Runtime computes two kinds of layers with int32 sums, which wrap on overflow: convolutions before a
quantize, and linear layers whose weight has zero points. vkq's sums wrap in the same cases. ONNX Runtime
computes all other layers in floats; the attribute ``floats`` marks them. If the bias of such a layer is too
large for int32, the bias is added to the float result. ``biases`` then holds the bias as int32 and as
float32. If the sums of a convolution may overflow int32, a convolution with a float32 result is refused, for
the reason ``why``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...numerics.qparams import QParams, are_scales
from ...numerics.requantize import overflowing
from ..graph import Array, Node
from ..operators.number import conv_options, transposed_options
from ..operators.operator import axis_of
from ..operators.quantized import along
from .blocks import in_blocks
from .products import real
from .reductions import summed
from .sweep import Sweep, every_equal

FLOATS = ("float32", "float16")


def parameters(sweep: Sweep, name: str) -> tuple[str, QParams] | None:
    """Return (8-bit value or constant, its parameters) for a value that was dequantized; None for other
    values."""
    made = sweep.producer(name, "dequantize")
    if made is not None:
        return made.inputs[0], made.attributes["x"]
    weight = _weight(sweep, name) if sweep.specs[name].dtype == "float32" else None
    if weight is None or weight[1].size != 1 or weight[0].dtype.name not in ("int8", "uint8"):
        return None
    made = sweep.made[name]
    return made.inputs[0], QParams.of(weight[1].reshape(-1)[0], weight[2].reshape(-1)[0])


def _weight(sweep: Sweep, name: str, axis: int | None = None) -> tuple[Array, Array, Array] | None:
    """Return (integers, scales, zero points) of a dequantized constant that has one scale, or one for each
    slice along *axis*. For other values, return None."""
    made = sweep.producer(name, "DequantizeLinear")
    data, scale = (sweep.array(made.inputs[i]) for i in (0, 1)) if made is not None else (None, None)
    if (
        made is None
        or data is None
        or scale is None
        or scale.dtype.name not in FLOATS
        or not are_scales(scale.astype(np.float32)).all()
        or made.attributes.get("block_size")
    ):
        return None
    scale = scale.astype(np.float32)
    zero = sweep.array(made.input(2)) if made.input(2) else np.zeros(scale.shape, data.dtype)
    if zero is None or zero.size != scale.size:
        return None
    if scale.size > 1 and (axis is None or int(made.attributes.get("axis", 1)) % data.ndim != axis):
        if not (every_equal(scale) and every_equal(zero)):
            return None
        scale, zero = scale[:1], zero[:1]
    return data, scale.reshape(-1), zero.reshape(-1)


def _bias(sweep: Sweep, name: str, x: QParams, w_scale: Array) -> Array | None:
    """Return a constant bias, or None if the bias is computed, or a constant of another type. The result is
    int32 if the bias has the scale x_scale * w_scale within 1 %, else float32."""
    expected = np.float32(x.scale) * w_scale
    made = sweep.producer(name, "DequantizeLinear")
    data = sweep.array(made.inputs[0]) if made is not None else sweep.array(name)
    if data is None:
        return None
    if made is None:
        return data.reshape(-1) if data.dtype == np.float32 else None
    scale = sweep.array(made.inputs[1])
    zero = sweep.array(made.input(2)) if made.input(2) else None
    if scale is None or (made.input(2) and zero is None):
        return None
    plain = zero is None or not zero.any()
    if data.dtype == np.int32 and plain and bool(np.all(np.abs(scale - expected) <= 0.01 * np.abs(expected))):
        return data.reshape(-1)
    points = 0 if zero is None else along(zero, made, data.shape).astype(np.int64)
    real = (data.astype(np.int64) - points).astype(np.float32) * along(scale, made, data.shape)
    return np.asarray(real, np.float32).reshape(-1)


def _layer(
    sweep: Sweep,
    node: Node,
    op: str,
    weight: tuple[Array, Array, Array] | None,
    channels: int,
    x: tuple[str, QParams] | None = None,
    **options: Any,
) -> bool:
    """Emit a layer with a float32 result for a node with the inputs x, weight and bias. *x*: (the 8-bit
    activations, their parameters); by default, the input and the parameters of the dequantize that computes
    the node's first input."""
    x = x or parameters(sweep, node.inputs[0])
    if weight is None or weight[0].dtype.name not in ("int8", "uint8"):
        return False
    if x is None:
        return of_floats(sweep, node, op, weight, channels, **options)
    data, scale, zero = weight
    inputs = [x[0], sweep.constant(data, f"{node.inputs[1]}/weight")]
    if node.input(2):
        bias = _bias(sweep, node.input(2), x[1], scale)
        if bias is None or bias.size not in (1, channels):
            return False
        bias = np.array(np.broadcast_to(bias, (channels,)))
        if bias.dtype == np.int32 and overflowing(_rows(op, data, channels), x[1], bias, zero):
            options["biases"] = bias, bias.astype(np.float32) * (np.float32(x[1].scale) * scale)
            made = sweep.made[node.inputs[1]]
            options["floats"] = op == "conv_transpose2d" or (op == "linear" and not made.input(2))
            bias = options["biases"][op == "conv2d" or options["floats"]]
        inputs.append(sweep.constant(bias, f"{node.input(2)}/bias"))
    if op != "linear" and (far := overflowing(_rows(op, data, channels), x[1], None, zero)):
        options["why"] = (
            f"its sums of products may overflow int32 in {len(far)} output channels (first: {far[0]})"
        )
    if op == "linear" and x[0] in sweep.constants:  # constant folding computes the product once
        return False
    sweep.emit(
        op, inputs, node.outputs[0], node.source, x=x[1], y=None, w_scale=scale,
        w_zero_point=zero if zero.any() else None, activation=None, **options,
    )  # fmt: skip
    return True


def of_floats(
    sweep: Sweep,
    node: Node,
    op: str,
    weight: tuple[Array, Array | None, Array | None],
    channels: int,
    **options: Any,
) -> bool:
    """Emit a layer of float activations with a float32 bias. Its scheme is q8csw for a weight with scales,
    and f32 or f16 for a float weight."""
    if sweep.specs[node.inputs[0]].dtype not in FLOATS:
        return False
    data, scale, zero = weight
    inputs = [node.inputs[0], sweep.constant(data, f"{node.inputs[1]}/weight")]
    if node.input(2):
        bias = real(sweep, node.input(2))
        if bias is None or bias.size not in (1, channels):
            return False
        whole = np.broadcast_to(bias.astype(np.float32).reshape(-1), (channels,))
        inputs.append(sweep.constant(np.array(whole), f"{node.input(2)}/bias"))
    sweep.emit(
        op, inputs, node.outputs[0], node.source, x=None, y=None, w_scale=scale,
        w_zero_point=zero if zero is not None and zero.any() else None, activation=None, **options,
    )  # fmt: skip
    return True


def _rows(op: str, weight: Array, channels: int) -> Array:
    """Return a weight with its output channels on axis 0."""
    if op != "conv_transpose2d":
        return weight
    groups = channels // weight.shape[1]
    by_group = weight.reshape(groups, -1, *weight.shape[1:])
    return np.asarray(by_group.swapaxes(1, 2).reshape(channels, -1))


def _conv(sweep: Sweep, node: Node) -> bool:
    weight = _weight(sweep, node.inputs[1], 0)
    shapes = sweep.specs[node.inputs[0]].shape, sweep.specs[node.inputs[1]].shape
    if weight is None or len(shapes[0]) != 4:
        return False
    options, x = conv_options(node, *shapes), None
    if options["groups"] == shapes[0][1] and (found := _each_channel(sweep, node.inputs[0], shapes[0][1])):
        x = found[0], QParams.of(np.float32(1), found[2])
        scale = np.repeat(found[1], shapes[1][0] // shapes[0][1]) * weight[1]
        weight = weight[0], scale, np.broadcast_to(weight[2], scale.shape)
    return _layer(sweep, node, "conv2d", weight, shapes[1][0], x, **options)


def _each_channel(sweep: Sweep, name: str, channels: int) -> tuple[str, Array, Any] | None:
    """Return (8-bit value, scales, zero point) if a value was dequantized with one scale for each channel;
    else None.

    A depthwise convolution sums within one channel, so the scale of its sums is the product of this
    channel's scale and the weight's scale."""
    made = sweep.producer(name, "DequantizeLinear")
    if made is None or made.inputs[0] in sweep.constants or sweep.specs[name].dtype != "float32":
        return None
    scale, points = sweep.array(made.inputs[1]), sweep.array(made.input(2)) if made.input(2) else np.uint8(0)
    if scale is None or points is None or scale.shape != (channels,) or not are_scales(scale).all():
        return None
    along_channels = axis_of(made, len(sweep.specs[name].shape), 1) == 1 and not made.attributes.get(
        "block_size"
    )
    dtype = sweep.specs[made.inputs[0]].dtype
    if not along_channels or not every_equal(np.asarray(points)) or dtype not in ("int8", "uint8"):
        return None
    return made.inputs[0], scale, np.asarray(points).reshape(-1)[0].astype(dtype)


def _conv_transpose(sweep: Sweep, node: Node) -> bool:
    shapes = sweep.specs[node.inputs[0]].shape, sweep.specs[node.inputs[1]].shape
    groups = int(node.attributes.get("group", 1))
    weight = _weight(sweep, node.inputs[1], 1)
    if weight is None or len(shapes[0]) != 4:
        return False
    # the weight has as many scales as one group has output channels; all groups use these scales
    if weight[1].size > 1:
        weight = weight[0], np.tile(weight[1], groups), np.tile(weight[2], groups)
    return _layer(
        sweep, node, "conv_transpose2d", weight, shapes[1][1] * groups, **transposed_options(node, *shapes)
    )


def _linear_weight(weight: tuple[Array, Array, Array], transposed: bool) -> tuple[Array, Array, Array]:
    return weight if transposed else (np.ascontiguousarray(weight[0].T), *weight[1:])


def _matmul(sweep: Sweep, node: Node) -> bool:
    """Emit a linear layer if the right matrix is constant. Otherwise emit a product of two activations."""
    a_shape, b_shape = (sweep.specs[name].shape for name in node.inputs)
    weight = _weight(sweep, node.inputs[1], 1)
    if weight is not None and len(b_shape) == 2 and len(a_shape) > 1:
        return _layer(sweep, node, "linear", _linear_weight(weight, False), b_shape[1])
    return in_blocks(sweep, node, transposed=False) or _product(sweep, node)


def _product(sweep: Sweep, node: Node) -> bool:
    a, b = (parameters(sweep, name) for name in node.inputs[:2])
    if a is None or b is None or min(len(sweep.specs[v[0]].shape) for v in (a, b)) < 2:
        return False
    sweep.emit("matmul", [a[0], b[0]], node.outputs[0], node.source, a=a[1], b=b[1], y=None)
    return True


def _gemm(sweep: Sweep, node: Node) -> bool:
    """Emit a linear layer for a Gemm with one constant matrix, which `products` has made the right one."""
    transposed = bool(node.attributes.get("transB", 0))
    weight = _weight(sweep, node.inputs[1], 0 if transposed else 1)
    if weight is None:
        return in_blocks(sweep, node, transposed)
    weight = _linear_weight(weight, transposed)
    return _layer(sweep, node, "linear", weight, weight[0].shape[0])


def _softmax(sweep: Sweep, node: Node) -> bool:
    x = parameters(sweep, node.inputs[0])
    if x is None:
        return False
    axis = axis_of(node, len(sweep.specs[x[0]].shape), -1)
    sweep.emit("softmax", [x[0]], node.outputs[0], node.source, x=x[1], y=None, axis=axis, onnxruntime=False)
    return True


def _sum(sweep: Sweep, node: Node) -> bool:
    made = sweep.producer(node.inputs[0], "dequantize")
    return made is not None and summed(sweep, node, made.inputs[0], made.attributes["x"])


def _arg_extreme(sweep: Sweep, node: Node) -> bool:
    """Compute ArgMax or ArgMin on the input of dequantize, because dequantize keeps the order of the 8-bit
    values."""
    made, x = sweep.producer(node.inputs[0], "dequantize"), node.inputs[0]
    if made is None and sweep.specs[x].dtype not in ("int8", "uint8"):
        return False
    x = x if made is None else made.inputs[0]
    sweep.emit(node.op.lower(), [x], node.outputs[0], node.source, **node.attributes)
    return True


FLOAT_RESULTS: dict[str, Callable[[Sweep, Node], bool]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MatMul": _matmul, "Gemm": _gemm, "Softmax": _softmax,
    "ReduceSum": _sum, "ArgMax": _arg_extreme, "ArgMin": _arg_extreme,
}  # fmt: skip
