"""Find the best position of every score map on the device, so that no map is downloaded."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ..runtime.builder import Builder, Value
from ..runtime.eager import run
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from .correlation import Band, Correlation
from .images import Images
from .phases import Axis
from .work import Range

SEGMENT = 4096  # number of positions of a map that one workgroup reads (best.comp)
SQUARES_SEGMENT = 32  # number of windows whose sums one invocation computes (squares.comp)


class Best(NamedTuple):
    """The best window of each template. ``score``: the window's score. ``place``: the window's (row,
    column); of equal scores, the first position."""

    score: npt.NDArray[Any]
    place: npt.NDArray[np.int64]


def best_of_maps(scores: npt.NDArray[Any]) -> Best:
    """Return the largest score of each of the maps (T, OH, OW), and its position."""
    flat = scores.reshape(len(scores), -1)
    at = flat.argmax(axis=1)
    place = np.stack(np.unravel_index(at, scores.shape[1:]), axis=-1)
    return Best(np.take_along_axis(flat, at[:, None], 1)[:, 0], place)


def keep_better(best: Best, first: int, top: int, found: Best, ssd: bool) -> None:
    """Update *best* where *found* has better scores. *found* is the result of one chunk: the images from
    *first* on, and the rows from *top* on. Calls must have ascending *top*, so that the first of equal
    scores is kept."""
    score, place = (part[first : first + len(found.score)] for part in best)
    better = (found.score < score if ssd else found.score > score) | (top == 0)
    score[better], place[better] = found.score[better], found.place[better] + [top, 0]


class Reduction:
    """The plan that finds the best positions in images of one shape and dtype: the smallest sum of squared
    differences (*ssd*), or else the largest sum of products."""

    def __init__(self, owner: Correlation, images: Images, rows: Axis, columns: Axis, ssd: bool):
        self.owner, self.columns, self.ssd, self.shape = owner, columns, ssd, (images.shape[0], rows, columns)
        b = Builder(owner.device)
        x = b.input(images.spec)
        kernel = owner.kernel(owner.shape(images.shape[0], rows, columns))
        each = owner.templates * (8 if owner.sums.wide else 4) + (24 if ssd else 0)
        self.bands = owner.bands(kernel, images, rows, columns, each)
        found = b.words(4 * sum(self._entries(band) for band in self.bands))
        first = 0
        for band in self.bands:
            plane = band.rows.out * columns.out
            y = b.words(self._maps(band) * plane * (2 if owner.sums.wide else 1))
            if kernel.adds(owner.shape(band.last - band.first, band.rows, columns)):
                b.fill(y, 0)
            owner.add(b, kernel, x, images, band, columns, y, 0, plane)
            squares = window_squares(b, x, images, band, columns) if ssd else y
            self._add(b, y, squares, found, band, first)
            first += self._entries(band)
        self.plan = b.plan(found)

    def _maps(self, band: Band) -> int:
        return (band.last - band.first) * self.owner.templates

    def _segments(self, band: Band) -> int:
        return -(-band.rows.out * self.columns.out // SEGMENT)

    def _entries(self, band: Band) -> int:
        return self._maps(band) * self._segments(band)

    def _add(self, b: Builder, y: Value, squares: Value, found: Value, band: Band, first: int) -> None:
        constants = {"WIDE": self.owner.sums.wide, "SQUARES": self.ssd, "SMALLEST": self.ssd}
        push: dict[str, int | float] = {
            "rows": self._maps(band), "channels": self.owner.templates,
            "plane": band.rows.out * self.columns.out, "segments": self._segments(band), "first": first,
            "first_place": band.top * self.columns.out,
        }  # fmt: skip
        _reduce(b, [y, squares, found], constants, push)

    def read(self, found: npt.NDArray[np.int32]) -> Best:
        """Return the best scores (N, T) and positions (N, T, 2). *found*: the words that the plan computed,
        one entry for each map and segment."""
        scores, places = _entries_of(found)
        n, t = self.shape[0], self.owner.templates
        sign = 1 if self.ssd else -1
        best = np.full((n, t), np.iinfo(np.int64).max), np.zeros((n, t), np.int64)
        first = 0
        # Bands, and the segments of a band, are in the order of positions: the first of equal scores is
        # found.
        for band in self.bands:
            size = (band.last - band.first, t, self._segments(band))
            part = slice(first, first + self._entries(band))
            first = part.stop
            value, place = sign * scores[part].reshape(size), places[part].reshape(size)
            at = value.argmin(axis=2)[..., None]
            one = np.take_along_axis(value, at, 2)[..., 0], np.take_along_axis(place, at, 2)[..., 0]
            less = one[0] < best[0][band.first : band.last]
            for whole, mine in zip(best, one, strict=True):
                whole[band.first : band.last][less] = mine[less]
        row, column = np.divmod(best[1], self.columns.out)
        return Best(sign * best[0], np.stack((row, column), axis=-1))


def _reduce(b: Builder, slots: list[Value], constants: dict[str, Any], push: dict[str, int | float]) -> None:
    program = b.device.program(catalog().find("integer_best__segment"), constants)
    b.dispatch(program, slots, push, int(push["rows"] * push["plane"]))


def _entries_of(found: npt.NDArray[np.int32]) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    entries = found.view(np.uint32).reshape(-1, 4)
    low, high = entries[:, 0].astype(np.int64), entries[:, 1].view(np.int32).astype(np.int64)
    return (high << 32) | low, entries[:, 2].astype(np.int64)


def tensor_range(x: Tensor) -> Range:
    """Return (smallest, largest) value of an int32 tensor, found on the device."""
    segments = -(-x.size // SEGMENT)

    def make() -> Plan:
        b = Builder(x.device)
        y, found = b.input(x.spec), b.words(8 * segments)
        for smallest in (False, True):
            push: dict[str, int | float] = {
                "rows": 1, "channels": 1, "plane": x.size, "segments": segments,
                "first": segments * smallest, "first_place": 0,
            }  # fmt: skip
            _reduce(b, [y, y, found], {"SMALLEST": smallest}, push)
        return b.plan(found)

    plan = x.device.plan(("integer_range", x.spec), make)
    values, _ = _entries_of(run(plan, [x]).numpy())
    return int(values.min()), int(values.max())


def window_squares(b: Builder, x: Value, images: Images, band: Band, columns: Axis) -> Value:
    """Add steps to a plan that compute the sum of squares of every window of a band. Return these sums (64
    bits)."""
    count, rows = band.last - band.first, band.rows
    lines = rows.out + rows.taps - 1
    between, y = (b.words(2 * count * size * columns.out) for size in (lines, rows.out))
    _, channels, h, w = images.shape
    common = {
        "images": images.shape[0], "channels": channels, "h": h, "w": w, "first_image": band.first,
        "count": count, "columns": columns.out, "pad_h": rows.pad, "pad_w": columns.pad,
    }  # fmt: skip
    for axis, source, to, size, taps, along in (
        ("across", x, between, lines, columns.taps, columns.out),
        ("down", between, y, rows.out, rows.taps, rows.out),
    ):
        constants = images.constants() if axis == "across" else {}
        program = b.device.program(catalog().find("integer_squares__sliding", axis=axis), constants)
        push = {**common, "lines": size, "taps": taps, "segments": -(-along // SQUARES_SEGMENT)}
        b.dispatch(program, [source, to], push, count * size * columns.out * channels * 4)
    return y
