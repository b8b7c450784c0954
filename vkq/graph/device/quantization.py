"""Other forms of quantization on a device: along an axis, in blocks, found at run time; exact int32 sums."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ...kernels.repack import reshaped
from ...numerics.qparams import QParams
from ...ops import matmul as product
from ...ops import quantize_each, take
from ...problem.conv2d import Conv2dProblem
from ...runtime.builder import Builder, Value
from ..graph import Array, Graph, Node
from ..operators.number import conv_options
from ..operators.quantized import along
from ..passes.sweep import every_equal
from .context import BYTES, Context, Record, Row, anything, first_is_bytes


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
    dtypes = {graph.specs[name].dtype for name in (node.inputs[0], node.outputs[0])}
    if unknown or graph.specs[node.inputs[1]].dtype != "float32" or len(dtypes & set(BYTES)) != 1:
        has = ", ".join(str(graph.specs[name]) for name in node.inputs if name)
        return f"its parameters must be constants, float32 and 8-bit; it has {has}"
    return None


def _dynamic(context: Context, node: Node) -> tuple[Value, ...]:
    return quantize_each.quantized_dynamically(context.builder, context.value(node.inputs[0]))


def _with_zero(context: Context, node: Node, index: int) -> tuple[Value, QParams]:
    """An operand of MatMulInteger or ConvInteger, and its (first) zero point with the scale 1."""
    x, zero = context.value(node.inputs[index]), 0
    if node.input(2 + index):
        zero = int(context.graph.constants[node.inputs[2 + index]].reshape(-1)[0])
    return x, QParams(1.0, zero, "int8" if x.spec.dtype == "int8" else "uint8")


def _integer_check(graph: Graph, node: Node) -> str | None:
    if node.op == "MatMulInteger" and min(len(graph.specs[name].shape) for name in node.inputs[:2]) < 2:
        return "both operands must be matrices"
    for i, name in enumerate(node.inputs[2:]):
        zero, axis = graph.constants.get(name), -1 if i else -2
        if name and zero is None:
            return f"its zero points must be constants; {name!r} is computed at run time"
        channels = graph.specs[node.inputs[i]].shape[0 if node.op == "ConvInteger" else axis]
        each = i == 1 or node.op == "MatMulInteger"
        if zero is not None and not (every_equal(zero) or (each and zero.size == channels)):
            return (
                f"{name!r} has the shape {zero.shape}; it must be one number, or one for each row or column"
            )
    return first_is_bytes(graph, node)


def _matmul_integer(context: Context, node: Node) -> Value:
    """A product for each zero point that rows of the left and columns of the right operand have."""
    b = context.builder
    (x, xq), (z, zq) = (_with_zero(context, node, i) for i in (0, 1))
    zeros = [
        context.graph.constants[name].reshape(-1) if name else np.zeros(1, np.uint8)
        for name in (node.input(2), node.input(3))
    ]
    if all(every_equal(one) for one in zeros):
        return product.summed(b, x, z, xq, zq)
    rows, columns = _groups(zeros[0], x.spec.shape[-2]), _groups(zeros[1], z.spec.shape[-1])
    strips = []
    for row_zero, own in rows:
        left = _part(b, x, -2, own)
        products = [
            product.summed(b, left, _part(b, z, -1, others), QParams(1.0, row_zero, xq.dtype),
                           QParams(1.0, column_zero, zq.dtype))
            for column_zero, others in columns
        ]  # fmt: skip
        strips.append(_joined(b, products, -1))
    y = _joined(b, strips, -2)
    numbers = np.arange(y.spec.size, dtype=np.int32).reshape(y.spec.shape)
    first, second = (np.argsort(np.concatenate([own for _, own in found])) for found in (rows, columns))
    return take.taken(b, y, numbers[..., first, :][..., second])


def _groups(zeros: Array, count: int) -> list[tuple[int, Array]]:
    """Each zero point, and where it stands."""
    each = np.broadcast_to(zeros, (count,))
    return [(int(zero), np.flatnonzero(each == zero)) for zero in np.unique(each)]


def _part(b: Builder, x: Value, axis: int, own: Array) -> Value:
    """Some rows or columns."""
    if len(own) == x.spec.shape[axis]:
        return x
    return take.taken(b, x, np.take(np.arange(x.spec.size, dtype=np.int32).reshape(x.spec.shape), own, axis))


def _joined(b: Builder, xs: list[Value], axis: int) -> Value:
    return xs[0] if len(xs) == 1 else take.concatenated_words(b, xs, axis)


def _conv_integer(context: Context, node: Node) -> Value:
    """A product of the pixels under the kernel, which are gathered, with the weight, for each group, and for
    each zero point that channels have."""
    b = context.builder
    (x, xq), (w, wq) = (_with_zero(context, node, i) for i in (0, 1))
    p = Conv2dProblem.of(x.spec.shape, w.spec.shape, **conv_options(node, x.spec.shape, w.spec.shape))
    places = pixels_under(p)
    columns = take.taken(b, x, places, xq.zero_point)  # (groups, k, N * OH * OW)
    weight = reshaped(b, w, (p.groups, p.oc // p.groups, places.shape[1]))
    zeros = context.graph.constants[node.inputs[3]].reshape(-1) if node.input(3) else np.zeros(1, wq.dtype)
    found = [
        product.summed(b, weight, columns, QParams(1.0, int(zero), wq.dtype), xq) for zero in np.unique(zeros)
    ]
    y = found[0] if len(found) == 1 else take.concatenated_words(b, found, 0)
    numbers = np.arange(y.spec.size).reshape(len(found), p.oc, p.n, p.oh, p.ow)
    which = np.searchsorted(np.unique(zeros), np.broadcast_to(zeros, (p.oc,)))
    return take.taken(b, y, numbers[which, np.arange(p.oc)].transpose(1, 0, 2, 3))


def pixels_under(p: Conv2dProblem) -> Array:
    """(groups, k, N * OH * OW): the element of x under each element of the kernel, -1 in the padding."""
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


ROWS: dict[str, Row] = {
    "QuantizeLinear": Row(_each_check, _each(quantize_each.quantized_each)),
    "DequantizeLinear": Row(_each_check, _each(quantize_each.dequantized_each)),
    "DynamicQuantizeLinear": Row(anything, _dynamic),
    "MatMulInteger": Row(_integer_check, _matmul_integer),
    "ConvInteger": Row(_integer_check, _conv_integer),
}
