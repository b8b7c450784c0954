"""Replaces an operator between dequantize and quantize by vkq's operator on 8-bit values.

The conditions are those of ONNX Runtime's selectors, which make the same replacement. Activations and result
must have the same type. Weights must be constant, and quantized per tensor or per output channel. The bias
must be int32 with the scale x_scale * w_scale (within 1 %); any other bias becomes ``round(bias / (x_scale *
w_scale))``. Relu and Clip become bounds of the result. A convolution, product or softmax without a quantize
after it returns float32."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...numerics.calibration import rounded_bias
from ...numerics.elementwise import float_sum, swaps
from ...numerics.qparams import QParams
from ...numerics.requantize import activation_bounds, activation_range
from ...ops.take import MOST_PLACES
from ..graph import Array, Graph, Node
from ..operators.images import window
from .layers import FLOAT_RESULTS, parameters
from .movement import quantized
from .sweep import Sweep, scalar, swept

LAYERS = ("conv2d", "linear", "conv_transpose2d")
Bounds = tuple[float, float]


def to_integers(graph: Graph) -> Graph:
    """Replace operators between dequantize and quantize by vkq's operators on 8-bit values, wherever
    possible."""
    return swept(graph, _visit, *FLOAT_RESULTS, "Relu", "Clip", "quantize")


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op in FLOAT_RESULTS:
        return FLOAT_RESULTS[node.op](sweep, node)
    if node.op in ("Relu", "Clip"):
        return bounded_layer(sweep, node)
    return _quantized(sweep, node)


def _bounds(sweep: Sweep, node: Node) -> Bounds | None:
    """Return the bounds of a Relu or Clip as real numbers. Return None if a bound is computed at run time, or
    if the lower bound is above the upper bound."""
    if node.op == "Relu":
        return activation_range("relu")
    found = []
    for i, default in ((1, -np.inf), (2, np.inf)):
        bound = scalar(sweep.array(node.input(i))) if node.input(i) else default
        if bound is None:
            return None
        found.append(float(bound))
    return (found[0], found[1]) if found[0] <= found[1] else None


def bounded_layer(sweep: Sweep, node: Node) -> bool:
    """Fuse a Relu or Clip of a layer's float32 result into the layer, as the bounds ``activation``."""
    layer, bounds = sweep.producer(node.inputs[0], *LAYERS), _bounds(sweep, node)
    if layer is None or bounds is None or layer.attributes["y"] is not None:
        return False
    # If other nodes also read the result of a layer of float activations, this result must stay, and the
    # fused layer would compute it a second time.
    if layer.attributes["x"] is None and sweep.uses[node.inputs[0]] > 1:
        return False
    low, high = activation_range(layer.attributes["activation"])
    both = (max(low, bounds[0]), max(bounds[0], min(high, bounds[1])))
    sweep.emit(
        layer.op, layer.inputs, node.outputs[0], layer.source, **{**layer.attributes, "activation": both}
    )
    return True


def _redundant(bounds: Bounds, q: QParams) -> bool:
    """Return True if the range of *q* is within the bounds of a Relu or Clip. ONNX Runtime then drops the
    Relu or Clip before the quantize."""
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
        if before.op == "Add":
            return _bounded_sum(sweep, node, before, q, bounds)
        if before.op == "Mul" or not ONE_STEP[before.op](sweep, node, before, q, ""):
            # `to_tables` replaces the remaining element-wise operators by tables, which are exact
            return False
        return _clamped(sweep, sweep.nodes[-1].outputs[0], q, bounds, node)
    return made.op in ONE_STEP and ONE_STEP[made.op](sweep, node, made, q, node.outputs[0])


def _clamped(sweep: Sweep, name: str, q: QParams, bounds: Bounds, node: Node) -> bool:
    low, high = activation_bounds(bounds, q)
    table = np.clip(np.arange(q.qmin, q.qmax + 1), low, high).astype(q.dtype)
    sweep.emit("lookup", [name], node.outputs[0], node.source, table=table)
    return True


def _requantized(sweep: Sweep, node: Node, made: Node, q: QParams) -> bool:
    """Fuse *node*, which quantizes the result of the layer *made*, into this layer. The fused layer has an
    int32 bias, and its result has the parameters q. If the types of x and of the result differ, keep both
    nodes and return False."""
    attributes, inputs = dict(made.attributes), list(made.inputs)
    x: QParams | None = attributes["a" if made.op == "matmul" else "x"]
    if x is None or x.dtype != q.dtype:
        return False
    biases, why, floats = (attributes.pop(key, None) for key in ("biases", "why", "floats"))
    if (biases or why) and (floats or not _redundant(activation_range(attributes["activation"]), q)):
        # The bias is too large for int32, or the sums would wrap: keep a float32 result and its quantize.
        return biases is not None and _quantized_after(sweep, node, made, biases[1])
    if biases:
        inputs[2] = sweep.constant(biases[0], inputs[2])
    elif made.op in LAYERS and len(inputs) > 2:
        bias = sweep.constants[inputs[2]]
        if bias.dtype == np.float32:
            try:
                rounded = rounded_bias(bias, x.scale, attributes["w_scale"], inputs[2])
            except ArgumentError:
                return False
            inputs[2] = sweep.constant(rounded, f"{inputs[2]}/int32")
            attributes["float_bias"] = True
    if made.op == "softmax":
        attributes["onnxruntime"] = True
    sweep.emit(made.op, inputs, node.outputs[0], made.source, **{**attributes, "y": q})
    return True


