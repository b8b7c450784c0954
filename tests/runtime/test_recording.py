"""Tests of recordings: barriers exactly at data dependences, repeated runs, timestamps, and operations that
are refused."""

import dataclasses
import time
from typing import Any

import numpy as np
import pytest

import vkq
from tests.runtime import work
from vkq.device.profiles import profile
from vkq.runtime.recording import Recording
from vkq.runtime.tensor import Tensor


def recorded(recording: Recording, ask: Any) -> list[str]:
    """Return what *ask* records: ["operation"], or ["barrier and operation"]."""
    before = recording.position
    ask()
    return ["operation", "barrier and operation"][recording.position - before - 1 :][:1]


ALONE, AFTER_A_BARRIER = ["operation"], ["barrier and operation"]


def test_barriers_stand_where_ranges_meet_and_nowhere_else(device: vkq.Device) -> None:
    """Barriers are recorded where ranges of memory overlap, and only there. When the recording runs,
    synchronization validation reports a missing barrier."""
    r = Recording(device)
    a, b, c, d = (Tensor(device, (64,), "int32") for _ in range(4))
    assert recorded(r, lambda: r.fill(a.buffer, 1)) == ALONE
    assert recorded(r, lambda: r.fill(b.buffer, 2)) == ALONE, "they share a block of memory and no range"
    assert recorded(r, lambda: r.copy(a.buffer, c.buffer, 256)) == AFTER_A_BARRIER, "read after write"
    assert recorded(r, lambda: r.copy(b.buffer, d.buffer, 256)) == ALONE, "b was written before the barrier"
    assert recorded(r, lambda: r.copy(a.buffer, b.buffer, 256)) == AFTER_A_BARRIER, "write after read of b"
    assert recorded(r, lambda: r.copy(a.buffer, c.buffer, 256)) == ALONE, "two reads of a"
    assert recorded(r, lambda: r.fill(c.buffer, 5)) == AFTER_A_BARRIER, "write after write"
    r.run()
    assert [int(t.numpy()[0]) for t in (a, b, c, d)] == [1, 1, 5, 2]


def test_a_dispatch_waits_for_its_inputs_and_not_for_others(device: vkq.Device) -> None:
    x = vkq.Tensor.from_numpy(np.arange(-8, 8, dtype=np.float32).reshape(4, 4), device)
    q = vkq.QParams(1.0)
    made: list[vkq.Tensor] = []
    with device.record() as r:
        assert recorded(r, lambda: made.append(vkq.quantize(x, q))) == ALONE
        assert recorded(r, lambda: made.append(vkq.quantize(x, q))) == ALONE, "reads x, too"
        assert recorded(r, lambda: made.append(vkq.dequantize(made[0]))) == AFTER_A_BARRIER
    r.run()
    np.testing.assert_array_equal(made[2].numpy(), x.numpy())


