"""Tests of threads that share a device and a layer."""

import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import vkq
from tests.runtime import work

THREADS = 8


def together(body: Callable[[int], None]) -> list[BaseException]:
    """Run body(0) to body(7) in parallel threads, and return the exceptions. A thread that hangs fails the
    test."""
    raised: list[BaseException] = []
    gate = threading.Barrier(THREADS)

    def run(number: int) -> None:
        gate.wait()
        try:
            body(number)
        except BaseException as error:
            raised.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"
    return raised


@pytest.mark.parametrize("staging", [False, True], ids=["mapped", "staging"])
def test_one_layer_in_eight_threads_gives_the_same_bytes(device: vkq.Device, staging: bool) -> None:
    with work.opened(device, staging) as mine:
        two = (work.linear(mine), work.conv2d(mine))
        xs = [np.roll(one.x, i, axis=0) for one in two for i in range(THREADS)]
        want = [two[i // THREADS].layer(x) for i, x in enumerate(xs)]
        assert len({w.tobytes() for w in want[:THREADS]}) == THREADS, "mixed-up results would be seen"

        def body(number: int) -> None:
            for _ in range(6):
                for op in range(2):
                    i = op * THREADS + number
                    np.testing.assert_array_equal(two[op].layer(xs[i]), want[i])

        assert together(body) == []


def test_threads_share_a_chain_and_read_when_they_like(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)

    def body(number: int) -> None:
        for _ in range(5):
            results = [one.layer(x) for _ in range(number % 3 + 1)]
            for y in results:
                np.testing.assert_array_equal(y.numpy(), one.want)

    assert together(body) == []


def test_threads_may_make_the_same_program_at_once(device: vkq.Device) -> None:
    """If several threads request the same program at once, it is compiled once. (With staging copies there
    are packing programs, too.)"""
    with vkq.Device(device.name) as mine, work.failing("vkCreateComputePipelines", 0):
        work.linear(mine).check()
        alone = work.counted()
    assert alone == 1 or device.capabilities.device_type != "cpu"
    with vkq.Device(device.name) as mine, work.failing("vkCreateComputePipelines", 0):
        assert together(lambda _: work.linear(mine).check()) == []
        assert work.counted() == alone


def test_one_recording_run_by_threads_takes_turns(device: vkq.Device) -> None:
    one = work.linear(device)
    x = vkq.Tensor.from_numpy(one.x, device)
    with device.record() as recording:
        y = one.layer(x)

    def body(_: int) -> None:
        for _ in range(10):
            recording.run()
            np.testing.assert_array_equal(y.numpy(), one.want)

    assert together(body) == []


def test_record_blocks_of_threads_are_their_own(device: vkq.Device) -> None:
    ones = [work.linear(device, seed=i) for i in range(THREADS)]
    xs = [vkq.Tensor.from_numpy(one.x, device) for one in ones]

    def body(i: int) -> None:
        with device.record() as recording:
            y = ones[i].layer(xs[i])
        assert recording.dispatches == 1
        recording.run()
        np.testing.assert_array_equal(y.numpy(), ones[i].want)

    assert together(body) == []


def test_closing_while_threads_work_ends_them_with_an_error(device: vkq.Device) -> None:
    for _ in range(3):
        mine = vkq.Device(device.name)
        one = work.linear(mine)

        def body(number: int, mine: vkq.Device = mine, one: work.Work = one) -> None:
            for i in range(1000):
                if (number, i) == (0, 5):
                    mine.close()
                one.check()

        raised = together(body)
        assert len(raised) == THREADS
        assert all(isinstance(e, vkq.DeviceError) and "closed" in str(e) for e in raised), raised


def test_losing_the_device_is_seen_by_every_thread(device: vkq.Device) -> None:
    mine = vkq.Device(device.name)
    one = work.linear(mine)

    def body(_: int) -> None:
        for _ in range(1000):
            one.check()

    with work.failing("vkQueueSubmit", 20, work.DEVICE_LOST):
        raised = together(body)
    assert [type(e) for e in raised] == [vkq.DeviceLostError] * THREADS
    mine.close()


def test_other_threads_run_while_one_waits_for_the_device(any_device: vkq.Device) -> None:
    """While one thread waits for the device, others run: the longest pause of a counting thread is much
    shorter than the wait."""
    one = work.linear(any_device, 128, 512, 128)
    x = vkq.Tensor.from_numpy(one.x, any_device)

    def recorded(times: int) -> vkq.Recording:
        with any_device.record() as recording:
            for _ in range(times):
                one.layer(x)
        recording.run()
        return recording

    few, start = recorded(20), time.perf_counter()
    few.run()
    recording = recorded(20 + int(20 * 0.2 / (time.perf_counter() - start)))
    ticks: list[float] = []
    done = threading.Event()

    def count() -> None:
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=count)
    thread.start()
    start = time.perf_counter()
    recording.run()
    end = time.perf_counter()
    done.set()
    thread.join()
    during = [t for t in ticks if start < t < end]
    assert end - start > 0.05, "the work is too short to show anything"
    assert len(during) >= 5, f"{len(during)} ticks in {end - start} s: the GIL was held"
