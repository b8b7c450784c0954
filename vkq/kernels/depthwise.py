"""Depthwise convolutions: each output channel reads one input channel."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..device.profiles import Profile, profile
from ..layout.extent import BLOCKED, IMAGE, PIXELS, Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .direct import Direct
from .divisor import divisor
from .gemm import FLOAT_WORDS, viewable
from .weights import PARAMETER_BYTES, Int8, Int32, ceil4


class Depthwise(Direct):
    """A depthwise convolution, by packed dot products (`Dots`) if the profile prefers them, else by
    conv_direct_q8.comp."""

    _word_bytes = 1

    def _span(self) -> int:
        return 1

    def _flat(self) -> Int8:
        flat = np.zeros((1, 4 * ceil4(self.oc), self.kh * self.kw), np.int8)
        flat[0, : self.oc] = self._weight.reshape(self.oc, -1)
        return flat

    def packed(self) -> Int8:
        return np.ascontiguousarray(self._flat()[0].T)

    # The form is "s8s8" on every path: the shader multiplies signed int8 numbers without dot products.
    def packed_parameters(self) -> Int32:
        return self.arithmetic.channel_parameters(self._flat(), "s8s8", self._zero_points[None])

    def _variant(self) -> Variant:
        return catalog().find("conv2d_q8ta_q8csw__depthwise", **self.arithmetic.axes)

    def _constants(self) -> dict[str, Constant]:
        return {"ONE_TO_ONE": self.group_oc == 1, "LONG_K": self.kh * self.kw > 4 * FLOAT_WORDS}

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        if self._on_dots(p, x.spec.layout):
            self.dots.build(b, p, x, y)
        else:
            super().build(b, p, x, y)

    def _on_dots(self, p: Conv2dProblem, layout: str) -> bool:
        """Return True if packed dot products compute the problem: they support it in this layout, and the
        profile prefers them."""
        aligned = p.padding[1] % 4 == self.kw // 2
        return self.on_dots(p) and (layout == BLOCKED or (aligned and Dots.by_lines(self)))

    def on_dots(self, p: Conv2dProblem) -> bool:
        """Return True if packed dot products support the problem: each input channel has one output
        channel, the kernel is square with a size of `Dots.KERNELS`, and the stride is in `Dots.STRIDES`."""
        stride = p.stride[0]
        square = p.stride == (stride, stride) and p.dilation == (1, 1) and self.kh == self.kw
        able = self.group_oc == 1 and self.arithmetic.out == "q8to" and self.form != "float"
        return able and square and self.kh in Dots.KERNELS and stride in Dots.STRIDES

    @cached_property
    def dots(self) -> Dots:
        return Dots(self, self._weight, self._zero_points)


class Dots:
    """A depthwise convolution with a square kernel on packed dot products. Each dot product covers taps of
    one kernel row (depthwise_lines.glslh) if dot products are signed and the device's profile has
    `depthwise_lines`. Otherwise it covers taps of one kernel column, and images must be in kPackedInt8_16C
    (depthwise_columns.glslh)."""

    KERNELS, STRIDES = (3, 5), (1, 2)
    SMALL = 1 << 22  # one addition converts int32 sums below this to float (requantize.glslh)

    def __init__(self, of: Direct, weight: Int8, zero_points: Int32):
        self.of, self._weight, self._zero_points = of, weight, zero_points
        flat = np.zeros((1, 4 * ceil4(of.oc), of.kh * of.kw), np.int8)
        flat[0, : of.oc] = weight.reshape(of.oc, -1)
        arithmetic, form = of.arithmetic, of.form  # the lambda must not refer to self (a cycle)
        self.parameters = arithmetic.after.before(
            of.device, ceil4(of.oc) * PARAMETER_BYTES,
            lambda: arithmetic.channel_parameters(flat, form, zero_points[None]),
        )  # fmt: skip
        self._columns: dict[tuple[int, int], Resident] = {}

    @staticmethod
    def by_lines(of: Direct) -> bool:
        return of.form == "s8s8" and profile(of.device.capabilities).depthwise_lines is not None

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        of = self.of
        push: dict[str, int | float] = {
            "images": p.n, "h": p.h, "w": p.w, "oh": p.oh, "ow": p.ow, "channels": p.oc,
            "pad_t": p.padding[0], "pad_l": p.padding[1], "x_zero_point": of.arithmetic.x_zero_point,
            **of.arithmetic.epilogue,
        }  # fmt: skip
        after, stride = of.arithmetic.after, p.stride[0]
        axes = {"dot": of.form, "kernel": f"{of.kh}x{of.kw}"}
        constants: dict[str, Constant] = {"ROW_SUMS": of.row_sums, **after.constants}
        if self.by_lines(of):
            rows = lines_of(profile(of.device.capabilities), p)
            axes |= {"lines": f"s{stride}x{rows}", "layout": self._read(x.spec)}
            variant, weights = catalog().find("conv2d_q8ta_q8csw__depthwise_lines", **axes), self.lines
            largest = of.kh * of.kw * 255 * 255 + of.arithmetic.largest_bias
            constants["SMALL_SUMS"] = largest < self.SMALL
            push |= divisor("line", ceil4(p.ow)) | divisor("plane", -(-p.oh // rows))
            push |= divisor("block", p.n if x.spec.layout == BLOCKED else ceil4(p.oc))
        else:
            variant = catalog().find("conv2d_q8ta_q8csw__depthwise_columns", stride=f"s{stride}", **axes)
            weights = self._by_columns(int(variant.sizes["ROWS"]), stride)
        slots = [x, b.constant(weights), b.constant(self.parameters), y]
        macs = 4 * p.n * p.oh * p.ow * 4 * ceil4(p.oc) * of.kh * of.kw
        b.dispatch(of.device.program(variant, constants), slots, push, macs, after.in_place)

    def _read(self, x: Spec) -> str:
        """Return how the shader reads pixels: "texels" if the profile prefers texels and texel buffers can
        hold the operands, else the name of the image's layout in `PIXELS`."""
        c = self.of.device.capabilities
        able = x.layout == IMAGE and viewable(c, x.nbytes, self.lines.bytes, self.parameters.bytes)
        return "texels" if profile(c).texels and able else PIXELS[x.layout]

    @cached_property
    def lines(self) -> Resident:
        size = 16 * self.of.kh * ceil4(self.of.kw) * ceil4(self.of.oc)
        weight, zero_points = self._weight, self._zero_points
        return Resident(self.of.device, size, lambda: _lines(weight, zero_points))

    def _by_columns(self, rows: int, stride: int) -> Resident:
        if (rows, stride) not in self._columns:
            words, weight, points = ceil4((rows - 1) * stride + self.of.kh), self._weight, self._zero_points
            self._columns[rows, stride] = Resident(
                self.of.device, 16 * self.of.kw * rows * words * ceil4(self.of.oc),
                lambda: _columns(weight, points, rows, words, stride),
            )  # fmt: skip
        return self._columns[rows, stride]


