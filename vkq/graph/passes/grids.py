"""Rewrites GridSample of images as Gathers: of the nearest pixel, or of four or sixteen neighbouring pixels,
whose weighted sum is the result."""

from __future__ import annotations

import numpy as np

from .words import Words

LINEAR, CUBIC = ("linear", "bilinear"), ("cubic", "bicubic")
PADDINGS = ("zeros", "border", "reflection")
CURVE = -0.75  # the parameter of the cubic weights


def grid_sample(w: Words) -> bool:
    """Sample x (N, C, H, W) at grid points (N, H', W', 2) whose coordinates run from -1 to 1. Outside the
    image, pixels are 0 or equal to the nearest border pixel, or the image is mirrored at its border."""
    a, x, grid = w.attributes, w.spec(0), w.spec(1)
    mode, padding = a.get("mode", "linear"), a.get("padding_mode", "zeros")
    known = mode in ("nearest", *LINEAR, *CUBIC) and padding in PADDINGS
    known = known and x.dtype == grid.dtype == "float32"
    if not known or len(x.shape) != 4 or len(grid.shape) != 4 or 0 in (*x.shape, *grid.shape):
        return False
    n, c, h, width = x.shape
    rows = w.reshape(w.emit("Transpose", [w.node.inputs[0]], perm=(0, 2, 3, 1)), (n * h * width, c))
    places = [_coordinate(w, i, size) for i, size in ((1, h), (0, width))]
    if mode == "nearest":
        places = [w.emit("Round", [place]) for place in places]
    if mode not in CUBIC:  # cubic sampling moves only the neighbours into the image
        places = [_inside(w, place, size, padding) for place, size in zip(places, (h, width), strict=True)]
    if mode == "nearest":
        y = _corner(w, rows, places, padding)
    else:
        neighbours = _cubic if mode in CUBIC else _linear
        y = _between(w, rows, [neighbours(w, place) for place in places], padding)
    w.emit("Transpose", [y], w.node.outputs[0], perm=(0, 3, 1, 2))
    return True


def _coordinate(w: Words, index: int, size: int) -> str:
    """Emit nodes that compute the fractional row or column of each grid point in the image. Return the
    result's name. *index*: the element of a point to use (0: the column, 1: the row). *size*: the number of
    the image's rows or columns."""
    shape = w.spec(1).shape[:3]
    own = w.reshape(w.part(w.node.inputs[1], 3, index, index + 1), shape)
    shifted = w.emit("Add", [own, w.constant(1.0, "float32")])
    if w.attributes.get("align_corners", 0):
        return w.emit("Mul", [shifted, w.constant((size - 1) / 2, "float32")])
    scaled = w.emit("Sub", [w.emit("Mul", [shifted, w.number(size, own)]), w.number(1, own)])
    return w.emit("Mul", [scaled, w.constant(0.5, "float32")])


def _inside(w: Words, place: str, size: int, padding: str) -> str:
    """Emit nodes that move places outside of an axis of *size* pixels into it. Return the result's name. With
    the padding "zeros", places stay."""
    if padding == "border":
        return _clipped(w, place, size)
    if padding == "zeros":
        return place
    least, most = (0.0, size - 1.0) if w.attributes.get("align_corners", 0) else (-0.5, size - 0.5)
    turn = 2 * (most - least)
    if not turn:
        return _clipped(w, place, size)
    first, whole = w.constant(least, "float32"), w.constant(turn, "float32")
    apart = w.emit("Abs", [w.emit("Sub", [place, first])])
    turns = w.emit("Floor", [w.emit("Div", [apart, whole])])
    rest = w.emit("Sub", [apart, w.emit("Mul", [turns, whole])])
    return w.emit("Add", [w.emit("Min", [rest, w.emit("Sub", [whole, rest])]), first])


def _clipped(w: Words, place: str, size: int) -> str:
    return w.emit("Clip", [place, w.constant(0.0, "float32"), w.constant(size - 1, "float32")])


def _linear(w: Words, place: str) -> list[tuple[str, str]]:
    """Emit the places and the weights of the two neighbours of *place*. Return pairs of their names."""
    first, one = w.emit("Floor", [place]), w.constant(1.0, "float32")
    apart = w.emit("Sub", [place, first])
    return [(first, w.emit("Sub", [one, apart])), (w.emit("Add", [first, one]), apart)]


def _cubic(w: Words, place: str) -> list[tuple[str, str]]:
    """Emit the places and the weights of the four neighbours of *place*. Return pairs of their names."""
    middle = w.emit("Floor", [place])
    apart = w.emit("Sub", [place, middle])
    rest = w.emit("Sub", [w.constant(1.0, "float32"), apart])
    weights = [_curve(w, x, near) for x, near in ((apart, False), (apart, True), (rest, True), (rest, False))]
    places = [w.emit("Add", [middle, w.constant(float(i), "float32")]) for i in range(-1, 3)]
    return list(zip(places, weights, strict=True))


def _curve(w: Words, x: str, near: bool) -> str:
    """Emit the cubic weight of a neighbour at the distance x from 0 to 1 (*near*), or at the distance 1 + x.
    Return the result's name."""
    a = CURVE
    x = x if near else w.emit("Add", [x, w.constant(1.0, "float32")])
    total = ""
    for factor in (a + 2, -a - 3, 0.0, 1.0) if near else (a, -5 * a, 8 * a, -4 * a):
        number = w.constant(factor, "float32")
        total = w.emit("Add", [w.emit("Mul", [total, x]), number]) if total else number
    return total


def _between(w: Words, rows: str, neighbours: list[list[tuple[str, str]]], padding: str) -> str:
    """Emit the weighted sum of the pixels at all pairs of a row and a column. *neighbours*: for rows and for
    columns, pairs (places, weights). Return the result's name."""
    total = ""
    for row, row_weight in neighbours[0]:
        for column, column_weight in neighbours[1]:
            weight = w.reshape(w.emit("Mul", [row_weight, column_weight]), (*w.of(row).shape, 1))
            part = w.emit("Mul", [_corner(w, rows, [row, column], padding), weight])
            total = w.emit("Add", [total, part]) if total else part
    return total


def _corner(w: Words, rows: str, places: list[str], padding: str) -> str:
    """Emit a Gather of the pixels (N, H', W', C) at the integer positions *places* (rows, columns). Return
    the result's name. If *padding* is "zeros", pixels outside the image are 0."""
    n, _, *sizes = w.spec(0).shape
    if padding == "reflection":
        places = [_inside(w, place, size, padding) for place, size in zip(places, sizes, strict=True)]
    wholes = [
        w.cast(_clipped(w, place, size), "int32", range=(0, size - 1))
        for place, size in zip(places, sizes, strict=True)
    ]
    at = w.emit("Add", [w.emit("Mul", [wholes[0], w.constant(sizes[1], "int32")]), wholes[1]])
    images = np.arange(n).reshape(n, 1, 1) * (sizes[0] * sizes[1])
    found = w.emit("Gather", [rows, w.emit("Add", [at, w.constant(images, "int32")])], axis=0)
    if padding != "zeros":
        return found
    inside = ""
    for place, size in zip(places, sizes, strict=True):
        same = w.emit("Equal", [place, _clipped(w, place, size)])
        inside = w.emit("And", [inside, same]) if inside else same
    zero = w.constant(0.0, "float32")
    return w.emit("Where", [w.reshape(inside, (*w.of(inside).shape, 1)), found, zero])
