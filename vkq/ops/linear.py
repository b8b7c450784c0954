"""Linear layers: q8ta_q8csw with float32 or int8 output, dq8ca_q8csw (activations quantized by rows),
weight-only q8csw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy.typing as npt

from ..errors import ArgumentError
from ..kernels.dynamic import quantize_rows, rows_bytes, rows_program
from ..kernels.gemm import FloatGemm, Int8Gemm, Rows
from ..kernels.matrix_units import CoopmatGemm, Pixels
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..problem.linear import LinearProblem
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..runtime.tensor import BLOCKED, MATRIX, Tensor
from ..select.path import MATRIX as COOPMAT
from .layer import Explanation, Layer
from .repack import reshape

METHODS = ("auto", "gemv", "tiled", "staged")


class Linear(Layer[LinearProblem]):
    """``y = x @ weight.T + bias`` with an int8 weight, exactly.

    Args:
        weight: (N, K) = (out_features, in_features), int8 (or uint8).
        w_scale: float32, one number or (N,): the weight's scale per output channel.
        x_qparams: scale and zero point of the activations; None for float activations (weight-only, scheme
            q8csw); "dynamic" for float32 activations that are quantized on the device, each row with the
            scale and zero point of its own values (scheme dq8ca_q8csw, float32 result).
        y_qparams: scale and zero point of an 8-bit result; None for float32.
        bias: (N,), int32 with scale ``x_scale * w_scale``; or float32 where the result is float32.
        w_zero_point: integer or (N,), of the weight's dtype; 0 on the symmetric path.
        activation: None, "relu", "relu6" or (low, high), fused: a clamp of the result.
        path: "auto", "dot", "dot_s8s8", "dot_u8s8", "dot_u8u8", "portable" or "coopmat" (matrix units). All
            give the same bits.
        method: "auto", "gemv" (threads share the sum over k; "auto" takes it for up to
            `vkq.kernels.gemv.max_rows` rows), "tiled" (in registers) or "staged" (int8: through shared
            memory). Integer results have the same bits; a float sum of the weight-only scheme is made in
            another order.
        device: a ``vkq.Device``; the default device where None.

    With acc = sum_k (x - x_zero_point)(w - w_zero_point) + bias in int32:
        float32: ``float(acc) * (x_scale * w_scale)  [+ bias]``
        8-bit:   ``saturate(round_half_even(float(acc) * ((x_scale * w_scale) / y_scale)) + y_zero_point)``
    as ONNX QLinearMatMul (https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html). "dynamic", for each row
    on its own:
        x_scale = (max(0, row) - min(0, row)) / 255, at least 2**-126; 1 for a row of zeros
        x_zero_point = saturate(-128 + round_half_even(-min(0, row) / x_scale))
    as ONNX DynamicQuantizeLinear (https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html) moved to
    int8; infinities saturate and NaN gives -128, and neither counts for the scale. ``x_scale * w_scale``
    below 2**-126 counts as 0.

    Raises ArgumentError, DTypeError, or AccumulatorOverflowError where int32 could overflow with these
    weights.

    >>> import numpy as np
    >>> layer = Linear(np.array([[1, 2], [3, 4]], np.int8), 0.5, x_qparams=QParams(0.5))
    >>> layer(np.array([[2, 4]], np.int8))
    array([[2.5, 5.5]], dtype=float32)
    """

    _op = "linear"
    _rank = 2
    _layout = MATRIX
    _takes_dynamic = True

    def __init__(
        self,
        weight: npt.ArrayLike,
        w_scale: npt.ArrayLike,
        *,
        x_qparams: QParams | Literal["dynamic"] | None = None,
        y_qparams: QParams | None = None,
        bias: npt.ArrayLike | None = None,
        w_zero_point: npt.ArrayLike | None = None,
        activation: Activation = None,
        path: str = "auto",
        method: str = "auto",
        device: Device | None = None,
    ):
        super().__init__(
            weight, w_scale, x_qparams=x_qparams, y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point,
            activation=activation, path=path, device=device,
        )  # fmt: skip
        channels = self.weight_shape[0]
        blocks = self._weight_int8[None]
        self._gemm: Int8Gemm | FloatGemm
        self._matrix: CoopmatGemm | None = (
            None  # beside the dot form, which takes few rows and what is forced by name
        )
        if self.scales is None:
            w_scales, checked, fused = self._float
            self._gemm = FloatGemm(self.device, blocks, w_scales, checked, fused, channels)
        else:
            choice = self.choice()
            self._gemm = Int8Gemm(
                self.device, blocks, self._zero_points[None], self.scales, choice.form, channels
            )
            if choice.path == COOPMAT and method == "auto" and blocks.size:
                self._matrix = CoopmatGemm(self.device, self._weight_int8, self.scales)
        if method not in METHODS:
            raise ArgumentError(f"linear: method is {method!r}; it must be one of {', '.join(METHODS)}")
        self._gemm.kernel = method

    def _problem(self, x_shape: Sequence[int]) -> LinearProblem:
        return LinearProblem.of(x_shape, self.weight_shape)

    def _layout_for(self, problem: LinearProblem) -> str:
        return BLOCKED if self._matrix is not None and self._matrix.worth(problem.m) else MATRIX

    def _apply(self, x: Tensor) -> Tensor:
        p = self._problem(x.shape)
        if len(x.shape) != 4 or self.dynamic or self._planned(p)[0] != BLOCKED:
            return super()._apply(x)
        y = super()._apply(
            reshape(x, (p.m, p.k), BLOCKED)
        )  # four axes in blocks of channels would be an image
        return reshape(y, p.y_shape, MATRIX)

    def _plan(self, problem: LinearProblem, layout: str) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            y = self._result(problem.y_shape, layout)
            if y.size:
                with self.device.operation() as recording:
                    self._record(recording, problem, layout, x, y)
            return y

        return run

    def _record(
        self, recording: Recording, problem: LinearProblem, layout: str, x: Tensor, y: Tensor
    ) -> None:
        gemm, packed, parameters = self._gemm, x.buffer, None
        if self.dynamic:
            packed, parameters = quantize_rows(recording, x.buffer, problem.m, problem.k, layout)
        if layout == BLOCKED:
            assert self._matrix is not None
            self._matrix.dispatch(recording, packed, y.buffer, Pixels(problem.m, problem.m), parameters)
        elif isinstance(gemm, Int8Gemm):
            gemm.dispatch(recording, packed, y.buffer, Rows(problem.m), row_parameters=parameters)
        else:
            gemm.dispatch(recording, packed, y.buffer, Rows(problem.m))

    def _program(self, problem: LinearProblem) -> Program:
        """The pipeline of the product."""
        if self._matrix is not None and self._layout_for(problem) == BLOCKED:
            return self._matrix.program(problem.m)
        rows, gemm = Rows(problem.m), self._gemm
        return gemm.chosen(rows, rows.blocks) if isinstance(gemm, Int8Gemm) else gemm.program(problem.m)

    def explain(self, x_shape: Sequence[int]) -> Explanation:
        """What the layer does with an input of this shape, without running it."""
        p, choice = self._problem(x_shape), self.choice()
        layout = self._layout_for(p)
        names: list[str] = []
        scratch = 0
        if p.m * p.n:
            if self.dynamic:
                names.append(rows_program(self.device, p.k, layout).variant.name)
                scratch = rows_bytes(p.m, p.k, layout) + 8 * p.m
            names.append(self._program(p).variant.name)
        return Explanation(p.name, self.scheme, choice.path, choice.reason, tuple(names), p.macs, scratch)


def linear(
    x: npt.ArrayLike | Tensor,
    weight: npt.ArrayLike,
    w_scale: npt.ArrayLike,
    *,
    x_qparams: QParams | Literal["dynamic"] | None = None,
    y_qparams: QParams | None = None,
    bias: npt.ArrayLike | None = None,
    w_zero_point: npt.ArrayLike | None = None,
    activation: Activation = None,
    path: str = "auto",
    method: str = "auto",
    device: Device | None = None,
) -> Any:
    """One linear layer applied once; see `Linear`, which keeps the packed weight for more.

    >>> import numpy as np
    >>> x, w = np.array([[2, 4]], np.int8), np.array([[1, 2], [3, 4]], np.int8)
    >>> linear(x, w, 0.5, x_qparams=QParams(0.5), y_qparams=QParams(1.0))
    array([[2, 6]], dtype=int8)
    """
    if isinstance(x, Tensor) and device is None:
        device = x.device
    layer = Linear(
        weight, w_scale, x_qparams=x_qparams, y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point,
        activation=activation, path=path, method=method,
        device=device,
    )  # fmt: skip
    return layer(x)
