"""Resize along one axis as weighted sums: the indices of the input elements of each result, and their
weights.

The modes are linear and cubic ONNX Resize, with or without antialiasing, in every coordinate mode.
Positions outside of the axis read the nearest element.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .resize import HALF_WITHIN

Float32 = npt.NDArray[np.float32]
COORDINATES = (
    "half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric",
    "tf_crop_and_resize",
)  # fmt: skip
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@dataclass(frozen=True)
class ResizedAxis:
    """An axis of *given* elements that is resized to *size* elements by the factor *scale*."""

    given: int
    size: int
    scale: float
    coordinates: str = "half_pixel"
    roi: tuple[float, float] = (0.0, 1.0)  # the part that tf_crop_and_resize reads, in shares of the axis

    def original(self) -> Float32:
        """Return the input coordinate of each result as float32, not clamped to the axis."""
        x, half, scale = np.arange(self.size, dtype=np.float32), np.float32(0.5), np.float32(self.scale)
        last = np.float32(self.given - 1)
        if self.coordinates == "asymmetric":
            return np.asarray(x / scale)
        if self.coordinates == "align_corners":
            # the size as ONNX defines it; ONNX Runtime rounds it down
            real = scale * np.float32(self.given)
            return np.asarray(x * last / (real - 1) if real != 1 else x * 0, np.float32)
        if self.coordinates == "tf_crop_and_resize":
            start, end = (np.float32(v) for v in self.roi)
            if self.size == 1:
                return np.asarray([half * (start + end) * last], np.float32)
            return np.asarray(start * last + x * (end - start) * last / np.float32(self.size - 1))
        if self.coordinates == "pytorch_half_pixel" and self.size == 1:
            return np.full(1, -0.5, np.float32)
        at = (x + half) / scale - half
        if self.coordinates == "half_pixel_symmetric":
            real = scale * np.float32(self.given)
            at = np.float32(self.given) / np.float32(2) * (1 - np.float32(self.size) / real) + at
        return np.asarray(at, np.float32)

    def outside(self) -> npt.NDArray[np.bool_]:
        """Return a mask of the results whose coordinates are outside the axis (for tf_crop_and_resize)."""
        at = self.original()
        return np.asarray((at < 0) | (at > self.given - 1))

    def nearest(self, mode: str) -> npt.NDArray[np.int64]:
        """Return the index of the nearest input element for each result."""
        at = self.original()
        floor = np.floor(at)
        fraction = at - floor
        tie = np.abs(fraction - np.float32(0.5)) < HALF_WITHIN
        up = {
            "floor": np.zeros(at.shape, bool),
            "ceil": fraction > 0,
            "round_prefer_ceil": tie | (fraction > 0.5),
            "round_prefer_floor": ~tie & (fraction > 0.5),
        }[mode]
        return np.asarray(np.clip(floor + up, 0, self.given - 1).astype(np.int64))

    def weighted(
        self, cubic: bool, antialias: bool, a: float = -0.75, exclude_outside: bool = False
    ) -> tuple[npt.NDArray[np.int32], Float32]:
        """Return (indices of input elements, weights), each of shape (size, taps)."""
        at = self.original().astype(np.float64)
        first = np.floor(at)
        shrunk = min(float(np.float32(self.scale)), 1.0) if antialias else 1.0
        reach = int(np.ceil((2 if cubic else 1) / shrunk))
        places = first[:, None] + np.arange(1 - reach, reach + 1)
        weights = _weight((places - at[:, None]) * shrunk, cubic, a)
        if exclude_outside:
            weights = np.where((places < 0) | (places > self.given - 1), 0, weights)
        if antialias or exclude_outside:
            weights = weights / weights.sum(1, keepdims=True)
        return np.clip(places, 0, self.given - 1).astype(np.int32), weights.astype(np.float32)


def _weight(x: npt.NDArray[np.float64], cubic: bool, a: float) -> npt.NDArray[np.float64]:
    """Return the weight of an input element whose distance from the result's coordinate is *x* elements.
    *a*: the coefficient of the cubic kernel."""
    x = np.abs(x)
    if not cubic:
        return np.clip(1 - x, 0, None)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0))
