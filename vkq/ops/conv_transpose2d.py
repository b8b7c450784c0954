"""Transposed 2-D convolutions, as stride x stride ordinary convolutions side by side."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..kernels.direct import LAYOUTS, Direct, Sweep
from ..kernels.floats import FloatDirect
from ..layout.extent import IMAGE
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..problem.options import Pair
from ..problem.transposed import TransposedConv2dProblem, TransposedOptions
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..schemes.base import ChannelScheme
from .applied import applied
from .layer import Layer, as_tuned


@dataclasses.dataclass(frozen=True)
class Taps:
    """Along one axis, for the output pixels first, first + stride, ...: the kernel's taps that hit an input
    pixel.

    Output pixel ``o = first + stride * i`` sees input pixel ``i + offset + j * step`` through ``kernel[j]``.
    Only every so many taps can: ``o + padding - dilation * tap`` must be a multiple of the stride.
    """

    first: int
    kernel: tuple[int, ...]
    offset: int
    step: int

    @classmethod
    def of(cls, first: int, size: int, stride: int, dilation: int, padding: int) -> Taps:
        """The taps of one phase, in the order of the input pixels.

        >>> Taps.of(1, 3, 2, 1, 1)
        Taps(first=1, kernel=(2, 0), offset=0, step=1)
        """
        hits = [(first + padding - dilation * tap, tap) for tap in reversed(range(size))]
        found = [(at // stride, tap) for at, tap in hits if at % stride == 0]
        step = found[1][0] - found[0][0] if len(found) > 1 else 1
        return cls(first, tuple(tap for _, tap in found), found[0][0] if found else 0, step)


class ConvTranspose2d(Layer[TransposedConv2dProblem]):
    """Transposed 2-D convolution (as PyTorch's) of NCHW images with an int8 weight, exactly.

    Args:
        weight: (IC, OC/groups, KH, KW), int8 (or uint8).
        w_scale: float32, one number or (OC,): the weight's scale per output channel.
        x_qparams: scale and zero point of the activations; None for float activations (weight-only).
        stride, dilation: an int or (vertical, horizontal).
        padding: an int, (vertical, horizontal) or (top, left, bottom, right): what is cut off the output.
        output_padding: an int or (vertical, horizontal), less than the stride or the dilation: added at the
            bottom and right.
        groups: divides IC and OC.
        y_qparams, bias, w_zero_point, activation, path, device: as for `Linear`, with OC for N.

    The size is ``OH = (H - 1)*stride - top - bottom + dilation*(KH - 1) + output_padding + 1``. The formulas
    are those of `Linear`, where acc[n, oc, stride*h + dilation*kh - top, stride*w + dilation*kw - left] sums
    (x[n, ic, h, w] - x_zero_point) * (weight[ic, oc, kh, kw] - w_zero_point[oc])
    (https://onnx.ai/onnx/operators/onnx__ConvTranspose.html between DequantizeLinear and QuantizeLinear).

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
        w_scale: npt.ArrayLike,
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
        device: Device | None = None,
    ):
        given = np.asarray(weight)
        self._given_shape = given.shape
        options = self._options = TransposedOptions.of(
            given.shape, stride, padding, output_padding, dilation, groups
        )
        super().__init__(
            _channels_first(given, options.groups), w_scale, x_qparams=x_qparams, y_qparams=y_qparams,
            bias=bias, w_zero_point=w_zero_point, activation=activation, path=path,
            device=device,
        )  # fmt: skip
        scheme = cast(ChannelScheme, self._scheme)
        form, zeros = self._choice.form, scheme.operands.stored_zero_point
        stored = self._scheme.operands.stored_weight
        # Every phase has its own taps, and so its own sums of weights.
        rows, columns = (
            _phases(options.kernel[i], options.stride[i], options.dilation[i], options.padding[i])
            for i in (0, 1)
        )
        self._phases: list[tuple[Taps, Taps, Direct | FloatDirect]] = []
        for v, h in itertools.product(rows, columns):
            part = np.ascontiguousarray(stored[:, :, v.kernel, :][:, :, :, h.kernel])
            kernel = scheme.direct(self.device, part, zeros, form, options.groups)
            self._phases.append((v, h, kernel))

    def _problem(self, x_shape: Sequence[int]) -> TransposedConv2dProblem:
        return TransposedConv2dProblem.with_options(x_shape, self._given_shape, self._options)

    def _layout_for(self, problem: TransposedConv2dProblem) -> str:
        return IMAGE

    @as_tuned
    def build(self, b: Builder, x: Value) -> Value:
        p, layout = self._problem_of(x.spec.shape)
        stride_h, stride_w = p.stride
        b.why("method", "direct")
        b.why(
            "method_reason",
            f"one ordinary convolution for each of {stride_h}x{stride_w} phases of the output",
        )
        layout = x.spec.layout if x.spec.layout in LAYOUTS else layout
        taken, _ = self._scheme.take(b, x, layout)
        y = b.new(self._scheme.result(p.y_shape, layout))
        for v, h, kernel in self._phases if y.spec.size else ():
            if v.first < p.oh and h.first < p.ow:
                kernel.sweep(b, _sweep(p, v, h), taken, y)
        return self._scheme.finished(b, y)


def _phases(size: int, stride: int, dilation: int, padding: int) -> list[Taps]:
    return [Taps.of(first, size, stride, dilation, padding) for first in range(stride)]


def _sweep(p: TransposedConv2dProblem, v: Taps, h: Taps) -> Sweep:
    size: Pair = (-(-(p.oh - v.first) // p.stride[0]), -(-(p.ow - h.first) // p.stride[1]))
    return Sweep(
        p.n, p.ic, p.h, p.w, *size, stride=(1, 1), before=(-v.offset, -h.offset), dilation=(v.step, h.step),
        out=(p.oh, p.ow), out_stride=p.stride, out_first=(v.first, h.first),
    )  # fmt: skip


def _channels_first(weight: npt.NDArray[Any], groups: int) -> npt.NDArray[Any]:
    """(IC, OC/groups, KH, KW) as (OC, IC/groups, KH, KW)."""
    ic, oc, kh, kw = weight.shape
    by_group = weight.reshape(groups, ic // groups, oc, kh, kw)
    return np.asarray(by_group.transpose(0, 2, 1, 3, 4).reshape(oc * groups, ic // groups, kh, kw))


@applied(ConvTranspose2d)
def conv_transpose2d(*operands: Any, **options: Any) -> Any:
    """One transposed convolution applied once; see `ConvTranspose2d`, which keeps the packed weight for
    more."""
