"""What linear layers and convolutions have in common: checked parameters, inputs of every kind,
explanations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.gemm import Scales
from ..numerics.qparams import QParams, check_bias, check_scales, check_zero_points
from ..numerics.requantize import WORST_CASE, Activation, activation_range, check_accumulator, multipliers
from ..runtime.device import Device, default_device
from ..runtime.tensor import CONTIGUOUS, Tensor
from ..select import tune
from ..select.path import PATHS, Choice, choose
from .quantize import quantize_tensor
from .repack import to_layout

P = TypeVar("P")


@dataclasses.dataclass(frozen=True)
class Explanation:
    """What a layer does with an input: ``path`` and ``method`` with why, the shader variants in order of
    dispatch, and sizes."""

    problem: str
    scheme: str
    path: str
    reason: str
    variants: tuple[str, ...]
    macs: int
    scratch_bytes: int
    method: str = ""
    method_reason: str = ""

    def __str__(self) -> str:
        lines = [f"{self.problem}  {self.scheme}", f"  path     {self.path} ({self.reason})"]
        if self.method:
            lines.append(f"  method   {self.method} ({self.method_reason})")
        lines += [f"  shader   {name}" for name in self.variants]
        return "\n".join(
            [*lines, f"  work     {self.macs} multiply-adds, {self.scratch_bytes} bytes of scratch"]
        )


class Layer(Generic[P]):
    """A weight on a device with its scales. ``Linear`` and ``Conv2d`` say what it means; P is their problem
    type."""

    _op: str
    _rank: int  # of the weight
    _layout: str  # of int8 inputs and outputs, unless `_layout_for` says another
    _takes_dynamic = False  # x_qparams="dynamic"
    weight_shape: tuple[int, ...]

    def __init__(
        self,
        weight: npt.ArrayLike,
        w_scale: npt.ArrayLike,
        *,
        x_qparams: QParams | Literal["dynamic"] | None,
        y_qparams: QParams | None,
        bias: npt.ArrayLike | None,
        w_zero_point: npt.ArrayLike | None,
        activation: Activation,
        path: str,
        device: Device | None,
    ):
        op, w = self._op, np.asarray(weight)
        if w.dtype not in (np.int8, np.uint8):
            raise DTypeError(
                f"{op}: weight has dtype {w.dtype}; it must be int8 or uint8 (quantize it first)"
            )
        if w.ndim != self._rank:
            raise ArgumentError(
                f"{op}: weight has {w.ndim} axes (shape {w.shape}); it must have {self._rank}"
            )
        if path not in PATHS:
            raise ArgumentError(f"{op}: path is {path!r}; it must be one of {', '.join(PATHS)}")
        channels = w.shape[0]
        self.weight_shape = w.shape
        self.dynamic = self._check_dynamic(x_qparams, y_qparams)
        self.x_qparams = None if isinstance(x_qparams, str) else x_qparams
        self.y_qparams = y_qparams
        self.path = path
        scales = check_scales(w_scale, channels, f"{op}: w_scale")
        zeros = check_zero_points(w_zero_point, channels, w.dtype, f"{op}: w_zero_point")
        checked = (
            None if bias is None else check_bias(np.asarray(bias), channels, y_qparams is None, f"{op}: bias")
        )
        activation_range(activation)
        self.device = device or default_device()
        self._weight_int8 = w if w.dtype == np.int8 else (w ^ np.uint8(0x80)).view(np.int8)
        self._zero_points = zeros - (128 if w.dtype == np.uint8 else 0)
        self._plans: dict[tuple[P, bool], tuple[str, Callable[[Tensor], Tensor]]] = {}
        if self.dynamic:
            if checked is not None and checked.dtype != np.float32:
                raise DTypeError(
                    f"{op}: bias has dtype {checked.dtype}; with x_qparams='dynamic' it must be float32"
                )
            check_accumulator(w, WORST_CASE, None, zeros)
            self.scales: Scales | None = Scales(None, scales, self._zero_points, checked, None, activation)
            return
        if self.x_qparams is None:
            self._check_weight_only(checked)
            self.scales = None
            self._float = (scales, checked, activation)
            return
        x_qparams = self.x_qparams
        check_accumulator(
            w, x_qparams, checked if checked is not None and checked.dtype == np.int32 else None, zeros
        )
        multipliers(
            x_qparams.scale, scales, y_qparams.scale if y_qparams else None
        )  # refuses what no float32 holds
        self.scales = Scales(x_qparams, scales, self._zero_points, checked, y_qparams, activation)

    def _check_dynamic(self, x_qparams: QParams | str | None, y_qparams: QParams | None) -> bool:
        if not isinstance(x_qparams, str):
            return False
        if x_qparams != "dynamic" or not self._takes_dynamic:
            allowed = "a QParams, None or 'dynamic'" if self._takes_dynamic else "a QParams or None"
            raise ArgumentError(f"{self._op}: x_qparams is {x_qparams!r}; it must be {allowed}")
        if y_qparams is not None:
            raise ArgumentError(
                f"{self._op}: y_qparams is given with x_qparams='dynamic'; its result is float32"
            )
        return True

    def _check_weight_only(self, bias: npt.NDArray[Any] | None) -> None:
        if self.y_qparams is not None:
            raise ArgumentError(
                f"{self._op}: y_qparams is given without x_qparams; an int8 result needs int8 activations"
            )
        if self._zero_points.any():
            raise ArgumentError(
                f"{self._op}: w_zero_point must be 0 where the activations are float (scheme q8csw)"
            )
        if bias is not None and bias.dtype != np.float32:
            raise DTypeError(
                f"{self._op}: bias has dtype {bias.dtype}; with float activations it must be float32"
            )
        if self.path not in ("auto", "portable"):
            raise ArgumentError(
                f"{self._op}: path {self.path} needs int8 activations (x_qparams); use 'auto' or 'portable'"
            )

    @property
    def scheme(self) -> str:
        """``q8ta_q8csw_q8to`` (int8 in and out), ``q8ta_q8csw`` (int8 in, float32 out), ``q8csw`` (float32 in
        and out), or ``dq8ca_q8csw`` (float32 in and out, the input quantized by rows at run time)."""
        if self.dynamic:
            return "dq8ca_q8csw"
        if self.x_qparams is None:
            return "q8csw"
        return "q8ta_q8csw" if self.y_qparams is None else "q8ta_q8csw_q8to"

    def __call__(self, x: npt.ArrayLike | Tensor) -> Any:
        """Applies the layer: a NumPy array in gives a NumPy array out, a Tensor in gives a Tensor with no
        copy to the host.

        With ``x_qparams`` x is of their dtype, or float32, which is quantized on the device first; without, x
        is float32.
        """
        if isinstance(x, Tensor):
            return self._apply(x)
        return self._apply(self._from_numpy(np.asarray(x))).numpy()

    def explain(self, x_shape: Sequence[int]) -> Explanation:
        """What the layer does with an input of this shape, without running it."""
        raise NotImplementedError

    def choice(self) -> Choice:
        """The path taken on the device, and why."""
        if self.scales is None:
            return Choice("float", "float", "float32 activations: the weight is dequantized in the shader")
        return choose(self.device, self.path)

    def _problem(self, x_shape: Sequence[int]) -> P:
        raise NotImplementedError

    def _layout_for(self, problem: P) -> str:
        """The layout in which the kernels for a problem take int8 and give it."""
        return self._layout

    def _plan(self, problem: P, layout: str) -> Callable[[Tensor], Tensor]:
        """What takes an input in this layout to the result, see `_result`."""
        raise NotImplementedError

    def _planned(self, problem: P) -> tuple[str, Callable[[Tensor], Tensor]]:
        """The plan for a problem and its layout, which are chosen once: the kernels must find what x was
        packed as."""
        key = problem, tune.is_forced()  # which kernels without settings are not taken for
        planned = self._plans.get(key)
        if planned is None:
            layout = self._layout_for(problem)
            planned = self._plans[key] = (layout, self._plan(problem, layout))
        return planned

    def input_layout(self, x_shape: Sequence[int]) -> str:
        """The packed layout in which int8 inputs of this shape are taken as they are; others are repacked
        first."""
        return self._planned(self._problem(x_shape))[0]

    def _apply(self, x: Tensor) -> Tensor:
        layout, plan = self._planned(self._problem(x.shape))
        return plan(self._checked(x, layout))

    def _result(self, shape: Sequence[int], layout: str) -> Tensor:
        """Where a plan writes: 8-bit numbers in its layout, or float32."""
        if self.y_qparams is None:
            return Tensor(self.device, shape, "float32")
        return Tensor(self.device, shape, self.y_qparams.dtype, layout, self.y_qparams)

    def _from_numpy(self, x: npt.NDArray[Any]) -> Tensor:
        problem = self._problem(x.shape)  # refused before anything is copied
        allowed = ("float32",) if self.x_qparams is None else (self.x_qparams.dtype, "float32")
        if x.dtype.name not in allowed:
            raise DTypeError(f"{self._op}: x has dtype {x.dtype}; it must be {' or '.join(allowed)}")
        packed = x.dtype.name in ("int8", "uint8")
        return Tensor.from_numpy(x, self.device, self._planned(problem)[0] if packed else CONTIGUOUS)

    def _checked(self, x: Tensor, layout: str) -> Tensor:
        """The input as the kernels take it: on this device, of the right type, quantized and in their
        layout."""
        if x.device is not self.device:
            raise ArgumentError(
                f"{self._op}: x is on {x.device!r} and the weight on {self.device!r}; they must be the same"
            )
        if self.x_qparams is None:
            if x.dtype != "float32":
                raise DTypeError(f"{self._op}: x has dtype {x.dtype}; without QParams it must be float32")
            return x
        if x.dtype == "float32":
            return quantize_tensor(x, self.x_qparams, layout)
        if x.dtype != self.x_qparams.dtype:
            raise DTypeError(
                f"{self._op}: x has dtype {x.dtype} and x_qparams are for {self.x_qparams.dtype}; make them"
                " the same"
            )
        if x.qparams is not None and x.qparams != self.x_qparams:
            raise ArgumentError(
                f"{self._op}: x was quantized with {x.qparams} and the layer expects {self.x_qparams};"
                " requantize it, or give the layer before this one the same y_qparams"
            )
        return to_layout(x, layout)
