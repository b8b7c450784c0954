"""Tests that let each Vulkan call fail at each of its uses: vkq raises a typed error, leaks nothing, and
the device works afterwards.

The validation layer reports objects that outlive their device. So if closing a device gives no message,
nothing leaked.
"""

import ctypes
import gc
from collections.abc import Iterator

import numpy as np
import pytest

import vkq
from tests.runtime import work
from tests.runtime.work import DEVICE_LOST, OUT_OF_DEVICE_MEMORY, counted, failing
from vkq.device import vulkan
from vkq.device.extension import native_module

CALLS = [
    "vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory", "vkCreateCommandPool",
    "vkAllocateCommandBuffers", "vkBeginCommandBuffer", "vkEndCommandBuffer", "vkQueueSubmit",
    "vkCreateFence", "vkResetFences", "vkWaitForFences", "vkCreateDescriptorPool", "vkAllocateDescriptorSets",
    "vkCreateShaderModule", "vkCreateDescriptorSetLayout", "vkCreatePipelineLayout", "vkCreatePipelineCache",
    "vkCreateComputePipelines",
]  # fmt: skip
FAST = "llvmpipe"
# If memory is short, vkq frees finished work and repeats these calls. So a single failure has no effect.
RETRIED = {"vkAllocateMemory", "vkCreateBuffer", "vkBindBufferMemory", "vkMapMemory"}


def open_and_run(name: str, staging: bool) -> None:
    """Open a device, run a layer of one dispatch and a layer of two dispatches, and close the device. Each
    layer runs twice; the second run reuses a fence.

    SwiftShader, which needs a tenth of a second for each pipeline, runs only the first layer.
    """
    with vkq.Device(name, staging=staging) as device:
        for make in (work.linear, work.conv2d) if FAST in name else (work.linear,):
            one = make(device)
            one.check()
            one.check()


@pytest.mark.parametrize("staging", [False, True], ids=["mapped", "staging"])
@pytest.mark.parametrize("call", CALLS)
def test_every_call_may_fail(device: vkq.Device, call: str, staging: bool) -> None:
    work.opened(device, staging).close()
    with failing(call, 0):
        open_and_run(device.name, staging)
        times = counted()
    assert times > 0 or (call, staging) == ("vkWaitForFences", False), "the test does not reach this call"
    seen = 0
    # One call fails at a time: each of the first eight, then the last; on the slow driver only the first
    # and the last.
    many = range(1, min(times, 8) + 1) if FAST in device.name else (1,)
    for nth in sorted({n for n in (*many, times) if n}):
        told = None
        with failing(call, nth):
            try:
                open_and_run(device.name, staging)
            except vkq.OutOfMemoryError as error:
                told = (error.result, error.call)
        if told is not None:
            assert told == (OUT_OF_DEVICE_MEMORY, call)
            seen += 1
        gc.collect()
    if call not in RETRIED:
        assert seen > 0
    work.linear(device).check()


@pytest.fixture
def fresh(device: vkq.Device) -> Iterator[vkq.Device]:
    """Yield the device, opened again, so that memory of other tests does not count."""
    with vkq.Device(device.name) as one:
        yield one


@pytest.mark.parametrize("call", ["vkAllocateMemory", "vkCreateBuffer"])
def test_memory_that_stays_short_is_told_and_the_device_works_after(fresh: vkq.Device, call: str) -> None:
    one = work.linear(fresh)
    with failing(call, 1, OUT_OF_DEVICE_MEMORY, 1000):
        with pytest.raises(
            vkq.OutOfMemoryError, match=r"no memory for \d+ bytes more .* device stays usable"
        ) as caught:
            vkq.Tensor(fresh, (5 << 20,), "int32")  # larger than a block of the arena
        assert isinstance(caught.value, MemoryError)
        assert (caught.value.result, caught.value.call) == (OUT_OF_DEVICE_MEMORY, call)
    one.check()
    assert vkq.Tensor(fresh, (5 << 20,), "int32").nbytes == 20 << 20


