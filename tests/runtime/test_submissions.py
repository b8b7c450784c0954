"""Tests that long work on a slow driver is split into several submissions, so that no watchdog ends it.
Splitting does not change the results, the reported times of layers, or repeated runs."""

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.runtime import work
from vkq.device import verdict
from vkq.device.watchdog import seconds_of

LAYERS, M, K = 5, 12, 64
MACS = M * K * K
RATE = 2 * 8 * MACS * 10 * 2.5  # with this rate `watchdog` estimates 40 ms for a layer


@pytest.fixture
def slow(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[vkq.Device]:
    """Yield the device as an integrated GPU with very low measured rates."""
    c = dataclasses.replace(device.capabilities, device_type="integrated")
    report = verdict.Verdict({}, soft_float=False, rates={"float": RATE}, isolated=True)
    monkeypatch.setitem(verdict._reports, c.key, report)
    with vkq.Device(capabilities=c) as opened:
        yield opened


def layers(device: vkq.Device) -> list[vkq.Linear]:
    q = vkq.QParams(0.5, 3)
    some = [np.random.default_rng(seed).integers(-128, 128, (K, K), np.int8) for seed in range(LAYERS)]
    scale = np.full(K, 0.004, np.float32)
    return [vkq.Linear(w, scale, x_qparams=q, y_qparams=q, path="portable", device=device) for w in some]


def given(seed: int) -> npt.NDArray[Any]:
    return np.random.default_rng(seed).integers(-128, 128, (M, K), np.int8)


def chain(some: list[vkq.Linear], x: Any) -> Any:
    for layer in some:
        x = layer(x)
    return x


def wanted(some: list[vkq.Linear], seed: int) -> npt.NDArray[Any]:
    """Return the result of layers that are submitted one by one."""
    x = given(seed)
    for layer in some:
        x = layer(x)
    return x


def test_a_replayed_chain_is_split(slow: vkq.Device) -> None:
    """A recording of five layers of 40 ms is three submissions. Runs with other inputs give the right
    bytes, and every layer has its time. If the second submission fails, the next run repeats all three."""
    some, x = layers(slow), vkq.Tensor.from_numpy(given(0), slow)
    want = [wanted(some, seed) for seed in range(3)]
    with slow.record(timestamps=LAYERS) as recording:
        y = chain(some, x)
    assert recording.dispatches == LAYERS
    assert recording.submissions == 3
    for seed, one in enumerate(want):
        x.write(given(seed))
        slow.synchronize()
        with work.failing("vkQueueSubmit", 0):
            recording.run()
            assert work.counted() == 3
        np.testing.assert_array_equal(y.numpy(), one)
        if slow.capabilities.timestamp_valid_bits:
            assert len(recording.gpu_times_us()) == LAYERS
    x.write(given(1))
    slow.synchronize()
    with work.failing("vkQueueSubmit", 2), pytest.raises(vkq.VkqError, match="vkQueueSubmit"):
        recording.run()
    recording.run()
    np.testing.assert_array_equal(y.numpy(), want[1])


@pytest.mark.parametrize("nth", [0, 1, 2, 3])
def test_an_eager_chain_is_split(slow: vkq.Device, nth: int) -> None:
    """Pending layers are split into submissions. If one fails, the next flush continues after the
    submissions that ran."""
    some, x = layers(slow), vkq.Tensor.from_numpy(given(0), slow)
    want = wanted(some, 0)
    y = chain(some, x)
    with work.failing("vkQueueSubmit", nth):
        if nth:
            with pytest.raises(vkq.VkqError, match="vkQueueSubmit"):
                slow.flush()
        else:
            slow.flush()
            assert work.counted() == 3
    with work.failing("vkQueueSubmit", 0):
        np.testing.assert_array_equal(y.numpy(), want)
        assert not nth or work.counted() >= 4 - nth
    np.testing.assert_array_equal(chain(some, x).numpy(), want)


def test_repeated_operations_count(slow: vkq.Device) -> None:
    """Repeated operations count: a layer that is recorded once and repeated nine times becomes five
    submissions of two runs each."""
    (layer, *_), x = layers(slow), vkq.Tensor.from_numpy(given(0), slow)
    want = wanted([layer], 0)
    with slow.record(marks=2) as recording:
        recording.mark()
        first = recording.position
        recording.barrier()
        y = layer(x)
        recording.barrier()
        recording.repeat(first, 9)
        recording.mark()
    assert recording.submissions == 5
    recording.run()
    np.testing.assert_array_equal(y.numpy(), want)
    if slow.capabilities.timestamp_valid_bits:
        assert len(recording.mark_times_us()) == 1


def test_who_is_split(device: vkq.Device, slow: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Work is split by the estimated time of its multiply-adds and bytes. CPU devices and discrete GPUs are
    not split."""
    c = slow.capabilities
    assert 0.039 < seconds_of(c, MACS, 0) < 0.041
    report = verdict._reports[c.key]
    monkeypatch.setitem(verdict._reports, c.key, dataclasses.replace(report, rates={"copy": 8e9}))
    assert seconds_of(c, 0, 10**9) == 1.0
    for kind in ("cpu", "discrete"):
        assert seconds_of(dataclasses.replace(c, device_type=kind), 1 << 60, 1 << 60) == 0.0
    some, x = layers(device), vkq.Tensor.from_numpy(given(0), device)
    with device.record() as recording:
        chain(some, x)
    assert recording.submissions == 1
