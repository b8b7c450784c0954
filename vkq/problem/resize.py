"""Sizes and options of Resize on images, and the input position of each output pixel.

Coordinates are float32, in ONNX Runtime's order of operations. Kernels get them as tables, so every device
reads the same pixels with the same weights.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from vkq.errors import ArgumentError

Float32 = npt.NDArray[np.float32]
Coordinates = Literal["half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners"]
NearestMode = Literal["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
ResizeMode = Literal["nearest", "linear"]
Rounding = Literal["truncate", "even", "fixed", "fixed_10"]
FIXED_BITS = 11  # fraction bits of a fixed-point weight; of "fixed_10", the last is always 0

# A coordinate this close to the middle of two pixels counts as the middle, because quotients of sizes are
# inexact in float32. ONNX Runtime 1.31 does this; earlier versions used the coordinate unchanged.
HALF_WITHIN = 1e-6


def _check_choice(name: str, chosen: str, known: Sequence[str]) -> None:
    if chosen not in known:
        raise ArgumentError(f"resize: {name} is {chosen!r}; it must be one of {', '.join(known)}")


def _sized(x_size: Sequence[int], size: Sequence[int]) -> tuple[list[np.float32], list[int]]:
    """Return (factors, size of the result), given the result's size."""
    factors = [np.float32(out) / np.float32(given) for out, given in zip(size, x_size, strict=True)]
    return factors, [int(v) for v in size]


def _scaled(
    x_size: Sequence[int], scale: float | Sequence[float] | None
) -> tuple[list[np.float32], list[int]]:
    """Return (factors, size of the result), given the factors."""
    both = scale if isinstance(scale, Sequence) else (scale, scale)
    factors = [np.float32(v) for v in both]
    if len(factors) != 2 or not all(0 < v < np.inf for v in factors):
        raise ArgumentError(f"resize: scale is {scale}; give one positive number, or (vertical, horizontal)")
    return factors, [int(factor * np.float32(given)) for factor, given in zip(factors, x_size, strict=True)]


