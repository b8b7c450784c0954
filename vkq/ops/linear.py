"""Linear layers: q8ta_q8csw with float32 or int8 output, and the weight-only q8csw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy.typing as npt

from ..problem import LinearProblem
from ..qparams import QParams
from ..reference import Activation
from ..runtime.device import Device
from ..runtime.tensor import MATRIX, Tensor
from .coopmat import int8_gemm
from .gemm import FloatGemm, Int8Gemm, Rows
from .layer import Explanation, Layer


class Linear(Layer[LinearProblem]):
    """``y = x @ weight.T + bias`` with an int8 weight, exactly.

    Args:
        weight: (N, K) = (out_features, in_features), int8 (or uint8).
        w_scale: float32, one number or (N,): the weight's scale per output channel.
        x_qparams: scale and zero point of the activations; None for float activations (weight-only, scheme q8csw).
        y_qparams: scale and zero point of an 8-bit result; None for float32.
        bias: (N,), int32 with scale ``x_scale * w_scale``; or float32 where the result is float32.
        w_zero_point: integer or (N,), of the weight's dtype; 0 on the symmetric path.
        activation: None, "relu", "relu6" or (low, high), fused: a clamp of the result.
        path: "auto", "dot", "dot_s8s8", "dot_u8s8", "dot_u8u8", "portable" or "coopmat". All give the same bits.
        device: a ``vkq.Device``; the default device where None.

    With acc = sum_k (x - x_zero_point)(w - w_zero_point) + bias in int32:
        float32: ``float(acc) * (x_scale * w_scale)  [+ bias]``
        8-bit:   ``saturate(round_half_even(float(acc) * ((x_scale * w_scale) / y_scale)) + y_zero_point)``
    as ONNX QLinearMatMul (https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html).

    Raises ArgumentError, DTypeError, or AccumulatorOverflowError where int32 could overflow with these weights.

    >>> import numpy as np
    >>> layer = Linear(np.array([[1, 2], [3, 4]], np.int8), 0.5, x_qparams=QParams(0.5))
    >>> layer(np.array([[2, 4]], np.int8))
    array([[2.5, 5.5]], dtype=float32)
    """

    _op = "linear"
    _rank = 2
    _layout = MATRIX

    def __init__(
        self,
        weight: npt.ArrayLike,
        w_scale: npt.ArrayLike,
        *,
        x_qparams: QParams | None = None,
        y_qparams: QParams | None = None,
        bias: npt.ArrayLike | None = None,
        w_zero_point: npt.ArrayLike | None = None,
        activation: Activation = None,
        path: str = "auto",
        device: Device | None = None,
    ):
        super().__init__(
            weight, w_scale, x_qparams=x_qparams, y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point,
            activation=activation, path=path, device=device,
        )  # fmt: skip
        channels = self.weight_shape[0]
        blocks = self._weight_int8[None]
        self._gemm: Int8Gemm | FloatGemm
        if self.scales is None:
            w_scales, checked, fused = self._float
            self._gemm = FloatGemm(self.device, blocks, w_scales, checked, fused, channels)
        else:
            form = self.choice().form
            self._gemm = int8_gemm(self.device, blocks, self._zero_points[None], self.scales, form, channels)

    def _problem(self, x_shape: Sequence[int]) -> LinearProblem:
        return LinearProblem.of(x_shape, self.weight_shape)

    def _plan(self, problem: LinearProblem) -> Callable[[Tensor], Tensor]:
        gemm, rows = self._gemm, Rows(problem.m)
        dtype = self.y_qparams.dtype if self.y_qparams else "float32"

        def run(x: Tensor) -> Tensor:
            y = Tensor(self.device, problem.y_shape, dtype, qparams=self.y_qparams)
            if y.size:
                with self.device.operation() as recording:
                    gemm.dispatch(recording, x.buffer, y.buffer, rows)
            return y

        return run

    def explain(self, x_shape: Sequence[int]) -> Explanation:
        """What the layer does with an input of this shape, without running it."""
        problem, choice = self._problem(x_shape), self.choice()
        size = problem.m if isinstance(self._gemm, FloatGemm) else Rows(problem.m).blocks
        variants = (self._gemm.program(size).variant.name,) if problem.m * problem.n else ()
        return Explanation(problem.name, self.scheme, choice.path, choice.reason, variants, problem.macs, 0)


def linear(
    x: npt.ArrayLike | Tensor,
    weight: npt.ArrayLike,
    w_scale: npt.ArrayLike,
    *,
    x_qparams: QParams | None = None,
    y_qparams: QParams | None = None,
    bias: npt.ArrayLike | None = None,
    w_zero_point: npt.ArrayLike | None = None,
    activation: Activation = None,
    path: str = "auto",
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
        activation=activation, path=path, device=device,
    )  # fmt: skip
    return layer(x)
