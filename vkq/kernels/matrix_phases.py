"""Transposed convolutions on matrix units whose kernel size equals the stride. One product computes the
outputs of all phases and stores each output at its pixel. Images are in kPackedInt8_16C."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem.transposed import TransposedConv2dProblem, TransposedOptions
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from .divisor import divisor
from .matrix_tiles import SHORT_MOST, Tiling
from .matrix_units import MatrixGemm, Pixels
from .weights import Arithmetic, Int8

TURN = 64  # elements along k of one loop iteration; here, K is the number of input channels
PHASES = "conv_transpose2d_q8ta_q8csw__coopmat"


def alone(options: TransposedOptions) -> bool:
    """Return True if `MatrixPhases` supports a transposed convolution: every output pixel reads exactly one
    input pixel, and all phases have the same number of output pixels."""
    plain = options.dilation == (1, 1) and not any(options.padding) and not any(options.output_padding)
    return plain and options.groups == 1 and options.kernel == options.stride


def by_phases(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a weight (OC, IC, KH, KW) as one weight (KH * KW * OC, IC) for the outputs of all phases, with
    OC rounded up to a multiple of 16. The order of its rows is (kernel row, block of 16 channels, kernel
    column, channel)."""
    oc, ic, kh, kw = weight.shape
    padded = np.pad(weight, ((0, -oc % 16), (0, 0), (0, 0), (0, 0)), "edge")
    ordered: npt.NDArray[Any] = padded.reshape(-1, 16, ic, kh, kw).transpose(3, 0, 4, 1, 2)
    return ordered.reshape(-1, ic)


def of_phases(values: npt.NDArray[Any], kernel: tuple[int, int]) -> npt.NDArray[Any]:
    """Repeat per-channel values (OC,) once for each phase."""
    return by_phases(np.broadcast_to(values.reshape(-1, 1, 1, 1), (len(values), 1, *kernel))).ravel()


class MatrixPhases:
    """A transposed convolution. *weight* is in the order of `by_phases`; *arithmetic* has the parameters of
    all its rows."""

    def __init__(self, device: Device, weight: Int8, arithmetic: Arithmetic, kernel: tuple[int, int]):
        self.kernel, self.blocks = kernel, len(weight) // (16 * kernel[0] * kernel[1])
        shape = len(weight), weight.shape[1]
        self.gemm = MatrixGemm(device, shape, lambda: weight, arithmetic, turn=TURN)
        self.gemm.whole, self.gemm.split = PHASES, None
        # A larger tile reads its operands less often. For a short k, loads and stores take most of the time
        # instead.
        larger = "128x64_short" if self.gemm.k <= SHORT_MOST else "128x128"
        self.gemm.listed = Tiling(larger), Tiling("64x64")

    def build(self, b: Builder, p: TransposedConv2dProblem, x: Value, y: Value) -> None:
        rows = p.n * p.h * p.w
        push = {
            "phases_h": self.kernel[0], "phases_w": self.kernel[1], "phase_blocks": self.blocks,
            "lines": p.n * p.h, **divisor("line", p.w),
        }  # fmt: skip
        self.gemm.build(b, x, y, Pixels(rows, rows, p.h * p.w, p.w, p.h * p.w, p.w), push=push)
