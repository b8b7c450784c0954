"""Rewrites a Resize as one Gather or one weighted sum (``taps``) for each axis. Two kinds of Resize are
rewritten: those that interpolate floats, and those in a form that the graph's Resize does not support."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...problem.taps import COORDINATES, NEAREST, ResizedAxis
from ..graph import Array, Graph, Node
from ..operators.images import resize_of
from ..operators.operator import UnsupportedForm
from .sweep import Sweep, swept
from .words import FLOATS, Words


def other_resize(w: Words) -> bool:
    """Rewrite a Resize only if it has a form that `resize_of` does not support."""
    shape = w.spec(0).shape
    given = [None, *(w.given(i) for i in (1, 2, 3))]
    if given[2] is None and given[3] is None:
        return False
    try:
        resize_of(w.node, shape, given)
    except UnsupportedForm:
        return resized(w)
    return False


def to_taps(graph: Graph) -> Graph:
    """Replace each Resize with linear interpolation of floats by weighted sums."""

    def visit(sweep: Sweep, node: Node) -> bool:
        linear = node.attributes.get("mode", "nearest") == "linear"
        if not linear or sweep.specs[node.inputs[0]].dtype not in FLOATS:
            return False
        return resized(Words(sweep, node, dict(node.attributes), sweep.keep))

    return swept(graph, visit, "Resize")


def resized(w: Words) -> bool:
    a, spec = w.attributes, w.spec(0)
    mode, coordinates = a.get("mode", "nearest"), a.get("coordinate_transformation_mode", "half_pixel")
    nearest = a.get("nearest_mode", "round_prefer_floor")
    known = coordinates in COORDINATES and nearest in NEAREST and mode in ("nearest", "linear", "cubic")
    if not known or 0 in spec.shape or (mode != "nearest" and spec.dtype not in FLOATS):
        return False
    if coordinates == "tf_crop_and_resize" and w.node.input(1) and w.given(1) is None:
        return False
    axes = axes_of(w.node, a, spec.shape, [w.given(i) for i in range(1, 4)])
    x = w.node.inputs[0]
    x = x if mode == "nearest" else w.wide(x)
    for number, axis in axes.items():
        if axis.given == axis.size and axis.scale == 1 and coordinates != "tf_crop_and_resize":
            continue
        if mode == "nearest":
            x = w.emit("Gather", [x, w.constant(axis.nearest(nearest), "int64")], axis=number)
            continue
        index, weight = axis.weighted(
            mode == "cubic", bool(a.get("antialias", 0)), float(a.get("cubic_coeff_a", -0.75)),
            bool(a.get("exclude_outside", 0)),
        )  # fmt: skip
        x = w.emit("taps", [x], axis=number, index=index, weight=weight)
    x = w.cast(x, spec.dtype) if w.of(x).dtype != spec.dtype else x
    return w.result(_outside(w, x, axes) if coordinates == "tf_crop_and_resize" else x)


def axes_of(
    node: Node, a: Mapping[str, Any], shape: Sequence[int], arrays: Sequence[Array | None]
) -> dict[int, ResizedAxis]:
    """Return the parameters of each resized axis, by the index of the axis. *a*: the attributes of the Resize
    *node*. *arrays*: its roi, scales and sizes."""
    roi, scales, sizes = arrays
    numbers = [int(v) % len(shape) for v in a.get("axes", range(len(shape)))]
    chosen = scales if scales is not None and scales.size else sizes
    if chosen is None or chosen.size != len(numbers):
        raise ModelError(f"{node}: it must have a constant size or scale for each of its axes {numbers}")
    given = [shape[i] for i in numbers]
    if chosen is scales:
        factors = [np.float32(v) for v in scales.reshape(-1)]
        out = [int(np.floor(f * np.float32(d))) for f, d in zip(factors, given, strict=True)]
    else:
        out = [int(v) for v in chosen.reshape(-1)]
        factors = [np.float32(o) / np.float32(d) for o, d in zip(out, given, strict=True)]
        policy = a.get("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            one = min(factors) if policy == "not_larger" else max(factors)
            factors = [one] * len(factors)
            out = [int(np.floor(float(one) * d + 0.5)) for d in given]
    if min(out) < 1 or min(factors) <= 0:
        raise ModelError(f"{node}: the result would have sizes {out}; each must be at least 1")
    found, coordinates = {}, a.get("coordinate_transformation_mode", "half_pixel")
    for i, number in enumerate(numbers):
        ends = (float(roi[i]), float(roi[i + len(numbers)])) if roi is not None and roi.size else (0.0, 1.0)
        found[number] = ResizedAxis(given[i], out[i], float(factors[i]), coordinates, ends)
    return found


def _outside(w: Words, x: str, axes: dict[int, ResizedAxis]) -> str:
    """Emit nodes that write the fill value into the resized x where coordinates are outside the input.
    Return the result's name."""
    rank = len(w.of(x).shape)
    outside = np.zeros((1,) * rank, bool)
    for number, axis in axes.items():
        outside = outside | axis.outside().reshape([-1 if i == number else 1 for i in range(rank)])
    if not outside.any():
        return x
    fill = w.number(float(w.attributes.get("extrapolation_value", 0.0)), x)
    return w.emit("Where", [w.constant(outside), fill, x])
