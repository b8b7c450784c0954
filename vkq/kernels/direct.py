"""Direct int8 convolutions, without an im2col matrix: for small groups, groups whose size is not a multiple
of 4, and depthwise convolutions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from ..device.profile_fields import FEW
from ..device.profiles import profile
from ..layout.extent import BLOCKED, IMAGE
from ..problem.conv2d import Conv2dProblem
from ..problem.options import Pair
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .gemm import FLOAT_WORDS, INVOCATIONS
from .weights import PARAMETER_BYTES, Arithmetic, Int8, Int32, ceil4

LAYOUTS = (IMAGE, BLOCKED)  # the layouts of x and y that these kernels support
NOTHING: Mapping[str, Constant] = {}
# maximum number of taps in a row of a filter over which the loop is unrolled; wider filters are rare
UNROLLED_TAPS = 7


@dataclasses.dataclass(frozen=True)
class Sweep:
    """The geometry of one dispatch (conv_block.glslh): the pixels of the output image that it computes, and
    the pixels of the input image that they read."""

    images: int
    ic: int
    h: int
    w: int
    oh: int  # output rows and columns of this dispatch
    ow: int
    stride: Pair
    before: Pair  # padding at the top and left; negative if the first tap is inside the image
    dilation: Pair
    out: Pair  # size of the output image
    out_stride: Pair = (1, 1)
    out_first: Pair = (0, 0)

    @classmethod
    def of(cls, p: Conv2dProblem) -> Sweep:
        """Return the only sweep of an ordinary convolution; a transposed convolution has several."""
        return cls(p.n, p.ic, p.h, p.w, p.oh, p.ow, p.stride, p.padding[:2], p.dilation, (p.oh, p.ow))

    @property
    def slides(self) -> bool:
        """True if the horizontal stride and dilation are 1: neighbouring output pixels, and neighbouring
        taps, then read neighbouring input columns."""
        return self.stride[1] == self.dilation[1] == 1

    @property
    def spread(self) -> bool:
        """True if the sweep's output pixels are not adjacent in the output image."""
        return self.out_stride != (1, 1)