def lines_of(known: Profile, p: Conv2dProblem) -> int:
    """Return the number of output rows that an invocation of depthwise_lines.glslh computes. With more
    rows, fewer pixels are read twice; with fewer rows, more invocations run in parallel."""
    share = p.n * ceil4(p.oc) * p.oh * ceil4(p.ow) / known.multiprocessors
    lines = next((lines for lines, most in known.depthwise_lines or () if share <= most), 4)
    return min(lines, 4 // p.stride[0])


def _lines(weight: Int8, zero_points: Int32) -> Int8:
    """Pack weights (OC, 1, KH, KW) for dot products along kernel rows, as [kh][word of four kw][c4] of four
    channels x four taps. Padding taps have the channel's zero point as their weight."""
    oc, _, kh, kw = weight.shape
    out = np.zeros((4 * ceil4(oc), kh, 4 * ceil4(kw)), np.int8)
    out[:oc] = zero_points.astype(np.int8).reshape(-1, 1, 1)
    out[:oc, :, :kw] = weight[:, 0]
    return np.ascontiguousarray(out.reshape(-1, 4, kh, ceil4(kw), 4).transpose(2, 3, 0, 1, 4))


def _columns(weight: Int8, zero_points: Int32, rows: int, words: int, stride: int) -> Int8:
    """Pack weights (OC, 1, KH, KW) for dot products along kernel columns, as [kw][output row][word of four
    input rows][c4] of four channels x four input rows. For input rows that an output row does not read, the
    weight is the channel's zero point."""
    oc, _, kh, kw = weight.shape
    out = np.zeros((4 * ceil4(oc), kw, rows, 4 * words), np.int8)
    out[:oc] = zero_points.astype(np.int8).reshape(-1, 1, 1, 1)
    for row in range(rows):
        out[:oc, :, row, row * stride : row * stride + kh] = weight[:, 0].transpose(0, 2, 1)
    return np.ascontiguousarray(out.reshape(-1, 4, kw, rows, words, 4).transpose(2, 3, 4, 0, 1, 5))
