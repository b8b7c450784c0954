"""Tests of multipliers, bounds and requantization against ONNX Runtime's operators, and of the accumulator's
bound."""

from __future__ import annotations

import numpy as np
import pytest

from vkq.errors import AccumulatorOverflowError, ArgumentError
from vkq.numerics.qparams import QDType, QParams
from vkq.numerics.requantize import (
    Activation,
    activation_bounds,
    activation_range,
    check_accumulator,
    multipliers,
    overflowing,
    requantize,
    wrapped,
)

from ..referees import ort


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("seed", range(20))
def test_onnx_runtime_makes_the_same_bytes_of_any_accumulator(seed: int, dtype: QDType) -> None:
    """`requantize` gives the bytes of ONNX Runtime's requantization for accumulators of all sizes. The test
    runs a 1x1 QLinearConv whose x equals the zero point, so the accumulator is the bias. The scales of the
    weights are chosen so that many results are near ties."""
    rng = np.random.default_rng([20, seed])
    size = (10 ** rng.uniform(0, 9.3, 1000)).astype(np.int64)
    acc = np.concatenate([size, -size, [0, 2**31 - 1, -(2**31) + 1]]).astype(np.int32)
    x, y = (QParams(float(10 ** rng.uniform(-4, 1)), int(rng.integers(100)), dtype) for _ in range(2))
    wanted = rng.integers(0, 300, acc.size) + rng.choice([0.5, 0.5, 0.1], acc.size)
    w_scale = (wanted / np.maximum(np.abs(acc), 1.0) * y.scale / x.scale).astype(np.float32)
    inputs = [
        np.full((1, 1, 1, 1), x.zero_point, dtype), np.float32(x.scale), np.array(x.zero_point, dtype),
        np.ones((acc.size, 1, 1, 1), dtype), w_scale, np.zeros(acc.size, dtype),
        np.float32(y.scale), np.array(y.zero_point, dtype), acc,
    ]  # fmt: skip
    want = ort.run("QLinearConv", inputs, dtype).reshape(-1)
    got = requantize(acc, multipliers(x.scale, w_scale, y.scale), y)
    np.testing.assert_array_equal(got, want, strict=True)
    assert len(np.unique(got)) > 150


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("activation", ["relu", "relu6", (-0.37, 1.21), (-1e9, 0.5), (2.0, 2.0)])
def test_bounds_are_those_of_onnx_runtimes_operators(activation: Activation, dtype: QDType) -> None:
    """Clamping a quantized value to the activation's bounds equals ONNX Runtime's DequantizeLinear, Clip
    and QuantizeLinear."""
    rng = np.random.default_rng(21)
    for _ in range(40):
        q = QParams(float(10 ** rng.uniform(-3, 0)), int(rng.integers(0, 128)), dtype)
        values = np.arange(q.qmin, q.qmax + 1).astype(dtype)
        parameters = [np.float32(q.scale), np.array(q.zero_point, dtype)]
        real = ort.run("DequantizeLinear", [values, *parameters], "float32")
        low, high = (np.float32(np.clip(v, -3e38, 3e38)) for v in activation_range(activation))
        clipped = ort.run("Clip", [real, low, high], "float32")
        want = ort.run("QuantizeLinear", [clipped, *parameters], dtype)
        np.testing.assert_array_equal(np.clip(values, *activation_bounds(activation, q)), want)


@pytest.mark.parametrize("multiplier", [2.0**-1, 2.0**-12, 1e-3, 0.3, 1.7e-7, 1e-40, 3e38])
def test_requantize_rounds_each_step_once(multiplier):
    """Requantization rounds to float32 once in each step. The test computes each step in float64, which
    holds every int32 and every product of two float32 exactly, and then rounds once."""
    rng = np.random.default_rng(8)
    m = np.float32(multiplier)
    near = np.rint((np.arange(-300, 300) + 0.5) / max(m, 1e-8)).clip(-(2**31), 2**31 - 1).astype(np.int64)
    acc = np.concatenate([near, near + 1, rng.integers(-(2**31), 2**31, 5000), [0, 2**31 - 1, -(2**31)]])
    rounded = acc.astype(np.float64).astype(np.float32).astype(np.float64)
    with np.errstate(over="ignore"):
        product = (rounded * np.float64(m)).astype(np.float32)
    expected = np.clip(np.rint(product.astype(np.float64)) - 7, -128, 127)
    np.testing.assert_array_equal(requantize(acc, m, QParams(1.0, -7)), expected)