def test_one_failed_allocation_is_made_again(fresh: vkq.Device) -> None:
    with failing("vkAllocateMemory"):
        tensor = vkq.Tensor(fresh, (5 << 20,), "int32")
        assert counted() == 2
    assert tensor.nbytes == 20 << 20


def test_an_allocation_that_fails_inside_an_operation_does_not_split_it(device: vkq.Device) -> None:
    """If an allocation between the two dispatches of a convolution fails, vkq waits for memory without
    submitting the first dispatch alone."""
    with vkq.Device(device.name) as mine:
        one = work.conv2d(mine)
        x = vkq.Tensor.from_numpy(one.x, mine)
        keep = [vkq.Tensor(mine, (1,), "int32")]
        with mine.operation() as recording:
            recording.fill(keep[0].buffer, 6)
            with failing("vkAllocateMemory"):
                keep.append(vkq.Tensor(mine, (5 << 20,), "int32"))
                assert counted() == 2, "the first try failed"
            assert not recording.sealed, "the operation's recording was submitted under it"
            recording.fill(keep[0].buffer, 7)
        assert keep[0].numpy()[0] == 7
        np.testing.assert_array_equal(one.layer(x).numpy(), one.want)


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkCreateFence", "vkResetFences"])
def test_a_failed_submission_is_made_again_and_loses_nothing(device: vkq.Device, call: str) -> None:
    one = work.conv2d(device)
    with vkq.Device(device.name) as fresh:  # a new device has no fences
        mine = work.conv2d(fresh) if call == "vkCreateFence" else one
        y = mine.layer(vkq.Tensor.from_numpy(mine.x, mine.layer.device))
        with failing(call), pytest.raises(vkq.OutOfMemoryError):
            y.numpy()
        np.testing.assert_array_equal(y.numpy(), one.want)


def test_work_after_a_failed_submission_is_not_lost_either(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    first = one.layer(x)
    with failing("vkQueueSubmit"), pytest.raises(vkq.OutOfMemoryError):
        device.flush()
    second = one.layer(x)  # also submits the first chain
    np.testing.assert_array_equal(second.numpy(), one.want)
    np.testing.assert_array_equal(first.numpy(), one.want)


def test_results_of_a_chain_that_can_never_run_are_not_read(device: vkq.Device) -> None:
    """If the commands of a chain cannot run (vkEndCommandBuffer failed), reading its results raises an
    error: bytes that were never computed are not returned."""
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    device.flush()
    y = one.layer(x)
    with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError, match="vkEndCommandBuffer"):
        y.numpy()
    for _ in range(2):
        with pytest.raises(vkq.OutOfMemoryError, match=r"never computed.*compute it again"):
            y.numpy()
    with pytest.raises(vkq.OutOfMemoryError, match="never computed"):
        vkq.dequantize(y)
    y.write(one.want)  # with new content, y can be read again
    np.testing.assert_array_equal(y.numpy(), one.want)
    np.testing.assert_array_equal(one.layer(x).numpy(), one.want)


