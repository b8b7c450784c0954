"""Tests of lookup tables on the device: every entry, every layout, both types."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq import QParams, Tensor, reference
from vkq.layout.pack import activation_layouts
from vkq.numerics.qparams import QDType
from vkq.numerics.quantize import dequantize, quantize
from vkq.numerics.tables import UNARY, table_of
from vkq.runtime.device import CONSTANTS_KEPT

DTYPES: list[QDType] = ["int8", "uint8"]


@pytest.mark.parametrize("x_dtype", DTYPES)
@pytest.mark.parametrize("y_dtype", DTYPES)
def test_every_entry(device: vkq.Device, x_dtype: QDType, y_dtype: QDType) -> None:
    rng = np.random.default_rng(20)
    table = rng.permutation(256).astype(np.uint8).view(y_dtype)
    x = rng.permutation(np.arange(256)).astype(np.uint8).view(x_dtype).reshape(16, 16)
    got = vkq.lookup(x, table, device=device)
    assert got.dtype == y_dtype
    np.testing.assert_array_equal(got, reference.lookup(x, table))


@pytest.mark.parametrize("shape", [(1,), (), (3, 7), (1, 5, 3, 2), (2, 33, 31, 29), (0, 4)])
def test_every_size_and_layout(device: vkq.Device, shape: tuple[int, ...]) -> None:
    """Lookups equal the reference's for one word, an odd number of words, several workgroups, and no
    elements."""
    rng = np.random.default_rng(21)
    x, table = rng.integers(-128, 128, shape).astype(np.int8), rng.integers(-128, 128, 256).astype(np.int8)
    want = reference.lookup(x, table)
    np.testing.assert_array_equal(vkq.lookup(x, table, device=device), want)
    for one in activation_layouts():
        if len(shape) == 4:
            y = vkq.lookup(Tensor.from_numpy(x, device, one.name), table)
            assert y.layout == one.name
            np.testing.assert_array_equal(y.numpy(), want)


@pytest.mark.parametrize("name", sorted(UNARY))
def test_unary(device: vkq.Device, name: str) -> None:
    x = np.arange(-128, 128).astype(np.int8)
    xq, yq = QParams(0.05, -7), QParams(0.02, 3)
    got = vkq.unary(name, Tensor.from_numpy(x, device, qparams=xq), yq)
    assert got.qparams == yq
    np.testing.assert_array_equal(got.numpy(), table_of(name, xq, yq))


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_is_a_clamp(device: vkq.Device, dtype: QDType) -> None:
    x, q = np.arange(256).astype(np.uint8).view(dtype), QParams(0.1, 17, dtype)
    np.testing.assert_array_equal(vkq.unary("relu", x, x_qparams=q, device=device), np.maximum(x, 17))


def test_a_callable_sees_the_real_numbers(device: vkq.Device) -> None:
    seen: list[np.ndarray] = []

    def cube(x: np.ndarray) -> np.ndarray:
        seen.append(x)
        return x**3

    x, q = np.array([-4, 0, 2, 6], np.int8), QParams(0.5, 2)
    got = vkq.unary(cube, x, QParams(1.0), x_qparams=q, device=device)
    np.testing.assert_array_equal(got, [-27, -1, 0, 8])
    assert seen[0].dtype == np.float64
    assert seen[0][[0, 255]].tolist() == [-65.0, 62.5]


def test_functions_with_parameters(device: vkq.Device) -> None:
    x, q = np.array([-100, -3, 0, 50], np.int8), QParams(0.1)
    np.testing.assert_array_equal(
        vkq.unary(vkq.leaky_relu(0.5), x, x_qparams=q, device=device), [-50, -2, 0, 50]
    )
    np.testing.assert_array_equal(
        vkq.unary(vkq.clamp(-1.0, 2.0), x, x_qparams=q, device=device), [-10, -3, 0, 20]
    )
    with pytest.raises(vkq.ArgumentError, match=r"the bounds are 2\.0 and 1\.0"):
        vkq.clamp(2.0, 1.0)


def test_more_tables_than_a_device_keeps(device: vkq.Device) -> None:
    """More lookups than the device caches tables give right results. The results are read after all
    calls, so a table must outlive its removal from the cache."""
    x = np.arange(-128, 128).astype(np.int8)
    tensor = Tensor.from_numpy(x, device)
    tables = [np.roll(x, i) for i in range(CONSTANTS_KEPT + 10)]
    for table, y in [(table, vkq.lookup(tensor, table)) for table in tables]:
        np.testing.assert_array_equal(y.numpy(), table)


def test_requantize(device: vkq.Device) -> None:
    x, xq = np.arange(-128, 128).astype(np.int8), QParams(0.3, 5)
    for yq in (QParams(0.7, -3), QParams(0.1, 200, "uint8"), xq):
        want = quantize(dequantize(x, xq), yq)
        np.testing.assert_array_equal(vkq.requantize(x, yq, x_qparams=xq, device=device), want)


def test_refusals(device: vkq.Device) -> None:
    x = np.zeros(3, np.int8)
    with pytest.raises(vkq.ArgumentError, match="256 int8 or uint8"):
        vkq.lookup(x, np.zeros(255, np.int8), device=device)
    with pytest.raises(vkq.ArgumentError, match="256 int8 or uint8"):
        vkq.lookup(x, np.zeros(256, np.int32), device=device)
    with pytest.raises(vkq.DTypeError, match="x has dtype int32"):
        vkq.lookup(x.astype(np.int32), np.zeros(256, np.int8), device=device)
    with pytest.raises(vkq.DTypeError, match="make them the same"):
        vkq.lookup(x, np.zeros(256, np.int8), y_qparams=QParams(1.0, 0, "uint8"), device=device)
    with pytest.raises(vkq.ArgumentError, match="there is no function 'sine'"):
        vkq.table_of("sine", QParams(1.0), QParams(1.0))
    with pytest.raises(vkq.ArgumentError, match="it must give 256"):
        vkq.table_of(np.sum, QParams(1.0), QParams(1.0))
    with pytest.raises(vkq.ArgumentError, match="carries no qparams"):
        vkq.unary("relu", x, device=device)
