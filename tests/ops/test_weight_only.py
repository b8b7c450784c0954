"""q8csw: float activations, int8 weights. Compared with float64 by a bound that follows from K.

Each product of a float32 and an int8 is rounded once and so is each of the K additions and the last two
steps, so
    |error| <= (K + 4) * eps * (sum |x w| * scale + |bias|)
with eps = 2**-24 for rounding to nearest (2**-23 where a device rounds toward zero).
"""

import numpy as np
import pytest

import vkq
from vkq import reference
from vkq.problem.linear import LinearProblem

from ..cases import CASES, Case, random_conv2d, random_linear

EPSILON = 2.0**-23
SMALL = [case for case in CASES if case.problem.macs <= 3_000_000]


def check(problem: object, device: vkq.Device, seed: int, activation: object = None) -> None:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=problem.x_shape).astype(np.float32)  # type: ignore[attr-defined]
    w = rng.integers(-128, 128, problem.weight_shape).astype(np.int8)  # type: ignore[attr-defined]
    scale = np.exp(rng.uniform(-7, 0, w.shape[0])).astype(np.float32)
    bias = rng.normal(size=w.shape[0]).astype(np.float32)
    linear = isinstance(problem, LinearProblem)
    options = {} if linear else {n: getattr(problem, n) for n in ("stride", "padding", "dilation", "groups")}
    op, oracle = (vkq.linear, reference.linear_q8csw) if linear else (vkq.conv2d, reference.conv2d_q8csw)
    got = op(x, w, scale, bias=bias, activation=activation, device=device, **options)  # type: ignore[operator]
    want = oracle(x, w, scale, bias, activation, **options)  # type: ignore[operator]
    magnitude = oracle(np.abs(x), np.abs(np.maximum(w, -127)), scale, np.abs(bias), **options)  # type: ignore[operator]
    assert got.dtype == np.float32
    assert got.shape == want.shape
    allowed = (problem.gemm_k + 4) * EPSILON * magnitude * 1.01  # type: ignore[attr-defined]
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.name)
def test_cases(case: Case, device: vkq.Device) -> None:
    check(case.problem, device, 1)


def test_random_shapes_and_activations(device: vkq.Device) -> None:
    rng = np.random.default_rng(2)
    for i, activation in enumerate([None, "relu", (-1.0, 0.5)] * 4):
        check(random_linear(rng) if i % 2 else random_conv2d(rng), device, i, activation)


def test_nan_and_infinity_pass_through_where_they_belong(device: vkq.Device) -> None:
    """Only the rows that hold them: padding along K is never read."""
    x = np.ones((6, 5), np.float32)
    x[2, 4], x[3, 0] = np.nan, np.inf
    got = vkq.linear(x, np.ones((3, 5), np.int8), 1.0, device=device)
    assert np.isnan(got[2]).all()
    assert np.isposinf(got[3]).all()
    assert (got[[0, 1, 4, 5]] == 5).all()


def test_what_does_not_go_with_float_activations(any_device: vkq.Device) -> None:
    w = np.ones((3, 5), np.int8)
    with pytest.raises(vkq.ArgumentError, match="an int8 result needs int8 activations"):
        vkq.Linear(w, 1.0, y_qparams=vkq.QParams(1.0), device=any_device)
    with pytest.raises(vkq.ArgumentError, match="w_zero_point must be 0"):
        vkq.Linear(w, 1.0, w_zero_point=3, device=any_device)
    with pytest.raises(
        vkq.DTypeError, match="bias has dtype int32; with float activations it must be float32"
    ):
        vkq.Linear(w, 1.0, bias=np.zeros(3, np.int32), device=any_device)
    with pytest.raises(vkq.ArgumentError, match="path dot needs int8 activations"):
        vkq.Linear(w, 1.0, path="dot", device=any_device)
