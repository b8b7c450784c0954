"""Rewrites convolutions and pools of volumes (N, C, D, H, W) as convolutions and pools of images.

The depth taps of a convolution become channels, so that one convolution of images sums over all taps. A sum
of integers does not depend on the order of its terms. A pool runs along height and width, and then along
depth. A maximum and a mean can be computed axis by axis: the element count of a mean is the product of the
counts along the axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..graph import Array
from ..operators.images import padding
from ..operators.operator import axis_of
from .words import Words

AXES = 3  # number of spatial axes of a volume
LISTS = ("strides", "dilations", "output_padding")


def convolution(w: Words) -> bool:
    """Rewrite Conv. A depth slice of the result reads one slice of x for each depth tap of the kernel; the
    pairs (channel, tap) become the channels of an image."""
    shape, kernel = w.spec(0).shape, w.spec(1).shape[2:]
    if not _is_volume(w) or tuple(w.attributes.get("kernel_shape", kernel)) != kernel:
        return False
    (step, *_), (apart, *_) = strides, dilations = _list(w, "strides"), _list(w, "dilations")
    pads = padding(w.node, shape, kernel, strides, dilations)
    count = (shape[2] + pads[0] + pads[AXES] - apart * (kernel[0] - 1) - 1) // step + 1
    out, tap = np.arange(max(count, 0)), np.arange(kernel[0])[:, None]
    x = _slices(w, out * step - pads[0] + tap * apart)
    outputs, inputs, *_ = w.spec(1).shape
    weight = _weight(w, 0, None, (outputs, inputs * kernel[0], *kernel[1:]))
    return _convolved(w, [x, weight], out.size, pads)


def transposed_convolution(w: Words) -> bool:
    """Rewrite ConvTranspose. A depth slice of the result reads at most one slice of x for each depth tap;
    the pairs (channel, tap) become the channels of an image."""
    shape, kernel = w.spec(0).shape, w.spec(1).shape[2:]
    given = w.attributes.get("output_shape"), w.attributes.get("auto_pad", "NOTSET")
    if not _is_volume(w) or given != (None, "NOTSET"):
        return False
    step, apart, more = (_list(w, name)[0] for name in LISTS)
    pads = tuple(int(p) for p in w.attributes.get("pads", (0,) * 2 * AXES))
    count = step * (shape[2] - 1) + apart * (kernel[0] - 1) + 1 + more - pads[0] - pads[AXES]
    out, tap = np.arange(max(count, 0)), np.arange(kernel[0])[:, None]
    place = out + pads[0] - tap * apart
    x = _slices(w, np.where(place % step == 0, place // step, -1))
    inputs, outputs, *_ = w.spec(1).shape
    weight = _weight(w, 1, (0, 2, 1, 3, 4), (inputs * kernel[0], outputs, *kernel[1:]))
    return _convolved(w, [x, weight], out.size, pads)


def pool(w: Words) -> bool:
    """Rewrite MaxPool and AveragePool of volumes: pool along height and width, and then along depth."""
    shape, kernel = w.spec(0).shape, w.attributes.get("kernel_shape", ())
    if not _is_volume(w, kernel) or (len(w.node.outputs) > 1 and w.node.outputs[1]):
        return False
    n, c, d, *image = shape
    pads = padding(w.node, shape, kernel, _list(w, "strides"), _list(w, "dilations"))
    x = w.reshape(w.node.inputs[0], (n, c * d, *image))
    x = w.emit(w.node.op, [x], **_image(w, pads), kernel_shape=tuple(kernel[1:]))
    rows, columns = w.of(x).shape[2:]
    deep = {name: (_list(w, name)[0], 1) for name in LISTS[:2]} | {"pads": (pads[0], 0, pads[AXES], 0)}
    x = w.reshape(x, (n, c, d, rows * columns))
    x = w.emit(w.node.op, [x], **{**_image(w, pads), **deep, "kernel_shape": (kernel[0], 1)})
    return bool(w.reshape(x, (n, c, w.of(x).shape[2], rows, columns), w.node.outputs[0]))


def whole(w: Words) -> bool:
    """Rewrite GlobalAveragePool and GlobalMaxPool of a volume as the same operator on an image of D * H rows
    and W columns."""
    shape = w.spec(0).shape
    if len(shape) != AXES + 2 or 0 in shape:
        return False
    n, c, d, h, columns = shape
    pooled = w.emit(w.node.op, [w.reshape(w.node.inputs[0], (n, c, d * h, columns))])
    return bool(w.reshape(pooled, (n, c, 1, 1, 1), w.node.outputs[0]))


def _is_volume(w: Words, kernel: Sequence[int] | None = None) -> bool:
    """Return True if x is a nonempty volume, and the kernel and all attributes have values for three spatial
    axes."""
    shape = w.spec(0).shape
    rank = len(w.spec(1).shape) - 2 if kernel is None else len(kernel)
    lists = [w.attributes[name] for name in LISTS if name in w.attributes]
    return len(shape) == AXES + 2 and rank == AXES and 0 not in shape and all(len(v) == AXES for v in lists)


def _list(w: Words, name: str) -> tuple[int, ...]:
    default = 0 if name == "output_padding" else 1
    return tuple(int(v) for v in w.attributes.get(name, (default,) * AXES))


def _image(w: Words, pads: Sequence[int]) -> dict[str, Any]:
    """Return the node's attributes for an image, with only height and width of each list."""
    kept = {k: v for k, v in w.attributes.items() if k not in ("auto_pad", "kernel_shape", "pads", *LISTS)}
    lists = {name: _list(w, name)[1:] for name in LISTS if name in w.attributes}
    return {**kept, **lists, "pads": (*pads[1:AXES], *pads[AXES + 1 :])}


