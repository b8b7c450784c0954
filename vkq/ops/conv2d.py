"""2-D convolutions: q8ta_q8csw with float32 or int8 output, weight-only q8csw, and f32 and f16 with float
weights. Several methods can compute a convolution."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Sequence
from typing import Any, cast

import numpy.typing as npt

from ..arguments import checked
from ..device import tuner
from ..device.profiles import preference
from ..errors import ArgumentError
from ..kernels import methods
from ..kernels.after import After
from ..kernels.depthwise import Depthwise
from ..kernels.gemm import Int8Gemm
from ..kernels.method import Convolution, FloatKernel, Kernel, Method
from ..kernels.repack import repacked
from ..layout.extent import Spec
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..problem.conv2d import Conv2dProblem
from ..problem.options import ConvOptions, Padding
from ..runtime.builder import Builder, Value
from ..runtime.caches import keep
from ..runtime.device import Device
from .applied import applied
from .layer import Layer, as_tuned
from .torch_modules import operands


class Conv2d(Layer[Conv2dProblem]):
    """A 2-D convolution (cross-correlation, as in PyTorch) of NCHW images. With quantized x and an int8
    weight, the layer is exact.

    Args:
        weight: (OC, IC/groups, KH, KW), int8 (or uint8); or float32 or float16 (schemes f32 and f16).
        w_scale: float32, a scalar or (OC,): the weight's scale per output channel; None
            with a float weight.
        stride, dilation: an int or (vertical, horizontal).
        padding: an int, (vertical, horizontal), (top, left, bottom, right), "same" or "valid". Padding has
            the value zero: the zero point of x.
        groups: divides IC and OC.
        method: "auto", or a method of `vkq.kernels.methods` by name: "pointwise", "depthwise", "stem",
            "matrix", "direct", "implicit", "im2col". Integer results have the same bits with all methods. A
            method that cannot compute the convolution is refused. ``explain`` names the chosen method and
            the reason.
        x_qparams, y_qparams, bias, w_zero_point, activation, path, compute, overflow, device: as for
            `Linear`, with OC for N.

    The formulas of `Linear` hold, with sums over kh, kw and ic, as in ONNX's QLinearConv
    (https://onnx.ai/onnx/operators/onnx__QLinearConv.html).

    >>> import numpy as np
    >>> layer = Conv2d(np.ones((1, 1, 2, 2), np.int8), 1.0, x_qparams=QParams(1.0), y_qparams=QParams(1.0))
    >>> layer(np.arange(9, dtype=np.int8).reshape(1, 1, 3, 3))
    array([[[[ 8, 12],
             [20, 24]]]], dtype=int8)
    """

    _op = "conv2d"
    _rank = 4

    @checked
    def __init__(
        self,
        weight: npt.ArrayLike,
        w_scale: npt.ArrayLike | None = None,
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
        compute: str = "float32",
        overflow: str = "refuse",
        method: str = "auto",
        device: Device | int | str | None = None,
    ):
        super().__init__(
            weight, w_scale, x_qparams=x_qparams, y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point,
            activation=activation, path=path, compute=compute, overflow=overflow, device=device,
        )  # fmt: skip
        self._options = ConvOptions.of("conv2d", self.weight_shape, stride, padding, dilation, groups)
        methods.check_name(method)
        self.groups = self._options.groups
        self.method = method
        o = self._scheme.operands
        self._convolution = Convolution(
            self.device, o.stored_weight, o.stored_zero_point, self._scheme, self._choice, self.groups
        )
        self._kernels: dict[Hashable, Kernel] = {}
        self._methods: dict[Hashable, tuple[Method, str]] = {}
        # Check in the constructor whether the method can compute the convolution: it does not depend on the
        # image.
        if method != "auto":
            self._method(Conv2dProblem.smallest(self.weight_shape, self._options))

    @classmethod
    def from_torch(
        cls, module: Any, *, x_qparams: QParams | None = None, quantized: bool | None = None, **options: Any
    ) -> Conv2d:
        """Return a layer that computes a `torch.nn.Conv2d`, with copies of the module's weight and bias,
        which stay float by default. With *x_qparams* (of the input), or ``quantized=True`` (weight only),
        the weight becomes int8 with a scale for each output channel (`vkq.quantize_weight`). The module's
        padding_mode must be "zeros".

        options: further arguments of the layer, such as y_qparams and device. The layer accepts PyTorch
        tensors in host memory; ``layer(x, output="torch")`` returns a PyTorch tensor.
        """
        given = operands(module, "Conv2d", x_qparams, quantized)
        if module.padding_mode != "zeros":
            raise ArgumentError(f"from_torch: padding_mode is {module.padding_mode!r}; it must be 'zeros'")
        window = {name: getattr(module, name) for name in ("stride", "padding", "dilation", "groups")}
        return cls(**given, **window, **options)

    def _problem(self, x_shape: Sequence[int]) -> Conv2dProblem:
        return Conv2dProblem.with_options(x_shape, self.weight_shape, self._options)

    def _method(self, problem: Conv2dProblem, given: str = "") -> tuple[Method, str]:
        key = problem, given, preference()
        found = self._methods.get(key)
        if found is None:
            with tuner.tuned(self.device.capabilities, problem.name, self.scheme):
                method = methods.method_for(self._convolution, problem, self.method, given)
                found = keep(self._methods, key, method)
        return found

    def _kernel(self, method: Method, problem: Conv2dProblem) -> Kernel:
        key = method.name, method.layout, method.packing(self._convolution, problem)
        if key not in self._kernels:
            self._kernels[key] = method.make(self._convolution, problem)
        return self._kernels[key]

    def _layout_for(self, problem: Conv2dProblem) -> str:
        return self._method(problem)[0].takes

    def finish(self, after: After) -> None:
        """Set the epilogue of the layer, and drop the layer's kernels: their packed parameters depend on
        the epilogue."""
        self._scheme.after = after
        self._convolution = dataclasses.replace(self._convolution)
        self._kernels.clear()
        self._methods.clear()

    @property
    def gemm(self) -> Int8Gemm | None:
        """The integer product that computes the convolution; its weight is packed for dot products."""
        found = self._convolution.gemm
        return found if isinstance(found, Int8Gemm) else None

    @property
    def is_product(self) -> bool:
        """True for a 1x1 convolution with one group, stride 1 and no padding: each pixel of its result
        depends only on the input's pixel at the same position."""
        o = self._options
        return o.kernel == (1, 1) and o.groups == 1 and o.stride == (1, 1) and not any(o.padding)

    def depthwise(self, x_shape: Sequence[int]) -> tuple[Depthwise, Conv2dProblem] | None:
        """Return the depthwise kernel and the problem for images of this shape. Return None if the method
        is not depthwise or x is not quantized."""
        problem = self._problem_of(tuple(x_shape))[0]
        kernel = self._kernel(self._method(problem)[0], problem)
        return (kernel, problem) if isinstance(kernel, Depthwise) else None

    @checked
    def input_layouts(self, x_shape: Sequence[int]) -> tuple[str, ...]:
        """Return the packed layouts in which the kernel reads int8 inputs of this shape without a copy. If
        there are several, the result gets the layout of the input."""
        method, _ = self._method(self._problem_of(tuple(x_shape))[0])
        return method.layouts or (method.takes,)

    @as_tuned
    def build(self, b: Builder, x: Value, other: Value | None = None, layout: str | None = None) -> Value:
        """Add the layer to a plan. *other*: the residual that the epilogue adds. The result overwrites it,
        so nothing may read *other* afterwards. *layout*: the layout of the result, if the method supports
        several."""
        (p, _), given = self._problem_of(x.spec.shape), x
        method, reason = self._method(p, x.spec.layout if b.alone else "")
        b.why("method", method.name)
        b.why("method_reason", reason)
        layout = layout if layout in method.layouts else method.layout_of(x.spec)
        if not (method.quantizes and x.spec.dtype == "float32"):
            x, _ = self._scheme.take(b, x, method.x_layout or layout)
        result, kernel = self._scheme.result(p.y_shape, layout), self._kernel(method, p)
        if method.floats and self.y_qparams is None:
            result = Spec(result.shape, cast(FloatKernel, kernel).writes(x))
        y = b.new(result) if other is None else b.view(repacked(b, other, layout), result)
        if y.spec.size:
            kernel.build(b, p, x, y)
        return self._scheme.finished(b, given, y)


@applied(Conv2d)
def conv2d(*operands: Any, **options: Any) -> Any:
    """Apply a convolution once; `Conv2d` keeps the packed weight for more calls."""
