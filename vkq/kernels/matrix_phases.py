"""Transposed convolutions whose kernel is as large as their stride, on matrix units: one product, whose
outputs are those of all phases, each placed where its pixels lie; images in kPackedInt8_16C."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem.transposed import TransposedConv2dProblem, TransposedOptions
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from .matrix_tiles import Tiling
from .matrix_units import MatrixGemm, Pixels
from .weights import Arithmetic, Int8

ROOM = 25616  # bytes of shared memory of the larger tile
TURN = 64  # k of a turn of its loops: one input channel counts for a pixel, not nine
PHASES = "conv_transpose2d_q8ta_q8csw__coopmat"


def alone(options: TransposedOptions) -> bool:
    """Whether every output pixel sees one input pixel, and each phase has as many."""
    plain = options.dilation == (1, 1) and not any(options.padding) and not any(options.output_padding)
    return plain and options.groups == 1 and options.kernel == options.stride


def by_phases(values: npt.NDArray[Any], phases: int) -> npt.NDArray[Any]:
    """What each output channel has (OC, ...), padded to whole blocks of 16 channels, for every phase."""
    padded = np.pad(values, ((0, -len(values) % 16), *((0, 0),) * (values.ndim - 1)), "edge")
    return np.tile(padded, (phases, *(1,) * (values.ndim - 1)))


class MatrixPhases:
    """*weight* is (KH * KW * OC, IC), the channels of each phase in whole blocks of 16; *arithmetic* is for
    all of them."""

    def __init__(self, device: Device, weight: Int8, arithmetic: Arithmetic, kernel: tuple[int, int]):
        self.kernel, self.blocks = kernel, len(weight) // (16 * kernel[0] * kernel[1])
        shape = len(weight), weight.shape[1]
        self.gemm = MatrixGemm(device, shape, lambda: weight, arithmetic, turn=TURN)
        self.gemm.whole, self.gemm.split = PHASES, None
        # A larger tile reads its operands less often.
        room = device.capabilities.properties["maxComputeSharedMemorySize"]
        self.gemm.tiling = Tiling("128x128" if room >= ROOM else "64x64")

    def build(self, b: Builder, p: TransposedConv2dProblem, x: Value, y: Value) -> None:
        rows = p.n * p.h * p.w
        push = {"phases_h": self.kernel[0], "phases_w": self.kernel[1], "phase_blocks": self.blocks}
        self.gemm.build(b, x, y, Pixels(rows, rows, p.h * p.w, p.w, p.h * p.w, p.w), push=push)
