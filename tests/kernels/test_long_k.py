"""Tests of sums over a k that is too long for exact float sums: the portable kernels add their float sums
to int32 sums at intervals."""

import numpy as np
import pytest

import vkq
from vkq.kernels.gemm import FLOAT_WORDS

EXACT = 4 * FLOAT_WORDS  # the largest k for which float sums of extreme products are exact


def extreme(rows: int, k: int, sign: int) -> np.ndarray:
    """Return rows whose products with the weights have the largest magnitude."""
    return np.full((rows, k), -128 if sign < 0 else 127, np.int8)


@pytest.mark.parametrize("method", ["tiled", "gemv", "staged"])
@pytest.mark.parametrize("k", [EXACT, EXACT + 1, 3 * EXACT - 3])
@pytest.mark.parametrize("zero_point", [0, 1])  # with 1, the kernel also sums x
def test_products(any_device: vkq.Device, method: str, k: int, zero_point: int) -> None:
    x, weight = extreme(3, k, -1), np.full((5, k), -127, np.int8)
    layer = vkq.Linear(
        weight, np.ones(5, np.float32), x_qparams=vkq.QParams(1.0, 127), device=any_device, path="portable",
        w_zero_point=np.full(5, zero_point, np.int32) if zero_point else None, method=method,
    )  # fmt: skip
    expected = np.full((3, 5), (-128 - 127) * (-127 - zero_point) * k, np.float64)
    np.testing.assert_array_equal(layer(x), expected.astype(np.float32))


@pytest.mark.parametrize("channels", [112, 116])  # k = 1008 and 1044, because kernels are 3x3
def test_direct_convolutions(any_device: vkq.Device, channels: int) -> None:
    weight = np.full((4, channels, 3, 3), -127, np.int8)
    x = np.full((1, channels, 3, 3), -128, np.int8)
    layer = vkq.Conv2d(
        weight, np.ones(4, np.float32), x_qparams=vkq.QParams(1.0, 0), device=any_device, path="portable",
        method="direct",
    )  # fmt: skip
    np.testing.assert_array_equal(layer(x), np.full((1, 4, 1, 1), 128.0 * 127 * 9 * channels, np.float32))


def test_the_constant_is_the_shaders() -> None:
    from vkq.shader.catalog import shaders_folder

    text = (shaders_folder() / "common" / "dot4x8.glslh").read_text()
    assert f"#define WORDS_PER_FLUSH {FLOAT_WORDS}u" in text
