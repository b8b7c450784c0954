"""Time arms (paths of vkq, and other libraries): the clocks, the duration of the sampling, and the order of
the arms."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vkq.bench import stats

# What each clock measures:
# - gpu: many passes in one submission, by the device's timestamps before and after them
# - submit: one pass, by the host's time from its submission to its fence
# - call: the Python call with NumPy arrays as input and output
# - host: the Python call on tensors. It only records the work, so the device is idle.
CLOCKS = ("gpu", "submit", "call", "host")


@dataclass(frozen=True)
class Settings:
    """How long to measure. Sampling ends when half the width of the interval of the arms' ratio is at most
    *precision* times the ratio."""

    samples: int = 10  # minimum number for each arm and clock; three are enough once time_s is over
    submission_us: float = 50_000  # minimum duration of a submission, which repeats the pass
    time_s: float = 10.0  # maximum number of seconds for one clock of one case
    precision: float = 0.02
    enough_s: float = 0.25  # seconds for which an arm is sampled if it is the only arm

    MOST = 400  # maximum number of samples
    LEAST = 3  # minimum number of samples, even when the time is over


class Arm(Protocol):
    """A candidate of a benchmark: GPU work or a Python call."""

    @property
    def clocks(self) -> Sequence[str]:
        """The clocks by which the arm can be timed."""

    def prepare(self, clock: str) -> None:
        """Prepare the work that `sample` times by this clock."""

    def sample(self, clock: str) -> float:
        """Run the prepared work, and return the time of one pass in microseconds."""


@dataclass(frozen=True)
class Samples:
    """The samples of the arms."""

    times: list[list[float]]  # the samples of each arm in microseconds, in the order of measurement
    warm: list[bool]  # for each arm, whether the times of the warm-up became stable


def measure(arms: Sequence[Arm], clock: str, settings: Settings) -> Samples:
    """Sample all arms with one clock, in alternating order: A B, B A, A B, ...

    The order is reversed in every round. So neither drift nor the state in which an arm leaves the device
    (caches, heat) favours an arm.
    """
    begin = time.perf_counter()
    for arm in arms:
        arm.prepare(clock)
    collecting = gc.isenabled()
    gc.disable()
    try:
        warm = [_warm_up(arm, clock, settings.time_s / (5 * len(arms))) for arm in arms]
        times: list[list[float]] = [[] for _ in arms]
        start = time.perf_counter()
        while not _enough(times, time.perf_counter() - start, time.perf_counter() - begin, settings):
            forward = len(times[0]) % 2 == 0
            for i in range(len(arms)) if forward else reversed(range(len(arms))):
                times[i].append(arms[i].sample(clock))
    finally:
        if collecting:
            gc.enable()
    return Samples(times, warm)


def _warm_up(arm: Arm, clock: str, limit_s: float) -> bool:
    """Sample the arm until five consecutive samples agree within 3 %. Return False if that takes longer
    than *limit_s*. Return True after one pass if a single pass takes longer than *limit_s*."""
    if getattr(arm, "pass_us", 0.0) > 1e6 * limit_s:  # `prepare` has run a pass already
        return True
    begin, seen = time.perf_counter(), [arm.sample(clock)]
    if seen[0] > 1e6 * limit_s:
        return True
    while not stats.settled(seen):
        if time.perf_counter() - begin > limit_s:
            return False
        seen.append(arm.sample(clock))
    return True


def _enough(times: list[list[float]], sampled_s: float, spent_s: float, settings: Settings) -> bool:
    count = len(times[0])
    if count < settings.LEAST:
        return False
    if spent_s > settings.time_s or count >= settings.MOST:
        return True
    if count < settings.samples:
        return False
    if len(times) == 1:
        return sampled_s >= settings.enough_s
    # Test the precision only in every fifth round: each test is another chance for a random early end.
    if count % 5:
        return False
    return all(stats.paired_ratio(one, times[0]).width <= settings.precision for one in times[1:])
