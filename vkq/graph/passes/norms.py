"""Rewrites normalizations with several results, of whole batches, and along other axes than the last ones.
Also rewrites Dropout."""

from __future__ import annotations

import numpy as np

from ..operators.operator import axis_of
from .words import FLOATS, Words


def dropout(w: Words) -> bool:
    """Replace a Dropout that returns a mask by its input and a mask that is True everywhere."""
    names = w.node.outputs
    training = w.given(2)
    on = w.node.input(2) and (training is None or bool(training.any()))
    ratio = w.given(1)
    if len(names) < 2 or not names[1] or (on and (ratio is None or ratio.any())):
        return False
    w.result(w.node.inputs[0])
    shape = w.spec(0).shape
    whole = w.emit("Expand", [w.constant(True), w.constant(list(shape), "int64")])
    return w.result(whole, 1)


def layer_normalization(w: Words) -> bool:
    """Rewrite a LayerNormalization that also returns the mean and the inverse standard deviation."""
    x, spec = w.node.inputs[0], w.spec(0)
    rank = len(spec.shape)
    axis = axis_of(w.node, rank, int(w.attributes.get("axis", -1)), "")
    if spec.dtype not in FLOATS or not w.attributes.get("stash_type", 1) or 0 in spec.shape:
        return False
    epsilon = float(np.float32(w.attributes.get("epsilon", 1e-5)))
    wide = w.wide(x)
    normal = w.emit("Normalization", [wide], function="normalize", axis=axis, epsilon=epsilon)
    normal = w.cast(normal, spec.dtype) if wide != x else normal
    scaled = w.emit("Mul", [normal, w.node.inputs[1]])
    w.result(w.emit("Add", [scaled, w.node.inputs[2]]) if w.node.input(2) else scaled)
    count, axes = rank - axis, w.constant(list(range(axis, rank)), "int64")
    mean = w.emit("ReduceMean", [wide, axes])
    if len(w.node.outputs) > 1 and w.node.outputs[1]:
        w.result(mean, 1)
    if len(w.node.outputs) > 2 and w.node.outputs[2]:
        apart = w.emit("Sub", [wide, mean])
        variance = w.emit("ReduceMean", [w.emit("Mul", [apart, apart]), axes])
        root = w.emit("Sqrt", [w.emit("Add", [variance, w.constant(epsilon, "float32")])])
        w.emit("Reciprocal", [root], w.node.outputs[2])
    assert count
    return True


def batch_normalization(w: Words) -> bool:
    """Rewrite a BatchNormalization in training mode, which normalizes each channel of the whole batch."""
    x, spec = w.node.inputs[0], w.spec(0)
    if not w.attributes.get("training_mode", 0) or spec.dtype not in FLOATS or len(spec.shape) < 2:
        return False
    wide, axes = w.wide(x), w.constant([0, *range(2, len(spec.shape))], "int64")
    apart = w.emit("Sub", [wide, w.emit("ReduceMean", [wide, axes])])
    variance = w.emit("ReduceMean", [w.emit("Mul", [apart, apart]), axes])
    more = w.emit("Add", [variance, w.constant(w.attributes.get("epsilon", 1e-5), "float32")])
    channels = (-1, *(1,) * (len(spec.shape) - 2))
    scale, bias = (w.reshape(w.wide(name), channels) for name in w.node.inputs[1:3])
    factor = w.emit("Div", [scale, w.emit("Sqrt", [more])])
    found = w.emit("Add", [w.emit("Mul", [apart, factor]), bias])
    w.cast(found, spec.dtype, w.node.outputs[0])
    return True


def lp_normalization(w: Words) -> bool:
    """Rewrite LpNormalization: x divided by its norm along an axis, or 0 where the norm is 0."""
    x, spec, p = w.node.inputs[0], w.spec(0), int(w.attributes.get("p", 2))
    if spec.dtype not in FLOATS or p not in (1, 2) or not spec.shape or 0 in spec.shape:
        return False
    axis = axis_of(w.node, len(spec.shape), int(w.attributes.get("axis", -1)), "")
    wide = w.wide(x)
    kept = [1 if i == axis else d for i, d in enumerate(spec.shape)]
    norm = w.reshape(w.rows(f"ReduceL{p}", wide, axis), kept)
    zero = w.constant(0, "float32")
    found = w.emit("Where", [w.emit("Equal", [norm, zero]), zero, w.emit("Div", [wide, norm])])
    w.cast(found, spec.dtype, w.node.outputs[0])
    return True


def local_response(w: Words) -> bool:
    """LRN: x / (bias + alpha / size * s) ^ beta, where s is the sum of the squares of ``size`` neighbouring
    channels."""
    x, spec, a = w.node.inputs[0], w.spec(0), w.attributes
    size, channels = int(a["size"]), spec.shape[1]
    if spec.dtype != "float32" or 0 in spec.shape or not 0 < size <= 64:
        return False
    before = (size - 1) // 2
    pads = [0] * (2 * len(spec.shape))
    pads[1], pads[len(spec.shape) + 1] = before, size - 1 - before
    padded = w.emit("Pad", [w.emit("Mul", [x, x]), w.constant(pads, "int64")])
    total = w.part(padded, 1, 0, channels)
    for i in range(1, size):
        total = w.emit("Add", [total, w.part(padded, 1, i, i + channels)])
    factor = np.float32(a.get("alpha", 1e-4)) / np.float32(size)
    inner = w.emit("Mul", [total, w.constant(factor, "float32")])
    inner = w.emit("Add", [inner, w.constant(a.get("bias", 1.0), "float32")])
    power = w.emit("Pow", [inner, w.constant(a.get("beta", 0.75), "float32")])
    w.emit("Div", [x, power], w.node.outputs[0])
    return True
