"""Weights of products on matrix units with float32 sums, packed in the order of each kernel. Float weights
are packed as float16. Int8 weights stay int8, and the kernel converts them to float16 or bfloat16."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from ..layout.pack import layout
from ..runtime.plan import Resident
from ..select.path import signs_refusal
from .floats import FloatGemm
from .half_operands import RUN
from .half_prepack import Prepacked
from .half_weights import (
    PAIRS_LAYOUT,
    WEIGHT_LAYOUT,
    by_eights,
    less_zeros,
    matrices_of,
    packed_halves,
    packed_pairs,
    packed_signs,
)
from .weights import Int8, Int32, block_weights

K_PADDED = 64  # K of the weights is padded to a multiple of this, so that every tile has whole steps
SIGNED_UNIT = 2.0**-24  # factor of the weights of `packed_signs`; scales have its inverse
LARGEST_SCALE = 2.0**103  # scales must be smaller than this for `packed_signs`


class Loaders:
    """The weights of *gemm*. *channels*: the number of input channels of a group (k for a linear layer),
    which is padded to a multiple of 8. *floats*: None, or a float weight (OC, channels, KH, KW) that
    replaces the int8 weight."""

    def __init__(self, gemm: FloatGemm, channels: int, floats: npt.NDArray[Any] | None = None):
        self.gemm, self.floats = gemm, floats is not None
        self.runs = -(-channels // RUN)
        taps = gemm.k // max(channels, 1)
        self.k = taps * self.runs * RUN
        shape = (gemm.groups, 4 * gemm.n4, self.k + -self.k % K_PADDED)

        def padded(signed: bool = False) -> npt.NDArray[Any]:
            w: npt.NDArray[Any]
            w = _floats(gemm, floats) if floats is not None else _integers(gemm, signed)
            w = w.reshape(*w.shape[:2], taps, channels)
            w = np.pad(w, ((0, 0), (0, 0), (0, 0), (0, self.runs * RUN - channels)))
            w = w.reshape(*w.shape[:2], self.k)
            return np.pad(w, ((0, 0), (0, 0), (0, shape[2] - self.k)))

        def resident(name: str, packed: Callable[[], Int32]) -> Resident:
            return Resident(gemm.device, (1 + self.floats) * 4 * layout(name).words(shape), packed)

        def pairs(w: npt.NDArray[Any]) -> Int32:
            return matrices_of(w) if self.floats else (packed_signs if self.signed else packed_pairs)(w)

        staged = by_eights if self.floats else packed_halves
        # For kernels that load weights through shared memory.
        self.staged = resident(WEIGHT_LAYOUT, lambda: staged(padded()))
        # For kernels that load weights directly into matrices.
        self.direct = resident(PAIRS_LAYOUT, lambda: pairs(padded(self.signed)))
        self.prepacked = Prepacked(gemm.device, 4 * gemm.n4, self.k, lambda: padded(self.signed), pairs)

        def scales() -> npt.NDArray[np.float32]:
            more = dataclasses.replace(gemm.affine, scale=gemm.affine.scale * np.float32(1 / SIGNED_UNIT))
            return more.blocks(gemm.zero_point)

        self.scales = Resident(gemm.device, gemm.parameters.bytes, scales)

    def parameters(self, direct: bool) -> Resident:
        """Return the parameters of the epilogue. *direct*: whether weights are loaded directly into
        matrices."""
        return self.scales if direct and self.signed and not self.floats else self.gemm.parameters

    @property
    def constants(self) -> dict[str, bool]:
        """The specialization constants that describe the weights."""
        return {"SIGNED": self.signed, "FLOAT_WEIGHTS": self.floats}

    @functools.cached_property
    def signed(self) -> bool:
        """True if kernels that load weights directly into matrices need no zero points: for float weights,
        and for int8 weights that `packed_signs` supports, if the device multiplies the values of
        `packed_signs` correctly."""
        gemm = self.gemm
        if self.floats:
            return True
        if signs_refusal(gemm.device) or not np.abs(gemm.affine.scale).max(initial=0.0) < LARGEST_SCALE:
            return False
        w = gemm.weight()
        least, most = w.min(axis=2).astype(np.int32), w.max(axis=2).astype(np.int32)
        return bool((most - gemm.zero_point).max() <= 127 and (least - gemm.zero_point).min() >= -127)


def _integers(gemm: FloatGemm, signed: bool) -> Int8:
    """Return the int8 weights (G, N, K). With *signed*, subtract their zero points."""
    w, zero_point = gemm.weight(), gemm.zero_point
    if signed:
        w, zero_point = less_zeros(w, zero_point), np.zeros_like(zero_point)
    return block_weights(w, zero_point)[:, :, : gemm.k]


def _floats(gemm: FloatGemm, weight: npt.NDArray[Any]) -> npt.NDArray[np.float16]:
    """Return a float weight (OC, channels, KH, KW) as float16 (G, N, K)."""
    w = weight.astype(np.float16).reshape(gemm.groups, gemm.n, weight.shape[1], -1).swapaxes(2, 3)
    return np.pad(w.reshape(gemm.groups, gemm.n, gemm.k), ((0, 0), (0, -gemm.n % 4), (0, 0)))
