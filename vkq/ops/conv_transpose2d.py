"""Transposed 2-D convolutions, computed as stride x stride ordinary convolutions or as one product on
matrix units."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..kernels.cast import converted
from ..kernels.direct import LAYOUTS
from ..kernels.matrix_phases import MatrixPhases, alone, by_phases, of_phases
from ..kernels.phases import Phases
from ..kernels.weights import Arithmetic
from ..layout.extent import BLOCKED, IMAGE
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..problem.transposed import TransposedConv2dProblem, TransposedOptions
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..schemes.base import ChannelScheme
from ..select.path import COOPMAT
from .applied import applied
from .layer import Layer, as_tuned


class ConvTranspose2d(Layer[TransposedConv2dProblem]):
    """A transposed 2-D convolution (as in PyTorch) of NCHW images. With quantized x and an int8 weight, the
    layer is exact.

    Args:
        weight: (IC, OC/groups, KH, KW), int8 (or uint8); or float32 or float16 (schemes f32 and f16).
        w_scale: float32, a scalar or (OC,): the weight's scale per output channel; None
            with a float weight.
        x_qparams: scale and zero point of the activations; None for float activations (weight-only).
        stride, dilation: an int or (vertical, horizontal).
        padding: an int, (vertical, horizontal) or (top, left, bottom, right): the rows and columns to remove
            from the output.
        output_padding: an int or (vertical, horizontal), less than the stride or the dilation: added to the
            output at the bottom and right.
        groups: divides IC and OC.
        y_qparams, bias, w_zero_point, activation, path, overflow, device: as for `Linear`, with OC for N.

    The height of the result is

        OH = (H - 1)*stride - top - bottom + dilation*(KH - 1) + output_padding + 1

    and the width likewise, with left, right and KW. The formulas of `Linear` hold, where

        acc[n, oc, stride*h + dilation*kh - top, stride*w + dilation*kw - left]
            sums (x[n, ic, h, w] - x_zero_point) * (weight[ic, oc, kh, kw] - w_zero_point[oc])

    ONNX's form is ConvTranspose between DequantizeLinear and QuantizeLinear
    (https://onnx.ai/onnx/operators/onnx__ConvTranspose.html).

    >>> import numpy as np
    >>> weight, q = np.array([[[[10, 20, 30]]]], np.int8), QParams(1.0)
    >>> layer = ConvTranspose2d(weight, 1.0, stride=2, x_qparams=q, y_qparams=q)
    >>> layer(np.array([[[[1, 2]]]], np.int8))
    array([[[[10, 20, 50, 40, 60]]]], dtype=int8)
    """

    _op = "conv_transpose2d"
    _rank = 4

    @checked
    def __init__(
        self,
        weight: npt.ArrayLike,
        w_scale: npt.ArrayLike | None = None,
        *,
        x_qparams: QParams | None = None,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        y_qparams: QParams | None = None,
        bias: npt.ArrayLike | None = None,
        w_zero_point: npt.ArrayLike | None = None,
        activation: Activation = None,
        path: str = "auto",
        compute: str = "float32",
        overflow: str = "refuse",
        device: Device | int | str | None = None,
    ):
        given = np.asarray(weight)
        self._given_shape = given.shape
        options = self._options = TransposedOptions.of(
            given.shape, stride, padding, output_padding, dilation, groups
        )
        super().__init__(
            _channels_first(given, options.groups), w_scale, x_qparams=x_qparams, y_qparams=y_qparams,
            bias=bias, w_zero_point=w_zero_point, activation=activation, path=path,
            compute=compute, overflow=overflow, device=device,
        )  # fmt: skip
        scheme = cast(ChannelScheme, self._scheme)
        self._matrix = self._on_matrix_units() if alone(options) else None
        form, zeros = self._choice.form, scheme.operands.stored_zero_point
        self._phases = Phases(
            self.device, scheme.operands.stored_weight, options,
            lambda part: scheme.direct(self.device, part, zeros, form, options.groups),
        )  # fmt: skip

    def _problem(self, x_shape: Sequence[int]) -> TransposedConv2dProblem:
        return TransposedConv2dProblem.with_options(x_shape, self._given_shape, self._options)

    def _on_matrix_units(self) -> MatrixPhases | None:
        o = self._scheme.operands
        if self._choice.path != COOPMAT or o.y is None or not o.weight.size:
            return None
        kernel, weight = o.weight.shape[2:], by_phases(o.stored_weight)
        repeated = dataclasses.replace(
            o, weight=weight, w_scale=of_phases(o.w_scale, kernel),
            w_zero_point=of_phases(o.stored_zero_point, kernel),
            bias=None if o.bias is None else of_phases(o.bias, kernel),
        )  # fmt: skip
        arithmetic = type(self._scheme)(repeated)
        return MatrixPhases(self.device, weight, cast(Arithmetic, arithmetic), kernel)

    def _takes(self, p: TransposedConv2dProblem) -> MatrixPhases | None:
        """Return the kernel for matrix units if it is faster for this problem, else None."""
        return self._matrix if self._matrix and self._matrix.gemm.worth(p.n * p.h * p.w) else None

    def _layout_for(self, problem: TransposedConv2dProblem) -> str:
        return BLOCKED if self._takes(problem) else IMAGE

    @as_tuned
    def build(self, b: Builder, x: Value) -> Value:
        p, layout = self._problem_of(x.spec.shape)
        stride_h, stride_w = p.stride
        if matrix := self._takes(p):
            b.why("method", "phases")
            b.why("method_reason", "one product on matrix units for all phases of the output")
            taken, _ = self._scheme.take(b, x, BLOCKED)
            y = b.new(self._scheme.result(p.y_shape, BLOCKED))
            if y.spec.size:
                matrix.build(b, p, taken, y)
            return y
        b.why("method", "direct")
        b.why(
            "method_reason",
            f"one ordinary convolution for each of {stride_h}x{stride_w} phases of the output",
        )
        layout = x.spec.layout if x.spec.layout in LAYOUTS else layout
        taken, _ = self._scheme.take(b, x, layout)
        if not self._scheme.integer:
            taken = converted(b, taken, "float32")
        y = b.new(self._scheme.result(p.y_shape, layout))
        if y.spec.size:
            self._phases.build(b, p, taken, y)
        return self._scheme.finished(b, x, y)


def _channels_first(weight: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """Return a weight (IC, OC/groups, KH, KW) rearranged as (OC, IC/groups, KH, KW)."""
    ic, oc, kh, kw = weight.shape
    by_group = weight.reshape(groups, ic // groups, oc, kh, kw)
    return np.asarray(by_group.transpose(0, 2, 1, 3, 4).reshape(oc * groups, ic // groups, kh, kw))


@applied(ConvTranspose2d)
def conv_transpose2d(*operands: Any, **options: Any) -> Any:
    """Apply a transposed convolution once; `ConvTranspose2d` keeps the packed weight for more calls."""
