"""Rewrites convolutions whose weight is computed in each run as matrix products. Trackers compute
such weights from a template, StyleGAN and CondConv from other activations."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...problem.transposed import TransposedConv2dProblem
from ..graph import Array, Node
from ..operators.number import conv_options, transposed_options
from . import volumes
from .words import FLOATS, Words

MOST_BYTES = 1 << 26  # of the indices of the pixels that the taps read


def convolution(w: Words) -> bool:
    """Rewrite Conv of volumes, and Conv of images with a computed weight: a Gather writes the pixels that
    each tap reads, and a MatMul multiplies them by the weight."""
    if len(w.spec(0).shape) != 4:
        return volumes.convolution(w)
    (n, channels, h, width), shape = w.spec(0).shape, w.spec(1).shape
    if not _computed(w) or w.spec(0).dtype not in FLOATS or 0 in (*w.spec(0).shape, *shape):
        return False
    options = conv_options(w.node, w.spec(0).shape, shape)
    groups, (top, left, bottom, right) = options["groups"], options["padding"]
    rows, columns = (
        _places(size, taps, step, apart)
        for size, taps, step, apart in zip(
            (h + top + bottom, width + left + right), shape[2:], options["stride"], options["dilation"],
            strict=True,
        )
    )  # fmt: skip
    places = rows[:, None, :, None] * (width + left + right) + columns[None, :, None, :]
    if not places.size or 4 * n * channels * places.size > MOST_BYTES:
        return False
    x = w.node.inputs[0]
    if top + left + bottom + right:
        x = w.emit("Pad", [x, w.constant([0, 0, top, left, 0, 0, bottom, right], "int64")])
    x = w.reshape(x, (n, channels, (h + top + bottom) * (width + left + right)))
    taps = shape[1] * shape[2] * shape[3]
    weight = w.reshape(w.node.inputs[1], (1, groups, shape[0] // groups, taps))
    return _multiplied(w, x, places, weight)


def transposed_convolution(w: Words) -> bool:
    """Rewrite ConvTranspose of volumes, and ConvTranspose of images with a computed weight. For each pixel of
    the result, a tap reads one pixel or a zero."""
    if len(w.spec(0).shape) != 4:
        return volumes.transposed_convolution(w)
    (n, channels, h, width), shape = w.spec(0).shape, w.spec(1).shape
    if not _computed(w) or w.spec(0).dtype not in FLOATS or 0 in (*w.spec(0).shape, *shape):
        return False
    options = transposed_options(w.node, w.spec(0).shape, shape)
    groups, (top, left, _, _) = options["groups"], options["padding"]
    sizes = TransposedConv2dProblem.of(w.spec(0).shape, shape, **options).y_shape[2:]
    rows, columns = (
        _sources(size, count, taps, step, apart, before)
        for size, count, taps, step, apart, before in zip(
            (h, width), sizes, shape[2:], options["stride"], options["dilation"], (top, left), strict=True
        )
    )
    places = rows[:, None, :, None] * width + columns[None, :, None, :]
    outside = (rows < 0)[:, None, :, None] | (columns < 0)[None, :, None, :]
    if not places.size or 4 * n * channels * places.size > MOST_BYTES:
        return False
    x = w.reshape(w.node.inputs[0], (n, channels, h * width))
    if outside.any():
        x = w.emit("Pad", [x, w.constant([0, 0, 0, 0, 0, 1], "int64")])
    each, taps = (groups, channels // groups, shape[1], shape[2] * shape[3]), shape[2] * shape[3]
    weight = w.emit("Transpose", [w.reshape(w.node.inputs[1], each)], perm=(0, 2, 1, 3))
    weight = w.reshape(weight, (1, groups, shape[1], channels // groups * taps))
    return _multiplied(w, x, np.where(outside, h * width, places), weight)


def _multiplied(w: Words, x: str, places: Array, weight: str) -> bool:
    """Emit the node's result: the pixels of x (N, channels, pixels) at *places*, multiplied by *weight* (1,
    groups, channels of a group, taps). The axes of *places*: rows and columns of taps, rows and columns of
    the result."""
    (n, *_), (_, groups, outputs, taps), (*_, rows, columns) = w.of(x).shape, w.of(weight).shape, places.shape
    x = w.emit("Gather", [x, w.constant(places.reshape(-1), "int64")], axis=2)
    x = w.reshape(x, (n, groups, taps, rows * columns))
    y = w.reshape(w.emit("MatMul", [weight, x]), (n, groups * outputs, rows, columns))
    if bias := w.node.input(2):
        y = w.emit("Add", [y, w.reshape(bias, (groups * outputs, 1, 1))])
    return w.result(y)


def _sources(size: int, count: int, taps: int, step: int, apart: int, before: int) -> Array:
    """Return an array (taps, results): the place along an axis of *size* pixels that each tap of a transposed
    convolution reads; -1 if it reads none. *before*: the number of results that are cropped at the start."""
    place = np.arange(count) + before - np.arange(taps)[:, None] * apart
    found = np.where(place % step == 0, place // step, -1)
    return np.where((found < 0) | (found >= size), -1, found)


def _places(size: int, taps: int, step: int, apart: int) -> Array:
    """Return an array (taps, results): the place along a padded axis of *size* pixels that each tap reads."""
    count = max((size - apart * (taps - 1) - 1) // step + 1, 0)
    return np.arange(taps)[:, None] * apart + np.arange(count) * step


def _fits_product(w: Words, before: Sequence[Node | None]) -> bool:
    """Return True if the node has no bias, and the DequantizeLinear nodes *before* it have one constant scale
    and one type."""
    types = {w.of(node.inputs[0]).dtype for node in before if node is not None}
    given = [name for node in before if node is not None for name in node.inputs[1:] if name]
    arrays = [w.sweep.array(name) for name in given]
    single = all(array is not None and array.size == 1 for array in arrays)
    return single and len(types) == 1 and not w.node.input(2)


def _computed(w: Words) -> bool:
    """Return True if the weight is computed from inputs of the graph. Inputs themselves may be weights that
    never change. If x and the weight are dequantized, they must fit a product of 8-bit matrices, which then
    gives the bytes of ONNX Runtime's Conv."""
    made = w.sweep.producer(w.node.inputs[1])
    before = [w.sweep.producer(name, "DequantizeLinear") for name in w.node.inputs[:2]]
    if made is None or (None not in before and not _fits_product(w, before)):
        return False
    waiting, seen = [made], {made.outputs[0]}
    while waiting:
        for read in waiting.pop().inputs:
            made = w.sweep.producer(read) if read else None
            if read and made is None and w.sweep.array(read) is None:
                return True
            if made is not None and made.outputs[0] not in seen:
                seen.add(made.outputs[0])
                waiting.append(made)
    return False
