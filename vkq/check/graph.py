"""Run a graph in NumPy. The results are the reference for devices, and also for graph passes, because a pass
must not change the results of a graph.

Convolutions and average pools of real numbers are computed in float64. Quantized operators use
`vkq.reference`. All other operators use the functions of constant folding (`vkq.graph.operators`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Graph, Node, Spec
from ..graph.operators import groups
from ..graph.operators.images import resize_of, window
from ..graph.operators.number import conv_options, transposed_options
from ..graph.operators.operator import Compute, one, there
from ..graph.operators.quantized import CONV, OWN, TRANSPOSED, options, pool_window
from ..graph.operators.table import compute
from ..numerics.qparams import QParams
from ..numerics.quantize import quantize
from ..numerics.requantize import multipliers, requantize, wrapped
from ..problem.conv2d import Conv2dProblem
from ..problem.heads import ONE_EACH, put_together, taken_apart
from ..problem.transposed import TransposedConv2dProblem
from ..reference import floats, layers, linear_grouped, transposed
from ..reference import operators as reference_ops
from ..reference.layers import convolve
from ..reference.resize import interpolate, resize, resize_real
from ..reference.softmax import softmax, softmax_litert, softmax_onnxruntime
from ..reference.transposed import forward_weight, spread

LAYER = ("w_scale", "w_zero_point", "activation")  # attributes that all layers pass to the reference


def run(graph: Graph, inputs: Mapping[str, Array], every: bool = False) -> dict[str, Array]:
    """Run the graph. Return a dict from the names of its outputs (with *every*, of all values) to arrays."""
    values: dict[str, Array] = dict(graph.constants)
    for name in graph.inputs:
        if Spec.of(inputs[name]) != graph.specs[name]:
            raise ModelError(f"input {name!r} is {Spec.of(inputs[name])}; it must be {graph.specs[name]}")
        values[name] = inputs[name]
    for node in graph.nodes:
        arrays = [values[name] if name else None for name in node.inputs]
        if node.op == "foreign":
            raise ModelError(f"{node}: the reference cannot compute this operator")
        results = COMPUTE.get(node.op, compute)(node, arrays) or ()
        values.update((name, array) for name, array in zip(node.outputs, results, strict=False) if name)
    return values if every else {name: values[name] for name in graph.outputs}


def _conv_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, weight, bias = there(x[0]), there(x[1]), x[2] if len(x) > 2 else None
    problem = Conv2dProblem.of(given.shape, weight.shape, **conv_options(node, given.shape, weight.shape))
    sums = convolve(given.astype(np.float64), weight.astype(np.float64), problem)
    return one((sums if bias is None else sums + bias.reshape(-1, 1, 1)).astype(given.dtype))


def _transposed_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, weight, bias = there(x[0]), there(x[1]), x[2] if len(x) > 2 else None
    options = transposed_options(node, given.shape, weight.shape)
    p = TransposedConv2dProblem.of(given.shape, weight.shape, **options)
    plain = Conv2dProblem.of(
        spread(given, p, 0).shape,
        forward_weight(weight, p.groups).shape,
        dilation=p.dilation,
        groups=p.groups,
    )
    wide, turned = spread(given, p, 0).astype(np.float64), forward_weight(weight, p.groups).astype(np.float64)
    sums = convolve(wide, turned, plain)
    return one((sums if bias is None else sums + bias.reshape(-1, 1, 1)).astype(given.dtype))


def _average_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    how, include = window(node, given.shape), bool(node.attributes.get("count_include_pad", 0))
    image = reference_ops.padded(given.astype(np.float64), how, np.float64(0))
    inside = reference_ops.padded(np.ones(given.shape), how, np.float64(0))
    if include:  # count the node's padding, but not the padding that ceil_mode adds
        top, left, bottom, right = how.padding
        inside[..., : given.shape[2] + top + bottom, : given.shape[3] + left + right] = 1
    taps = reference_ops.taps(how)
    counts = np.sum([inside[tap] for tap in taps], axis=0)
    return one((np.sum([image[tap] for tap in taps], axis=0) / counts).astype(given.dtype))


def _integer_product(node: Node, x: Sequence[Array | None]) -> list[Array]:
    """Compute ConvInteger or MatMulInteger: subtract the zero points, then compute the exact int32 sums."""
    a, b = there(x[0]).astype(np.int64), there(x[1]).astype(np.int64)
    az, bz = (x[i] if i < len(x) and x[i] is not None else np.zeros((), np.int8) for i in (2, 3))
    a = a - _rows(there(az).astype(np.int64), a.ndim)
    if node.op == "ConvInteger":
        b = b - there(bz).astype(np.int64).reshape(-1, *(1,) * (b.ndim - 1))
        return one(_conv_compute(node, [a, b])[0].astype(np.int32))
    return one(np.matmul(a, b - there(bz).astype(np.int64)).astype(np.int32))


def _rows(zero: Array, rank: int) -> Array:
    """Return zero points in a shape that broadcasts over a matrix: (rows, 1) if each row has a zero point,
    else unchanged. *rank*: the number of axes of the operand."""
    return zero.reshape(-1, 1) if zero.ndim == 1 and zero.size > 1 and rank == 2 else zero


def _max_pool_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    return one(reference_ops.max_pool2d(there(x[0]), window(node, there(x[0]).shape)))


def _resize_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    how = resize_of(node, given.shape, x)
    if "real" in node.attributes and how.mode == "linear":
        return one(resize_real(given, how, *node.attributes["real"]))
    if how.mode == "nearest" or given.dtype.kind != "f" or how.y_shape == how.x_shape:
        return one(resize(given, how))
    return one(interpolate(given, how))


def _layer(reference: Any, of_floats: Any, names: Sequence[str]) -> Compute:
    def compute_layer(node: Node, x: Sequence[Array | None]) -> list[Array]:
        a, bias = node.attributes, x[2] if len(x) > 2 else None
        chosen, given = options(node, (*LAYER, *names)), there(x[0])
        if a["x"] is None:
            del chosen["w_zero_point"], chosen["w_scale"]
            y = of_floats(given, there(x[1]), a["w_scale"], bias, w_zero_point=a["w_zero_point"], **chosen)
            return one(y.astype(given.dtype))
        if given.dtype == np.float32:  # a layer with quantized activations quantizes a float input itself
            given = quantize(given, a["x"])
        y = reference(given, there(x[1]), x=a["x"], y=a["y"], bias=bias, overflow="wrap", **chosen)
        for step in a.get("after", ()):
            (y,) = compute(step, [y if name == OWN else x[3] for name in step.inputs])
        return one(y)

    return compute_layer


def _matmul_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a: QParams = node.attributes["a"]
    b: QParams = node.attributes["b"]
    y: QParams | None = node.attributes["y"]
    heads = node.attributes.get("heads", ONE_EACH)
    left = taken_apart(there(x[0]), heads[0]).astype(np.float64) - a.zero_point
    right = taken_apart(there(x[1]), heads[1]).astype(np.float64) - b.zero_point
    if node.attributes.get("rows"):
        right = right.swapaxes(-1, -2)
    acc = put_together(wrapped(np.matmul(left, right).astype(np.int64)), heads[2])
    multiplier = multipliers(a.scale, b.scale, y.scale if y else None)
    if y is None:
        return one(acc.astype(np.float32) * multiplier[0])
    return one(requantize(acc, multiplier[0], y))


def _grouped_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    constants = {name: array for name, array in zip(node.inputs, x, strict=True) if array is not None}
    bias = constants.get(node.input(groups.BIAS))
    y = linear_grouped(there(x[groups.A]), groups.weight_of(node, constants), bias)
    return one(y.astype(there(x[groups.A]).dtype))


def _avg_pool(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a, how = node.attributes, pool_window(node, there(x[0]).shape)
    return one(reference_ops.avg_pool2d(there(x[0]), how, a["x"], a["y"], a["count_include_pad"]))


def _global_avg_pool(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    return one(reference_ops.global_avg_pool(there(x[0]), a["x"], a["y"], a.get("litert", "")))


def _softmax(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    function = softmax_onnxruntime if a["onnxruntime"] else softmax_litert if a.get("litert") else softmax
    return one(function(there(x[0]), a["x"], a["axis"], a["y"]))


def _mean_lookup(node: Node, x: Sequence[Array | None]) -> list[Array]:
    return one(reference_ops.mean_of_table(there(x[0]), node.attributes["table"], node.attributes["y"]))


COMPUTE: dict[str, Compute] = {
    "Conv": _conv_compute,
    "ConvTranspose": _transposed_compute,
    "AveragePool": _average_compute,
    "ConvInteger": _integer_product,
    "MatMulInteger": _integer_product,
    "MatMulNBits": _grouped_compute,
    "MaxPool": _max_pool_compute,
    "Resize": _resize_compute,
    "conv2d": _layer(layers.conv2d, floats.conv2d_q8csw, CONV),
    "conv_transpose2d": _layer(transposed.conv_transpose2d, floats.conv_transpose2d_q8csw, TRANSPOSED),
    "linear": _layer(layers.linear, floats.linear_q8csw, ()),
    "matmul": _matmul_compute,
    "avg_pool2d": _avg_pool,
    "global_avg_pool2d": _global_avg_pool,
    "mean_lookup": _mean_lookup,
    "softmax": _softmax,
}
