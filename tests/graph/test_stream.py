"""Tests of batches in flight at the same time: each image arrives in its row of the batch, with mapped
memory and with staging copies, and nothing is allocated between batches."""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import vkq
from tests.runtime import work
from tests.runtime.work import counted, failing
from vkq.graph.stream import Lane
from vkq.layout.extent import Spec
from vkq.ops.pool import max_pooled
from vkq.problem.window import Window
from vkq.reference.operators import max_pool2d
from vkq.runtime.builder import Builder
from vkq.runtime.plan import Plan

SHAPE = (3, 5, 7, 6)  # no axis is a multiple of a block of a layout


@pytest.fixture(params=["mapped", "staging"])
def mine(device: vkq.Device, request: pytest.FixtureRequest) -> Iterator[vkq.Device]:
    with work.opened(device, request.param == "staging") as opened:
        yield opened


def pooled(device: vkq.Device, *shapes: tuple[int, ...], dtype: str = "uint8") -> Plan:
    """Return a plan that max-pools each of its inputs, which are 8-bit arrays."""
    b = Builder(device)
    inputs = [b.input(Spec(shape, dtype)) for shape in shapes]
    return b.plan(*(max_pooled(b, x, 3, 2, 1, 1, False) for x in inputs))


def oracle(x: Any) -> Any:
    return max_pool2d(x, Window.of("max_pool2d", x.shape, 3, 2, 1, 1, False))


def batch(seed: int, dtype: str = "uint8", shape: tuple[int, ...] = SHAPE) -> Any:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max + 1, shape).astype(dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_lanes_run_side_by_side(mine: vkq.Device, dtype: str) -> None:
    plan, idle = pooled(mine, SHAPE, dtype=dtype), deque[Lane]()
    assert Lane.can(mine, plan)
    lanes = [Lane(mine, plan, [0], idle) for _ in range(3)]
    for turn in range(3):
        for i, lane in enumerate(lanes):
            rows = list(batch(3 * turn + i, dtype))
            lane.start([rows])
            for row in rows:
                row[:] = 0  # changes the arrays after `start` has copied them
        for i, lane in enumerate(lanes):
            np.testing.assert_array_equal(lane.finish()[0], oracle(batch(3 * turn + i, dtype)))
    assert list(idle) == 3 * lanes


def test_a_batch_waits_for_the_one_before_it_in_the_same_lane(mine: vkq.Device) -> None:
    lane = Lane(mine, pooled(mine, SHAPE), [0], deque())
    lane.start([list(batch(0))])
    with pytest.raises(vkq.DeviceError, match="running already"):
        lane.recording.submit()
    lane.recording.wait()
    lane.start([list(batch(1))])
    np.testing.assert_array_equal(lane.finish()[0], oracle(batch(1)))


def test_one_result_of_several_inputs(mine: vkq.Device) -> None:
    other = (3, 2, 4, 4)
    plan = pooled(mine, SHAPE, other)
    x, y = batch(1), batch(2, shape=other)
    for i, want in enumerate((oracle(x), oracle(y))):
        lane = Lane(mine, plan, [i], deque())
        lane.start([list(x), list(y)])
        np.testing.assert_array_equal(lane.finish()[0], want)


def test_many_rows_are_copied_by_several_threads(mine: vkq.Device) -> None:
    """Several threads each copy a part of a batch of more than 2 MiB. The pooled results equal NumPy's if
    an image lies in the parts of two threads, and if one image is larger than a part."""
    for shape in ((37, 3, 150, 163), (2, 9, 410, 401)):
        lane = Lane(mine, pooled(mine, shape), [0], deque())
        x = batch(7, shape=shape)
        lane.start([list(x)])
        np.testing.assert_array_equal(lane.finish()[0], oracle(x))


def test_what_does_not_fit_is_refused(mine: vkq.Device) -> None:
    lane = Lane(mine, pooled(mine, SHAPE), [0], deque())
    with pytest.raises(IndexError, match="more bytes than the buffer has"):
        lane.start([list(batch(0, shape=(4, *SHAPE[1:]))) * 20])


def test_what_cannot_be_a_lane(any_device: vkq.Device) -> None:
    assert not Lane.can(any_device, pooled(any_device, (0, 5, 7, 6)))
    small = work.doctored(any_device.capabilities, maxStorageBufferRange=4096)
    with vkq.Device(capabilities=small, staging=True) as mine:
        assert Lane.can(mine, pooled(mine, SHAPE))
        assert not Lane.can(mine, Plan((Spec((1, 3, 99, 99), "int8"),), (), (), (None,), {}, {}, 0, 1))  # type: ignore[arg-type]


@pytest.mark.parametrize("call", ["vkAllocateMemory", "vkBindBufferMemory", "vkQueueSubmit", "vkCreateFence"])
def test_a_fault_at_every_call_is_told_and_the_next_batch_is_right(any_device: vkq.Device, call: str) -> None:
    def made(device: vkq.Device) -> Lane:
        return Lane(device, pooled(device, SHAPE), [0], deque())

    def ran(lane: Lane) -> Any:
        lane.start([list(batch(3))])
        return lane.finish()[0]

    with work.opened(any_device, True) as mine, failing(call, 0):
        ran(made(mine))
        many = counted()
    assert many
    for nth in range(1, many + 1):
        with work.opened(any_device, True) as mine:
            with failing(call, nth):
                got = tried(lambda mine=mine: ran(made(mine)))  # type: ignore[misc]
            assert got is None or np.array_equal(got, oracle(batch(3)))
            np.testing.assert_array_equal(ran(made(mine)), oracle(batch(3)))


def tried(run: Callable[[], Any]) -> Any:
    try:
        return run()
    except vkq.OutOfMemoryError:
        return None


def test_nothing_is_allocated_between_batches(mine: vkq.Device) -> None:
    lane = Lane(mine, pooled(mine, SHAPE), [0], deque())
    lane.start([list(batch(0))])
    lane.finish()
    with failing("vkAllocateMemory", 0):
        for i in range(100):
            lane.start([list(batch(i))])
            np.testing.assert_array_equal(lane.finish()[0], oracle(batch(i)))
        assert counted() == 0
