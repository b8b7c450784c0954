"""2-D convolutions: q8ta_q8csw with float32 or int8 output, and the weight-only q8csw, through im2col in bounded scratch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..problem import Conv2dProblem, Padding
from ..qparams import QParams
from ..reference import Activation
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..runtime.tensor import IMAGE, Tensor
from ..shader.catalog import catalog
from .coopmat import CoopmatGemm, int8_gemm
from .gemm import FloatGemm, Int8, Int8Gemm, Rows, ceil4, signed_zero_point
from .implicit import CoopmatConv, convolve_staged, staged_program
from .layer import Explanation, Layer

SCRATCH_BYTES = 16 << 20  # of the im2col matrix: larger ones are made and used in chunks of rows


class Conv2d(Layer[Conv2dProblem]):
    """2-D convolution (cross-correlation, as PyTorch) of NCHW images with an int8 weight, exactly.

    Args:
        weight: (OC, IC/groups, KH, KW), int8 (or uint8).
        w_scale: float32, one number or (OC,): the weight's scale per output channel.
        stride, dilation: an int or (vertical, horizontal).
        padding: an int, (vertical, horizontal), (top, left, bottom, right), "same" or "valid". Padding has the value zero: it is
            filled with x's zero point.
        groups: divides IC and OC.
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
        device: Device | None = None,
    ):
        super().__init__(
            weight, w_scale, x_qparams=x_qparams, y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point,
            activation=activation, path=path, device=device,
        )  # fmt: skip
        self._options: dict[str, Any] = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
        oc, group_ic, kh, kw = self.weight_shape
        # One pixel larger than the kernel: refuses bad options and groups at construction, not at the first call.
        reach = Conv2dProblem.of((1, group_ic * groups, 1 << 20, 1 << 20), self.weight_shape, **_without_same(self._options))
        self.groups = reach.groups
        self.super_groups, self._weight = merge_groups(self._weight_int8, self.groups)
        self._gemm: Int8Gemm | FloatGemm
        if self.scales is None:
            w_scales, checked, fused = self._float
            self._gemm = FloatGemm(self.device, self._weight, w_scales, checked, fused, oc)
        else:
            zeros = np.zeros(self._weight.shape[:2], np.int32)
            zeros.reshape(-1)[:oc] = self._zero_points
            self._gemm = int8_gemm(self.device, self._weight, zeros, self.scales, self.choice().form, oc)
        self._matrix: CoopmatConv | str | None = None  # a text: why not
        self.group_channels = self._weight.shape[2] // (kh * kw)

    def _problem(self, x_shape: Sequence[int]) -> Conv2dProblem:
        return Conv2dProblem.of(x_shape, self.weight_shape, **self._options)

    def _plan(self, problem: Conv2dProblem) -> Callable[[Tensor], Tensor]:
        dtype = self.y_qparams.dtype if self.y_qparams else "float32"
        body = self._run_int8 if isinstance(self._gemm, Int8Gemm) else self._run_float

        def run(x: Tensor) -> Tensor:
            y = Tensor(self.device, problem.y_shape, dtype, qparams=self.y_qparams)
            if y.size:
                with self.device.operation() as recording:
                    body(recording, problem, x, y)
            return y

        return run

    def _pointwise(self, p: Conv2dProblem) -> bool:
        """A 1x1 convolution is a linear layer on the pixels: kPackedInt8_4W4C is its matrix as it stands."""
        return (p.kh, p.kw, p.stride, p.groups) == (1, 1, (1, 1), 1) and not any(p.padding)

    def _run_int8(self, recording: Recording, p: Conv2dProblem, x: Tensor, y: Tensor) -> None:
        gemm, rows = self._gemm, _rows(p, pad=True)
        assert isinstance(gemm, Int8Gemm)
        if self._pointwise(p):
            gemm.dispatch(recording, x.buffer, y.buffer, rows)
            return
        matrix = self._matrix_conv(p)
        if matrix is not None:
            matrix.convolve(recording, p, x.buffer, y.buffer)
            return
        staged = staged_program(gemm, p)
        if staged is not None:
            convolve_staged(gemm, staged, recording, p, x.buffer, y.buffer)
            return
        program, row_bytes = self._im2col(), 16 * gemm.k4 * gemm.groups
        chunk = _chunk(rows.blocks, row_bytes)
        scratch = self.device.allocate(chunk * row_bytes)
        for first in range(0, rows.blocks, chunk):
            m4 = min(chunk, rows.blocks - first)
            push = {**self._window(p, rows), "m4": m4, "k4": gemm.k4, "first_m4": first}
            push["x_zero_point"] = signed_zero_point(gemm.scales.x)
            if gemm.k4:
                recording.dispatch(program, [x.buffer, scratch], push)
            gemm.dispatch(recording, scratch, y.buffer, rows, first, m4)

    def _matrix_conv(self, p: Conv2dProblem) -> CoopmatConv | None:
        """The convolution on matrix units without im2col, where path, groups and sizes allow it; made once."""
        if self._matrix is None and isinstance(self._gemm, CoopmatGemm):
            self._matrix = CoopmatConv.of(self.device, self._weight_int8, self._gemm.scales, p)
        return self._matrix if isinstance(self._matrix, CoopmatConv) else None

    def _run_float(self, recording: Recording, p: Conv2dProblem, x: Tensor, y: Tensor) -> None:
        gemm, rows = self._gemm, _rows(p, pad=False)
        assert isinstance(gemm, FloatGemm)
        program, row_bytes = self._im2col(), 4 * gemm.k * gemm.groups
        chunk = _chunk(rows.count, row_bytes)
        scratch = self.device.allocate(chunk * row_bytes)
        for first in range(0, rows.count, chunk):
            m = min(chunk, rows.count - first)
            if gemm.k:
                recording.dispatch(program, [x.buffer, scratch], {**self._window(p, rows), "m": m, "k": gemm.k, "first_m": first})
            gemm.dispatch(recording, scratch, y.buffer, rows, first, m)

    def _im2col(self) -> Program:
        if self.scales is None:
            return self.device.program(catalog().find("im2col_f32__gather"))
        channels = "four" if self.group_channels % 4 == 0 else "any"
        return self.device.program(catalog().find("im2col_q8__gather", channels=channels))

    def _window(self, p: Conv2dProblem, rows: Rows) -> dict[str, int | float]:
        return {
            "groups": self.super_groups, "c": p.ic, "h": p.h, "w": p.w, "oh": rows.oh, "ow_padded": rows.ow_padded, "kw": p.kw,
            "group_channels": self.group_channels, "stride_h": p.stride[0], "stride_w": p.stride[1], "pad_t": p.padding[0],
            "pad_l": p.padding[1], "dilation_h": p.dilation[0], "dilation_w": p.dilation[1], "images": p.n,
        }  # fmt: skip

    def explain(self, x_shape: Sequence[int]) -> Explanation:
        """What the layer does with an input of this shape, without running it."""
        p, choice, gemm = self._problem(x_shape), self.choice(), self._gemm
        names: list[str] = []
        scratch = 0
        if math.prod(p.y_shape):
            rows = _rows(p, pad=isinstance(gemm, Int8Gemm))
            size, row_bytes = (rows.blocks, 16 * gemm.k4) if isinstance(gemm, Int8Gemm) else (rows.count, 4 * gemm.k)
            matrix = None if self._pointwise(p) else self._matrix_conv(p)
            staged = staged_program(gemm, p) if isinstance(gemm, Int8Gemm) and not self._pointwise(p) else None
            direct = matrix.pipeline(p) if matrix else staged
            if direct is not None:
                return Explanation(p.name, self.scheme, choice.path, choice.reason, (direct.variant.name,), p.macs, 0)
            if isinstance(gemm, FloatGemm) or not self._pointwise(p):
                chunk = _chunk(size, row_bytes * gemm.groups)
                scratch, size = chunk * row_bytes * gemm.groups, chunk
                names.append(self._im2col().variant.name)
            names.append(gemm.program(size).variant.name)
        return Explanation(p.name, self.scheme, choice.path, choice.reason, tuple(names), p.macs, scratch)


