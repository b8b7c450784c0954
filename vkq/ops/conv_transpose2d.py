"""Transposed 2-D convolutions of int8 activations, as stride x stride ordinary convolutions side by side."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..kernels.direct import Direct, Window
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation
from ..problem.options import Pair
from ..problem.transposed import TransposedConv2dProblem
from ..runtime.device import Device
from ..runtime.recording import Recording
from ..runtime.tensor import IMAGE, Tensor
from .layer import Explanation, Layer


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
        x_qparams: scale and zero point of the activations.
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
    _layout = IMAGE

    def __init__(
        self,
        weight: npt.ArrayLike,
        w_scale: npt.ArrayLike,
        *,
        x_qparams: QParams,
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
        if not isinstance(x_qparams, QParams):
            raise ArgumentError(f"{self._op}: x_qparams is {x_qparams!r}; it must be a QParams")
        given = np.asarray(weight)
        self._options: dict[str, Any] = {
            "stride": stride, "padding": padding, "output_padding": output_padding, "dilation": dilation,
            "groups": groups
        }  # fmt: skip
        self._given_shape = given.shape
        ic = given.shape[0] if given.ndim == 4 else 0
        # A large image: refuses bad options at construction, not at the first call.
        reach = TransposedConv2dProblem.of((1, ic, 1 << 20, 1 << 20), given.shape, **self._options)
        super().__init__(
            _channels_first(given, reach), w_scale, x_qparams=x_qparams, y_qparams=y_qparams, bias=bias,
            w_zero_point=w_zero_point, activation=activation, path=path, device=device,
        )  # fmt: skip
        assert self.scales is not None
        form = self.choice().form
        # Every phase has its own taps, and so its own sums of weights.
        self._phases: list[tuple[Taps, Taps, Direct]] = []
        for v in _phases(reach.kh, reach.stride[0], reach.dilation[0], reach.padding[0]):
            for h in _phases(reach.kw, reach.stride[1], reach.dilation[1], reach.padding[1]):
                part = np.ascontiguousarray(self._weight_int8[:, :, v.kernel, :][:, :, :, h.kernel])
                kernel = Direct(self.device, part, self._zero_points, self.scales, form, reach.groups)
                self._phases.append((v, h, kernel))

    def _problem(self, x_shape: Sequence[int]) -> TransposedConv2dProblem:
        return TransposedConv2dProblem.of(x_shape, self._given_shape, **self._options)

    def _plan(self, problem: TransposedConv2dProblem, layout: str) -> Callable[[Tensor], Tensor]:
        def run(x: Tensor) -> Tensor:
            y = self._result(problem.y_shape, layout)
            if y.size:
                with self.device.operation() as recording:
                    self._record(recording, problem, x, y)
            return y

        return run

    def _record(self, recording: Recording, problem: TransposedConv2dProblem, x: Tensor, y: Tensor) -> None:
        for window, kernel in self._windows(problem):
            kernel.dispatch(recording, window, x.buffer, y.buffer)

    def _windows(self, p: TransposedConv2dProblem) -> list[tuple[Window, Direct]]:
        """The ordinary convolution of every phase that has output pixels."""
        return [
            (_window(p, v, h), kernel) for v, h, kernel in self._phases if v.first < p.oh and h.first < p.ow
        ]

    def explain(self, x_shape: Sequence[int]) -> Explanation:
        """What the layer does with an input of this shape, without running it."""
        p, choice = self._problem(x_shape), self.choice()
        windows = self._windows(p) if math.prod(p.y_shape) else []
        names = tuple(kernel.program(window.slides).variant.name for window, kernel in windows)
        why = f"one ordinary convolution for each of {p.stride[0]}x{p.stride[1]} phases of the output"
        return Explanation(p.name, self.scheme, choice.path, choice.reason, names, p.macs, 0, "direct", why)


def _phases(size: int, stride: int, dilation: int, padding: int) -> list[Taps]:
    return [Taps.of(first, size, stride, dilation, padding) for first in range(stride)]


def _window(p: TransposedConv2dProblem, v: Taps, h: Taps) -> Window:
    size: Pair = (-(-(p.oh - v.first) // p.stride[0]), -(-(p.ow - h.first) // p.stride[1]))
    return Window(
        p.n, p.ic, p.h, p.w, *size, stride=(1, 1), before=(-v.offset, -h.offset), dilation=(v.step, h.step),
        out=(p.oh, p.ow), out_stride=p.stride, out_first=(v.first, h.first),
    )  # fmt: skip


def _channels_first(weight: npt.NDArray[Any], p: TransposedConv2dProblem) -> npt.NDArray[Any]:
    """(IC, OC/groups, KH, KW) as (OC, IC/groups, KH, KW)."""
    by_group = weight.reshape(p.groups, p.ic // p.groups, p.oc // p.groups, p.kh, p.kw)
    return np.asarray(by_group.transpose(0, 2, 1, 3, 4).reshape(p.oc, p.ic // p.groups, p.kh, p.kw))


def conv_transpose2d(
    x: npt.ArrayLike | Tensor,
    weight: npt.ArrayLike,
    w_scale: npt.ArrayLike,
    *,
    x_qparams: QParams,
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
) -> Any:
    """One transposed convolution applied once; see `ConvTranspose2d`, which keeps the packed weight for
    more."""
    if isinstance(x, Tensor) and device is None:
        device = x.device
    layer = ConvTranspose2d(
        weight, w_scale, x_qparams=x_qparams, stride=stride, padding=padding, output_padding=output_padding,
        dilation=dilation, groups=groups, y_qparams=y_qparams, bias=bias, w_zero_point=w_zero_point,
        activation=activation, path=path, device=device,
    )  # fmt: skip
    return layer(x)
