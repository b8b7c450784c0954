"""The base of linear layers and convolutions: the scheme, cached plans, explanations."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Generic, Protocol, TypeVar, cast

import numpy.typing as npt

from ..arguments import checked
from ..device import tuner
from ..device.profiles import preference
from ..device.refused import without
from ..errors import ArgumentError, DTypeError
from ..layout.extent import BYTES, Spec
from ..numerics.qparams import QParams
from ..numerics.requantize import OVERFLOW, Activation
from ..runtime.builder import Builder, Value
from ..runtime.caches import keep
from ..runtime.context import OfOneProcess
from ..runtime.device import Device
from ..runtime.eager import run
from ..runtime.opened import opened
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..runtime.transfer import as_array
from ..schemes.base import COMPUTE, Weight, XParams
from ..schemes.choose import scheme_of
from ..select.path import PATHS, Choice
from .torch_modules import OUTPUTS, tensor_of


class Problem(Protocol):
    """The attributes that the problems of all layers have."""

    @property
    def name(self) -> str: ...
    @property
    def macs(self) -> int: ...
    @property
    def y_shape(self) -> tuple[int, ...]: ...


NAMED = 8  # maximum number of channels that an error message names
P = TypeVar("P", bound=Problem)
Build = TypeVar("Build", bound=Callable[..., Value])


def as_tuned(build: Build) -> Build:
    """Make a layer's ``build`` method use the kernels tuned for its problem (`vkq.device.tuner`)."""

    @functools.wraps(build)
    def building(self: Any, b: Builder, x: Value, *rest: Any, **options: Any) -> Value:
        problem = self._problem_of(x.spec.shape)[0]
        with tuner.tuned(self.device.capabilities, problem.name, self.scheme):
            return build(self, b, x, *rest, **options)

    return cast(Build, building)


@dataclasses.dataclass(frozen=True)
class Explanation:
    """How a layer is executed for an input shape: ``path`` and ``method`` with their reasons, the shader
    variants in the order of dispatch, the number of multiply-adds, the bytes of scratch memory, and the
    bytes of weights."""

    problem: str
    scheme: str
    path: str
    reason: str
    variants: tuple[str, ...]
    macs: int
    scratch_bytes: int
    method: str = ""
    method_reason: str = ""
    weight_bytes: int = 0
    overflowing: tuple[int, ...] = ()  # output channels whose int32 sums may wrap
    refused: tuple[str, ...] = ()  # features that failed the self-test, each with the reason

    @property
    def wrapping(self) -> str:
        """A text on the output channels whose sums may wrap; "" if there are none."""
        few = ", ".join(map(str, self.overflowing[:NAMED])) + ", ..." * (len(self.overflowing) > NAMED)
        return f"sums may overflow int32, and wrap, in output channels {few}" if self.overflowing else ""

    def __str__(self) -> str:
        lines = [f"{self.problem}  {self.scheme}", f"  path     {self.path} ({self.reason})"]
        if self.method:
            lines.append(f"  method   {self.method} ({self.method_reason})")
        lines += [f"  sums     {self.wrapping}"] * bool(self.overflowing)
        lines += [f"  shader   {name}" for name in self.variants]
        lines += [f"  without  {feature}" for feature in self.refused]
        work = f"{self.macs} multiply-adds, {self.weight_bytes} bytes of weights and tables"
        return "\n".join([*lines, f"  work     {work}, {self.scratch_bytes} bytes of scratch"])


