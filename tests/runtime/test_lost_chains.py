"""Tests of a chain whose commands are lost (vkEndCommandBuffer failed): only its results become invalid.
Every operator and method runs, with and without staging copies."""

import numpy as np
import pytest

import vkq
from tests.runtime import work
from tests.runtime.operators import OPERATORS
from tests.runtime.work import failing


@pytest.mark.parametrize("staging", [False, True], ids=["mapped", "staging"])
@pytest.mark.parametrize("name", OPERATORS)
def test_the_next_call_is_exact(any_device: vkq.Device, name: str, staging: bool) -> None:
    make, x = OPERATORS[name]
    with work.opened(any_device, staging) as mine:
        want = make(any_device)(x)
        first, second = make(mine), make(mine)
        with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
            first(x)  # the lost chain contains the uploads of the layer
        for _ in range(2):
            np.testing.assert_array_equal(first(x), want)
        with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
            first(x)
        np.testing.assert_array_equal(second(x), want)
        np.testing.assert_array_equal(first(x), want)


def test_what_was_lost_and_is_written_whole_is_clean_again(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    y = one.layer(x)
    device.synchronize()
    one.layer(x, out=y)
    with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
        device.flush()
    with pytest.raises(vkq.OutOfMemoryError, match=r"never computed.*compute it again"):
        y.numpy()
    one.layer(x, out=y)  # y is valid again: the chain only writes it
    np.testing.assert_array_equal(y.numpy(), one.want)
    np.testing.assert_array_equal(x.numpy(), one.x)  # the lost chain only read x, which stays valid


def test_a_lost_result_stays_lost_through_what_is_computed_from_it(device: vkq.Device) -> None:
    q = vkq.QParams(0.5)
    x = vkq.Tensor.from_numpy(np.arange(8, dtype=np.float32), device)
    lost = vkq.quantize(x, q)
    with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
        device.flush()
    with pytest.raises(vkq.OutOfMemoryError, match="never computed"):
        vkq.dequantize(lost)
    np.testing.assert_array_equal(vkq.dequantize(vkq.quantize(x, q)).numpy(), np.arange(8))


def test_a_plan_that_could_not_be_recorded_to_its_end_is_not_read(device: vkq.Device) -> None:
    one = work.conv2d(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    y = one.layer(x)
    np.testing.assert_array_equal(y.numpy(), one.want)
    with failing("vkAllocateDescriptorSets", 2), pytest.raises(vkq.OutOfMemoryError):
        one.layer(x, out=y)  # the second dispatch gets no descriptor set
    with pytest.raises(vkq.OutOfMemoryError, match="never computed"):
        y.numpy()
    one.layer(x, out=y)
    np.testing.assert_array_equal(y.numpy(), one.want)