def test_200_replays_give_the_same_bytes(device: vkq.Device) -> None:
    one = work.conv2d(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    with device.record() as recording:
        y = one.layer(x)
    for _ in range(200):
        recording.run()
    np.testing.assert_array_equal(y.numpy(), one.want)
    for _ in range(200):
        recording.run()
        assert y.numpy().tobytes() == one.want.tobytes()


@pytest.mark.parametrize("staging", [False, True])
def test_the_input_of_a_replay_may_be_rewritten(device: vkq.Device, staging: bool) -> None:
    with work.opened(device, staging) as mine:
        one = work.linear(mine)
        with mine.record() as recording:
            x = vkq.Tensor.from_numpy(one.x, mine)  # uploaded now, not in each run
            y = one.layer(x)
        recording.run()
        np.testing.assert_array_equal(y.numpy(), one.want)
        for other in (one.x[::-1].copy(), np.zeros_like(one.x)):
            x.write(other)
            recording.run()
            np.testing.assert_array_equal(y.numpy(), one.layer(other))


def test_a_write_waits_for_what_was_asked_for_before(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    y = one.layer(x)  # this call is pending, not submitted
    x.write(np.zeros_like(one.x))
    np.testing.assert_array_equal(y.numpy(), one.want)
    y = one.layer(x)
    device.flush()  # now the call is submitted
    x.write(one.x)
    np.testing.assert_array_equal(y.numpy(), one.layer(np.zeros_like(one.x)))
    with device.record() as recording:
        z = one.layer(x)
    recording.submit()  # the recording may still run
    x.write(np.zeros_like(one.x))
    np.testing.assert_array_equal(z.numpy(), one.want)


def test_a_fresh_tensor_waits_for_nothing(device: vkq.Device) -> None:
    one = work.linear(device)
    with work.failing("vkQueueSubmit", 0):
        for _ in range(3):
            y = one.layer(vkq.Tensor.from_numpy(one.x, device))
        assert work.counted() == 0
        np.testing.assert_array_equal(y.numpy(), one.want)


def test_reading_inside_record_is_refused_and_immediate_work_is_not(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    with device.record() as recording:
        y = one.layer(x)
        with pytest.raises(vkq.DeviceError, match="only being recorded; run the recording first"):
            y.numpy()
        with device.immediate():
            np.testing.assert_array_equal(one.layer(x).numpy(), one.want)
        assert recording.dispatches == 1
    recording.run()
    np.testing.assert_array_equal(y.numpy(), one.want)
    with pytest.raises(vkq.DeviceError, match="no more operations"):
        recording.fill(y.buffer, 0)


def test_buffers_of_a_recording_live_as_long_as_it(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    with device.record() as recording:
        y = one.layer(x)
    del x
    # These allocations would get the memory of x if it were free.
    others = [vkq.Tensor.from_numpy(np.full_like(one.x, 77), device) for _ in range(4)]
    recording.run()
    np.testing.assert_array_equal(y.numpy(), one.want)
    assert len(others) == 4


def test_timestamps_are_sane(device: vkq.Device) -> None:
    one = work.linear(device, 64, 256, 256)
    x = vkq.Tensor.from_numpy(one.x, device)
    with device.record(timestamps=2) as recording:
        one.layer(x)
        one.layer(x)
        one.layer(x)  # a third layer, for two timestamps
    with pytest.raises(vkq.DeviceError, match="has not run yet"):
        recording.gpu_times_us()
    for _ in range(3):
        start = time.perf_counter()
        recording.run()
        wall_us = 1e6 * (time.perf_counter() - start)
        times = recording.gpu_times_us()
        assert len(times) == 2
        assert all(0 < t < wall_us for t in times)
        assert sum(times) < wall_us


def test_a_device_without_timestamps_says_so(any_device: vkq.Device) -> None:
    c = dataclasses.replace(work.doctored(any_device.capabilities), timestamp_valid_bits=0)
    with vkq.Device(capabilities=c) as blind:
        one = work.linear(blind)
        x = vkq.Tensor.from_numpy(one.x, blind)
        with blind.record(timestamps=5) as recording:
            y = one.layer(x)
        recording.run()
        np.testing.assert_array_equal(y.numpy(), one.want)
        with pytest.raises(vkq.DeviceError, match="timestampValidBits is 0"):
            recording.gpu_times_us()


def test_a_wrapping_counter_gives_the_difference(any_device: vkq.Device) -> None:
    c = dataclasses.replace(any_device.capabilities, timestamp_valid_bits=32, timestamp_period_ns=10.0)

    class Wrapped(Recording):
        def __init__(self) -> None:
            self.device = type("D", (), {"capabilities": c})()  # type: ignore[assignment]
            self._native = type("N", (), {"timestamps": lambda self: [2**32 - 100, 400]})()

    assert Wrapped().gpu_times_us() == [5.0]


def test_a_dropped_recording_is_waited_for(device: vkq.Device) -> None:
    """Deleting a recording waits for its work. Without the wait, memory in use would be freed, which crashes
    or gives a message of the validation layer."""
    one = work.linear(device, 64, 512, 512)
    x = vkq.Tensor.from_numpy(one.x, device)
    device.flush()
    with device.record() as recording:
        one.layer(x)
    recording.submit()
    del recording
    one.check()


def test_a_running_recording_is_not_submitted_again(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    with device.record() as recording:
        one.layer(x)
    recording.submit()
    with pytest.raises(vkq.DeviceError, match="running already; wait"):
        recording.submit()
    recording.wait()
    recording.wait()
    recording.run()


def test_ranges_outside_their_buffer_are_refused(any_device: vkq.Device) -> None:
    a, b = (vkq.Tensor(any_device, (n,), "int32").buffer for n in (4, 64))
    r = Recording(any_device)
    for source, target in ((a, b), (b, a)):
        with pytest.raises(IndexError, match="outside its buffer"):
            r.copy(source, target, 256)
    for call in (any_device.queue.upload, any_device.queue.download):
        with pytest.raises(IndexError, match="more bytes than the buffer has"):
            call(a, np.zeros(a.bytes + 1, np.uint8))


@pytest.mark.parametrize("wide", [False, True])
def test_chains_are_ordered_by_either_kind_of_barrier(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch, wide: bool
) -> None:
    """Fills, copies, dispatches and the host's reads are ordered by barriers of buffers and by wide
    barriers, under synchronization validation."""
    known = dataclasses.replace(profile(device.capabilities), wide_barriers=wide)
    monkeypatch.setattr("vkq.runtime.context.profile", lambda capabilities: known)
    with vkq.Device(device.capabilities.index) as own:
        x = np.arange(-60, 60, dtype=np.int8).reshape(4, 30)
        eye = np.eye(30, dtype=np.int8)
        layer = vkq.Linear(eye, 1.0, x_qparams=vkq.QParams(1.0), y_qparams=vkq.QParams(1.0), device=own)
        tensor = Tensor.from_numpy(x, own)
        with own.record() as recording:
            y = layer(layer(layer(tensor)))
        for _ in range(3):
            recording.run()
            np.testing.assert_array_equal(y.numpy(), x)


def test_qualcomm_gets_wide_barriers(device: vkq.Device) -> None:
    assert not profile(device.capabilities).wide_barriers
    assert profile(dataclasses.replace(device.capabilities, vendor_id=0x5143)).wide_barriers
