"""ONNX's quantization operators, and vkq's operators on 8-bit values. The attributes x, a, b and y of vkq's
operators are the QParams of operands and result; None stands for a float operand or result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...numerics.elementwise import binary
from ...numerics.qparams import SMALLEST_SCALE, QParams
from ...numerics.quantize import dequantize, quantize
from ...numerics.tables import table_of
from ...problem.conv2d import Conv2dProblem
from ...problem.heads import ONE_EACH, apart, together
from ...problem.linear import LinearProblem
from ...problem.transposed import TransposedConv2dProblem
from ...problem.window import Window
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, broadcast, one, there


def along(scale: Array, node: Node, shape: Sequence[int]) -> Array:
    """Reshape scales or zero points so that they broadcast to x. *scale* has one value for the whole
    tensor, one for each slice along ``axis``, or one for each block along ``axis``."""
    if scale.size == 1 and scale.ndim < 2:
        return scale.reshape(())
    axis, block = int(node.attributes.get("axis", 1)), int(node.attributes.get("block_size", 0))
    if not -len(shape) <= axis < len(shape):
        raise ModelError(f"{node}: axis is {axis} and the input has {len(shape)} axes")
    axis %= len(shape)
    if block:
        if block < 0 or scale.shape != tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape)):
            raise ModelError(
                f"{node}: there are {scale.shape} scales for {tuple(shape)} in blocks of {block}"
            )
        whole = np.repeat(scale, min(block, shape[axis]), axis)
        return whole[tuple(slice(d) for d in shape)]
    if scale.shape != (shape[axis],):
        raise ModelError(f"{node}: there are {scale.shape} scales for {shape[axis]} slices along axis {axis}")
    return scale.reshape(tuple(d if i == axis else 1 for i, d in enumerate(shape)))


def _quantize_dtype(x: Inputs) -> str:
    zero = x.specs[2] if len(x.specs) > 2 else None
    return zero.dtype if zero is not None else str(x.node.attributes.get("output_dtype", "uint8"))


def _quantize(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, scale = (
        there(x[0]).astype(np.float32),
        along(there(x[1]).astype(np.float32), node, there(x[0]).shape),
    )
    zero = x[2] if len(x) > 2 else None
    dtype = np.dtype(node.attributes.get("output_dtype", "uint8")) if zero is None else zero.dtype
    points = 0 if zero is None else along(zero, node, given.shape).astype(np.int64)
    info = np.iinfo(dtype)
    with np.errstate(all="ignore"):
        rounded = np.rint(given / scale)
    rounded = np.where(np.isnan(rounded), -np.inf, rounded)
    moved = np.clip(rounded.astype(np.float64) + points, info.min, info.max)
    return one(moved.astype(np.int64).astype(dtype))


def _dequantize(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, scale = there(x[0]), along(there(x[1]), node, there(x[0]).shape)
    zero = x[2] if len(x) > 2 else None
    points = 0 if zero is None else along(zero, node, given.shape).astype(np.int64)
    return one(
        ((given.astype(np.int64) - points).astype(np.float32) * scale.astype(np.float32)).astype(scale.dtype)
    )


def _dynamic(node: Node, x: Sequence[Array | None]) -> list[Array]:
    """DynamicQuantizeLinear: map the range of the whole tensor to uint8.

    The range ignores NaN and is extended to contain 0. The scale is at least 2**-126. If the range is
    infinite, the scale is infinite, too: finite values become the zero point, and infinities become 0."""
    given = there(x[0])
    low, high = (np.float32(each(given.reshape(-1), initial=0)) for each in (np.fmin.reduce, np.fmax.reduce))
    with np.errstate(all="ignore"):
        scale = (
            np.maximum((high - low) / np.float32(255), np.float32(SMALLEST_SCALE))
            if high > low
            else np.float32(1)
        )
        point = np.rint(-low / scale)
        zero = np.float32(255) if np.isnan(point) else np.clip(point, 0, 255)
        rounded = np.rint(given / scale) + zero
    q = np.clip(np.where(np.isnan(rounded), np.float32(0), rounded), 0, 255).astype(np.uint8)
    return [q, np.asarray(scale, np.float32), np.asarray(zero, np.uint8)]


def _result(x: Inputs, shape: Sequence[int], key: str = "y") -> list[Spec]:
    """Return the spec of a result. If the attribute *key* has quantization parameters, the result has the
    dtype of the parameters. If the attribute is None, the result has the dtype of x if x is float, else
    float32."""
    a = x.node.attributes
    y: QParams | None = a[key]
    real = x.spec(0).dtype if "x" in a and a["x"] is None else "float32"
    return [Spec(y.dtype if y else real, tuple(shape))]


CONV = ("stride", "padding", "dilation", "groups")
TRANSPOSED = (*CONV, "output_padding")


def options(node: Node, names: Sequence[str]) -> dict[str, Any]:
    """Return the attributes *names* of a node as keyword arguments; attributes that the node lacks are left
    out."""
    return {name: node.attributes[name] for name in names if name in node.attributes}


# In the nodes of a layer's ``after``, the input with this name is the layer's own result.
OWN = ""
LAYER = ("w_scale", "w_zero_point", "activation")  # quantization attributes of a layer besides x and y


def _layer(problem: Callable[..., Any], names: Sequence[str]) -> Operator:
    """Return the entry of the operator table for conv2d, conv_transpose2d or linear. Inputs: x, the
    constants weight and bias, and the residual of the epilogue. The attribute ``x`` has the quantization
    parameters of the input x, or is None for float32 or float16 activations. If x is None, a float result has
    the dtype of the activations.

    The attribute ``after`` of a conv2d or linear is its epilogue: a list of nodes that read the layer's
    result under the name `OWN`. The list is a lookup, a residual addition (an add or sub), or a lookup and
    then a residual addition. A linear may also have a dequantize, and its lookup may have one table for
    each channel."""

    def infer(x: Inputs) -> list[Spec]:
        shape = problem(x.spec(0).shape, x.spec(1).shape, **options(x.node, names)).y_shape
        last: Sequence[Node] = x.node.attributes.get("after", ())[-1:]
        return [Spec("float32", shape)] if last and last[0].op == "dequantize" else _result(x, shape)

    return Operator("quantized", infer)


def _matmul(x: Inputs) -> list[Spec]:
    heads = x.node.attributes.get("heads", ONE_EACH)
    a, b = (apart(x.spec(i).shape, heads[i]) for i in range(2))
    if x.node.attributes.get("rows"):
        b = (*b[:-2], *b[:-3:-1])
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ModelError(f"{x.node}: {a} and {b} cannot be multiplied")
    return _result(x, together((*np.broadcast_shapes(a[:-2], b[:-2]), a[-2], b[-1]), heads[2]))


def _attention(x: Inputs) -> list[Spec]:
    """Return the spec of the result. If the attribute ``columns`` is not empty, it has the range of columns
    that are read from each of the inputs q, k and v."""
    a = x.node.attributes
    heads, y, columns = a["heads"], a["steps"].results[2], a["columns"]
    shapes = [x.spec(i).shape for i in range(3)]
    if columns:
        shapes = [(*shape[:-1], len(own)) for shape, own in zip(shapes, columns, strict=True)]
    q, k, v = (apart(shape, of) for shape, of in zip(shapes, heads, strict=False))
    if not q[:-2] == k[:-2] == v[:-2] or q[-1] != k[-1] or k[-2] != v[-2]:
        raise ModelError(f"{x.node}: {q}, {k} and {v} are not queries, keys and values of one attention")
    return [Spec(y.dtype, together((*q[:-1], v[-1]), heads[3]))]


def _binary(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    op: Any = node.op
    return one(binary(op, there(x[0]), there(x[1]), a["a"], a["b"], a["y"], a.get("activation")))


def _where(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    left, right = (
        _by_table(there(v), table_of("identity", q, a["y"])) if q != a["y"] else there(v)
        for v, q in ((x[1], a["a"]), (x[2], a["b"]))
    )
    return one(np.where(there(x[0]), left, right))


def pool_window(node: Node, shape: Sequence[int]) -> Window:
    """Return the window of an avg_pool2d."""
    a = node.attributes
    return Window.of(node.op, shape, a["kernel"], a["stride"], a["padding"], 1, a["ceil_mode"])


def _by_table(x: Array, table: Array) -> Array:
    return np.asarray(table[x.astype(np.int32) - int(np.iinfo(x.dtype).min)])


def _lookup(node: Node, x: Sequence[Array | None]) -> list[Array]:
    """Look up x in ``table``: (256,), or (C, 256) with one table for each slice along ``axis``."""
    table: Array = node.attributes["table"]
    index = there(x[0]).astype(np.int32) + (128 if there(x[0]).dtype == np.int8 else 0)
    if table.ndim == 1:
        return one(table[index])
    axis = node.attributes["axis"]
    which = np.arange(table.shape[0]).reshape(tuple(-1 if i == axis else 1 for i in range(index.ndim)))
    return one(table[which, index])


def _lookup_infer(x: Inputs) -> list[Spec]:
    return [Spec(x.node.attributes["table"].dtype.name, x.spec(0).shape)]


def _lookup2(node: Node, x: Sequence[Array | None]) -> list[Array]:
    """Return ``table[a - a_min, b - b_min]``, where a_min and b_min are the smallest values of the types of a
    and b."""
    a, b = (there(v).astype(np.int32) + (128 if there(v).dtype == np.int8 else 0) for v in x)
    return one(node.attributes["table"][a, b])


OPERATORS: dict[str, Operator] = {
    "QuantizeLinear": Operator(
        "elementwise", lambda x: [Spec(_quantize_dtype(x), (x.spec(0), x.spec(1))[0].shape)], _quantize
    ),
    "DequantizeLinear": Operator(
        "elementwise", lambda x: [Spec(x.spec(1).dtype, x.spec(0).shape)], _dequantize
    ),
    "DynamicQuantizeLinear": Operator(
        "number",
        lambda x: [Spec("uint8", x.spec(0).shape), Spec("float32", ()), Spec("uint8", ())],
        _dynamic,
    ),
    "quantize": Operator(
        "elementwise",
        lambda x: _result(x, x.spec(0).shape),
        lambda node, x: one(quantize(there(x[0]), node.attributes["y"])),
    ),
    "dequantize": Operator(
        "elementwise",
        lambda x: [Spec("float32", x.spec(0).shape)],
        lambda node, x: one(dequantize(there(x[0]), node.attributes["x"])),
    ),
    "conv2d": _layer(Conv2dProblem.of, CONV),
    "conv_transpose2d": _layer(TransposedConv2dProblem.of, TRANSPOSED),
    "linear": _layer(LinearProblem.of, ()),
    "matmul": Operator("quantized", _matmul),
    "attention_q8": Operator("quantized", _attention),
    **{
        name: Operator("elementwise", lambda x: broadcast(x, x.node.attributes["y"].dtype), _binary)
        for name in ("add", "sub", "mul")
    },
    "where": Operator("elementwise", lambda x: broadcast(x, x.node.attributes["y"].dtype), _where),
    "avg_pool2d": Operator("quantized", lambda x: _result(x, pool_window(x.node, x.spec(0).shape).y_shape)),
    "global_avg_pool2d": Operator("quantized", lambda x: _result(x, (*x.spec(0).shape[:2], 1, 1))),
    "mean_lookup": Operator("quantized", lambda x: _result(x, (*x.spec(0).shape[:2], 1, 1))),
    "softmax": Operator("quantized", lambda x: _result(x, x.spec(0).shape)),
    "lookup": Operator("elementwise", _lookup_infer, _lookup),
    "lookup2": Operator(
        "elementwise", lambda x: broadcast(x, x.node.attributes["table"].dtype.name), _lookup2
    ),
}
