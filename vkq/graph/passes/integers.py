"""Quantized operators: an operator between dequantize and quantize becomes vkq's on 8-bit numbers.

The conditions are those of ONNX Runtime's selectors: activations and result of one type, weights constant and
quantized per tensor or per output channel, an int32 bias with the scale x * w (within 1 %; another bias
becomes ``round(bias / (x_scale * w_scale))``). Relu and Clip become bounds of the result. Where no quantize
follows, a convolution, product or softmax gives float32.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...numerics.qparams import QParams
from ...numerics.requantize import activation_bounds, activation_range
from ..graph import Array, Graph, Node
from ..operators.movement import window
from ..operators.number import conv_options, transposed_options
from ..operators.operator import axis_of
from ..operators.quantized import along
from .sweep import Sweep, every_equal, scalar

LAYERS = ("conv2d", "linear", "conv_transpose2d")
Bounds = tuple[float, float]


def to_integers(graph: Graph) -> Graph:
    """The graph with quantized operators wherever they can be."""
    return Sweep(graph).run(_visit)


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op in FLOAT_RESULTS:
        return FLOAT_RESULTS[node.op](sweep, node)
    if node.op in ("Relu", "Clip"):
        return _bounded_layer(sweep, node)
    return node.op == "quantize" and _quantized(sweep, node)


# ------------------------------------------------------------------------------- convolutions and products


def _parameters(sweep: Sweep, name: str) -> tuple[str, QParams] | None:
    """The 8-bit value behind a dequantized one (a constant too), and its parameters."""
    made = sweep.producer(name, "dequantize")
    if made is not None:
        return made.inputs[0], made.attributes["x"]
    weight = _weight(sweep, name)
    if weight is None or weight[1].size != 1:
        return None
    made = sweep.made[name]
    return made.inputs[0], QParams.of(weight[1].reshape(-1)[0], weight[2].reshape(-1)[0])


def _weight(sweep: Sweep, name: str, axis: int | None = None) -> tuple[Array, Array, Array] | None:
    """(integers, scales, zero points) of a dequantized constant: one scale, or one for each slice along
    *axis*."""
    made = sweep.producer(name, "DequantizeLinear")
    data, scale = (sweep.array(made.inputs[i]) for i in (0, 1)) if made is not None else (None, None)
    if (
        made is None
        or data is None
        or scale is None
        or scale.dtype != np.float32
        or made.attributes.get("block_size")
    ):
        return None
    zero = sweep.array(made.input(2)) if made.input(2) else np.zeros(scale.shape, data.dtype)
    if zero is None or zero.size != scale.size:
        return None
    if scale.size > 1 and (axis is None or int(made.attributes.get("axis", 1)) % data.ndim != axis):
        if not (every_equal(scale) and every_equal(zero)):
            return None
        scale, zero = scale[:1], zero[:1]
    return data, scale.reshape(-1), zero.reshape(-1)


def _bias(sweep: Sweep, name: str, x: QParams, w_scale: Array) -> Array | None:
    """A bias as int32 where it has the scale x * w within 1 %, else as float32; None where it is not
    constant."""
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
    **options: Any,
) -> bool:
    """Emits a layer with float32 result for a node with inputs x, weight, bias."""
    x = _parameters(sweep, node.inputs[0])
    if x is None or weight is None or weight[0].dtype.name not in ("int8", "uint8"):
        return False
    data, scale, zero = weight
    inputs = [x[0], sweep.constant(data, f"{node.inputs[1]}/weight")]
    if node.input(2):
        bias = _bias(sweep, node.input(2), x[1], scale)
        if bias is None or bias.size not in (1, channels):
            return False
        inputs.append(sweep.constant(np.array(np.broadcast_to(bias, (channels,))), f"{node.input(2)}/bias"))
    if x[0] in sweep.constants:
        return False
    sweep.emit(
        op, inputs, node.outputs[0], node.source, x=x[1], y=None, w_scale=scale,
        w_zero_point=zero if zero.any() else None, activation=None, **options,
    )  # fmt: skip
    return True


def _conv(sweep: Sweep, node: Node) -> bool:
    weight = _weight(sweep, node.inputs[1], 0)
    shapes = sweep.specs[node.inputs[0]].shape, sweep.specs[node.inputs[1]].shape
    if weight is None or len(shapes[0]) != 4:
        return False
    return _layer(sweep, node, "conv2d", weight, shapes[1][0], **conv_options(node, *shapes))


def _conv_transpose(sweep: Sweep, node: Node) -> bool:
    shapes = sweep.specs[node.inputs[0]].shape, sweep.specs[node.inputs[1]].shape
    groups = int(node.attributes.get("group", 1))
    weight = _weight(sweep, node.inputs[1], 1 if groups == 1 else None)
    if weight is None or len(shapes[0]) != 4:
        return False
    return _layer(
        sweep, node, "conv_transpose2d", weight, shapes[1][1] * groups, **transposed_options(node, *shapes)
    )


def _linear_weight(weight: tuple[Array, Array, Array], transposed: bool) -> tuple[Array, Array, Array]:
    return weight if transposed else (np.ascontiguousarray(weight[0].T), *weight[1:])


def _matmul(sweep: Sweep, node: Node) -> bool:
    """With a constant matrix on the right a linear layer, else the product of two activations."""
    a_shape, b_shape = (sweep.specs[name].shape for name in node.inputs)
    weight = _weight(sweep, node.inputs[1], 1)
    if weight is not None and len(b_shape) == 2 and len(a_shape) > 1:
        return _layer(sweep, node, "linear", _linear_weight(weight, False), b_shape[1])
    return _product(sweep, node)


def _product(sweep: Sweep, node: Node) -> bool:
    a, b = (_parameters(sweep, name) for name in node.inputs[:2])
    if a is None or b is None or min(len(sweep.specs[v[0]].shape) for v in (a, b)) < 2:
        return False
    sweep.emit("matmul", [a[0], b[0]], node.outputs[0], node.source, a=a[1], b=b[1], y=None)
    return True


def _gemm(sweep: Sweep, node: Node) -> bool:
    a = node.attributes
    plain = (
        a.get("alpha", 1.0) == 1.0
        and (a.get("beta", 1.0) == 1.0 or not node.input(2))
        and not a.get("transA", 0)
    )
    transposed = bool(a.get("transB", 0))
    weight = _weight(sweep, node.inputs[1], 0 if transposed else 1)
    if not plain or (weight is None and (transposed or node.input(2))):
        return False
    if weight is None:
        return _product(sweep, node)
    weight = _linear_weight(weight, transposed)
    return _layer(sweep, node, "linear", weight, weight[0].shape[0])


def _softmax(sweep: Sweep, node: Node) -> bool:
    x = _parameters(sweep, node.inputs[0])
    if x is None:
        return False
    axis = axis_of(node, len(sweep.specs[x[0]].shape), -1)
    sweep.emit("softmax", [x[0]], node.outputs[0], node.source, x=x[1], y=None, axis=axis, onnxruntime=False)
    return True


FLOAT_RESULTS: dict[str, Callable[[Sweep, Node], bool]] = {
    "Conv": _conv, "ConvTranspose": _conv_transpose, "MatMul": _matmul, "Gemm": _gemm, "Softmax": _softmax,
}  # fmt: skip


# -------------------------------------------------------------------------------------- before a quantize


def _bounds(sweep: Sweep, node: Node) -> Bounds | None:
    """The real bounds of a Relu or Clip with constant bounds."""
    if node.op == "Relu":
        return activation_range("relu")
    found = []
    for i, default in ((1, -np.inf), (2, np.inf)):
        bound = scalar(sweep.array(node.input(i))) if node.input(i) else default
        if bound is None:
            return None
        found.append(float(bound))
    return (found[0], found[1]) if found[0] <= found[1] else None


def _bounded_layer(sweep: Sweep, node: Node) -> bool:
    """Relu or Clip of a layer's float32 result: a bound of the layer's own."""
    layer, bounds = sweep.producer(node.inputs[0], *LAYERS), _bounds(sweep, node)
    if layer is None or bounds is None or layer.attributes["y"] is not None:
        return False
    low, high = activation_range(layer.attributes["activation"])
    both = (max(low, bounds[0]), max(bounds[0], min(high, bounds[1])))
    sweep.emit(
        layer.op, layer.inputs, node.outputs[0], layer.source, **{**layer.attributes, "activation": both}
    )
    return True


def _redundant(bounds: Bounds, q: QParams) -> bool:
    """Whether ONNX Runtime drops a Relu or Clip before this quantize: its bounds lie outside what q can
    say."""
    low, high = (np.float32(q.scale) * np.float32(limit - q.zero_point) for limit in (q.qmin, q.qmax))
    slack = np.finfo(np.float32).eps
    return not (slack < bounds[0] - low or slack < high - bounds[1])


def _quantized(sweep: Sweep, node: Node) -> bool:
    q: QParams = node.attributes["y"]
    made = sweep.producer(node.inputs[0])
    if made is None:
        return False
    if made.op in (*LAYERS, "matmul", "softmax") and made.attributes["y"] is None:
        return _requantized(sweep, node, made, q)
    bounds = _bounds(sweep, made) if made.op in ("Relu", "Clip") else None
    if bounds is not None:
        before = sweep.producer(made.inputs[0])
        if before is None or before.op not in ONE_STEP:
            return False
        if _redundant(bounds, q):
            return ONE_STEP[before.op](sweep, node, before, q, node.outputs[0])
        if before.op in ("Add", "Mul") or not ONE_STEP[before.op](sweep, node, before, q, ""):
            return False  # element by element: a table says it exactly
        return _clamped(sweep, sweep.nodes[-1].outputs[0], q, bounds, node)
    return made.op in ONE_STEP and ONE_STEP[made.op](sweep, node, made, q, node.outputs[0])


def _clamped(sweep: Sweep, name: str, q: QParams, bounds: Bounds, node: Node) -> bool:
    low, high = activation_bounds(bounds, q)
    table = np.clip(np.arange(q.qmin, q.qmax + 1), low, high).astype(q.dtype)
    sweep.emit("lookup", [name], node.outputs[0], node.source, table=table)
    return True


def _requantized(sweep: Sweep, node: Node, made: Node, q: QParams) -> bool:
    """quantize(layer) in one step, with an int32 bias."""
    attributes, inputs = dict(made.attributes), list(made.inputs)
    if made.op in LAYERS and len(inputs) > 2:
        bias = sweep.constants[inputs[2]]
        if bias.dtype == np.float32:
            steps = np.float32(attributes["x"].scale) * attributes["w_scale"]
            rounded = np.rint(bias / steps)
            if not np.all(np.abs(rounded) < 2.0**31):
                return False
            inputs[2] = sweep.constant(rounded.astype(np.int32), f"{inputs[2]}/int32")
    if made.op == "softmax":
        attributes["onnxruntime"] = True
    sweep.emit(made.op, inputs, node.outputs[0], made.source, **{**attributes, "y": q})
    return True


def _binary(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    a, b = (_parameters(sweep, name) for name in made.inputs)
    if a is None or b is None or not a[1].dtype == b[1].dtype == q.dtype:
        return False
    sweep.emit(made.op.lower(), [a[0], b[0]], output, made.source, a=a[1], b=b[1], y=q, activation=None)
    return True


def _average(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    x = _parameters(sweep, made.inputs[0])
    if x is None or x[1].dtype != q.dtype:
        return False
    how = window(made, sweep.specs[x[0]].shape)
    sweep.emit(
        "avg_pool2d", [x[0]], output, made.source, x=x[1], y=q, kernel=how.kernel, stride=how.stride,
        padding=how.padding, ceil_mode=how.ceil_mode,
        count_include_pad=bool(made.attributes.get("count_include_pad", 0)),
    )  # fmt: skip
    return True


def _global_average(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    x = _parameters(sweep, made.inputs[0])
    if x is None or len(sweep.specs[x[0]].shape) != 4:
        return False
    sweep.emit("global_avg_pool2d", [x[0]], output, made.source, x=x[1], y=q)
    return True


def _resize(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    x = _parameters(sweep, made.inputs[0])
    if x is None or x[1] != q:
        return False
    sweep.emit(
        "Resize", [x[0], *made.inputs[1:]], output, made.source, **{**made.attributes, "rounding": "even"}
    )
    return True


ONE_STEP: dict[str, Callable[[Sweep, Node, Node, QParams, str], bool]] = {
    "Add": _binary, "Mul": _binary, "AveragePool": _average, "GlobalAveragePool": _global_average,
    "Resize": _resize,
}  # fmt: skip
