"""Makes random operands for a problem; the seed determines them. Values cover the whole range of their
dtypes, scales cover six decades, and zero points are often the smallest or the largest value of the
dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .. import reference
from ..numerics.grouped import GROUPS, GroupedWeight, largest_group, quantize_groups
from ..numerics.qparams import QDType, QParams
from ..numerics.requantize import OVERFLOW, Activation
from ..ops.matmul import MOST_K
from ..problem.conv2d import Conv2dProblem
from ..problem.linear import LinearProblem
from ..problem.names import Problem
from ..problem.transposed import TransposedConv2dProblem
from .expected import Expected

Array = npt.NDArray[Any]
OF_FLOATS: dict[type, Callable[..., npt.NDArray[np.float64]]] = {
    LinearProblem: reference.linear_q8csw,
    Conv2dProblem: reference.conv2d_q8csw,
    TransposedConv2dProblem: reference.conv_transpose2d_q8csw,
}


@dataclass(frozen=True)
class Data:
    """The operands of one problem: all arguments of the problem's function in `vkq.reference`."""

    problem: Problem
    x: Array
    w: Array
    x_q: QParams
    w_scale: npt.NDArray[np.float32]
    bias: npt.NDArray[np.int32]
    y_q: QParams
    w_zero_point: npt.NDArray[np.int32] | None = None
    overflow: str = OVERFLOW[0]

    @property
    def options(self) -> dict[str, Any]:
        """The keyword arguments of a convolution: stride, padding, ... Empty for a linear layer."""
        names = ("stride", "padding", "output_padding", "dilation", "groups")
        return {name: getattr(self.problem, name) for name in names if hasattr(self.problem, name)}

    @property
    def float_bias(self) -> npt.NDArray[np.float32]:
        """The bias as real values, for schemes with float activations."""
        return (self.bias * (self.x_q.scale * self.w_scale.astype(np.float64))).astype(np.float32)

    def floats(self, dtype: str) -> Array:
        """Return the integer weights divided by 256, as float32 or float16 (*dtype*). No magnitude is above
        1."""
        return (self.w.astype(np.float64) / 256).astype(dtype)

    def grouped(self, bits: int) -> GroupedWeight:
        """Return the weight quantized in groups, with this number of bits. The group size is the smallest
        one if N % 4 is 3, else `largest_group`. Groups have zero points if the weight has zero points.
        Scales are float16 if N is odd, else float32."""
        points = 0 if self.w_zero_point is None else self.w_zero_point[:, None]
        real = ((self.w.astype(np.float64) - points) * self.w_scale[:, None]).astype(np.float32)
        group = GROUPS[0] if real.shape[0] % 4 == 3 else largest_group(real.shape[1])
        dtype = "float16" if real.shape[0] % 2 else "float32"
        return quantize_groups(real, bits, group, self.w_zero_point is None, dtype)

    def expected(self, y: QParams | None, **changes: Any) -> Array:
        """Return the reference's result. *y*: the quantization parameters of the result; None: a float32
        result. *changes*: values that replace other arguments of the reference."""
        arguments: dict[str, Any] = {
            "w_scale": self.w_scale,
            "bias": self.bias,
            "w_zero_point": self.w_zero_point,
            "overflow": self.overflow,
        }
        op = {
            LinearProblem: reference.linear,
            Conv2dProblem: reference.conv2d,
            TransposedConv2dProblem: reference.conv_transpose2d,
        }[type(self.problem)]
        return op(self.x, self.w, x=self.x_q, y=y, **self.options, **(arguments | changes))

    def expected_dynamic(self, x: Array, activation: Activation) -> Array:
        """Return the reference's result for float32 x (..., K) in the scheme dq8ca_q8csw."""
        return reference.linear_dynamic(
            x,
            self.w,
            self.w_scale,
            bias=self.float_bias,
            w_zero_point=self.w_zero_point,
            activation=activation,
            overflow=self.overflow,
        )

    def expected_sum(self, x: Array, activation: Activation, compute: str = "float32") -> Expected:
        """Return the reference's result for float32 x in the scheme q8csw, with its error bound. *compute*:
        the type in which a device multiplies and adds (`vkq.select.path.float_sums`)."""
        op = OF_FLOATS[type(self.problem)]
        operands = x, self.w, self.w_scale, self.float_bias
        points = {"w_zero_point": self.w_zero_point, **self.options}
        size = op(*operands, magnitude=True, **points)
        y = op(*operands, activation, **points)
        if compute == "float32":
            return Expected.of_sum(y, size, self.problem.gemm_k)
        ones = np.ones_like(x), *operands[1:]
        bounded = Expected.of_half if compute == "float16" else Expected.of_half_sums
        return bounded(y, size, op(*ones, magnitude=True, **points), self.problem.gemm_k)

    def expected_floats(self, x: Array, dtype: str, activation: Activation) -> Expected:
        """Return the reference's result for float32 x and a float weight of this *dtype*, with its error
        bound."""
        op, operands = OF_FLOATS[type(self.problem)], (x, self.floats(dtype), None, self.float_bias)
        size = op(*operands, magnitude=True, **self.options)
        return Expected.of_sum(op(*operands, activation, **self.options), size, self.problem.gemm_k)

    def expected_grouped(self, x: Array, bits: int, activation: Activation) -> Expected:
        """Return the reference's result for float32 or float16 x and the weight in groups, with its error
        bound."""
        w, bias, k = self.grouped(bits), self.float_bias, self.problem.gemm_k
        size = reference.linear_grouped(x, w, bias, magnitude=True)
        y = reference.linear_grouped(x, w, bias, activation)
        if x.dtype == np.float32:
            return Expected.of_sum(y, size, k)
        ones = reference.linear_grouped(np.ones_like(x), w, bias, magnitude=True)
        return Expected.of_half_rows(y, size, ones, k)


