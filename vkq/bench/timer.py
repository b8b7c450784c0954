"""Times arms (paths of vkq, and other libraries): the clocks, the duration and the order of sampling."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vkq.bench import stats

# gpu: the device's timestamps around many passes in one submission. submit: the host's time of one pass, from
# submission to fence. call: the time of the Python call with NumPy arrays as input and output. host: the time
# of the Python call on tensors in a chain that is not submitted during the call, so the device does no work.
CLOCKS = ("gpu", "submit", "call", "host")


@dataclass(frozen=True)
class Settings:
    """How long to measure.

    ``time_s``: the maximum time for one of `CLOCKS`. ``samples``: the minimum number of samples for each arm
    and clock; if ``time_s`` is over before that, three samples are enough. ``submission_us``: passes are
    repeated in a submission until it lasts this long. ``precision``: two arms are sampled until the
    interval of the ratio of their times has at most this half-width, or ``time_s`` is over.
    """

    samples: int = 10
    submission_us: float = 50_000
    time_s: float = 10.0
    precision: float = 0.02
    enough_s: float = 0.25  # seconds for which a single arm is sampled, up to MOST samples

    MOST = 400
    LEAST = 3


class Arm(Protocol):
    """One candidate of a benchmark: GPU work, or a Python call, that can be timed."""

    @property
    def clocks(self) -> Sequence[str]:
        """The clocks by which the arm can be timed."""

    def prepare(self, clock: str) -> None:
        """Prepare the work that `sample` runs."""

    def sample(self, clock: str) -> float:
        """Run the work; return the time of one pass in microseconds."""


@dataclass(frozen=True)
class Samples:
    """The samples of each arm in microseconds, in order of time, and whether each arm's warm-up settled."""

    times: list[list[float]]
    warm: list[bool]


def measure(arms: Sequence[Arm], clock: str, settings: Settings) -> Samples:
    """Sample all arms with one clock, interleaved: A B, B A, A B, ...

    The order is reversed in every round, so that neither drift nor the state that an arm leaves (caches,
    heat) favours one of them.
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
    """Run the work until five consecutive samples agree within 3 %. Return False if the time is over before
    that.

    A single pass that is longer than the limit suffices.
    """
    if getattr(arm, "pass_us", 0.0) > 1e6 * limit_s:  # `prepare` has already run one pass of this length
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
    # Test the interval only in every fifth round: frequent tests would end the sampling early by chance.
    if count % 5:
        return False
    return all(stats.paired_ratio(one, times[0]).width <= settings.precision for one in times[1:])
