"""Tests of recordings that repeat their own operations, that record the operations of another recording again
(on the same buffers or on others), and that measure the time between marks."""

import gc

import numpy as np
import pytest

import vkq
from tests.conftest import DRIVERS
from vkq.runtime.recording import Recording

LAYER = {"x_qparams": vkq.QParams(0.5, 3), "y_qparams": vkq.QParams(8.0, -1)}
X = np.arange(-60, 60, dtype=np.int8).reshape(5, 24)
W = np.arange(-100, 92, dtype=np.int8).reshape(8, 24)


def recorded(device: vkq.Device, **options: int) -> tuple[Recording, vkq.Tensor]:
    layer, x = vkq.Linear(W, 0.5, device=device, **LAYER), vkq.Tensor.from_numpy(X, device)
    with device.record(**options) as recording:
        y = layer(x)
    return recording, y


def test_steps_run_again_on_other_buffers(device: vkq.Device) -> None:
    recording, y = recorded(device)
    x_buffer = recording.steps[0].buffers[0]
    other_x, other_y = (device.allocate(b.bytes) for b in (x_buffer, y.buffer))
    with device.record() as second:
        second.copy(x_buffer, other_x, x_buffer.bytes)
        second.fill(other_y, 0)
        for step in recording.steps:
            second.again(step, {x_buffer: other_x, y.buffer: other_y})
    second.run()
    got = vkq.Tensor(device, y.shape, y.dtype, y.layout, y.qparams, other_y).numpy()
    assert np.array_equal(got, vkq.Linear(W, 0.5, device=device, **LAYER)(X))
    with device.record() as third:  # copies and fills can be recorded again, too
        for step in second.steps:
            third.again(step)
    device.upload(other_y, np.full(other_y.bytes, 7, np.uint8))
    third.run()
    assert np.array_equal(vkq.Tensor(device, y.shape, y.dtype, y.layout, y.qparams, other_y).numpy(), got)


def test_repeat_lasts_longer_and_gives_the_same(device: vkq.Device) -> None:
    layer, x = vkq.Linear(W, 0.5, device=device, **LAYER), vkq.Tensor.from_numpy(X, device)
    with device.record(marks=3) as recording:
        recording.mark()
        recording.barrier()
        layer(x)
        recording.mark()
        recording.barrier()
        first = recording.position
        y = layer(x)
        recording.barrier()
        recording.repeat(first, 99)
        recording.mark()
    times = []
    for _ in range(5):  # use the shortest time, because other processes may delay a run
        recording.run()
        times.append(recording.mark_times_us())
    once, hundred = (min(one) for one in zip(*times, strict=True))
    assert 0 < 5 * once < hundred
    assert np.array_equal(y.numpy(), layer(X))


def test_what_cannot_be_repeated_or_marked_is_refused(any_device: vkq.Device) -> None:
    with any_device.record(marks=1) as recording:
        recording.mark()
        with pytest.raises(ValueError, match="a timestamp cannot be repeated"):
            recording.repeat(0, 2)
        with pytest.raises(IndexError, match="no timestamp left"):
            recording.mark()
    recording.run()
    assert recording.mark_times_us() == []
    with pytest.raises(RuntimeError, match="submitted already"):
        recording.repeat(0, 1)
    with (
        pytest.raises(vkq.ArgumentError, match="timestamps=1 and marks=2; use one of them"),
        any_device.record(1, 2),
    ):
        pass


@pytest.mark.parametrize("driver", list(DRIVERS))
def test_a_device_closes_while_recordings_that_own_their_buffers_live(driver: str) -> None:
    device = vkq.Device(DRIVERS[driver])
    recording, _ = recorded(device)
    recording.run()
    device.programs.clear()  # only the recording keeps its program alive
    device.close()
    del recording
    gc.collect()
