"""Tests of a device's chain of pending work: it is one submission, few submissions are in flight, and
staging copies do not change results."""

import dataclasses
import gc
import weakref

import numpy as np
import pytest

import vkq
from tests.runtime import work
from tests.runtime.work import counted, failing
from vkq.runtime.context import SUBMISSIONS_IN_FLIGHT
from vkq.runtime.program import refusals
from vkq.shader.catalog import catalog


def test_a_chain_of_layers_is_one_submission(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(np.linspace(-9, 9, 77, dtype=np.float32), device)
    device.synchronize()
    with failing("vkQueueSubmit", 0):
        for _ in range(10):
            x = vkq.dequantize(vkq.quantize(x, vkq.QParams(0.1)))
        y = one.layer(vkq.Tensor.from_numpy(one.x, device))
        assert counted() == 0, "nothing runs before it is asked for"
        x.numpy()
        assert counted() == 1
        np.testing.assert_array_equal(y.numpy(), one.want)
        assert counted() == (1 if y.buffer.mapped else 2)


def test_results_never_read_do_not_pile_up(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results that nobody reads do not use up memory: chains are submitted, and only a few are in flight."""
    monkeypatch.setattr(device.queue, "operations_per_chain", 8)
    x = vkq.Tensor.from_numpy(np.ones((4, 256), np.float32), device)  # a result has 1024 bytes
    device.synchronize()
    gc.collect()
    before, most = device.memory_used_bytes, 0
    for _ in range(100):
        vkq.quantize(x, vkq.QParams(0.5))
        most = max(most, device.memory_used_bytes - before)
    assert 8 * 1024 < most <= 8 * 1024 * (SUBMISSIONS_IN_FLIGHT + 2)
    device.synchronize()
    assert device.memory_used_bytes == before


@pytest.mark.parametrize("path", ["dot_s8s8", "portable"])
def test_staging_gives_the_same_bytes(device: vkq.Device, path: str) -> None:
    with vkq.Device(device.name, staging=True) as staged:
        assert device._memory.arena is not staged._memory.arena
        assert vkq.Tensor(device, (3,), "int32").buffer.mapped == (
            device.capabilities.device_type != "discrete"
        )
        assert not vkq.Tensor(staged, (3,), "int32").buffer.mapped
        for make in (work.linear, work.conv2d):
            make(staged, path=path).check()
        values = np.arange(1000, dtype=np.int32)
        tensor = vkq.Tensor.from_numpy(values, staged)
        np.testing.assert_array_equal(tensor.numpy(), values)
        tensor.write(values[::-1])
        np.testing.assert_array_equal(tensor.numpy(), values[::-1])
        del tensor
        staged.synchronize()
        assert staged._memory.staging.used_bytes == 0, "copies let go of their memory"


def test_a_device_without_the_dot_product_is_exact(device: vkq.Device) -> None:
    """A device with Vulkan 1.1 and no features, extensions or float controls gives exact results."""
    c = device.capabilities
    bare = dataclasses.replace(
        work.doctored(c, shaderRoundingModeRTEFloat32=0, shaderDenormPreserveFloat32=0, maxBufferSize=0),
        api_version="1.1.0",
        extensions=frozenset(),
        features=dict.fromkeys(c.features, False),
    )
    with vkq.Device(capabilities=bare) as old:
        one = work.linear(old, path="auto")
        assert one.layer.choice().path == "portable"
        one.check()
        work.conv2d(old, path="auto").check()
        with pytest.raises(vkq.PathError, match="shaderIntegerDotProduct is false"):
            work.linear(old, path="dot_s8s8")


def test_a_device_with_small_limits_is_exact(device: vkq.Device) -> None:
    small = work.doctored(
        device.capabilities,
        maxComputeWorkGroupInvocations=128,
        maxComputeWorkGroupSize_x=128,
        maxComputeWorkGroupSize_y=128,
        maxComputeSharedMemorySize=16384,
        maxStorageBufferRange=1 << 27,
        maxPushConstantsSize=128,
        maxPerStageDescriptorStorageBuffers=4,
    )
    with vkq.Device(capabilities=small) as one:
        work.linear(one).check()
        work.conv2d(one).check()


def test_a_program_beyond_the_limits_is_refused_before_it_is_made(any_device: vkq.Device) -> None:
    tiny = work.doctored(any_device.capabilities, maxComputeWorkGroupInvocations=32)
    with vkq.Device(capabilities=tiny) as one, failing("vkCreateComputePipelines", 0):
        with pytest.raises(vkq.PathError, match="maxComputeWorkGroupInvocations is 32, needs 64"):
            vkq.quantize(np.ones(3, np.float32), vkq.QParams(0.5), device=one)
        assert counted() == 0
    large = catalog().find("gemm_q8csw__staged", x="four", tile="128x128")
    small = work.doctored(
        any_device.capabilities, maxComputeSharedMemorySize=32767, maxComputeWorkGroupInvocations=255
    )
    assert refusals(large, large.constants(), small) == [
        "maxComputeWorkGroupInvocations is 255, needs 256",
        "maxComputeSharedMemorySize is 32767, needs 32768",
    ]


def test_buffers_beyond_the_limits_are_refused_before_submission(any_device: vkq.Device) -> None:
    c = any_device.capabilities
    with vkq.Device(capabilities=work.doctored(c, maxStorageBufferRange=4096)) as small:
        one = vkq.Tensor.from_numpy(np.ones(1025, np.float32), small)
        with failing("vkQueueSubmit", 0):
            with pytest.raises(
                vkq.ArgumentError, match=r"has 4100 bytes, above this device's maxStorageBufferRange of 4096"
            ):
                vkq.quantize(one, vkq.QParams(0.5))
            assert counted() == 0
        assert vkq.quantize(np.ones(1024, np.float32), vkq.QParams(0.5), device=small).sum() == 2048
    for limit in ("maxMemoryAllocationSize", "maxBufferSize"):
        with vkq.Device(capabilities=work.doctored(c, **{limit: 1 << 20})) as small:
            with pytest.raises(
                vkq.OutOfMemoryError,
                match=rf"1048580 bytes requested at once, above this device's {limit} of 1048576",
            ):
                vkq.Tensor(small, ((1 << 18) + 1,), "int32")
            work.linear(small).check()
    with pytest.raises(vkq.OutOfMemoryError, match=r"above (the size of the memory heap|this device's)"):
        vkq.Tensor(any_device, (1 << 40,), "int32")


def test_closing_twice_and_using_after(device: vkq.Device) -> None:
    gone = vkq.Device(device.name)
    one = work.linear(gone)
    x = vkq.Tensor.from_numpy(one.x, gone)
    unread = one.layer(x)  # this result is pending when the device closes
    with gone.record(timestamps=1) as recording:
        one.layer(x)
    recording.run()
    gone.close()
    gone.close()
    assert gone.closed
    assert "(closed)" in repr(gone)
    uses = [
        unread.numpy, gone.flush, gone.synchronize, recording.run, recording.submit, recording.wait,
        recording.gpu_times_us, lambda: x.write(one.x), lambda: one.layer(x), lambda: one.layer(one.x),
        lambda: vkq.Tensor(gone, (3,), "int32"), lambda: gone.record().__enter__(),
        lambda: gone.operation().__enter__(),
    ]  # fmt: skip
    for use in uses:
        with pytest.raises(vkq.DeviceError, match="closed"):
            use()
    assert gone.memory_used_bytes > 0
    uses.clear()
    use = one = x = unread = recording = None  # free these objects after their device
    gc.collect()
    assert gone.memory_used_bytes == 0


def test_a_device_that_fails_to_open_is_closed(device: vkq.Device) -> None:
    bad = dataclasses.replace(work.doctored(device.capabilities), memory_types=())
    with pytest.raises(vkq.DeviceError, match="offers no device-local memory"):
        vkq.Device(capabilities=bad)
    with pytest.raises(vkq.NoDeviceError, match="no queue that computes"):
        vkq.Device(capabilities=dataclasses.replace(bad, compute_family=None))
    with pytest.raises(vkq.NoDeviceError, match=r"vkq needs 1\.1"):
        vkq.Device(capabilities=dataclasses.replace(bad, api_version="1.0.3"))


def test_a_device_that_is_forgotten_is_freed(device: vkq.Device) -> None:
    """A device without references is freed, although it was not closed and has work pending and in flight.
    The garbage collector frees it and its objects in any order, without an error."""
    for _ in range(5):
        gone = vkq.Device(device.name)
        one = work.linear(gone)
        one.check()
        one.layer(one.x * 0)
        gone.flush()
        unread = one.layer(one.x)
        probe = weakref.ref(gone)
        del gone, one, unread
        gc.collect()
        assert probe() is None
    work.linear(device).check()