def _slices(w: Words, index: Array) -> str:
    """Emit nodes that gather depth slices of x as images (N * slices, C * taps, H, W). Return the result's
    name. *index* (taps, slices) has the slices' indices along the depth; an index out of range gives a slice
    of zeros."""
    n, c, d, *image = w.spec(0).shape
    x, (taps, count) = w.node.inputs[0], index.shape
    outside = (index < 0) | (index >= d)
    if outside.any():
        x = w.emit("Pad", [x, w.constant([0, 0, 0, 0, 0, 0, 0, 1, 0, 0], "int64")])
    x = w.emit("Gather", [x, w.constant(np.where(outside, d, index), "int64")], axis=2)
    x = w.emit("Transpose", [x], perm=(0, 3, 1, 2, 4, 5))
    return w.reshape(x, (n * count, c * taps, *image))


def _weight(w: Words, axis: int, perm: Sequence[int] | None, shape: Sequence[int]) -> str:
    """Transpose the node's weight by *perm* and reshape it. Return the result's name. If the weight is
    dequantized with one scale, or with scales along *axis*, its integers are rearranged, and the
    DequantizeLinear follows."""

    def arranged(name: str) -> str:
        return w.reshape(w.emit("Transpose", [name], perm=tuple(perm)) if perm else name, shape)

    made = w.sweep.producer(w.node.inputs[1], "DequantizeLinear")
    if made is None or w.sweep.array(made.inputs[0]) is None or made.attributes.get("block_size"):
        return arranged(w.node.inputs[1])
    scales = int(np.prod(w.of(made.inputs[1]).shape))
    if scales > 1 and axis_of(made, AXES + 2, 1) != axis:
        return arranged(w.node.inputs[1])
    attributes = {**made.attributes, "axis": axis}
    return w.emit("DequantizeLinear", [arranged(made.inputs[0]), *made.inputs[1:]], **attributes)


def _convolved(w: Words, inputs: Sequence[str], count: int, pads: Sequence[int]) -> bool:
    n, *_ = w.spec(0).shape
    y = w.emit(w.node.op, [*inputs, *w.node.inputs[2:]], **_image(w, pads))
    _, channels, *image = w.of(y).shape
    y = w.reshape(y, (n, count, channels, *image))
    return bool(w.emit("Transpose", [y], w.node.outputs[0], perm=(0, 2, 1, 3, 4)))
