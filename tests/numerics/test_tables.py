"""Tests of tables of functions against ONNX Runtime, and of softmax's exponentials against decimal
arithmetic."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkq.numerics.qparams import QDType, QParams
from vkq.numerics.tables import exponentials, leaky_relu, table_of

from ..referees import ort_ops

DTYPES: list[QDType] = ["int8", "uint8"]


def _point(rng: np.random.Generator, dtype: QDType) -> int:
    info = np.iinfo(dtype)
    return int(rng.choice([info.min, info.max, 0, int(rng.integers(info.min, info.max + 1))]))


def _all(dtype: QDType) -> Any:
    info = np.iinfo(dtype)
    return np.arange(info.min, info.max + 1).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_tables_of_functions_equal_onnxruntime(dtype: QDType) -> None:
    rng = np.random.default_rng(4)
    info, values = np.iinfo(dtype), _all(dtype)
    off_by_one = 0
    for _ in range(60):
        x, y = (QParams(float(10 ** rng.uniform(-3, 0)), _point(rng, dtype), dtype) for _ in range(2))
        inputs = [values, *ort_ops.parameters(x), *ort_ops.parameters(y)]
        alpha = float(np.float32(rng.uniform(0.01, 0.5)))
        want = ort_ops.run("QLinearLeakyRelu", inputs, dtype, alpha=alpha)
        np.testing.assert_array_equal(table_of(leaky_relu(alpha), x, y), want)
        y = QParams(1 / 256, info.min, dtype)
        inputs = [values, *ort_ops.parameters(x), *ort_ops.parameters(y)]
        want = ort_ops.run("QLinearSigmoid", inputs, dtype).astype(int)
        difference = np.abs(table_of("sigmoid", x, y).astype(int) - want)
        assert difference.max() <= 1  # ONNX Runtime approximates exp; the table is correctly rounded
        off_by_one += int(difference.sum())
    assert off_by_one <= 20, off_by_one  # at most 20 of 15,360 results differ by 1


@pytest.mark.parametrize("name", ["relu", "tanh", "hardswish", "identity", "abs", "neg", "exp"])
def test_table_is_the_three_onnx_operators(name: str) -> None:
    x, y = QParams(0.04, -3), QParams(0.03, 5)
    operator = {"identity": "Identity", "hardswish": "HardSwish"}.get(name, name.capitalize())
    real = ort_ops.run("DequantizeLinear", [_all("int8"), *ort_ops.parameters(x)], "float32")
    want = ort_ops.run(
        "QuantizeLinear", [ort_ops.run(operator, [real], "float32"), *ort_ops.parameters(y)], "int8"
    )
    difference = np.abs(table_of(name, x, y).astype(int) - want)
    assert difference.max() <= (1 if name in ("tanh", "exp", "hardswish") else 0)
    assert np.count_nonzero(difference) <= 2


def test_exponentials_are_correctly_rounded() -> None:
    table = exponentials(0.05)
    want = np.rint(np.exp(-np.arange(256) * np.float64(0.05)) * 2**30)
    assert table[0] == 2**30
    assert np.abs(table - want).max() <= 1
    assert exponentials(1e30)[1:].max() == 0
