"""Convolutions straight from the image, without an im2col matrix: for small or odd groups, and for depthwise
ones."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..numerics.stored import signed_zero_point
from ..probe import selftest
from ..problem.conv2d import Conv2dProblem
from ..problem.options import Pair
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..shader.catalog import catalog
from ..shader.spec import Value, Variant
from .gemm import INVOCATIONS, Int8, Scales, ceil4, channel_parameters, epilogue_push, upload

LOCAL_CHANNEL_BLOCKS = 8  # of a workgroup at most: they read the same pixels, and neighbouring weights


@dataclasses.dataclass(frozen=True)
class Window:
    """Where a kernel's taps lie in the input, and where its pixels go in the output (conv_block.glslh)."""

    images: int
    ic: int
    h: int
    w: int
    oh: int  # pixels of this dispatch
    ow: int
    stride: Pair
    before: Pair  # padding at the top and left; negative where the first tap lies inside the image
    dilation: Pair
    out: Pair  # size of the output image
    out_stride: Pair = (1, 1)
    out_first: Pair = (0, 0)

    @classmethod
    def of(cls, p: Conv2dProblem) -> Window:
        """All of an ordinary convolution."""
        return cls(p.n, p.ic, p.h, p.w, p.oh, p.ow, p.stride, p.padding[:2], p.dilation, (p.oh, p.ow))

    @property
    def slides(self) -> bool:
        """Neighbouring pixels and taps are neighbours in the input."""
        return self.stride[1] == self.dilation[1] == 1


class Direct:
    """Weights of a convolution laid against whole words of input channels; see conv_direct_q8.comp.

    *weight* is (OC, IC/groups, KH, KW) as int8, *zero_points* (OC,) alike. KH and KW may be 0: then the bias
    alone remains.
    """

    def __init__(
        self,
        device: Device,
        weight: Int8,
        zero_points: npt.NDArray[np.int32],
        scales: Scales,
        form: str,
        groups: int,
    ):
        self.device, self.scales, self.form = device, scales, form
        self.oc, self.group_ic, self.kh, self.kw = weight.shape
        self.group_oc = self.oc // groups
        self.row_sums = bool(zero_points.any())
        weights, parameters = self._pack(weight, zero_points)
        self.weights, self.parameters = upload(device, weights), upload(device, parameters)

    def _pack(self, weight: Int8, zero_points: npt.NDArray[np.int32]) -> tuple[Int8, npt.NDArray[np.int32]]:
        self.span, spread = align_to_words(weight, zero_points, self.group_oc)
        c4 = spread.shape[0] // 4
        flat = spread.reshape(1, 4 * c4, self.kh * self.kw * self.span * 4)
        parameters = channel_parameters(flat, self.scales, self.form, zero_points[None])
        blocks = spread.reshape(c4, 4, self.kh, self.kw, self.span, 4).transpose(2, 4, 3, 0, 1, 5)
        return np.ascontiguousarray(blocks), parameters

    def program(self, slides: bool) -> Program:
        """The pipeline for one kind of window."""
        variant = self._variant("f32" if self.scales.y is None else "q8to")
        wide = 1
        while wide < LOCAL_CHANNEL_BLOCKS and 4 * wide < self.oc:
            wide *= 2
        x, y = profile(self.device.capabilities).local(wide, INVOCATIONS, ceil4(self.oc))
        constants: dict[str, Value] = {
            "LOCAL_X": x, "LOCAL_Y": y, "ROW_SUMS": self.row_sums, "SLIDE": slides,
            "SOFT_FLOAT": selftest.report(self.device).soft_float, **self._constants(),
        }  # fmt: skip
        return self.device.program(variant, constants)

    def dispatch(self, recording: Recording, window: Window, x: Buffer, y: Buffer) -> None:
        """The pixels of one window."""
        v = window
        push: dict[str, int | float] = {
            "lines": v.images * v.oh, "oh": v.oh, "ow": v.ow, "x_c4": ceil4(v.ic), "h": v.h, "w": v.w,
            "kh": self.kh, "kw": self.kw, "span": self.span, "stride_h": v.stride[0], "stride_w": v.stride[1],
            "pad_t": v.before[0], "pad_l": v.before[1], "dilation_h": v.dilation[0],
            "dilation_w": v.dilation[1], "x_zero_point": signed_zero_point(self.scales.x),
            "group_ic": self.group_ic, "group_oc": self.group_oc, "channels": self.oc, "out_h": v.out[0],
            "out_w": v.out[1], "out_stride_h": v.out_stride[0], "out_stride_w": v.out_stride[1],
            "out_first_h": v.out_first[0], "out_first_w": v.out_first[1], **epilogue_push(self.scales),
        }  # fmt: skip
        macs = 16 * v.images * v.oh * ceil4(v.ow) * ceil4(self.oc) * self.kh * self.kw * 4 * self.span
        recording.dispatch(self.program(v.slides), [x, self.weights, self.parameters, y], push, macs)

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        self.dispatch(recording, Window.of(p), x, y)

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        return (self.program(Window.of(p).slides).variant.name,), 0

    def _variant(self, out: str) -> Variant:
        return catalog().find("conv2d_q8ta_q8csw__direct", dot=self.form, out=out)

    def _constants(self) -> dict[str, Value]:
        return {}


class Depthwise(Direct):
    """A convolution whose output channels see one input channel each; see conv_depthwise_q8.comp."""

    def _pack(self, weight: Int8, zero_points: npt.NDArray[np.int32]) -> tuple[Int8, npt.NDArray[np.int32]]:
        self.span = 1
        flat = np.zeros((1, 4 * ceil4(self.oc), self.kh * self.kw), np.int8)
        flat[0, : self.oc] = weight.reshape(self.oc, -1)
        # The shader multiplies int8 lanes as they are, whatever the path.
        return np.ascontiguousarray(flat[0].T), channel_parameters(
            flat, self.scales, "s8s8", zero_points[None]
        )

    def _variant(self, out: str) -> Variant:
        return catalog().find("conv2d_q8ta_q8csw__depthwise", out=out)

    def _constants(self) -> dict[str, Value]:
        return {"ONE_TO_ONE": self.group_oc == 1}


def align_to_words(weight: Int8, zero_points: npt.NDArray[np.int32], group_oc: int) -> tuple[int, Int8]:
    """(span, weight (OC rounded up to 4, KH, KW, 4 * span)): each block of four output channels against the
    same input words.

    The words of a block are those that hold a channel of its groups; the span is the most that any block
    needs. Lanes that are not a channel's own hold its zero point, and so count as zero whatever the input has
    there.

    >>> weight = np.array([1, 2, 3, 4], np.int8).reshape(4, 1, 1, 1)
    >>> align_to_words(weight, np.zeros(4, np.int32), 1)[1].reshape(4, 4).tolist()
    [[1, 0, 0, 0], [0, 2, 0, 0], [0, 0, 3, 0], [0, 0, 0, 4]]
    """
    oc, group_ic, kh, kw = weight.shape
    channel = np.arange(oc)
    first_word = channel // 4 * 4 // group_oc * group_ic // 4
    lane = channel // group_oc * group_ic - 4 * first_word  # of the channel's first input
    span = int((lane + group_ic - 1).max(initial=-1)) // 4 + 1
    out = np.zeros((4 * ceil4(oc), kh, kw, 4 * span), np.int8)
    out[:oc] = zero_points.astype(np.int8).reshape(-1, 1, 1, 1)
    out[channel[:, None], :, :, lane[:, None] + np.arange(group_ic)] = weight
    return span, out
