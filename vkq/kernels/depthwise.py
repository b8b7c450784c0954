"""Depthwise convolutions: every output channel sees one input channel."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from ..layout.extent import BLOCKED
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .direct import Direct
from .gemm import FLOAT_WORDS
from .weights import PARAMETER_BYTES, Int8, Int32, ceil4


class Depthwise(Direct):
    """A convolution whose output channels see one input channel each; see conv_depthwise_q8.comp."""

    _word_bytes = 1

    def _span(self) -> int:
        return 1

    def _flat(self) -> Int8:
        flat = np.zeros((1, 4 * ceil4(self.oc), self.kh * self.kw), np.int8)
        flat[0, : self.oc] = self._weight.reshape(self.oc, -1)
        return flat

    def _packed(self) -> Int8:
        return np.ascontiguousarray(self._flat()[0].T)

    def _parameters(self) -> Int32:  # the shader multiplies int8 lanes as they are, whatever the path
        return self.arithmetic.channel_parameters(self._flat(), "s8s8", self._zero_points[None])

    def _variant(self) -> Variant:
        return catalog().find("conv2d_q8ta_q8csw__depthwise", **self.arithmetic.axes)

    def _constants(self) -> dict[str, Constant]:
        return {"ONE_TO_ONE": self.group_oc == 1, "LONG_K": self.kh * self.kw > 4 * FLOAT_WORDS}

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        columns = self._columns_of(p) if x.spec.layout == BLOCKED else None
        if columns:
            columns.build(b, p, x, y)
        else:
            super().build(b, p, x, y)

    def _columns_of(self, p: Conv2dProblem) -> Columns | None:
        """The kernel on packed dot products, where it can take the problem; made once."""
        stride = p.stride[0]
        square = p.stride == (stride, stride) and p.dilation == (1, 1) and self.kh == self.kw
        able = self.group_oc == 1 and self.arithmetic.out == "q8to" and self.form != "float"
        if not (able and square and self.kh in Columns.KERNELS and stride in Columns.STRIDES):
            return None
        if stride not in self._columns:
            self._columns[stride] = Columns(self, stride, self._weight, self._zero_points)
        return self._columns[stride]

    @cached_property
    def _columns(self) -> dict[int, Columns]:
        return {}


class Columns:
    """A depthwise convolution of square kernels on packed dot products, in kPackedInt8_16C; see
    conv_depthwise_columns.comp."""

    KERNELS, STRIDES = (3, 5), (1, 2)

    def __init__(self, of: Direct, stride: int, weight: Int8, zero_points: Int32):
        self.of, self.stride = of, stride
        axes = {"kernel": f"{of.kh}x{of.kw}", "stride": f"s{stride}"}
        self.variant = catalog().find("conv2d_q8ta_q8csw__depthwise_columns", dot=of.form, **axes)
        rows = int(self.variant.defines["ROWS"])
        words = ceil4((rows - 1) * stride + of.kh)
        size = 16 * of.kw * rows * words * ceil4(of.oc)
        self.weights = Resident(of.device, size, lambda: _columns(weight, zero_points, rows, words, stride))
        flat = np.zeros((1, 4 * ceil4(of.oc), of.kh * of.kw), np.int8)
        flat[0, : of.oc] = weight.reshape(of.oc, -1)
        self.parameters = of.arithmetic.after.before(
            of.device, ceil4(of.oc) * PARAMETER_BYTES,
            lambda: of.arithmetic.channel_parameters(flat, of.form, zero_points[None]),
        )  # fmt: skip

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        of = self.of
        push: dict[str, int | float] = {
            "images": p.n, "h": p.h, "w": p.w, "oh": p.oh, "ow": p.ow, "channels": p.oc,
            "pad_t": p.padding[0], "pad_l": p.padding[1], "x_zero_point": of.arithmetic.x_zero_point,
            **of.arithmetic.epilogue,
        }  # fmt: skip
        after = of.arithmetic.after
        program = of.device.program(self.variant, {"ROW_SUMS": of.row_sums, **after.constants})
        slots = [x, b.constant(self.weights), b.constant(self.parameters), y]
        macs = 4 * p.n * p.oh * p.ow * 4 * ceil4(p.oc) * of.kh * of.kw
        b.dispatch(program, slots, push, macs, after.in_place)


def _columns(weight: Int8, zero_points: Int32, rows: int, words: int, stride: int) -> Int8:
    """Weights (OC, 1, KH, KW) as [kw][row][word][c4] of four channels x four input lines; lines that an
    output line does not see hold the channel's zero point."""
    oc, _, kh, kw = weight.shape
    out = np.zeros((4 * ceil4(oc), kw, rows, 4 * words), np.int8)
    out[:oc] = zero_points.astype(np.int8).reshape(-1, 1, 1, 1)
    for row in range(rows):
        out[:oc, :, row, row * stride : row * stride + kh] = weight[:, 0].transpose(0, 2, 1)
    return np.ascontiguousarray(out.reshape(-1, 4, kw, rows, words, 4).transpose(2, 3, 4, 0, 1, 5))
