"""Operands of a case, always the same for the same sizes, the layer built from them, and the answer it must
give."""

from __future__ import annotations

import inspect
import math
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq import reference
from vkq.bench.cases import Case
from vkq.errors import ArgumentError
from vkq.numerics.qparams import QParams
from vkq.ops.conv2d import Conv2d
from vkq.ops.linear import Linear
from vkq.problem.conv2d import Conv2dProblem
from vkq.runtime.device import Device

Array = npt.NDArray[Any]
UNIT_ROUNDOFF = 2.0**-24  # of float32


@dataclass(frozen=True)
class Weights:
    """What a layer keeps: the weight, its scales, an int32 or float32 bias, and the parameters of x and y
    (None: float32)."""

    w: npt.NDArray[np.int8]
    scale: npt.NDArray[np.float32]
    bias: Array
    x: QParams | None
    y: QParams | None


def weights(case: Case) -> Weights:
    """The weights of a case; cases that differ only in M, N (of a conv2d), H or W have the same."""
    p = case.problem
    rng = _rng("w", p.weight_shape, case.scheme, case.scale)
    w = rng.integers(-127, 128, p.weight_shape, dtype=np.int8)
    scale = rng.uniform(0.002, 0.008, p.gemm_n if case.scale == "channel" else 1).astype(np.float32)
    if case.scheme == "q8csw":
        return Weights(w, scale, rng.normal(0, 1, p.gemm_n).astype(np.float32), None, None)
    x = QParams(0.05, -3)
    typical = 73 * 73 * math.sqrt(p.gemm_k)  # the spread of the accumulators
    y = QParams(typical * 0.05 * 0.005 / 50, 5) if case.scheme == "q8ta_q8csw_q8to" else None
    return Weights(w, scale, rng.integers(-int(typical), int(typical) + 1, p.gemm_n).astype(np.int32), x, y)


def activations(case: Case) -> Array:
    """The input of a case: all of int8, or normally distributed float32. Fewer rows (images) are the first of
    more."""
    rng = _rng("x", case.problem.x_shape[1:], case.scheme)
    if case.scheme == "q8csw":
        return rng.standard_normal(case.problem.x_shape, np.float32)
    return rng.integers(-128, 128, case.problem.x_shape, dtype=np.int8)


def layer(case: Case, data: Weights, path: str, device: Device) -> Any:
    """The vkq layer of a case on one path. Raises ArgumentError where the case asks for a method and layers
    have none."""
    kind, options = (
        (Conv2d, _window(case.problem)) if isinstance(case.problem, Conv2dProblem) else (Linear, {})
    )
    if case.method is not None:
        if not has_methods(case):
            raise ArgumentError(
                f"{case.name}: method {case.method!r} is asked for, and {kind.__name__} has no methods"
            )
        options["method"] = case.method
    return kind(
        data.w, data.scale, x_qparams=data.x, y_qparams=data.y, bias=data.bias, path=path, device=device,
        **options
    )  # fmt: skip


def has_methods(case: Case) -> bool:
    """Whether the layer of a case can be asked for one of its ways by name."""
    kind = Conv2d if isinstance(case.problem, Conv2dProblem) else Linear
    return "method" in inspect.signature(kind).parameters


def _window(p: Conv2dProblem) -> dict[str, Any]:
    return {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}


@dataclass(frozen=True)
class Expected:
    """The reference's answer; ``bound`` is how far a float32 accumulation may be from it, None where every
    bit must agree."""

    y: Array
    bound: Array | None

    def mismatch(self, got: Array) -> str | None:
        """What is wrong with a result, with numbers; None where it is right."""
        if got.shape != self.y.shape:
            return f"the result has shape {got.shape}, must be {self.y.shape}"
        if self.bound is None:
            wrong = got.view(np.int32) != self.y.view(np.int32) if got.dtype == np.float32 else got != self.y
        else:
            wrong = ~(np.abs(got - self.y) <= self.bound)  # a NaN is wrong
        if not wrong.any():
            return None
        first = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
        return (
            f"{int(wrong.sum())} of {wrong.size} differ; first at {first}: got {got[first]}, must be"
            f" {self.y[first]}"
        )

    def first(self, rows: int) -> Expected:
        """The answer for the first rows of the input alone."""
        return Expected(self.y[:rows], None if self.bound is None else self.bound[:rows])

    @property
    def how(self) -> str:
        """How a result was compared, in words."""
        return "bit for bit" if self.bound is None else "within the bound of a float32 sum"


def expected(case: Case, data: Weights, x: Array) -> Expected:
    """The answer of `vkq.reference`, an image at a time so that its float64 copies stay small.

    Weight-only results are compared within (K + 4) units of roundoff of sum |x| |w| scale + |bias|: what any
    order of float32 additions stays within.
    """
    if data.x is not None:
        return Expected(_by_image(case, x, lambda part: _exact(case, data, part)), None)
    y = _by_image(case, x, lambda part: _weight_only(case, data.w, data.scale, data.bias, part))
    size = _by_image(
        case, np.abs(x), lambda part: _weight_only(case, np.abs(data.w), data.scale, np.abs(data.bias), part)
    )
    return Expected(y, (case.problem.gemm_k + 4) * UNIT_ROUNDOFF * size)


def _by_image(case: Case, x: Array, answer: Any) -> Array:
    if isinstance(case.problem, Conv2dProblem) and case.problem.n > 1:
        return np.concatenate([answer(x[i : i + 1]) for i in range(case.problem.n)])
    return np.asarray(answer(x))


def _exact(case: Case, data: Weights, x: Array) -> Array:
    assert data.x is not None
    if isinstance(case.problem, Conv2dProblem):
        window = _window(case.problem)
        return reference.conv2d(x, data.w, x=data.x, w_scale=data.scale, bias=data.bias, y=data.y, **window)
    return reference.linear(x, data.w, x=data.x, w_scale=data.scale, bias=data.bias, y=data.y)


def _weight_only(case: Case, w: Array, scale: Array, bias: Array, x: Array) -> Array:
    if isinstance(case.problem, Conv2dProblem):
        return reference.conv2d_q8csw(x, w, scale, bias, **_window(case.problem))
    return reference.linear_q8csw(x, w, scale, bias)


def _rng(*key: object) -> np.random.Generator:
    return np.random.default_rng(zlib.crc32(repr(key).encode()))
