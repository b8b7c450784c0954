"""Quantization per axis, in blocks, and with parameters computed at run time, on a device. Also MatMulInteger
and ConvInteger, which return int32 sums."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from ...kernels.repack import reshaped
from ...layout.extent import Spec
from ...numerics.qparams import are_scales
from ...ops import matmul as product
from ...ops import quantize_each, take
from ...ops.shape import concatenated
from ...problem.conv2d import Conv2dProblem
from ...runtime.builder import Value
from ...runtime.transfer import stored
from ..graph import Array, Graph, Node
from ..operators.number import conv_options
from ..operators.quantized import along
from .context import BYTES, Context, DeviceOperator, Record, anything, first_is_bytes


def _each(function: Callable[..., Value]) -> Record:
    def record(context: Context, node: Node) -> Value:
        x, constants = context.value(node.inputs[0]), context.graph.constants
        scale = along(constants[node.inputs[1]], node, x.spec.shape)
        dtype = context.graph.specs[node.inputs[0] if x.spec.dtype in BYTES else node.outputs[0]].dtype
        zero = constants[node.inputs[2]] if node.input(2) else np.zeros((), dtype)
        return function(context.builder, x, scale, along(zero, node, x.spec.shape))

    return record


def _each_check(graph: Graph, node: Node) -> str | None:
    unknown = [name for name in node.inputs[1:] if name and name not in graph.constants]
    dtypes = {graph.specs[name].dtype for name in (node.inputs[0], node.outputs[0], *node.inputs[2:]) if name}
    types = graph.specs[node.inputs[1]].dtype, dtypes - set(BYTES), len(dtypes & set(BYTES))
    if unknown or types != ("float32", {"float32"}, 1):
        has = ", ".join(str(graph.specs[name]) for name in node.inputs if name)
        return f"its scales must be float32 constants, its zero points 8-bit constants; its inputs are {has}"
    return no_scale(graph.constants[node.inputs[1]])


def no_scale(scales: Array) -> str | None:
    """If one of the scales is invalid (not positive, not finite or subnormal), return an error message with a
    remedy, else None."""
    bad = np.argwhere(~are_scales(scales))
    if not len(bad):
        return None
    first, channels = bad[0].tolist(), "" if len(bad) == 1 else f" ({len(bad)} of {scales.size} are invalid)"
    which = f"its scale of channel {first[0]}" if len(first) == 1 else f"its scale at {first}"
    return (
        f"{which if scales.size > 1 else 'its scale'} is {scales[tuple(first)]}{channels}; scales must be"
        " positive, finite and at least 2**-126: store 1.0 where all numbers are 0"
    )


def _dynamic(context: Context, node: Node) -> tuple[Value, ...]:
    return quantize_each.quantized_dynamically(context.builder, context.value(node.inputs[0]))


def _zero_point(context: Context, node: Node, index: int) -> Value:
    """Return the zero points, constant or computed, of operand *index* of MatMulInteger or ConvInteger. If
    the node has no zero points for this operand, return a constant 0."""
    if node.input(2 + index):
        return context.value(node.inputs[2 + index])
    dtype, device = context.graph.specs[node.inputs[index]].dtype, context.builder.device
    spec, none = Spec((), dtype), np.zeros((), dtype)
    resident = device.constant(("no zero point", dtype), spec.nbytes, lambda: stored(none))
    return context.builder.view(context.builder.constant(resident), spec)


def _integer_check(graph: Graph, node: Node) -> str | None:
    if node.op == "MatMulInteger" and min(len(graph.specs[name].shape) for name in node.inputs[:2]) < 2:
        return "both operands must be matrices"
    for i, name in enumerate(node.inputs[2:]):
        if not name:
            continue
        operand, zero = graph.specs[node.inputs[i]], graph.specs[name]
        channels = operand.shape[0 if node.op == "ConvInteger" else -1 if i else -2]
        each = channels if i == 1 or node.op == "MatMulInteger" else 1
        if zero.dtype != operand.dtype or math.prod(zero.shape) not in (1, each):
            return (
                f"its zero point {name!r} is {zero} for the operand {operand}; it must have the operand's"
                " type and one element, or one element for each row or column"
            )
    return first_is_bytes(graph, node)


def _matmul_integer(context: Context, node: Node) -> Value:
    x, z = (context.value(name) for name in node.inputs[:2])
    zeros = [_zero_point(context, node, i) for i in (0, 1)]
    return product.summed(context.builder, x, z, *zeros)


def _conv_integer(context: Context, node: Node) -> Value:
    """Compute ConvInteger as one matrix product for each group: the weight times the pixels that
    `pixels_under` gathers. Padding has the value of the zero point. For this, the zero point is appended to
    the image as one more element, which the indices of padding select."""
    b = context.builder
    x, w = (context.value(name) for name in node.inputs[:2])
    x_zero, w_zero = (_zero_point(context, node, i) for i in (0, 1))
    p = Conv2dProblem.of(x.spec.shape, w.spec.shape, **conv_options(node, x.spec.shape, w.spec.shape))
    padded = p.n * p.ic * (p.h + p.padding[0] + p.padding[2]) * (p.w + p.padding[1] + p.padding[3])
    taps = p.n * p.ic * p.kh * p.kw * p.oh * p.ow
    take.check_places(b, padded, max(taps, p.n * p.oc * p.oh * p.ow))
    places = pixels_under(p)
    if places.size and places.min() < 0:
        lines = [reshaped(b, value, (value.spec.size,)) for value in (x, x_zero)]
        x, places = concatenated(b, lines, 0), np.where(places < 0, x.spec.size, places)
    columns = take.gather(b, x, places)  # (groups, k, N * OH * OW)
    weight = reshaped(b, w, (p.groups, p.oc // p.groups, places.shape[1]))
    y = product.summed(b, weight, columns, w_zero, x_zero)
    numbers = np.arange(y.spec.size).reshape(p.oc, p.n, p.oh, p.ow)
    return take.gather(b, y, numbers.transpose(1, 0, 2, 3))


def pixels_under(p: Conv2dProblem) -> Array:
    """Return an array (groups, K, N * OH * OW) of indices into x, where K = IC/groups * KH * KW. For each
    kernel tap and output pixel, the array has the index of the element that the tap reads, or -1 if the tap
    reads padding."""
    numbers = np.arange(p.n * p.ic * p.h * p.w).reshape(p.n, p.ic, p.h, p.w)
    top, left, bottom, right = p.padding
    numbers = np.pad(numbers, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=-1)
    taps = []
    for i, j in np.ndindex(p.kh, p.kw):
        row, column = i * p.dilation[0], j * p.dilation[1]
        rows = slice(row, row + (p.oh - 1) * p.stride[0] + 1, p.stride[0])
        taps.append(numbers[:, :, rows, column : column + (p.ow - 1) * p.stride[1] + 1 : p.stride[1]])
    seen = np.stack(taps, 2).reshape(p.n, p.groups, -1, p.oh * p.ow)  # (N, groups, IC/groups * taps, pixels)
    return np.asarray(seen.transpose(1, 2, 0, 3).reshape(p.groups, seen.shape[2], p.n * p.oh * p.ow))


ROWS: dict[str, DeviceOperator] = {
    "QuantizeLinear": DeviceOperator(_each_check, _each(quantize_each.quantized_each)),
    "DequantizeLinear": DeviceOperator(_each_check, _each(quantize_each.dequantized_each)),
    "DynamicQuantizeLinear": DeviceOperator(anything, _dynamic),
    "MatMulInteger": DeviceOperator(_integer_check, _matmul_integer),
    "ConvInteger": DeviceOperator(_integer_check, _conv_integer),
}
