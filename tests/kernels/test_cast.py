"""Tests of conversions between float16 and float32."""

from typing import Any

import numpy as np
import pytest

import vkq
from vkq.kernels.cast import converted
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run


def convert(device: vkq.Device, x: Any, dtype: str) -> Any:
    tensor, b = vkq.Tensor.from_numpy(x, device), Builder(device)
    return run(b.plan(converted(b, b.input(tensor.spec), dtype)), (tensor,)).numpy()


def test_every_float16_is_a_float32(device: vkq.Device) -> None:
    """Every float16 converts exactly to float32; a device may flush subnormal values."""
    x = np.arange(65535, dtype=np.uint16).view(np.float16)  # an odd number of elements
    got, want = convert(device, x, "float32"), x.astype(np.float32)
    flushed = (np.abs(want) < 2.0**-14) & (got == 0)
    np.testing.assert_array_equal(got[~flushed], want[~flushed])


@pytest.mark.parametrize("count", [1, 2, 7])
def test_float32_as_float16(device: vkq.Device, count: int) -> None:
    x = np.float32([1 + 2**-11, -65519, 65520, 1e30, -np.inf, np.nan, 0.1])[-count:]
    got = convert(device, x, "float16")
    with np.errstate(over="ignore"):
        want = x.astype(np.float16)
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=2**-10)  # devices may round to nearest or toward zero
    assert vkq.Tensor.from_numpy(got, device).nbytes == -(-count // 2) * 4


@pytest.mark.parametrize("special", [np.nan, -np.inf, 65520.0, 1e30, -3e38])
def test_what_is_beyond_float16_leaves_its_neighbour_alone(device: vkq.Device, special: float) -> None:
    """A value beyond the range of float16 does not change the other element of its 32-bit word, although
    SwiftShader's packHalf2x16 sets bits of that element."""
    x = np.float32([special, -758.0625, 3.0, special, special, 0.1])
    got = convert(device, x, "float16")
    assert (np.isnan(got) == np.isnan(x)).all()
    np.testing.assert_allclose(got[[1, 2, 5]], [-758.0625, 3.0, 0.1], rtol=2**-10)
    assert (~np.isfinite(got[[0, 3, 4]])).all()


def test_layers_take_and_give_float16(device: vkq.Device) -> None:
    """A layer with float16 input and output gives the result for float32 input of equal values, rounded to
    float16."""
    rng = np.random.default_rng(2)
    image, rows = (
        rng.normal(size=(1, 6, 5, 7)).astype(np.float16),
        rng.normal(size=(3, 64)).astype(np.float16),
    )
    kernel = rng.integers(-127, 128, (6, 6, 3, 3), np.int8)
    grouped = vkq.quantize_weight(rng.normal(size=(5, 64)).astype(np.float32), bits=4, group=32)
    layers = [
        (vkq.Conv2d(kernel, 0.01, device=device), image),
        (vkq.Conv2d(kernel[:, :1], 0.01, groups=6, device=device), image),
        (vkq.ConvTranspose2d(kernel, 0.01, stride=2, device=device), image),
        (vkq.Linear(rng.integers(-127, 128, (5, 64), np.int8), 0.01, device=device), rows),
        (vkq.Linear(grouped, device=device), rows),
    ]
    for layer, x in layers:
        got, want = layer(x), layer(x.astype(np.float32))
        assert (got.dtype, want.dtype) == (np.float16, np.float32)
        np.testing.assert_allclose(got, want, rtol=2**-10, atol=2**-14)
    with pytest.raises(vkq.DTypeError, match="x has dtype float64; it must be float32 or float16"):
        layers[0][0](image.astype(np.float64))