class Direct:
    """A direct int8 convolution (conv_direct_q8.comp), with weights aligned to whole words of input
    channels.

    *weight* is int8 (OC, IC/groups, KH, KW); *zero_points* (OC,) are int32 in int8's range. If KH or KW is
    0, the result is the bias.
    """

    def __init__(
        self,
        device: Device,
        weight: Int8,
        zero_points: Int32,
        arithmetic: Arithmetic,
        form: str,
        groups: int,
    ):
        self.device, self.arithmetic, self.form = device, arithmetic, form
        self.oc, self.group_ic, self.kh, self.kw = weight.shape
        self.group_oc = self.oc // groups
        self.row_sums = bool(zero_points.any())
        self.span = self._span()
        self._weight, self._zero_points = weight, zero_points
        taps = self.kh * self.kw * self.span
        self.weights = Resident(device, 4 * ceil4(self.oc) * taps * self._word_bytes, self.packed)
        size = ceil4(self.oc) * PARAMETER_BYTES
        self.parameters = arithmetic.after.before(device, size, self.packed_parameters)

    _word_bytes = 4  # weight bytes for one output channel and one word of the input

    def _span(self) -> int:
        return words_of(self.oc, self.group_ic, self.group_oc)

    def _aligned(self) -> Int8:
        return align_to_words(self._weight, self._zero_points, self.group_oc)[1]

    def packed(self) -> Int8:
        blocks = self._aligned().reshape(ceil4(self.oc), 4, self.kh, self.kw, self.span, 4)
        return np.ascontiguousarray(blocks.transpose(2, 4, 3, 0, 1, 5))

    def packed_parameters(self) -> Int32:
        flat = self._aligned().reshape(1, 4 * ceil4(self.oc), -1)
        return self.arithmetic.channel_parameters(flat, self.form, self._zero_points[None])

    def program(self, v: Sweep, layout: str = IMAGE, more: Mapping[str, Constant] = NOTHING) -> Program:
        """Return the pipeline for sweeps with the ``slides`` and ``spread`` of v, on images in *layout*.
        *more*: further specialization constants."""
        known, wide = profile(self.device.capabilities), 1
        while wide < known.direct_blocks and 4 * wide < self.oc:
            wide *= 2
        across, down = known.local(wide, INVOCATIONS, ceil4(self.oc))
        local: dict[str, Constant] = {"LOCAL_X": across, "LOCAL_Y": down}
        taps = self.kw if self.kw <= UNROLLED_TAPS else 0
        kind: dict[str, Constant] = {
            "SLIDE": v.slides, "SPREAD": v.spread, "KW": taps, "BLOCKED": layout == BLOCKED,
        }  # fmt: skip
        constants = {**local, **kind, "ROW_SUMS": self.row_sums, **self._constants()}
        constants |= {**self.arithmetic.after.constants, **more}
        return self.device.program(self._variant(), constants)

    def sweep(self, b: Builder, v: Sweep, x: Value, y: Value) -> None:
        """Add the dispatch of one `Sweep` to a plan."""
        program = self.program(v, x.spec.layout)
        push, macs = self.push(v), self.macs(v)
        slots = [x, b.constant(self.weights), b.constant(self.parameters), y]
        b.dispatch(program, slots, push, macs, self.arithmetic.after.in_place)

    def macs(self, v: Sweep) -> int:
        """Return the number of multiply-adds of a sweep, padding included."""
        blocks = v.images * v.oh * ceil4(v.ow) * ceil4(self.oc)
        return int(64 * blocks * self.kh * self.kw * self.span)

    def push(self, v: Sweep) -> dict[str, int | float]:
        return {
            "lines": v.images * v.oh, "oh": v.oh, "ow": v.ow, "x_c4": ceil4(v.ic), "h": v.h, "w": v.w,
            "kh": self.kh, "kw": self.kw, "span": self.span, "stride_h": v.stride[0], "stride_w": v.stride[1],
            "pad_t": v.before[0], "pad_l": v.before[1], "dilation_h": v.dilation[0],
            "dilation_w": v.dilation[1], "x_zero_point": self.arithmetic.x_zero_point,
            "group_ic": self.group_ic, "group_oc": self.group_oc, "channels": self.oc, "out_h": v.out[0],
            "out_w": v.out[1], "out_stride_h": v.out_stride[0], "out_stride_w": v.out_stride[1],
            **self.arithmetic.epilogue,
        }  # fmt: skip

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        self.sweep(b, Sweep.of(p), x, y)

    def _variant(self) -> Variant:
        return catalog().find("conv2d_q8ta_q8csw__direct", dot=self.form, **self.arithmetic.axes)

    def _constants(self) -> dict[str, Constant]:
        long_k = self.form == "float" and self.kh * self.kw * self.span > FLOAT_WORDS
        return {"LONG_K": long_k, "IN_TURN": profile(self.device.capabilities).registers == FEW}


def words_of(oc: int, group_ic: int, group_oc: int) -> int:
    """Return the number of words of input channels that a block of four output channels reads."""
    return _lanes(oc, group_ic, group_oc)[1]


def _lanes(oc: int, group_ic: int, group_oc: int) -> tuple[npt.NDArray[np.intp], int]:
    """Return (lanes, words) for blocks of four output channels, which read consecutive words of four input
    channels. lanes: for each output channel, the position of its first input channel in the block's words.
    words: the largest number of words that a block reads."""
    channel = np.arange(oc)
    first_word = channel // 4 * 4 // group_oc * group_ic // 4
    lane = channel // group_oc * group_ic - 4 * first_word
    return lane, int((lane + group_ic - 1).max(initial=-1)) // 4 + 1


def align_to_words(weight: Int8, zero_points: Int32, group_oc: int) -> tuple[int, Int8]:
    """Align a weight so that the four output channels of a block read the same *span* input words. Return
    (span, weight (OC rounded up to a multiple of 4, KH, KW, 4 * span)).

    A block reads the words with the input channels of its groups; the span is the largest number of these
    words. They may also contain channels that an output channel does not read: their weight is the zero
    point, so they add zero.

    >>> weight = np.array([1, 2, 3, 4], np.int8).reshape(4, 1, 1, 1)
    >>> align_to_words(weight, np.zeros(4, np.int32), 1)[1].reshape(4, 4).tolist()
    [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 4]]
    """
    oc, group_ic, kh, kw = weight.shape
    lane, span = _lanes(oc, group_ic, group_oc)
    out = np.zeros((4 * ceil4(oc), kh, kw, 4 * span), np.int8)
    out[:oc] = zero_points.astype(np.int8).reshape(-1, 1, 1, 1)
    out[np.arange(oc)[:, None], :, :, lane[:, None] + np.arange(group_ic)] = weight
    return span, out