def _quantized_after(sweep: Sweep, node: Node, made: Node, bias: Array) -> bool:
    """Emit a layer with a float32 result and the float32 bias *bias*, and a quantize of the result."""
    real = [*made.inputs[:2], sweep.constant(bias, f"{made.inputs[2]}/real")]
    result = sweep.emit(made.op, real, source=made.source, **made.attributes)
    sweep.emit("quantize", [result], node.outputs[0], node.source, **node.attributes)
    return True


def _binary(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    a, b = (parameters(sweep, name) for name in made.inputs)
    if a is None or b is None or not a[1].dtype == b[1].dtype == q.dtype:
        return False
    sweep.emit(made.op.lower(), [a[0], b[0]], output, made.source, a=a[1], b=b[1], y=q, activation=None)
    return True


def _bounded_sum(sweep: Sweep, node: Node, made: Node, q: QParams, bounds: Bounds) -> bool:
    """Replace a sum before a Relu or Clip by an ``add`` with bounds, if the ``add`` returns the bytes of
    ONNX Runtime's float addition. Return False otherwise; `to_tables` then makes a table of the nodes."""
    a, b = (parameters(sweep, name) for name in made.inputs)
    if a is None or b is None or not a[1].dtype == b[1].dtype == q.dtype:
        return False
    shapes = [sweep.specs[name].shape for name, _ in (a, b)]
    if shapes[0] != shapes[1] or swaps(*shapes) or not sweep.constants.keys().isdisjoint((a[0], b[0])):
        return False
    found = float_sum(a[1], b[1], q, bounds)
    if found is None:
        return False
    sweep.emit(
        "add", [a[0], b[0]], node.outputs[0], made.source, a=found[0], b=found[1], y=q, activation=bounds
    )
    return True


def _average(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    x = parameters(sweep, made.inputs[0])
    if x is None or x[1].dtype != q.dtype:
        return False
    how = window(made, sweep.specs[x[0]].shape)
    if how.whole:
        return _global_average(sweep, node, made, q, output)
    if how.dilation != (1, 1):  # avg_pool2d does not support dilation
        return False
    sweep.emit(
        "avg_pool2d", [x[0]], output, made.source, x=x[1], y=q, kernel=how.kernel, stride=how.stride,
        padding=how.padding, ceil_mode=how.ceil_mode,
        count_include_pad=bool(made.attributes.get("count_include_pad", 0)),
    )  # fmt: skip
    return True


def _global_average(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    x = parameters(sweep, made.inputs[0])
    if x is None or x[1].dtype != q.dtype or len(sweep.specs[x[0]].shape) != 4:
        return False
    sweep.emit("global_avg_pool2d", [x[0]], output, made.source, x=x[1], y=q)
    return True


def _resize(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    """Replace a Resize between dequantize and quantize by a Resize of 8-bit values. If both scales are in
    (2^-60, 2^60), no product is subnormal, and a linear interpolation repeats ONNX Runtime's arithmetic. With
    other scales, the Resize is replaced only if x and the result have equal parameters; interpolated values
    are then rounded half to even."""
    x = parameters(sweep, made.inputs[0])
    usual = x is not None and all(2.0**-60 < scale < 2.0**60 for scale in (x[1].scale, q.scale))
    if x is None or x[1].dtype != q.dtype or not (usual or x[1] == q):
        return False
    more: dict[str, Any] = {"real": (x[1], q)} if usual else {"rounding": "even"}
    sweep.emit("Resize", [x[0], *made.inputs[1:]], output, made.source, **{**made.attributes, **more})
    return True


def _where(sweep: Sweep, node: Node, made: Node, q: QParams, output: str) -> bool:
    """Replace a Where: requantize both operands to the result's parameters, and select between them. If the
    condition is constant, replace the selection by a Gather from the concatenated operands."""
    chosen = sweep.array(made.inputs[0])
    shape = sweep.specs[made.outputs[0]].shape
    if chosen is None:
        pair = [quantized(sweep, name, q, source=made.source) for name in made.inputs[1:]]
        sweep.emit("where", [made.inputs[0], *pair], output, made.source, a=q, b=q, y=q)
        return True
    if math.prod(shape) > MOST_PLACES:
        return False
    sides = []
    for name in made.inputs[1:]:
        side = quantized(sweep, name, q, source=made.source)
        whole = sweep.emit(
            "Expand", [side, sweep.constant(np.array(shape, np.int64), "shape")], source=made.source
        )
        flat = sweep.constant(np.array([-1], np.int64), "shape")
        sides.append(sweep.emit("Reshape", [whole, flat], source=made.source))
    both = sweep.emit("Concat", sides, source=made.source, axis=0)
    places = np.arange(math.prod(shape), dtype=np.int64).reshape(shape)
    picked = np.where(np.broadcast_to(chosen, shape), places, places + places.size)
    sweep.emit("Gather", [both, sweep.constant(picked, "places")], output, made.source, axis=0)
    return True


ONE_STEP: dict[str, Callable[[Sweep, Node, Node, QParams, str], bool]] = {
    "Add": _binary, "Mul": _binary, "AveragePool": _average, "GlobalAveragePool": _global_average,
    "Resize": _resize, "Where": _where,
}  # fmt: skip
