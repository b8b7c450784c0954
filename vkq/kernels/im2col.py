"""Convolutions as matrix products: 1x1 ones as they stand, others through an im2col matrix in bounded scratch
memory."""

from __future__ import annotations

import math
import weakref
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..numerics.stored import signed_zero_point
from ..problem.conv2d import Conv2dProblem
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..select.path import MATRIX
from ..shader.catalog import catalog
from .gemm import FloatGemm, Int8, Int8Gemm, Rows, Scales, ceil4
from .matrix_units import CoopmatGemm, Pixels, whole_blocks

if TYPE_CHECKING:
    from ..ops.conv2d import Conv2d

SCRATCH_BYTES = 16 << 20  # of the im2col matrix: larger ones are made and used in chunks of rows

_scratch: weakref.WeakKeyDictionary[Device, Buffer] = weakref.WeakKeyDictionary()


class Pointwise:
    """A 1x1 convolution is a linear layer on the pixels: kPackedInt8_4W4C is its matrix as it stands."""

    def __init__(self, gemm: Int8Gemm):
        self.gemm = gemm

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        self.gemm.dispatch(recording, x, y, pixel_rows(p, pad=True))

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        rows = pixel_rows(p, pad=True)
        return (self.gemm.chosen(rows, rows.blocks).variant.name,), 0


class MatrixPointwise:
    """A 1x1 convolution of any stride on matrix units, which read the pixels of kPackedInt8_16C that it
    needs."""

    def __init__(self, layer: Conv2d, p: Conv2dProblem):
        assert layer.scales is not None
        self.gemm = CoopmatGemm(layer.device, layer.operands[1].reshape(p.oc, -1), layer.scales, p.groups)

    @staticmethod
    def refusal(layer: Conv2d, p: Conv2dProblem) -> str | None:
        """Why it cannot take a layer and its problem; None where it can."""
        if (p.kh, p.kw) != (1, 1) or any(p.padding):
            return f"the kernel is {p.kh}x{p.kw}, padding {p.padding}; it needs 1x1 and no padding"
        return matrix_refusal(layer, p)

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        self.gemm.dispatch(recording, x, y, Pixels.of(p))

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        return (self.gemm.program(p.gemm_m).variant.name,), 0


def matrix_refusal(layer: Conv2d, p: Conv2dProblem) -> str | None:
    """Why matrix units cannot take a layer and its problem, whatever the kernel; None where they can."""
    if layer.scales is None:
        return "its activations are float"
    path = layer.choice().path
    if path != MATRIX:
        return f"its path is {path}; it needs {MATRIX}"
    if not p.ic or not p.oc:
        return f"IC={p.ic}, OC={p.oc}; it needs at least 1"
    if not (whole_blocks(p.ic, p.groups) and whole_blocks(p.oc, p.groups)):
        return f"groups of {p.ic // p.groups} to {p.oc // p.groups} channels are not whole blocks of 16"
    return None