def random_data(
    problem: Problem,
    rng: np.random.Generator,
    x_dtype: QDType = "int8",
    w_dtype: QDType = "int8",
    *,
    w_range: tuple[int, int] | None = None,
    w_zero_points: Literal["none", "tensor", "channel"] = "none",
    extreme: bool = False,
) -> Data:
    """Return random operands for a problem (see the module).

    - w_range: the smallest and the largest weight; None: the whole range of w_dtype
    - extreme: x and w are extremes of their ranges, so that accumulators are as large as possible, and every
      third channel has the smallest or the largest int32 as its bias

    One problem in four has power-of-two scales, so that exact ties occur. With *extreme*, or with K above
    MOST_K, the reference wraps sums that exceed int32.
    """
    low, high = w_range or (int(np.iinfo(w_dtype).min), int(np.iinfo(w_dtype).max))
    x_info, channels = np.iinfo(x_dtype), problem.gemm_n
    x = rng.integers(x_info.min, x_info.max + 1, problem.x_shape, dtype=x_dtype)
    w = rng.integers(low, high + 1, problem.weight_shape).astype(w_dtype)
    x_zero_point = _zero_point(rng, x_dtype)
    if extreme:
        x_zero_point = int(rng.choice([x_info.min, x_info.max]))
        x[...] = x_info.min + x_info.max - x_zero_point
        w[...] = np.where(rng.random(w.shape) < 0.03, low, high)
    points = _weight_zero_points(rng, w_dtype, channels)[w_zero_points]
    w_zero_point = float(points.mean()) if points is not None and points.size else 0.0
    typical = _typical_accumulator(x, x_zero_point, w, w_zero_point, problem.gemm_k)
    x_scale = 10.0 ** rng.uniform(-4, 2)
    w_scale = 10.0 ** rng.uniform(-5, 1) * rng.uniform(0.5, 2, channels)
    if rng.integers(4) == 0:
        x_scale, w_scale = 2.0 ** round(np.log2(x_scale)), 2.0 ** np.round(np.log2(w_scale))
    y_scale = typical * x_scale * float(w_scale.mean() if channels else 1) / rng.choice([30, 60, 100])
    if rng.integers(4) == 0:
        y_scale = 2.0 ** round(np.log2(y_scale))
    bias = rng.integers(-int(typical), int(typical) + 1, channels).astype(np.int32)
    if extreme:
        bias[1::3] = rng.choice([-(2**31), 2**31 - 1], bias[1::3].size)
    wraps = extreme or problem.gemm_k > MOST_K
    x_q, y_q = QParams(x_scale, x_zero_point, x_dtype), QParams(y_scale, _zero_point(rng, x_dtype), x_dtype)
    return Data(problem, x, w, x_q, w_scale.astype(np.float32), bias, y_q, points, OVERFLOW[wraps])


def _weight_zero_points(rng: np.random.Generator, dtype: QDType, channels: int) -> dict[str, Array | None]:
    """Return a dict from each kind of weight zero points to random ones. All kinds are drawn, although a
    problem uses only one, so that later random values do not depend on the kind."""
    return {
        "none": None,
        "tensor": np.array([_zero_point(rng, dtype)], np.int32),
        "channel": np.array([_zero_point(rng, dtype) for _ in range(channels)], np.int32),
    }


def _typical_accumulator(x: Array, x_zero_point: int, w: Array, w_zero_point: float, k: int) -> float:
    """Return the typical magnitude of an accumulator. The output scale is chosen by it, so that only some
    results saturate."""
    if not (x.size and w.size):
        return 1000.0
    x_mean, w_mean = float(x.mean()) - x_zero_point, float(w.mean()) - w_zero_point
    drift = k * abs(x_mean * w_mean)
    noise = np.sqrt(k * (float(x.var()) + x_mean**2) * (float(w.var()) + w_mean**2))
    return float(drift + noise) + 1


def _zero_point(rng: np.random.Generator, dtype: QDType) -> int:
    """Return a random zero point: often 0, or the dtype's smallest or largest value; else any value."""
    info = np.iinfo(dtype)
    return int(rng.choice([info.min, info.max, 0, int(rng.integers(info.min, info.max + 1))]))
