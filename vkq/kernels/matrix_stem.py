"""Convolutions of few channels with a narrow filter on matrix units, such as the first convolution of a
network. The kernel reads the image directly. It quantizes a float32 image while it loads it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..probe.matrices import Matrices, advertised
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .matrix_conv import halo, turn, whole_lines
from .matrix_units import MatrixWeights, centred, counts
from .quantize import steps_of
from .weights import Arithmetic, Int8

STEM = "conv2d_q8ta_q8csw__stem_coopmat"
# CHANNELS, TAPS: channels of a pixel and taps of a kernel row, padding included. One step processes
# CHANNELS * TAPS elements along k.
CHANNELS, TAPS = 4, 8


class MatrixStem:
    """A convolution with at most four channels and at most eight taps in a kernel row (coopmat_stem.glslh).
    *weight* is int8 (OC, IC, KH, KW)."""

    def __init__(self, device: Device, weight: Int8, arithmetic: Arithmetic):
        self.device = device
        oc, _, kh, _ = weight.shape
        shader = catalog().shaders[STEM].variants[0]  # all variants have the same k per iteration
        k = CHANNELS * TAPS * kh
        shape = (1, oc, k + -k % turn(shader))

        def packed() -> npt.NDArray[Any]:
            lines = by_lines(centred(weight, arithmetic.w_zero_point))
            return np.pad(lines, ((0, 0), (0, shape[2] - k))).reshape(shape)

        form = advertised(device.capabilities)[0].form
        self.packed = MatrixWeights(device, shape, packed, arithmetic, form, oc)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        """Add the convolution to a plan. x is int8 in kPackedInt8_4W4C or float32; the kernel quantizes
        float32 with the layer's x_qparams."""
        w = self.packed
        found = stem_shader(p, w.arithmetic.out, x.spec.dtype == "float32", self.device.capabilities)
        assert found is not None
        push, in_place = self.push(p, found[0]), w.arithmetic.after.in_place
        trips = counts(self.device, TRIPS=int(push["steps"]), CHUNKS=1)
        program = w.program(found[0], found[1], **_constants(p, found[0]), **trips)
        b.dispatch(program, w.slots(b, x, y), push, w.macs(p.gemm_m), in_place)

    def push(self, p: Conv2dProblem, shader: Variant) -> dict[str, int | float]:
        w, tile_h, tile_w = self.packed, int(shader.sizes["TH"]), int(shader.sizes["TW"])
        return {
            **w.push, "rows": p.gemm_m, "pixels": p.oh * p.ow, "oh": p.oh, "ow": p.ow, "k16": 2,
            "steps": w.k_padded // int(shader.sizes["BK"]), "taps": p.kh, "h": p.h, "w": p.w,
            **steps_of(w.arithmetic.x_scale, w.arithmetic.x_zero_point),
            "pad_t": p.padding[0], "pad_l": p.padding[1], "dilation_h": p.dilation[0], "dilation_w": 1,
            "tiles_h": -(-p.oh // tile_h), "tiles_w": -(-p.ow // tile_w), "ic": p.ic,
        }  # fmt: skip


def by_lines(weight: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return a weight (OC, IC, KH, KW) as (OC, K) with k = (kh, kw, channel). Kernel rows are padded with
    zeros to eight taps, and pixels to four channels."""
    oc, ic, kh, kw = weight.shape
    out = np.zeros((oc, kh, TAPS, CHANNELS), weight.dtype)
    out[:, :, :kw, :ic] = weight.transpose(0, 2, 3, 1)
    return out.reshape(oc, -1)


def stem_shader(
    p: Conv2dProblem, out: str, floats: bool, capabilities: Capabilities
) -> tuple[Variant, Matrices] | None:
    """Return the variant and matrix shape for a problem, or None if shared memory is too small for the
    input pixels of every tile."""
    listed = advertised(capabilities)
    form = listed[0].form
    variant = catalog().find(STEM, out=out, dot=form, x="f32" if floats else "q8ta")
    able = (
        matrices for matrices in listed
        if matrices.form == form and whole_lines(variant, matrices)
        and matrices.runs(variant, capabilities, **_constants(p, variant))
    )  # fmt: skip
    return next(((variant, matrices) for matrices in able), None)


def _constants(p: Conv2dProblem, shader: Variant) -> dict[str, Constant]:
    """Return the specialization constants for a problem. Shared memory has a separate copy of the input
    pixels for every column of the tile."""
    return {
        "STRIDE_H": p.stride[0], "STRIDE_W": p.stride[1], "HALO_H": halo(p, shader)[0],
        "HALO_W": int(shader.sizes["TW"]), "KW": 1,
    }  # fmt: skip