class Im2col:
    """Rows of an im2col matrix, a chunk at a time, times the weight. *gemm* has (super groups, N, K) of
    `merge_groups`."""

    def __init__(self, gemm: Int8Gemm | FloatGemm, taps: int):
        self.gemm = gemm
        self.group_channels = gemm.k // taps
        self._int8 = isinstance(gemm, Int8Gemm)
        self._row_bytes = gemm.groups * (16 * ceil4(gemm.k) if self._int8 else 4 * gemm.k)

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        gemm, rows = self.gemm, pixel_rows(p, pad=self._int8)
        count, chunk = self._chunks(rows)
        scratch = device_scratch(gemm.device, chunk * self._row_bytes)
        for first in range(0, count, chunk):
            size = min(chunk, count - first)
            push = {**self._window(p, rows), **self._chunk_push(first, size)}
            if gemm.k:
                recording.dispatch(self._gather(), [x, scratch], push)
            gemm.dispatch(recording, scratch, y, rows, first, size)

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        rows, gemm = pixel_rows(p, pad=self._int8), self.gemm
        _, chunk = self._chunks(rows)
        program = gemm.chosen(rows, chunk) if isinstance(gemm, Int8Gemm) else gemm.program(chunk)
        return (self._gather().variant.name, program.variant.name), chunk * self._row_bytes

    def _chunks(self, rows: Rows) -> tuple[int, int]:
        """How many rows (int8: blocks of four) the matrix has, and how many are made at a time."""
        count = rows.blocks if self._int8 else rows.count
        return count, max(1, min(count, SCRATCH_BYTES // max(self._row_bytes, 1)))

    def _chunk_push(self, first: int, size: int) -> dict[str, int | float]:
        gemm = self.gemm
        if isinstance(gemm, Int8Gemm):
            return {
                "m4": size,
                "k4": gemm.k4,
                "first_m4": first,
                "x_zero_point": signed_zero_point(gemm.scales.x),
            }
        return {"m": size, "k": gemm.k, "first_m": first}

    def _gather(self) -> Program:
        if not self._int8:
            return self.gemm.device.program(catalog().find("im2col_f32__gather"))
        channels = "four" if self.group_channels % 4 == 0 else "any"
        return self.gemm.device.program(catalog().find("im2col_q8__gather", channels=channels))

    def _window(self, p: Conv2dProblem, rows: Rows) -> dict[str, int | float]:
        return {
            "groups": self.gemm.groups, "c": p.ic, "h": p.h, "w": p.w, "oh": rows.oh,
            "ow_padded": rows.ow_padded, "kw": p.kw, "group_channels": self.group_channels,
            "stride_h": p.stride[0], "stride_w": p.stride[1], "pad_t": p.padding[0], "pad_l": p.padding[1],
            "dilation_h": p.dilation[0], "dilation_w": p.dilation[1], "images": p.n,
        }  # fmt: skip


def int8_gemm(
    device: Device,
    weight: Int8,
    zero_points: npt.NDArray[np.int32],
    scales: Scales,
    form: str,
    groups: int,
) -> Int8Gemm:
    """The product of a convolution with weight (OC, IC/groups, KH, KW) and zero points (OC,)."""
    merged = merge_groups(weight, groups, zero_points)
    zeros = np.zeros(merged.shape[:2], np.int32)
    zeros.reshape(-1)[: weight.shape[0]] = zero_points
    return Int8Gemm(device, merged, zeros, scales, form, weight.shape[0])


def merge_groups(weight: Int8, groups: int, zero_points: npt.NDArray[np.int32] | None = None) -> Int8:
    """Groups merged until each has a multiple of four output channels: (G merged groups, N, K) with k = (kh,
    kw, ic).

    A store writes whole words of four channels, so a group must own whole words. Within a merged group the
    weight is block-diagonal, with each channel's zero point elsewhere, which counts as zero; that costs at
    most a factor of four (depthwise). The last merged group may be short of groups: theirs are zeros, and not
    stored.
    """
    oc, ic, kh, kw = weight.shape
    n = oc // groups
    merged = min(groups, 4 // math.gcd(4, n)) if groups > 1 and n else 1
    super_groups = -(-groups // merged)
    out = np.zeros((super_groups * merged, n, kh, kw, merged, ic), np.int8)
    if zero_points is not None:
        out[:groups] = zero_points.astype(np.int8).reshape(groups, n, 1, 1, 1, 1)
    slot = np.arange(groups) % merged
    by_group = weight.reshape(groups, n, ic, kh, kw).transpose(0, 1, 3, 4, 2)
    out[np.arange(groups), :, :, :, slot, :] = by_group
    return out.reshape(super_groups, merged * n, kh * kw * merged * ic)


def pixel_rows(p: Conv2dProblem, pad: bool) -> Rows:
    """The output pixels as rows of the product; with *pad* every line is rounded up to whole blocks of
    four."""
    return Rows(p.n * p.oh, p.oh, p.ow, 4 * ceil4(p.ow) if pad else p.ow)


def device_scratch(device: Device, size: int) -> Buffer:
    """One scratch buffer for all convolutions of a device: chains of layers order their uses by barriers, and
    share it.

    Call it inside ``device.operation()``, which keeps other threads out.
    """
    found = _scratch.get(device)
    if found is None or found.bytes < size:
        _scratch.pop(device, None)
        found = _scratch[device] = device.allocate(size)
    return found
