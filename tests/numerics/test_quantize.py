"""Tests of quantize and dequantize: the ONNX node tests, and ONNX Runtime byte for byte."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np
import pytest

from vkq.errors import DTypeError
from vkq.numerics.qparams import QParams
from vkq.numerics.quantize import dequantize, quantize

from ..referees import node_tests, ort

PAIRS = [
    (0.1, 0, "int8"),
    (0.5, -128, "int8"),
    (2.0**-20, 127, "int8"),
    (3e-5, 255, "uint8"),
    (7.3, 0, "uint8"),
]


def test_onnx_quantizelinear():
    test = node_tests.load("test_quantizelinear")
    x, scale, zero_point = test.inputs
    np.testing.assert_array_equal(quantize(x, QParams.of(scale, zero_point)), test.outputs[0], strict=True)


def test_onnx_dequantizelinear():
    test = node_tests.load("test_dequantizelinear")
    x, scale, zero_point = test.inputs
    np.testing.assert_array_equal(dequantize(x, QParams.of(scale, zero_point)), test.outputs[0], strict=True)


@pytest.mark.parametrize(
    ("name", "function"),
    [("test_quantizelinear_axis", quantize), ("test_dequantizelinear_axis", dequantize)],
)
def test_onnx_per_axis(name, function):
    test = node_tests.load(name)
    x, scales, zero_points = test.inputs
    for channel, (scale, zero_point) in enumerate(zip(scales, zero_points, strict=True)):
        got = function(x[:, channel], QParams.of(scale, zero_point))
        np.testing.assert_array_equal(got, test.outputs[0][:, channel], strict=True)


@pytest.mark.parametrize(
    ("name", "function"),
    [
        ("test_quantizelinear_blocked_asymmetric", quantize),
        ("test_dequantizelinear_blocked", dequantize),
    ],
)
def test_onnx_blocked(name, function):
    """In blocked quantization, each block of block_size elements along axis 1 has its own parameters."""
    test = node_tests.load(name)
    x, scales, zero_points = test.inputs
    assert test.attributes["axis"] == 1
    for index in np.ndindex(x.shape):
        block = (index[0], index[1] // test.attributes["block_size"], *index[2:])
        got = function(x[index], QParams.of(scales[block], zero_points[block]))
        np.testing.assert_array_equal(got, test.outputs[0][index])


@pytest.mark.parametrize("form", ["", "_max_adjusted", "_min_adjusted"])
def test_onnx_dynamicquantizelinear(form):
    test = node_tests.load(f"test_dynamicquantizelinear{form}")
    (x,) = test.inputs
    q = QParams.from_range(float(x.min()), float(x.max()), "uint8")
    assert q == QParams.of(test.outputs[1], test.outputs[2])
    np.testing.assert_array_equal(quantize(x, q), test.outputs[0], strict=True)


def floats(scale: float) -> Any:
    """Return ties of the whole range and beyond, their neighbours, random values, infinities and NaN."""
    ties = ((np.arange(-600, 600) + 0.5) * scale).astype(np.float32)
    rng = np.random.default_rng(7)
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 3e38, -3e38, 1e-45, -1e-45], np.float32)
    up, down = (np.nextafter(ties, np.float32(end)) for end in (np.inf, -np.inf))
    random = (rng.standard_normal(50_000) * 100 * scale).astype(np.float32)
    return np.concatenate([ties, up, down, random, special])


@pytest.mark.parametrize(("scale", "zero_point", "dtype"), PAIRS)
def test_quantize_equals_onnx_runtime(scale, zero_point, dtype):
    q = QParams(scale, zero_point, dtype)
    x = floats(q.scale)
    got = quantize(x, q)
    expected = ort.run("QuantizeLinear", [x, np.float32(q.scale), np.array(zero_point, dtype)], dtype)
    # On other processors, ONNX Runtime's result for NaN differs.
    same = slice(None) if platform.machine() in ("x86_64", "AMD64") else ~np.isnan(x)
    np.testing.assert_array_equal(got[same], expected[same], strict=True)
    np.testing.assert_array_equal(got[np.isnan(x)], q.qmin)


@pytest.mark.parametrize(("scale", "zero_point", "dtype"), PAIRS)
def test_dequantize_equals_onnx_runtime(scale, zero_point, dtype):
    q = QParams(scale, zero_point, dtype)
    values = np.arange(q.qmin, q.qmax + 1).astype(dtype)
    expected = ort.run(
        "DequantizeLinear", [values, np.float32(q.scale), np.array(zero_point, dtype)], "float32"
    )
    got = dequantize(values, q)
    np.testing.assert_array_equal(got, expected, strict=True)
    np.testing.assert_array_equal(quantize(got, q), values)


def test_quantize_rounds_half_to_even_and_saturates():
    x = [-1e9, -2.5, -1.5, -0.5, -0.0, 0.5, 1.5, 2.5, 126.5, 127.5, 1e9, np.inf, -np.inf, np.nan]
    expected = [-128, -2, -2, 0, 0, 0, 2, 2, 126, 127, 127, 127, -128, -128]
    np.testing.assert_array_equal(quantize(x, QParams(1.0)), expected)
    uint8 = quantize(x, QParams(1.0, 3, "uint8"))
    np.testing.assert_array_equal(uint8, [0, 1, 1, 3, 3, 3, 5, 5, 129, 131, 255, 255, 0, 0])


def test_quantize_divides_and_does_not_multiply_by_the_reciprocal():
    q = QParams(0.1)
    x = floats(q.scale)
    x = x[np.isfinite(x) & (np.abs(x) < 12)]
    reciprocal = np.rint(x * (np.float32(1) / np.float32(q.scale)))
    assert np.any(quantize(x, q) != reciprocal)
    # The quotient is rounded once, from float64 to float32.
    exact = np.rint((x.astype(np.float64) / q.scale).astype(np.float32))
    np.testing.assert_array_equal(quantize(x, q), exact)


def test_quantize_takes_every_float_type_order_and_byte_order():
    q = QParams(0.25, 1)
    x = np.linspace(-3, 3, 24).astype(np.float16).reshape(4, 6)
    expected = quantize(x.astype(np.float32), q)
    for form in (x, x.astype(np.float64), x.astype(">f4"), np.asfortranarray(x)):
        np.testing.assert_array_equal(quantize(form, q), expected, strict=True)
    np.testing.assert_array_equal(quantize(x[:, ::-2], q), expected[:, ::-2])
    assert quantize(np.float32(1.0), q).shape == ()
    with pytest.raises(DTypeError, match="x has dtype int64; it must be of a float type"):
        quantize([1, 2], q)


def test_dequantize_refuses_the_other_dtype():
    with pytest.raises(DTypeError, match="xq has dtype uint8 but its QParams are for int8"):
        dequantize(np.zeros(3, np.uint8), QParams(1.0))
