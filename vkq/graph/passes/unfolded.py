"""Rewrites a convolution of floats whose weight is computed in each run as a matrix product. Trackers compute
such weights from a template, StyleGAN and CondConv from other activations."""

from __future__ import annotations

import numpy as np

from ..operators.number import conv_options
from . import volumes
from .words import FLOATS, Words

MOST_BYTES = 1 << 26  # of the indices of the pixels that the taps read


def convolution(w: Words) -> bool:
    """Rewrite Conv of volumes, and Conv of images with a computed weight: a Gather writes the pixels that
    each tap reads, and a MatMul multiplies them by the weight."""
    if len(w.spec(0).shape) != 4:
        return volumes.convolution(w)
    (n, channels, h, width), shape = w.spec(0).shape, w.spec(1).shape
    if not _computed(w, w.node.inputs[1]) or w.spec(0).dtype not in FLOATS or 0 in (*w.spec(0).shape, *shape):
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
    x = w.emit("Gather", [x, w.constant(places.reshape(-1), "int64")], axis=2)
    taps, pixels = shape[1] * shape[2] * shape[3], rows.shape[1] * columns.shape[1]
    x = w.reshape(x, (n, groups, taps, pixels))
    weight = w.reshape(w.node.inputs[1], (1, groups, shape[0] // groups, taps))
    y = w.reshape(w.emit("MatMul", [weight, x]), (n, shape[0], rows.shape[1], columns.shape[1]))
    if bias := w.node.input(2):
        y = w.emit("Add", [y, w.reshape(bias, (shape[0], 1, 1))])
    return w.result(y)


def _places(size: int, taps: int, step: int, apart: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """Return an array (taps, results): the place along a padded axis of *size* pixels that each tap reads."""
    count = max((size - apart * (taps - 1) - 1) // step + 1, 0)
    return np.arange(taps)[:, None] * apart + np.arange(count) * step


def _computed(w: Words, name: str) -> bool:
    """Return True if a value is computed from inputs of the graph by float operators. Inputs themselves may
    be weights that never change, and a layer of 8-bit values has the bytes of ONNX Runtime's Conv only on
    the CPU."""
    made = w.sweep.producer(name)
    if made is None or made.op == "DequantizeLinear":
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