def merge_groups(weight: Int8, groups: int) -> tuple[int, Int8]:
    """Groups merged until each has a multiple of four output channels: (super groups, weight (G, N, K) with k = (kh, kw, ic)).

    A store writes whole words of four channels, so a group must own whole words. Within a merged group the weight is
    block-diagonal; the zeros cost at most a factor of four (depthwise). The last merged group may be short of groups: theirs
    are zeros, and not stored.
    """
    oc, ic, kh, kw = weight.shape
    n = oc // groups
    merged = min(groups, 4 // math.gcd(4, n)) if groups > 1 and n else 1
    super_groups = -(-groups // merged)
    out = np.zeros((super_groups * merged, n, kh, kw, merged, ic), np.int8)
    slot = np.arange(groups) % merged
    by_group = weight.reshape(groups, n, ic, kh, kw).transpose(0, 1, 3, 4, 2)
    out[np.arange(groups), :, :, :, slot, :] = by_group
    return super_groups, out.reshape(super_groups, merged * n, kh * kw * merged * ic)


def _rows(p: Conv2dProblem, pad: bool) -> Rows:
    return Rows(p.n * p.oh, p.oh, p.ow, 4 * ceil4(p.ow) if pad else p.ow)


def _chunk(rows: int, row_bytes: int) -> int:
    """How many rows (or row blocks) of the im2col matrix are made at a time."""
    return max(1, min(rows, SCRATCH_BYTES // max(row_bytes, 1)))


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
    device: Device | None = None,
) -> Any:
    """One convolution applied once; see `Conv2d`, which keeps the packed weight for more."""
    if isinstance(x, Tensor) and device is None:
        device = x.device
    layer = Conv2d(
        weight, w_scale, stride=stride, padding=padding, dilation=dilation, groups=groups, x_qparams=x_qparams,
        y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point, activation=activation, path=path, device=device,
    )  # fmt: skip
    return layer(x)