class Layer(OfOneProcess, Generic[P]):
    """A weight with its scheme on a device. Subclasses (``Linear``, ``Conv2d``) define the operation; P is
    the type of their problem."""

    _op: str
    _rank: int  # number of axes of the weight
    _by_rows = False  # True if x_qparams is "dynamic"
    weight_shape: tuple[int, ...]

    def __init__(
        self,
        weight: Weight,
        w_scale: npt.ArrayLike | None,
        *,
        x_qparams: XParams,
        y_qparams: QParams | None,
        bias: npt.ArrayLike | None,
        w_zero_point: npt.ArrayLike | None,
        activation: Activation,
        path: str,
        device: Device | int | str | None,
        compute: str = COMPUTE[0],
        overflow: str = OVERFLOW[0],
    ):
        op = self._op
        if path not in PATHS:
            raise ArgumentError(f"{op}: path is {path!r}; it must be one of {', '.join(PATHS)}")
        self._scheme = scheme_of(
            op, self._rank, weight, w_scale, x_qparams=x_qparams, y_qparams=y_qparams, bias=bias,
            w_zero_point=w_zero_point, activation=activation, path=path, by_rows=self._by_rows,
            compute=compute, overflow=overflow,
        )  # fmt: skip
        self.weight_shape = self._scheme.operands.weight.shape
        self.x_qparams = x_qparams if isinstance(x_qparams, QParams) else None
        self.y_qparams = y_qparams
        self.path = path
        self.device = opened(device)
        self._choice = self._scheme.choice(self.device)
        self._plans: dict[tuple[Spec, Hashable], Plan] = {}
        self._problems: dict[tuple[tuple[int, ...], Hashable], tuple[P, str]] = {}

    @property
    def scheme(self) -> str:
        """The scheme, one of these:

        - ``q8ta_q8csw_q8to``: int8 in and out
        - ``q8ta_q8csw``: int8 in, float32 out
        - ``q8csw``: float32 or float16 in and out (``q8csw_q8to``: 8-bit out)
        - ``q4gsw``, ``q8gsw``: float32 or float16 in and out, with weights of 4 or 8 bits in groups
        - ``f32``, ``f16``: float weights
        - ``dq8ca_q8csw``: float32 in and out, the input quantized by rows at run time

        With compute="float16", ``_f16`` follows ``q8csw``, ``q4gsw``, ``q8gsw``, ``f32`` or ``f16``."""
        return self._scheme.name

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.weight_shape))
        return f"<vkq.{type(self).__name__} {sizes} {self.scheme} on {self.device.short_name}>"

    def __call__(self, x: npt.ArrayLike | Tensor, *, out: Tensor | None = None, output: str = "numpy") -> Any:
        """Apply the layer: a NumPy array gives a NumPy array, a Tensor gives a Tensor without a copy to the
        host.

        Args:
            x: of the dtype of ``x_qparams``, or float32, which is quantized on the device. Without
                ``x_qparams``, float32 or float16.
            out: a Tensor to write into and return, with the result's shape, dtype, layout and qparams; it
                must not be x.
            output: "torch" gives a PyTorch tensor instead of a NumPy array.
        """
        if output not in OUTPUTS:
            raise ArgumentError(f"{self._op}: output is {output!r}; it must be 'numpy' or 'torch'")
        if isinstance(x, Tensor):
            return self._apply(x, out)
        y = self._apply(self._from_numpy(as_array(x, f"{self._op}: x")), out)
        if out is not None:
            return y
        return tensor_of(y.numpy()) if output == "torch" else y.numpy()

    def _apply(self, x: Tensor, out: Tensor | None) -> Tensor:
        if x.device is not self.device:
            raise ArgumentError(
                f"{self._op}: x is on {x.device!r} and the weight on {self.device!r}; they must be the same"
            )
        plan = self._plans.get((x.spec, preference()))
        return run(plan or self.plan(x.spec), (x,), out, self._op)

    def plan(self, x: Spec) -> Plan:
        """Return the layer's plan for an input of this shape, type and layout. Plans are cached."""
        key = x, preference()
        found = self._plans.get(key)
        if found is None:
            b = Builder(self.device, alone=self.path == "auto")
            y = self.build(b, b.input(x))
            found = keep(self._plans, key, b.plan(y))
        return found

    def build(self, b: Builder, x: Value) -> Value:
        """Add the layer to a plan."""
        raise NotImplementedError

    @checked
    def explain(self, x_shape: Sequence[int]) -> Explanation:
        """Return how the layer is executed for an input of this shape in the layout that its kernels
        prefer. Nothing runs."""
        problem, layout = self._problem_of(tuple(x_shape))
        dtype = self._scheme.inputs[0]
        plan = self.plan(self._spec_of(x_shape, dtype, layout))
        method, method_reason = plan.reasons.get("method", ""), plan.reasons.get("method_reason", "")
        choice = self.choice()
        return Explanation(
            problem.name, self.scheme, choice.path, choice.reason, plan.variants, problem.macs,
            sum(size for _, size in plan.scratch.values()), method, method_reason, plan.constant_bytes,
            tuple(self._scheme.overflowing), without(self.device.capabilities),
        )  # fmt: skip

    @property
    def device_bytes(self) -> int:
        """The bytes that the layer uses on the device now, for all input shapes so far: scales, tables, and
        the weight in each order that its kernels read. Kernels for few rows and for many rows may read
        different orders."""
        found = dict.fromkeys(one for plan in self._plans.copy().values() for one in plan.constants.values())
        return sum(one.bytes for one in found if one.uploaded)

    def choice(self) -> Choice:
        """Return the path of this layer on its device, with the reason."""
        return self._choice

    @checked
    def input_layout(self, x_shape: Sequence[int]) -> str:
        """Return the packed layout in which the kernels read int8 inputs of this shape without a copy.
        Inputs in other layouts are repacked."""
        return self._problem_of(tuple(x_shape))[1]

    @staticmethod
    def _spec_of(x_shape: Sequence[int], dtype: str, layout: str) -> Spec:
        """Return the spec of an input in the kernels' layout."""
        return Spec(x_shape, dtype, layout if dtype in BYTES else None)

    def _problem_of(self, x_shape: tuple[int, ...]) -> tuple[P, str]:
        """Return (problem for an input's shape, layout in which the layer's kernels read and write int8)."""
        key = x_shape, preference()
        found = self._problems.get(key)
        if found is None:
            problem = self._problem(x_shape)
            with tuner.tuned(self.device.capabilities, problem.name, self.scheme):
                found = keep(self._problems, key, (problem, self._layout_for(problem)))
        return found

    @property
    def problems(self) -> list[str]:
        """Return the layer's problems for all input shapes so far, in the form that `vkq tune` accepts."""
        names = (f"{problem.name}/scheme={self.scheme}" for problem, _ in self._problems.copy().values())
        return list(dict.fromkeys(names))

    def _problem(self, x_shape: Sequence[int]) -> P:
        raise NotImplementedError

    def _layout_for(self, problem: P) -> str:
        raise NotImplementedError

    def _from_numpy(self, x: npt.NDArray[Any]) -> Tensor:
        _, layout = self._problem_of(x.shape)  # raises an error for an invalid shape, before any copy
        allowed = self._scheme.inputs
        if x.dtype.name not in allowed:
            remedy = "; give x.astype(np.float32)" if x.dtype.kind == "f" else ""
            if x.dtype.name in BYTES and not {*allowed} & {*BYTES}:
                remedy = "; for quantized x, make the layer with x_qparams and an int8 weight"
            raise DTypeError(f"{self._op}: x has dtype {x.dtype}; it must be {' or '.join(allowed)}{remedy}")
        return Tensor.from_numpy(x, self.device, layout if x.dtype.name in BYTES else None)
