"""2-D convolutions: q8ta_q8csw with float32 or int8 output, and the weight-only q8csw, by one of several
methods."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..kernels.gemm import FloatGemm, Int8, Int8Gemm, Scales
from ..kernels.im2col import int8_gemm, merge_groups
from ..kernels.methods import Kernel, choose
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..problem.conv2d import Conv2dProblem
from ..problem.options import Padding
from ..runtime.device import Device
from ..runtime.tensor import IMAGE, Tensor
from .layer import Explanation, Layer


class Conv2d(Layer[Conv2dProblem]):
    """2-D convolution (cross-correlation, as PyTorch) of NCHW images with an int8 weight, exactly.

    Args:
        weight: (OC, IC/groups, KH, KW), int8 (or uint8).
        w_scale: float32, one number or (OC,): the weight's scale per output channel.
        stride, dilation: an int or (vertical, horizontal).
        padding: an int, (vertical, horizontal), (top, left, bottom, right), "same" or "valid". Padding has
            the value zero: it is filled with x's zero point.
        groups: divides IC and OC.
        method: "auto", or one of those of `vkq.kernels.methods` by name: "pointwise", "depthwise", "matrix",
            "direct", "implicit", "im2col". All give the same bits; one that cannot take the convolution is
            refused. ``explain`` says which is taken, and why.
        x_qparams, y_qparams, bias, w_zero_point, activation, path, device: as for `Linear`, with OC for N.

    The formulas are those of `Linear`, with the sum over kh, kw and ic; as ONNX QLinearConv
    (https://onnx.ai/onnx/operators/onnx__QLinearConv.html).

    >>> import numpy as np
    >>> layer = Conv2d(np.ones((1, 1, 2, 2), np.int8), 1.0, x_qparams=QParams(1.0), y_qparams=QParams(1.0))
    >>> layer(np.arange(9, dtype=np.int8).reshape(1, 1, 3, 3))
    array([[[[ 8, 12],
             [20, 24]]]], dtype=int8)
    """

    _op = "conv2d"
    _rank = 4
    _layout = IMAGE

    def __init__(
        self,
        weight: npt.ArrayLike,
        w_scale: npt.ArrayLike,
        *,
        stride: int | Sequence[int] = 1,
        padding: Padding = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        x_qparams: QParams | None = None,
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
        self._options: dict[str, Any] = {
            "stride": stride,
            "padding": padding,
            "dilation": dilation,
            "groups": groups,
        }
        _, group_ic, _, _ = self.weight_shape
        # A large image: refuses bad options and groups at construction, not at the first call, and packs the
        # weight now.
        reach = Conv2dProblem.of(
            (1, group_ic * groups, 1 << 20, 1 << 20), self.weight_shape, **_without_same(self._options)
        )
        self.reach = reach
        self.groups = reach.groups
        self.method = method
        self._kernels: dict[Hashable, Kernel] = {}
        self._kernel(reach)

    @property
    def operands(self) -> tuple[Device, Int8, npt.NDArray[np.int32], Scales, str, int]:
        """What int8 kernels are made of: device, weight, zero points, scales, dot form, groups."""
        assert self.scales is not None
        return self.device, self._weight_int8, self._zero_points, self.scales, self.choice().form, self.groups

    @cached_property
    def int8_gemm(self) -> Int8Gemm:
        """The product in dot form that int8 methods share."""
        return int8_gemm(*self.operands)

    @property
    def gemm(self) -> Int8Gemm | FloatGemm:
        """The product of an im2col matrix with the weight."""
        if self.scales is not None:
            return self.int8_gemm
        w_scales, bias, activation = self._float
        merged = merge_groups(self._weight_int8, self.groups)
        return FloatGemm(self.device, merged, w_scales, bias, activation, self.weight_shape[0])

    def _problem(self, x_shape: Sequence[int]) -> Conv2dProblem:
        return Conv2dProblem.of(x_shape, self.weight_shape, **self._options)

    def _kernel(self, problem: Conv2dProblem) -> Kernel:
        method, _ = choose(self, problem, self.method)
        key = method.name, method.layout, method.packing(self, problem)
        if key not in self._kernels:
            self._kernels[key] = method.make(self, problem)
        return self._kernels[key]

    def _layout_for(self, problem: Conv2dProblem) -> str:
        method, _ = choose(self, problem, self.method)
        return method.layout

    def _plan(self, problem: Conv2dProblem, layout: str) -> Callable[[Tensor], Tensor]:
        kernel = self._kernel(problem)

        def run(x: Tensor) -> Tensor:
            y = self._result(problem.y_shape, layout)
            if y.size:
                with self.device.operation() as recording:
                    kernel.record(recording, problem, x.buffer, y.buffer)
            return y

        return run

    def explain(self, x_shape: Sequence[int]) -> Explanation:
        """What the layer does with an input of this shape, without running it."""
        p, choice = self._problem(x_shape), self.choice()
        method, why = choose(self, p, self.method)
        variants, scratch = self._kernel(p).describe(p) if math.prod(p.y_shape) else ((), 0)
        return Explanation(
            p.name, self.scheme, choice.path, choice.reason, variants, p.macs, scratch, method.name, why
        )


def _without_same(options: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in options.items() if not (k == "padding" and v == "same")}


def conv2d(
    x: npt.ArrayLike | Tensor,
    weight: npt.ArrayLike,
    w_scale: npt.ArrayLike,
    *,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    x_qparams: QParams | None = None,
    y_qparams: QParams | None = None,
    bias: npt.ArrayLike | None = None,
    w_zero_point: npt.ArrayLike | None = None,
    activation: Activation = None,
    path: str = "auto",
    method: str = "auto",
    device: Device | None = None,
) -> Any:
    """One convolution applied once; see `Conv2d`, which keeps the packed weight for more."""
    if isinstance(x, Tensor) and device is None:
        device = x.device
    layer = Conv2d(
        weight, w_scale, stride=stride, padding=padding, dilation=dilation, groups=groups,
        x_qparams=x_qparams, y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point, activation=activation,
        path=path, method=method, device=device,
    )  # fmt: skip
    return layer(x)
