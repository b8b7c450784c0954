"""Linear layers: q8ta_q8csw with float32 or int8 output, dq8ca_q8csw (activations quantized by rows),
weight-only q8csw, and q4gsw (weights of few bits, quantized in groups)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy.typing as npt

from ..arguments import checked
from ..device.profiles import profile
from ..device.tuner import ranked
from ..errors import ArgumentError
from ..kernels.after import After
from ..kernels.float_product import FloatProduct
from ..kernels.floats import FloatGemm
from ..kernels.gemm import Rows
from ..kernels.grouped import GroupedGemm
from ..kernels.matrix_tiles import is_faster_as_given
from ..kernels.matrix_units import MatrixGemm, Pixels
from ..kernels.repack import reshaped
from ..kernels.weights import Arithmetic
from ..layout.extent import BLOCKED, BYTES, MATRIX, Spec
from ..numerics.grouped import GroupedWeight
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..problem.linear import LinearProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import COOPMAT
from .applied import applied
from .layer import Layer, as_tuned
from .torch_modules import operands

METHODS = ("auto", "gemv", "tiled", "staged")
KIND = "layout of a linear layer"  # the name of this choice in the tuner's rankings (`vkq.device.tuner`)


class Linear(Layer[LinearProblem]):
    """A linear layer, ``y = x @ weight.T + bias``. With quantized x and an int8 weight, the layer is exact.

    Args:
        weight: (N, K) = (out_features, in_features), int8 (or uint8); or a `vkq.GroupedWeight` of 4 or 8
            bits (schemes q4gsw and q8gsw), as `vkq.quantize_weight` returns it, for float x of any rank; or
            float32 or float16 (schemes f32 and f16), for float x.
        w_scale: float32, a scalar or (N,): the weight's scale per output channel. None with a GroupedWeight,
            which contains its scales and zero points, and with a float weight.
        x_qparams: scale and zero point of the activations; None for float activations (weight-only, scheme
            q8csw); "dynamic" for float32 activations that are quantized on the device, with one scale and
            zero point for each row, computed from the row (scheme dq8ca_q8csw, float32 result).
        y_qparams: scale and zero point of an 8-bit result; None for float32.
        bias: (N,), int32 with scale ``x_scale * w_scale``; or float32 (always with float activations). A
            float32 bias is added to a float32 result. For quantized activations with an 8-bit result, a
            float32 bias is first rounded to int32: ``round_half_even(bias / (x_scale * w_scale))``.
        w_zero_point: integer or (N,), of the weight's dtype; None: 0 (a symmetric weight).
        activation: None, "relu", "relu6" or (low, high): a clamp of the result, fused into the kernel. A
            device replaces NaN in a float result by one of the bounds.
        path: "auto", "dot", "dot_s8s8", "dot_u8s8", "dot_u8u8", "portable" or "coopmat" (matrix units). All
            paths give the same bits. With float activations, only "auto" and "portable" are possible;
            "portable" computes float32 products without matrix units.
        compute: the arithmetic of products of float activations: "float32", or "float16" (schemes q8csw_f16,
            q4gsw_f16, f32_f16, f16_f16), which rounds x and a float weight to float16. With a GroupedWeight,
            float32 x is rounded only if it has more than 16 rows, and only on matrix units.
            With "float16", matrix units that pass the self-test compute the products, with float32 sums. A
            GPU without matrix units sums 16 products at a time in float16 if its float16 arithmetic passes
            the self-test. On other devices, and for few rows of x with int8 weights, the arithmetic is
            float32. ``explain`` names the arithmetic.
        overflow: "refuse" raises AccumulatorOverflowError if the int32 accumulator could overflow with
            these weights; "wrap" sums modulo 2**32, as ONNX Runtime's integer kernels do, and ``explain``
            names the channels whose sums may wrap. For integer activations.
        method: "auto", "gemv" (threads share the sum over k; "auto" chooses it for up to
            `vkq.kernels.gemv.max_rows` rows), "tiled" (in registers) or "staged" (through shared
            memory). Integer results have the same bits with all methods; float sums of the weight-only
            scheme are added in different orders.
        device: a ``vkq.Device``; None: the default device.

    **Quantized x**, as in ONNX's QLinearMatMul (https://onnx.ai/onnx/operators/onnx__QLinearMatMul.html),
    with acc = sum_k (x - x_zero_point)(w - w_zero_point) + bias in int32:

        float32: ``float(acc) * (x_scale * w_scale)  [+ bias]``
        8-bit:   ``saturate(round_half_even(float(acc) * ((x_scale * w_scale) / y_scale)) + y_zero_point)``

    **x_qparams="dynamic"**: each row is quantized to int8, as in ONNX's DynamicQuantizeLinear
    (https://onnx.ai/onnx/operators/onnx__DynamicQuantizeLinear.html):

        x_scale = (max(0, row) - min(0, row)) / 255, at least 2**-126; 1 for a row of zeros
        x_zero_point = saturate(-128 + round_half_even(-min(0, row) / x_scale))

    The scale ignores infinities, which saturate, and NaN, which gives -128. A product x_scale * w_scale
    below 2**-126 counts as 0.

    **Float x, int8 weight**: ``(sum_k x (w - w_zero_point)) * w_scale + bias`` in float32, then quantized
    with y_qparams if given. x may be float32 or float16; without y_qparams, the result has the type of x.
    The method decides the order of the sum, which is the same in every run. The error is at most
    (K + 4) * 2**-24 times the sum of the terms' magnitudes. With compute="float16", it is about 2**-10
    times this sum, or 1.8 % of it without matrix units (`vkq.reference.floats` has the bounds).

    **GroupedWeight**: computed in float32; for float16 x, on matrix units if the device has them
    (`vkq.reference.linear_grouped` has the bounds):

        ``sum over groups g of scale[n,g] * (sum of x[k] * (q[n,k] - zero_point[n,g]) in g)  [+ bias]``

    **Float weight**: ``sum_k x w + bias`` in float32, each product and sum rounded to nearest even. k runs
    from first to last, in a number of parts that depends only on the sizes
    (`vkq.kernels.float_product.slices`), so the bits are the same on every device. The error is at most
    (K + 4) * 2**-24 times the sum of the terms' magnitudes; subnormal values may count as zero.

    Raises ArgumentError, DTypeError, or AccumulatorOverflowError (see *overflow*).

    >>> import numpy as np
    >>> layer = Linear(np.array([[1, 2], [3, 4]], np.int8), 0.5, x_qparams=QParams(0.5))
    >>> layer(np.array([[2, 4]], np.int8))
    array([[2.5, 5.5]], dtype=float32)
    """

    _op = "linear"
    _rank = 2
    _by_rows = True

    @checked
    def __init__(
        self,
        weight: npt.ArrayLike | GroupedWeight,
        w_scale: npt.ArrayLike | None = None,
        *,
        x_qparams: QParams | Literal["dynamic"] | None = None,
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
        if method not in METHODS:
            raise ArgumentError(f"linear: method is {method!r}; it must be one of {', '.join(METHODS)}")
        self._matrix: MatrixGemm | None = None
        self._make(method)

    @classmethod
    def from_torch(
        cls,
        module: Any,
        *,
        x_qparams: QParams | Literal["dynamic"] | None = None,
        quantized: bool | None = None,
        **options: Any,
    ) -> Linear:
        """Return a layer that computes a `torch.nn.Linear`, with copies of the module's weight and bias,
        which stay float by default. With *x_qparams* (of the input), or ``quantized=True`` (weight only),
        the weight becomes int8 with a scale for each output channel (`vkq.quantize_weight`).

        options: further arguments of the layer, such as y_qparams and device. The layer accepts PyTorch
        tensors in host memory; ``layer(x, output="torch")`` returns a PyTorch tensor.
        """
        return cls(**operands(module, "Linear", x_qparams, quantized), **options)

    def _make(self, method: str) -> None:
        """Create the kernels of the products."""
        operands, scheme = self._scheme.operands, self._scheme
        n, k = self.weight_shape
        self._gemm = scheme.linear(self.device, self._choice.form)
        if isinstance(self._gemm, FloatProduct) and method not in ("auto", "tiled"):
            raise ArgumentError(
                f"linear: method is {method!r} with a float weight; it must be 'auto' or 'tiled'"
            )
        self._gemm.kernel = method
        # A kernel for matrix units. The kernel for dot products stays for few rows and methods requested by
        # name.
        if self._choice.path == COOPMAT and method == "auto" and n and k:
            self._matrix = MatrixGemm(
                self.device, (n, k), lambda: operands.stored_weight, cast(Arithmetic, scheme)
            )

    def finish(self, after: After) -> None:
        """Set the epilogue of the layer."""
        self._scheme.after = after
        self._make(self._gemm.kernel)

    def _problem(self, x_shape: Sequence[int]) -> LinearProblem:
        return LinearProblem.of(x_shape, self.weight_shape)

    def _layout_for(self, problem: LinearProblem) -> str:
        return BLOCKED if self._matrix is not None and self._matrix.worth(problem.m) else MATRIX

    @as_tuned
    def build(self, b: Builder, x: Value, other: Value | None = None) -> Value:
        """Add the layer to a plan. *other*: memory for the result; None: new memory. If the epilogue adds a
        residual, *other* is the residual, which nothing may read afterwards."""
        p, layout = self._problem_of(x.spec.shape)
        if b.alone and (layout, x.spec.layout) == (BLOCKED, MATRIX):
            dots = is_faster_as_given(profile(self.device.capabilities), p.m, p.n, p.k)
            layout = ranked(KIND, (MATRIX, BLOCKED) if dots else (BLOCKED, MATRIX))[0]
        # In kPackedInt8_16C, a word of an image has channels of one pixel, but the product reads rows.
        image = layout == BLOCKED and len(x.spec.shape) == 4
        if image and x.spec.dtype in BYTES:
            x = reshaped(b, x, (p.m, p.k), BLOCKED)
        elif image:
            x = reshaped(b, x, (p.m, p.k))
        taken, extra = self._scheme.take(b, x, layout)
        spec = self._scheme.result((p.m, p.n) if image else p.y_shape, layout)
        if isinstance(self._gemm, FloatGemm | GroupedGemm | FloatProduct) and self.y_qparams is None:
            spec = Spec(spec.shape, self._gemm.writes(taken, p.m))
        y = b.new(spec) if other is None else b.view(reshaped(b, other, spec.shape, layout), spec)
        if y.spec.size and layout == BLOCKED:
            assert self._matrix is not None
            self._matrix.build(b, taken, y, Pixels(p.m, p.m), extra)
        elif y.spec.size:
            self._gemm.build(b, taken, y, Rows(p.m), extra=extra)
        y = self._scheme.finished(b, x, y)
        return reshaped(b, y, p.y_shape, MATRIX if y.spec.dtype in BYTES else None) if image else y


@applied(Linear)
def linear(*operands: Any, **options: Any) -> Any:
    """Apply a linear layer once; `Linear` keeps the packed weight for more calls.

    >>> import numpy as np
    >>> x, w = np.array([[2, 4]], np.int8), np.array([[1, 2], [3, 4]], np.int8)
    >>> linear(x, w, 0.5, x_qparams=QParams(0.5), y_qparams=QParams(1.0))
    array([[2, 6]], dtype=int8)
    """
