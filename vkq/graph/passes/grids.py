"""Rewrites GridSample of images as Gathers: of the nearest pixel, or of the four neighbouring pixels, whose
weighted sum is the result."""

from __future__ import annotations

import numpy as np

from .words import Words

MODES = ("linear", "bilinear", "nearest")


def grid_sample(w: Words) -> bool:
    """Sample x (N, C, H, W) at grid points (N, H', W', 2) whose coordinates run from -1 to 1. Outside the
    image, pixels are 0 or equal to the nearest border pixel."""
    a, x, grid = w.attributes, w.spec(0), w.spec(1)
    mode, padding = a.get("mode", "linear"), a.get("padding_mode", "zeros")
    known = mode in MODES and padding in ("zeros", "border") and x.dtype == grid.dtype == "float32"
    if not known or len(x.shape) != 4 or len(grid.shape) != 4 or 0 in (*x.shape, *grid.shape):
        return False
    n, c, h, width = x.shape
    rows = w.reshape(w.emit("Transpose", [w.node.inputs[0]], perm=(0, 2, 3, 1)), (n * h * width, c))
    places = [_coordinate(w, i, size, padding == "border") for i, size in ((1, h), (0, width))]
    if mode == "nearest":
        y = _corner(w, rows, [w.emit("Round", [place]) for place in places], padding)
    else:
        y = _between(w, rows, places, padding)
    w.emit("Transpose", [y], w.node.outputs[0], perm=(0, 3, 1, 2))
    return True


def _coordinate(w: Words, index: int, size: int, border: bool) -> str:
    """Emit nodes that compute the fractional row or column of each grid point in the image. Return the
    result's name. *index*: the element of a point to use (0: the column, 1: the row). *size*: the number of
    the image's rows or columns. *border*: True to move points outside the image to its border."""
    shape = w.spec(1).shape[:3]
    own = w.reshape(w.part(w.node.inputs[1], 3, index, index + 1), shape)
    shifted = w.emit("Add", [own, w.constant(1.0, "float32")])
    if w.attributes.get("align_corners", 0):
        place = w.emit("Mul", [shifted, w.constant((size - 1) / 2, "float32")])
    else:
        scaled = w.emit("Sub", [w.emit("Mul", [shifted, w.number(size, own)]), w.number(1, own)])
        place = w.emit("Mul", [scaled, w.constant(0.5, "float32")])
    return _clipped(w, place, size) if border else place


def _clipped(w: Words, place: str, size: int) -> str:
    return w.emit("Clip", [place, w.constant(0.0, "float32"), w.constant(size - 1, "float32")])


def _between(w: Words, rows: str, places: list[str], padding: str) -> str:
    first = [w.emit("Floor", [place]) for place in places]
    apart = [w.emit("Sub", pair) for pair in zip(places, first, strict=True)]
    one = w.constant(1.0, "float32")
    second = [w.emit("Add", [place, one]) for place in first]
    less = [w.emit("Sub", [one, distance]) for distance in apart]
    total = ""
    for row, row_weight in ((first[0], less[0]), (second[0], apart[0])):
        for column, column_weight in ((first[1], less[1]), (second[1], apart[1])):
            weight = w.reshape(w.emit("Mul", [row_weight, column_weight]), (*w.of(row).shape, 1))
            part = w.emit("Mul", [_corner(w, rows, [row, column], padding), weight])
            total = w.emit("Add", [total, part]) if total else part
    return total


def _corner(w: Words, rows: str, places: list[str], padding: str) -> str:
    """Emit a Gather of the pixels (N, H', W', C) at the integer positions *places* (rows, columns). Return
    the result's name. If *padding* is "zeros", pixels outside the image are 0."""
    n, _, *sizes = w.spec(0).shape
    wholes = [
        w.cast(_clipped(w, place, size), "int32", range=(0, size - 1))
        for place, size in zip(places, sizes, strict=True)
    ]
    at = w.emit("Add", [w.emit("Mul", [wholes[0], w.constant(sizes[1], "int32")]), wholes[1]])
    images = np.arange(n).reshape(n, 1, 1) * (sizes[0] * sizes[1])
    found = w.emit("Gather", [rows, w.emit("Add", [at, w.constant(images, "int32")])], axis=0)
    if padding == "border":
        return found
    inside = ""
    for place, size in zip(places, sizes, strict=True):
        same = w.emit("Equal", [place, _clipped(w, place, size)])
        inside = w.emit("And", [inside, same]) if inside else same
    zero = w.constant(0.0, "float32")
    return w.emit("Where", [w.reshape(inside, (*w.of(inside).shape, 1)), found, zero])
