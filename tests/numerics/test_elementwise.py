"""Tests of element-wise arithmetic, and of the multiplier of a mean, against ONNX Runtime, byte for byte."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest

from vkq.errors import ArgumentError
from vkq.numerics.elementwise import (
    BinaryOp,
    binary,
    binary_table,
    float_sum,
    fused_multiply_add,
    global_multiplier,
    swaps,
)
from vkq.numerics.qparams import QDType, QParams
from vkq.numerics.quantize import dequantize, quantize
from vkq.numerics.requantize import requantize

from ..referees import ort_ops

DTYPES: list[QDType] = ["int8", "uint8"]


def _point(rng: np.random.Generator, dtype: QDType) -> int:
    info = np.iinfo(dtype)
    return int(rng.choice([info.min, info.max, 0, int(rng.integers(info.min, info.max + 1))]))


def _binary_qparams(rng: np.random.Generator, dtype: QDType, op: str) -> list[QParams]:
    """Return parameters with scales whose ratios are simple fractions, so that many results are near a
    tie."""
    y = float(10 ** rng.uniform(-2, 0))
    a, b = (y * int(rng.integers(1, 64)) / int(rng.choice([10, 14, 30, 100, 64])) for _ in range(2))
    return [QParams(s, _point(rng, dtype), dtype) for s in ((a, b, y) if op == "add" else (a, b / y / 20, y))]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["add", "mul"])
def test_binary_equals_onnxruntime_for_every_pair_of_bytes(op: BinaryOp, dtype: QDType) -> None:
    rng = np.random.default_rng(1)
    values = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    grid = [np.ascontiguousarray(v) for v in np.meshgrid(values, values)]
    forms = {
        "arrays": grid,
        "b scalar": [values[None], values[:, None]],
        "a scalar": [values[:, None], values[None]],
    }
    ties = 0
    for _ in range(25):
        a, b, y = _binary_qparams(rng, dtype, op)
        for form, (xa, xb) in forms.items():
            inputs = [xa, *ort_ops.parameters(a), xb, *ort_ops.parameters(b), *ort_ops.parameters(y)]
            want = ort_ops.run(f"QLinear{op.capitalize()}", inputs, dtype)
            np.testing.assert_array_equal(binary(op, xa, xb, a, b, y), want, err_msg=f"{form} {a} {b} {y}")
        swapped = binary(op, grid[1], grid[0], b, a, y)
        ties += int((swapped != binary(op, *grid, a, b, y)).sum())
    assert (ties > 0) == (op == "add")  # for some results of add, swapped operands give another byte


@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((), ()),
        ((1,), (1,)),
        ((), (4, 1)),
        ((4, 1), ()),
        ((5, 1), (1,)),
        ((2, 5, 3, 1), (5, 1, 1)),
        ((5, 1, 1), (2, 5, 3, 4)),
        ((3, 1, 4), (3, 6, 4)),
        ((6, 1), (1, 7)),
        ((1, 1), (7,)),
        ((2, 3, 1, 1), (2, 1, 1, 1)),
        ((2, 3, 1, 5), (2, 3, 4, 5)),
    ],
)
def test_add_swaps_where_onnxruntime_does(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    for _ in range(60):
        qa, qb, qy = (QParams(v.scale, 0, "int8") for v in _binary_qparams(rng, "int8", "add"))
        xa, xb = (rng.integers(-128, 128, shape).astype(np.int8) for shape in (a, b))
        inputs = [xa, *ort_ops.parameters(qa), xb, *ort_ops.parameters(qb), *ort_ops.parameters(qy)]
        np.testing.assert_array_equal(
            binary("add", xa, xb, qa, qb, qy), ort_ops.run("QLinearAdd", inputs, "int8")
        )


def test_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(3)
    a, b = (rng.normal(size=4000).astype(np.float32) for _ in range(2))
    c = (-a.astype(np.float64) * b * (1 + rng.choice([0, 2.0**-24, 2.0**-40, 0.3, 2.0**30], 4000))).astype(
        np.float32
    )
    got = fused_multiply_add(a, b, c)
    for x, y, z, r in zip(a.tolist(), b.tolist(), c.tolist(), got, strict=True):
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        gap = abs(Fraction(float(r)) - exact)
        for side in (-np.inf, np.inf):
            assert gap <= abs(Fraction(float(np.nextafter(r, np.float32(side)))) - exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["add", "mul"])
def test_table_holds_onnxruntimes_result_of_every_pair(op: BinaryOp, dtype: QDType) -> None:
    """The table holds ONNX Runtime's result for every pair of bytes. Both operands have the same shape,
    because ONNX Runtime may swap operands of different shapes."""
    rng = np.random.default_rng(8)
    values = np.arange(np.iinfo(dtype).min, np.iinfo(dtype).max + 1).astype(dtype)
    columns, rows = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    assert not swaps(columns.shape, rows.shape)
    for _ in range(10):
        a, b, y = _binary_qparams(rng, dtype, op)
        inputs = [columns, *ort_ops.parameters(a), rows, *ort_ops.parameters(b), *ort_ops.parameters(y)]
        want = ort_ops.run(f"QLinear{op.capitalize()}", inputs, dtype)
        np.testing.assert_array_equal(binary_table(op, a, b, y), want)


def test_subtraction_is_the_addition_of_the_mirrored_numbers() -> None:
    """a - b equals ONNX Runtime's QLinearAdd of a and -b with the negated zero point of b. (ONNX Runtime has
    no QLinearSub.)"""
    rng = np.random.default_rng(9)
    values = np.arange(-127, 128).astype(np.int8)  # without -128, whose negative is not an int8
    columns, rows = (np.ascontiguousarray(v) for v in np.meshgrid(values, values))
    for _ in range(20):
        a, b, y = _binary_qparams(rng, "int8", "add")
        b = QParams(b.scale, max(b.zero_point, -127))
        mirrored = QParams(b.scale, -b.zero_point)
        inputs = [
            columns,
            *ort_ops.parameters(a),
            -rows,
            *ort_ops.parameters(mirrored),
            *ort_ops.parameters(y),
        ]
        want = ort_ops.run("QLinearAdd", inputs, "int8")
        np.testing.assert_array_equal(binary("sub", columns, rows, a, b, y), want)


@pytest.mark.parametrize("dtype", DTYPES)
def test_multiplier_of_a_mean_is_onnxruntimes(dtype: QDType) -> None:
    rng = np.random.default_rng(10)
    for _ in range(40):
        shape = (1, 64, *(int(v) for v in rng.integers(1, 20, 2)))
        pixels = shape[2] * shape[3]
        x = rng.integers(0, 256, shape).astype(np.uint8).view(dtype)
        xq = QParams(float(10 ** rng.uniform(-3, 0)), _point(rng, dtype), dtype)
        yq = QParams(xq.scale / float(rng.choice([1, 2, 3.7])), _point(rng, dtype), dtype)
        inputs = [x, *ort_ops.parameters(xq), *ort_ops.parameters(yq)]
        want = ort_ops.run("QLinearGlobalAveragePool", inputs, dtype, channels_last=0)
        acc = (x.astype(np.int64) - xq.zero_point).sum(axis=(2, 3), keepdims=True)
        np.testing.assert_array_equal(requantize(acc, global_multiplier(pixels, xq, yq), yq), want)
    # the multiplier is subnormal, and a device may flush it
    assert global_multiplier(4, QParams(1e-38 * 1.2), QParams(1e5)) == 0.0
    with pytest.raises(ArgumentError, match="is inf as a float32; check"):
        global_multiplier(1, QParams(3e38), QParams(1e-3))


@pytest.mark.parametrize("dtype", DTYPES)
def test_float_sums(dtype: QDType) -> None:
    """The reference dequantizes both operands, adds them in float32, clips the sums and quantizes them. For
    nearly all parameters, `float_sum` finds scales, equal to the given scales or slightly different, with
    which `binary` gives the reference's bytes."""
    rng, low = np.random.default_rng(5), np.iinfo(dtype).min
    every, found = np.arange(low, low + 256).astype(dtype), []
    for _ in range(100):
        a, b, y = (QParams(s, low + int(rng.integers(64, 192)), dtype) for s in np.exp(rng.uniform(-1, 1, 3)))
        near = float_sum(a, b, y, (-0.5, 90.0))
        found.append("none" if near is None else "same" if near == (a, b) else "near")
        if near is not None:
            total = dequantize(every, a) + dequantize(every, b)[:, np.newaxis]
            want = quantize(np.clip(total, np.float32(-0.5), np.float32(90)), y)
            np.testing.assert_array_equal(binary_table("add", *near, y, (-0.5, 90.0)), want, strict=True)
    assert found.count("none") <= 2
    assert found.count("near") >= 5
    # ties would be rounded differently
    assert float_sum(QParams(0.25), QParams(0.25), QParams(0.5, 1), (0.0, np.inf)) is None
