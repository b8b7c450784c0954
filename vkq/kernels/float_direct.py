"""Direct convolutions of float activations with int8 or float weights, without an im2col matrix."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..device.profiles import profile
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .cast import converted, result_dtype
from .direct import UNROLLED_TAPS, Sweep
from .floats import PARAMETERS, Affine
from .gemm import INVOCATIONS
from .weights import Int8, Int32, ceil4

LONGEST = 60_000  # maximum loop iterations of an invocation in a dispatch; drivers may stop longer loops
MOST_UNROLLED = 9  # maximum number of taps for which the loop over kernel rows is unrolled
TILES = ("8x8", "4x8", "4x4")  # tiles of an invocation, pixels x output channels, largest first


class FloatDirect:
    """A direct convolution (conv_direct_q8csw.comp). *weight* (OC, IC/groups, KH, KW) is int8 or float. An
    int8 weight has *zero_points* (OC,) in int8's range. A float weight is converted to float32, and has no
    zero points. If KH or KW is 0, the result is the bias."""

    def __init__(self, device: Device, weight: Int8, zero_points: Int32, affine: Affine, groups: int):
        self.device, self.affine = device, affine
        self.oc, self.group_ic, self.kh, self.kw = weight.shape
        self.group_oc = self.oc // groups
        self.floats = weight.dtype.kind == "f"
        kind = np.float32 if self.floats else np.int8
        whole = max(4, self.channels)  # output channels whose weights the shader reads at once
        channels, oc = -(-self.oc // whole) * whole, self.oc  # the closure must not refer to self (a cycle)

        def packed() -> Int8:
            padded = np.zeros((channels, *weight.shape[1:]), kind)
            padded[:oc] = weight
            return np.ascontiguousarray(padded.transpose(1, 2, 3, 0))

        size = channels * self.group_ic * self.kh * self.kw * np.dtype(kind).itemsize
        self.weights = Resident(device, size, packed)
        size = ceil4(self.oc) * PARAMETERS * 16
        self.parameters = Resident(device, size, lambda: affine.blocks(zero_points[None]))

    @cached_property
    def passes(self) -> list[dict[str, int | float]]:
        """The push constants of each dispatch. A dispatch adds the taps of a range of input channels, or of
        a range of kernel rows of one input channel."""
        line = self.kw + 2
        rounds = self.kh * line + 2  # loop iterations for one input channel
        if rounds <= LONGEST:
            step = LONGEST // rounds
            return [
                {"first_c": c, "end_c": min(c + step, self.group_ic), "first_kh": 0, "end_kh": self.kh}
                for c in range(0, max(self.group_ic, 1), step)
            ]
        step = max(LONGEST // line, 1)
        return [
            {"first_c": c, "end_c": c + 1, "first_kh": h, "end_kh": min(h + step, self.kh)}
            for c in range(self.group_ic)
            for h in range(0, self.kh, step)
        ]

    @property
    def parts(self) -> bool:
        """True if the taps are divided among several dispatches."""
        return len(self.passes) > 1

    @property
    def tile(self) -> str:
        """The tile of an invocation, pixels x output channels: the largest tile that fits into the device's
        registers and whose channels belong to one group."""
        known = profile(self.device.capabilities).tile_float
        if self.floats and known == TILES[0]:
            known = TILES[1]  # float weights need twice as many registers as integer weights
        if known not in TILES or self.parts:  # shaders have no tile 2x4; with parts, only 4x4 and 4x1
            known = TILES[-1]
        for tile in TILES[TILES.index(known) :]:
            channels = int(tile.partition("x")[2])
            if self.group_oc % channels == 0 or self.group_oc == self.oc > channels // 2:
                return tile
        return "8x1" if known == TILES[0] and not self.floats else "4x1"

    @property
    def channels(self) -> int:
        """The number of output channels that an invocation computes."""
        return int(self.tile.partition("x")[2])

    def program(self, v: Sweep, dtype: str = "float32", first: bool = True, last: bool = True) -> Program:
        """Return the pipeline for sweeps with the ``slides`` of v, on images of this dtype. *first*,
        *last*: whether the dispatch is the first, or the last, of `passes`."""
        known, units = profile(self.device.capabilities), -(-self.oc // self.channels)
        down = 1
        while down < 4 and down < units:
            down *= 2
        across, down = known.local(INVOCATIONS // down, INVOCATIONS, INVOCATIONS)
        taps = self.kw if self.kw <= UNROLLED_TAPS else 0
        whole = known.unrolled_loops and not self.parts and self.kh * self.kw <= MOST_UNROLLED
        lines = self.kh if whole else 0
        kind: dict[str, Constant] = {
            "LOCAL_X": across, "LOCAL_Y": down, "SLIDE": v.slides, "KW": taps, "KH": lines,
        }  # fmt: skip
        if self.parts:
            kind |= {"CONTINUE": not first, "SCALED": last}
        axes = {"tile": self.tile} | ({} if self.floats else {"x": dtype})
        weights, how = "f32" if self.floats else "q8csw", "direct_parts" if self.parts else "direct"
        variant = catalog().find(f"conv2d_{weights}__{how}", **axes)
        return self.device.program(variant, kind | (self.affine.constants if last else {}))

    def writes(self, x: Value) -> str:
        return "float32" if self.floats or self.parts else result_dtype(self.device, x)

    def sweep(self, b: Builder, v: Sweep, x: Value, y: Value) -> None:
        """Add the dispatch of one `Sweep` to a plan. The results have the dtype of y."""
        push: dict[str, int | float] = {
            "lines": v.images * v.oh, "oh": v.oh, "ow": v.ow, "c": v.ic, "h": v.h, "w": v.w, "kh": self.kh,
            "kw": self.kw, "stride_h": v.stride[0], "stride_w": v.stride[1], "pad_t": v.before[0],
            "pad_l": v.before[1], "dilation_h": v.dilation[0], "dilation_w": v.dilation[1],
            "group_ic": self.group_ic, "group_oc": self.group_oc, "channels": self.oc, "out_h": v.out[0],
            "out_w": v.out[1], "out_stride_h": v.out_stride[0], "out_stride_w": v.out_stride[1],
            "out_first_h": v.out_first[0], "out_first_w": v.out_first[1], **self.affine.push,
        }  # fmt: skip
        macs = v.images * v.oh * 4 * ceil4(v.ow) * self.oc * self.group_ic * self.kh * self.kw
        slots = [x, b.constant(self.weights), b.constant(self.parameters), y]
        for i, taps in enumerate(self.passes):
            first, last = i == 0, i + 1 == len(self.passes)
            program = self.program(v, y.spec.dtype, first, last)
            b.dispatch(program, slots, push | taps, macs // len(self.passes), in_place=not first)

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        self.sweep(b, Sweep.of(p), converted(b, x, y.spec.dtype), y)
