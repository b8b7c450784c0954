"""Tests of timed work that is recorded once: how often it is repeated, how it rotates over buffers, and the
order of samples."""

import time

import numpy as np
import pytest

import vkq
from tests.device.reported import profile_says
from vkq.bench import arms, data, timer
from vkq.check.cases import Case
from vkq.check.expected import Expected
from vkq.problem.names import parse
from vkq.runtime.tensor import Tensor

CASE = Case(parse("linear[M=5,K=70,N=9]"))  # no size is a multiple of four
# This case has two dispatches: im2col and the product.
CONV = Case(parse("conv2d[N=1,IC=3,H=7,W=9,OC=6,KH=3,KW=3,padding=1]"), method="im2col")
QUICK = timer.Settings(samples=4, submission_us=2000, time_s=1.0, enough_s=0.0)


def work(device: vkq.Device, case: Case, rotate: bool) -> tuple[arms.CapturedWork, Expected]:
    weights, x = data.weights(case), data.activations(case)
    layer = data.layer(case, weights, "portable", device)
    tensor = Tensor.from_numpy(x, device)
    return arms.CapturedWork(device, lambda: layer(tensor), case.bytes, rotate), data.expected(
        case, weights, x
    )


@pytest.mark.parametrize(("case", "dispatches"), [(CASE, 1), (CONV, 2)], ids=["linear", "conv2d"])
def test_every_copy_of_the_data_gives_the_reference_answer(
    device: vkq.Device, case: Case, dispatches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile_says(monkeypatch, arms, cache_bytes=3 * case.bytes)
    one, expected = work(device, case, rotate=True)
    assert (one.dispatches, len(one.sets)) == (dispatches, 4)
    first = one.steps[0].buffers[0]
    assert len({buffers.get(first, first) for buffers in one.sets}) == 4
    for y in one.results():  # make the results of all copies wrong
        device.upload(y.buffer, np.full(y.buffer.bytes, 99, np.uint8))
    arm = arms.WorkArm(one, QUICK)
    arm.prepare("gpu")
    for y in one.results():
        assert expected.mismatch(y.numpy()) is None
    assert arm.passes % 4 == 0


def test_work_is_stacked_until_a_submission_is_long(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of 10 us is repeated at least 200 times in a submission of 2 ms, even if some submissions take
    a hundred times as long."""
    one, _ = work(any_device, CASE, rotate=False)
    noise = iter([1000, 1, *[1, 100, 1, 1, 1] * 20])

    class Recorded:
        def __init__(self, passes: int):
            self.passes = passes

        def run(self) -> None:
            self.us = 10.0 * self.passes * next(noise)

        def mark_times_us(self) -> list[float]:
            return [self.us]

    monkeypatch.setattr(one, "record", lambda sets, rounds, extra: Recorded(rounds * len(sets)))
    arm = arms.WorkArm(one, QUICK)
    arm.prepare("gpu")
    assert 200 <= arm.passes <= 400


def test_a_slow_pass_gives_the_submit_clock_along(device: vkq.Device) -> None:
    one, _ = work(device, CASE, rotate=False)
    arm = arms.WorkArm(one, timer.Settings(submission_us=0))
    arm.prepare("gpu")
    times = [arm.sample("gpu") for _ in range(3)]
    submits = arm.submits(times)
    assert submits is not None
    assert all(host > device for host, device in zip(submits, times, strict=True))
    assert min(arm.overhead_us) > 0
    stacked = arms.WorkArm(one, QUICK, least_passes=2)
    stacked.prepare("gpu")
    assert stacked.submits([stacked.sample("gpu")]) is None


def test_injected_work_is_done_and_not_counted(any_device: vkq.Device) -> None:
    one, _ = work(any_device, CASE, rotate=False)
    arm = arms.WorkArm(one, timer.Settings(submission_us=0), inject=9.0, least_passes=10)
    base = arms.WorkArm(one, timer.Settings(submission_us=0), least_passes=10)
    for each in (arm, base):
        each.prepare("gpu")
    assert arm.passes == base.passes == 10
    found = timer.measure([arm, base], "gpu", timer.Settings(samples=10, time_s=5)).times
    assert np.median(found[0]) > 4 * np.median(found[1])  # `arm` does ten times as much work as `base`


def test_submission_overhead_is_small(device: vkq.Device) -> None:
    """For an almost empty submission, the host's overhead is below 100 us in the best of many runs."""
    one, _ = work(device, Case(parse("linear[M=1,K=4,N=4]")), rotate=False)
    arm = arms.WorkArm(one, QUICK)
    arm.prepare("submit")
    end = time.monotonic() + 20
    while len(arm.overhead_us) < 50 or (min(arm.overhead_us) >= 100 and time.monotonic() < end):
        arm.sample("submit")
    assert min(arm.overhead_us) < 100


class Fake:
    """A fake side of a comparison: it returns given samples, and records the order of calls."""

    clocks = ("call",)

    def __init__(self, name: str, times: list[float], log: list[str]):
        self.name, self.times, self.log, self.taken = name, times, log, 0

    def prepare(self, clock: str) -> None:
        self.log.append(f"prepare {self.name}")

    def sample(self, clock: str) -> float:
        self.log.append(self.name)
        self.taken += 1
        return self.times[min(self.taken, len(self.times)) - 1]


def test_arms_are_warmed_up_and_interleaved() -> None:
    log: list[str] = []
    arms = [Fake("a", [9.0, 5.0, 1.0], log), Fake("b", [2.0], log)]
    found = timer.measure(arms, "call", timer.Settings(samples=5, enough_s=0))
    assert log[:2] == ["prepare a", "prepare b"]
    assert log[2:14] == ["a"] * 7 + ["b"] * 5  # the third sample of "a" ends its warm-up
    assert log[14:] == ["a", "b", "b", "a"] * 2 + ["a", "b"]
    assert found.times == [[1.0] * 5, [2.0] * 5]
    assert found.warm == [True, True]


def test_sampling_goes_on_until_the_ratio_is_known_and_ends_with_the_time() -> None:
    noise = np.random.default_rng(0).lognormal(0, 0.1, 3000).tolist()
    log: list[str] = []
    loose = timer.measure(
        [Fake("a", noise, log), Fake("b", [1.0], log)], "call", timer.Settings(precision=0.05, time_s=5)
    )
    tight = timer.measure(
        [Fake("a", noise, log), Fake("b", [1.0], log)], "call", timer.Settings(precision=0.02, time_s=5)
    )
    assert 10 <= len(loose.times[0]) < len(tight.times[0]) <= timer.Settings.MOST
    short = timer.measure([Fake("a", [1.0, 2.0] * 500, log)], "call", timer.Settings(time_s=1e-9))
    assert len(short.times[0]) == timer.Settings.LEAST
    assert short.warm == [True]  # a pass of 1 us exceeds the warm-up's time limit
    noisy = timer.measure([Fake("a", [1.0, 2.0] * 100_000, log)], "call", timer.Settings(time_s=0.01))
    assert noisy.warm == [False]


def test_the_host_clock_leaves_the_device_out(any_device: vkq.Device) -> None:
    """The host clock does not include the device's time: long work of the device does not lengthen it, and no
    sample includes a submission."""
    large = Case(parse("linear[M=512,K=512,N=512]"))
    times = {}
    for case in (CASE, large):
        one, _ = work(any_device, case, rotate=False)
        arm = arms.WorkArm(one, QUICK)
        times[case] = min(arm.sample("host") for _ in range(5))
        arm.prepare("submit")
        if case is large:
            assert times[case] < 0.2 * arm.sample("submit")
    assert all(0 < t < 1000 for t in times.values())