def test_a_broken_recording_says_so_each_time(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    with device.record() as recording:
        one.layer(x)
    device.synchronize()  # wait for the uploads' own submission
    with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
        recording.run()
    with pytest.raises(vkq.DeviceError, match="record it again"):
        recording.run()


@pytest.mark.parametrize("call", ["vkQueueSubmit", "vkWaitForFences"])
def test_a_lost_device_stays_lost_and_another_opens(device: vkq.Device, call: str) -> None:
    lost = work.opened(device, staging=call == "vkQueueSubmit")
    one = work.linear(lost)
    y = one.layer(vkq.Tensor.from_numpy(one.x, lost))
    with failing(call, 1, DEVICE_LOST), pytest.raises(vkq.DeviceLostError, match="open a new") as caught:
        y.numpy()
    assert (caught.value.result, caught.value.call) == (DEVICE_LOST, call)
    with failing("*", 0):
        for again in (
            y.numpy,
            lost.synchronize,
            lost.flush,
            lambda: one.layer(one.x),
            lambda: vkq.Tensor(lost, (1,), "int32"),
        ):
            with pytest.raises(vkq.DeviceLostError, match="an earlier call"):
                again()
        assert counted() == 0, "a lost device is asked for nothing more"
    with vkq.Device(device.name) as new:
        work.linear(new).check()
    lost.close()
    with pytest.raises(vkq.DeviceError, match="closed"):
        lost.flush()
    work.linear(device).check()


def test_the_default_device_is_opened_anew_after_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQ_DEVICE", "llvmpipe")
    first = vkq.default_device()
    assert vkq.default_device() is first
    with failing("vkQueueSubmit", 1, DEVICE_LOST), pytest.raises(vkq.DeviceLostError):
        vkq.quantize(np.ones(3, np.float32), vkq.QParams(0.5))
    np.testing.assert_array_equal(vkq.quantize(np.ones(3, np.float32), vkq.QParams(0.5)), [2, 2, 2])
    assert vkq.default_device() is not first
    first.close()
    vkq.default_device().close()


def test_other_results_are_named(any_device: vkq.Device) -> None:
    with (
        failing("vkCreateCommandPool", 1, -3),
        pytest.raises(vkq.DeviceError, match=r"VK_ERROR_INITIALIZATION_FAILED \(-3\)"),
    ):
        any_device.record().__enter__()
    with failing("vkCreateCommandPool", 1, -12345), pytest.raises(vkq.DeviceError, match="VkResult -12345"):
        any_device.record().__enter__()


def test_failures_of_one_thread_or_call_do_not_reach_the_next(device: vkq.Device) -> None:
    one = work.linear(device)
    for call in ("vkCreateCommandPool", "vkBeginCommandBuffer", "vkAllocateCommandBuffers"):
        with failing(call, 1), pytest.raises(vkq.OutOfMemoryError):
            device.record().__enter__()
        one.check()


def test_a_leak_would_be_told(any_device: vkq.Device) -> None:
    """The validation layer reports a fence that outlives its device. So its silence in the other tests
    proves that nothing leaked."""
    native, c = vulkan.instance().native, any_device.capabilities
    physical = vulkan.instance().physical_devices()[c.index]
    handle, _ = vulkan.open_device(physical, c.compute_family or 0, dict(c.features), set(c.extensions))
    info, fence = (ctypes.c_uint64 * 3)(8), ctypes.c_uint64()  # VK_STRUCTURE_TYPE_FENCE_CREATE_INFO
    create = ctypes.CDLL(vulkan.LIBRARIES[0]).vkCreateFence
    assert create(ctypes.c_void_p(handle), info, None, ctypes.byref(fence)) == 0
    before = len(vulkan.validation_messages())
    native.destroy_device(handle)
    said = vulkan.validation_messages()[before:]
    native_module().forget_messages(before)
    assert any("has not been destroyed" in text for text in said), said


def test_an_upload_whose_chain_was_lost_is_made_again(device: vkq.Device) -> None:
    """Uploads in a lost chain are repeated from the host's data: weights, constants and tensors have the
    right content afterwards."""
    data = np.arange(16, dtype=np.int32)
    with vkq.Device(device.name, staging=True) as mine:
        table = mine.constant("table", data.nbytes, lambda: data).buffer
        tensor = vkq.Tensor.from_numpy(data[::-1], mine)
        tensor.write(data * 2)  # overwrites the first content
        with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
            mine.flush()
        assert mine.constant("table", data.nbytes, lambda: data).buffer is table
        np.testing.assert_array_equal(mine.download(table, data.nbytes).view(np.int32), data)
        np.testing.assert_array_equal(tensor.numpy(), data * 2)
        one = work.linear(mine)
        with failing("vkEndCommandBuffer"), pytest.raises(vkq.OutOfMemoryError):
            one.check()  # the lost chain contained the upload of its weights
        one.check()


def test_a_refused_dispatch_leaves_no_step(any_device: vkq.Device) -> None:
    small = work.doctored(any_device.capabilities, maxStorageBufferRange=4096)
    with vkq.Device(capabilities=small) as mine:
        x = vkq.Tensor(mine, (1025,), "float32")
        with mine.record() as recording, pytest.raises(vkq.ArgumentError, match="maxStorageBufferRange"):
            vkq.quantize(x, vkq.QParams(0.5))
        assert recording.steps == []