def test_multipliers_follow_onnx_runtimes_order():
    rng = np.random.default_rng(9)
    x_scale, y_scale = np.float32(0.0123), np.float32(0.456)
    w_scale = rng.uniform(1e-5, 1, 1000).astype(np.float32)
    got = multipliers(float(x_scale), w_scale, float(y_scale))
    np.testing.assert_array_equal(got, (x_scale * w_scale) / y_scale, strict=True)
    assert np.any(got != x_scale * (w_scale / y_scale))  # multiplying in another order would give other bits
    np.testing.assert_array_equal(multipliers(float(x_scale), w_scale), x_scale * w_scale, strict=True)


def test_multipliers_refuse_what_is_not_finite_or_may_be_flushed():
    with pytest.raises(ArgumentError, match=r"output channel 1: x_scale \* w_scale / y_scale is inf"):
        multipliers(1e30, [1.0, 1e30], 1.0)
    with pytest.raises(
        ArgumentError, match=r"output channel 0: x_scale \* w_scale is 9.99.*e-41 as a float32"
    ):
        multipliers(1e-20, [1e-20, 1.0])
    # allowed for an int8 result: every accumulator gives the zero point
    assert multipliers(1e-20, 1e-30, 1.0)[0] == 0


def test_activation_bounds():
    y = QParams(0.05, -100)
    assert activation_bounds(None, y) == (-128, 127)
    assert activation_bounds("relu", y) == (-100, 127)
    assert activation_bounds("relu6", y) == (-100, 20)
    assert activation_bounds((-1.0, 0.5), y) == (-120, -90)
    assert activation_bounds((-np.inf, 0.5), y) == (-128, -90)
    for wrong in ("gelu", (1.0, 0.0), (np.nan, 1.0), (0.0,)):
        with pytest.raises(ArgumentError, match="activation is "):
            activation_bounds(wrong, y)


@pytest.mark.parametrize(("zero_point", "reach"), [(0, 128), (-128, 255), (127, 255), (5, 133)])
def test_accumulator_bound_is_exact(zero_point, reach):
    """The bound of the accumulator is exact: weights and bias whose sum can reach 2**31 - 1 in magnitude are
    accepted, and those that can reach 2**31 are refused."""
    weight = np.full((3, 4), 1, np.int8)
    weight[1] = [-128, 127, 3, 0]
    x = QParams(1.0, zero_point)
    bias = np.zeros(3, np.int32)
    bias[1] = -(2**31 - 1 - reach * 258)
    check_accumulator(weight, x, bias)
    bias[1] -= 1
    with pytest.raises(AccumulatorOverflowError, match=f"output channel 1: .* may reach {2**31} \\({reach} "):
        check_accumulator(weight, x, bias)


def test_accumulator_bound_takes_the_extreme_bias():
    with pytest.raises(AccumulatorOverflowError, match=f"may reach {2**31}"):
        check_accumulator(np.zeros((1, 1), np.int8), QParams(1.0), np.array([-(2**31)], np.int32))


def test_accumulator_bound_of_the_weights_alone():
    k = 2**31 // (255 * 127)
    check_accumulator(np.full((1, k), 127, np.int8), QParams(1.0, -128))
    with pytest.raises(AccumulatorOverflowError, match=f"its length is {k + 1}"):
        check_accumulator(np.full((1, k + 1), 127, np.int8), QParams(1.0, -128))


def test_accumulator_bound_counts_the_weight_zero_point():
    weight = np.full((2, 40000), 255, np.uint8)
    check_accumulator(weight, QParams(1.0, 0, "uint8"), None, np.array([255, 255], np.int32))
    with pytest.raises(AccumulatorOverflowError, match="output channel 1"):
        check_accumulator(weight, QParams(1.0, 0, "uint8"), None, np.array([255, 0], np.int32))


def test_accumulator_bound_of_nothing():
    check_accumulator(np.zeros((0, 4), np.int8), QParams(1.0))
    check_accumulator(np.zeros((4, 0), np.int8), QParams(1.0), np.ones(4, np.int32))


def test_channels_that_overflow() -> None:
    weight, bias = np.array([[1], [2], [-128]], np.int8), np.array([2**31 - 200, 2**31 - 200, -(2**31)])
    assert overflowing(weight, QParams(1.0, 0), bias.astype(np.int32)) == [1, 2]
    assert overflowing(weight, QParams(1.0, 0)) == []
    assert wrapped(np.array([2**31, -(2**31) - 1, 5])).tolist() == [-(2**31), 2**31 - 1, 5]