@dataclass(frozen=True)
class Resize:
    """The resize of an image (N, C, H, W) to (N, C, *size). ``scale`` is (vertical, horizontal), rounded to
    float32.

    >>> Resize.of((1, 3, 4, 5), scale=2).size
    (8, 10)
    """

    x_shape: tuple[int, ...]
    size: tuple[int, int]
    scale: tuple[float, float]
    mode: ResizeMode = "nearest"
    coordinates: Coordinates = "half_pixel"
    nearest_mode: NearestMode = "round_prefer_floor"
    rounding: Rounding = "truncate"
    # True if x is (N, C, L), resized as images of one row: ONNX Runtime then adds eight terms, not four.
    lines: bool = False

    @classmethod
    def of(
        cls,
        x_shape: Sequence[int],
        size: Sequence[int] | None = None,
        scale: float | Sequence[float] | None = None,
        mode: ResizeMode = "nearest",
        coordinates: Coordinates = "half_pixel",
        nearest_mode: NearestMode = "round_prefer_floor",
        rounding: Rounding = "truncate",
        lines: bool = False,
    ) -> Resize:
        """Return the resize for a size (OH, OW) or a scale (one number or two). As in ONNX Resize, the
        other one is computed."""
        for name, chosen, kind in (
            ("mode", mode, ResizeMode), ("coordinates", coordinates, Coordinates),
            ("nearest_mode", nearest_mode, NearestMode), ("rounding", rounding, Rounding),
        ):  # fmt: skip
            _check_choice(name, chosen, get_args(kind))
        if len(x_shape) != 4 or min(x_shape[2:]) < 1:
            raise ArgumentError(
                f"resize: x has shape {tuple(x_shape)}; it must be (N, C, H, W) with H and W at least 1"
            )
        if (size is None) == (scale is None):
            raise ArgumentError(f"resize: size is {size} and scale {scale}; give one of the two")
        if size is not None and len(size) != 2:
            raise ArgumentError(f"resize: size has {len(size)} numbers; it must have 2: (OH, OW)")
        factors, out = _scaled(x_shape[2:], scale) if size is None else _sized(x_shape[2:], size)
        if len(out) != 2 or min(out) < 1:
            raise ArgumentError(
                f"resize: the result would have {out} rows and columns; both must be at least 1"
            )
        scales = (float(factors[0]), float(factors[1]))
        return cls(tuple(x_shape), (out[0], out[1]), scales, mode, coordinates, nearest_mode, rounding, lines)

    @property
    def y_shape(self) -> tuple[int, ...]:
        return (*self.x_shape[:2], *self.size)

    def original(self, axis: int) -> Float32:
        """Return the input coordinate of each output row (axis 0) or column (axis 1), not yet clamped."""
        out, given, scale = self.size[axis], self.x_shape[2 + axis], np.float32(self.scale[axis])
        x, half = np.arange(out, dtype=np.float32), np.float32(0.5)
        if self.coordinates == "asymmetric":
            return np.asarray(x / scale)
        if self.coordinates == "align_corners":
            return np.asarray(x * np.float32(given - 1) / np.float32(max(out - 1, 1)))
        if self.coordinates == "pytorch_half_pixel" and out == 1:
            return np.zeros(1, np.float32)
        return np.asarray((x + half) / scale - half)

    def nearest(self, axis: int) -> npt.NDArray[np.int32]:
        """Return the input row or column of each output row or column."""
        at = self.original(axis)
        floor = np.floor(at)
        fraction = at - floor
        tie = np.abs(fraction - np.float32(0.5)) < HALF_WITHIN
        found = {
            "floor": floor,
            "ceil": np.ceil(at),
            "round_prefer_ceil": floor + (tie | (fraction > 0.5)),
            "round_prefer_floor": floor + (~tie & (fraction > 0.5)),
        }[self.nearest_mode]
        return np.asarray(np.clip(found, 0, self.x_shape[2 + axis] - 1).astype(np.int32))

    def linear(self, axis: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], Float32, Float32]:
        """For each output row or column, return (index of the first input row or column, index of the
        second, distance from the first, distance from the second)."""
        last = self.x_shape[2 + axis] - 1
        at = np.clip(self.original(axis), np.float32(0), np.float32(last))
        first = at.astype(np.int32)
        second = np.minimum(first + 1, last)
        one, half = first == second, np.float32(0.5)
        d1, d2 = (np.where(one, half, np.abs(at - i.astype(np.float32))) for i in (first, second))
        return first, second, d1.astype(np.float32), d2.astype(np.float32)

    def fixed(self, axis: int) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int32], npt.NDArray[np.int32]]:
        """For each output row or column, return (index of the first input row or column, index of the
        second, weight of the second in units of 2**-11), as in XNNPACK: coordinates are multiples of the
        quotient of the sizes, rounded to float32. With "fixed_10", the quotient and the coordinates are
        rounded to multiples of 2**-10, as in LiteRT's own kernel."""
        given, out, half = self.x_shape[2 + axis], self.size[axis], np.float32(0.5)
        ends = 1 if self.coordinates == "align_corners" and out > 1 else 0
        if self.rounding == "fixed_10":
            unit = ((given - ends << 10) + (out - ends) // 2) // (out - ends)
            places = np.arange(out, dtype=np.int32) * unit
            if "half_pixel" in self.coordinates:
                places = np.maximum(places + unit // 2 - 512, 0)
            first = np.minimum(places >> 10, given - 1)
            return first, np.minimum(first + 1, given - 1), (places & 1023) << 1
        step, at = np.float32(given - ends) / np.float32(out - ends), np.arange(out, dtype=np.float32)
        at = at * step
        if "half_pixel" in self.coordinates:
            at = np.clip(at + (half * step - half), np.float32(0), np.float32(given - 1))
        first = np.minimum(at.astype(np.int32), given - 1)
        weight = np.rint((at - first.astype(np.float32)) * np.float32(1 << FIXED_BITS))
        return first, np.minimum(first + 1, given - 1), weight.astype(np.int32)
