"""Tests of layout changes, reshape and flatten on a device: they keep the row-major order of the elements."""

import itertools

import numpy as np
import pytest

import vkq
from vkq.layout.pack import activation_layouts
from vkq.ops.repack import to_layout

LAYOUTS = [layout.name for layout in activation_layouts()]


@pytest.mark.parametrize(("source", "target"), list(itertools.product(LAYOUTS, LAYOUTS)))
def test_every_pair_of_layouts(source: str, target: str, device: vkq.Device) -> None:
    x = np.random.default_rng(1).integers(-128, 128, (2, 5, 3, 7)).astype(np.int8)
    moved = to_layout(vkq.Tensor.from_numpy(x, device, source), target)
    assert moved.layout == target
    assert np.array_equal(moved.numpy(), x)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8])
def test_flatten_and_reshape(dtype: type, device: vkq.Device) -> None:
    x = np.random.default_rng(2).integers(0, 128, (3, 5, 2, 7)).astype(dtype)
    tensor = vkq.Tensor.from_numpy(x, device)
    assert np.array_equal(vkq.flatten(tensor).numpy(), x.reshape(3, 70))
    assert vkq.flatten(tensor).layout == "kPackedInt8_4H4W"
    assert np.array_equal(vkq.reshape(tensor, (15, -1)).numpy(), x.reshape(15, 14))
    assert np.array_equal(vkq.reshape(vkq.flatten(tensor), (1, 3, 10, 7)).numpy(), x.reshape(1, 3, 10, 7))


def test_reshape_of_float_shares_the_memory(any_device: vkq.Device) -> None:
    tensor = vkq.Tensor.from_numpy(np.arange(6, dtype=np.float32), any_device)
    assert vkq.reshape(tensor, (2, 3)).buffer is tensor.buffer


def test_wrong_shapes_are_refused(any_device: vkq.Device) -> None:
    tensor = vkq.Tensor.from_numpy(np.zeros((2, 3), np.int8), any_device)
    for shape in ((2, 4), (-1, -1), (4, -1)):
        with pytest.raises(vkq.ArgumentError, match="the products must be equal"):
            vkq.reshape(tensor, shape)


def test_numpy_arrays_are_reshaped_by_numpy_and_tensors_by_methods(device: vkq.Device) -> None:
    x = np.arange(30, dtype=np.int8).reshape(2, 3, 5)
    assert vkq.reshape(x, (5, -1)).tolist() == x.reshape(5, 6).tolist()
    assert vkq.flatten(x).shape == (2, 15)
    with pytest.raises(vkq.ArgumentError, match=r"\(2, 3, 5\) has 30 elements and cannot become \(4, 7\)"):
        vkq.reshape(x, (4, 7))
    tensor = vkq.Tensor.from_numpy(x, device)
    for y in (tensor.reshape(5, -1), tensor.reshape([5, 6])):
        np.testing.assert_array_equal(y.numpy(), x.reshape(5, 6))
    np.testing.assert_array_equal(tensor.flatten().numpy(), x.reshape(2, 15))


def test_out_is_written_where_the_result_is_a_view(device: vkq.Device) -> None:
    """With *out*, reshape copies the elements to *out*, also where it would otherwise return a view."""
    x = np.arange(1, 31, dtype=np.int8).reshape(2, 3, 5)
    into = vkq.Tensor(device, (6, 5), "int8")
    assert vkq.reshape(x, (6, 5), out=into) is into
    np.testing.assert_array_equal(into.numpy(), x.reshape(6, 5))
    numbers, again = vkq.Tensor.from_numpy(x.astype(np.float32), device), vkq.Tensor(device, (30,), "float32")
    with device.record() as recording:
        vkq.reshape(numbers, (30,), out=again)
    recording.run()
    np.testing.assert_array_equal(again.numpy(), x.ravel())
