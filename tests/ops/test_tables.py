"""Tests of lookup tables for each channel, with float32 entries, and of tables indexed by two values,
compared with NumPy's indexing."""

import numpy as np
import pytest

import vkq
from vkq.layout.extent import BLOCKED, IMAGE, MATRIX
from vkq.runtime.tensor import Tensor


@pytest.mark.parametrize("out", ["int8", "uint8", "float32"])
@pytest.mark.parametrize("layout", [IMAGE, MATRIX, BLOCKED])
@pytest.mark.parametrize("axis", [0, 1, 3])
def test_lookup_axis(device: vkq.Device, axis: int, layout: str, out: str) -> None:
    random = np.random.default_rng(0)
    x = random.integers(-128, 128, (3, 18, 5, 7)).astype(np.int8)
    table = random.integers(0, 256, (x.shape[axis], 256)).astype(np.uint8)
    table = table.view(out) if out != "float32" else table.astype(np.float32) / 3
    got = vkq.lookup_axis(Tensor.from_numpy(x, device, layout), table, axis).numpy()
    which = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(4)])
    assert got.dtype == table.dtype
    np.testing.assert_array_equal(got, table[which, x.astype(int) + 128])


def test_lookup_axis_of_rows(device: vkq.Device) -> None:
    x = np.random.default_rng(0).integers(0, 256, (5, 9)).astype(np.uint8)
    table = np.random.default_rng(1).integers(0, 256, (9, 256)).astype(np.uint8)
    np.testing.assert_array_equal(vkq.lookup_axis(x, table, -1, device=device), table[np.arange(9), x])
    np.testing.assert_array_equal(vkq.lookup_axis(x, table[0], device=device), table[0][x])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    "shapes", [((2, 3, 4, 5), (2, 3, 4, 5)), ((2, 6, 4, 5), (1, 6, 1, 1)), ((1, 7), (3, 1))], ids=str
)
def test_lookup_pair(device: vkq.Device, shapes: tuple[tuple[int, ...], ...], dtype: str) -> None:
    random = np.random.default_rng(0)
    low = -128 if dtype == "int8" else 0
    a, b = (random.integers(low, low + 256, shape).astype(dtype) for shape in shapes)
    table = random.integers(low, low + 256, (256, 256)).astype(dtype)
    got = vkq.lookup_pair(a, b, table, device=device)
    np.testing.assert_array_equal(got, table[a.astype(int) - low, b.astype(int) - low])


def test_refused(any_device: vkq.Device) -> None:
    x = np.zeros((2, 3), np.int8)
    with pytest.raises(vkq.ArgumentError, match=r"table is \(4, 256\); it must be \(256,\), or \(C, 256\)"):
        vkq.lookup_axis(x, np.zeros((4, 256), np.int8), device=any_device)
    with pytest.raises(vkq.DTypeError, match="table is int32"):
        vkq.lookup_axis(x, np.zeros(256, np.int32), device=any_device)
    with pytest.raises(vkq.ArgumentError, match="all of one type"):
        vkq.lookup_pair(x, x, np.zeros((256, 256), np.uint8), device=any_device)
