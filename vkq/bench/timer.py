"""How arms are timed: with which clocks, for how long, and in what order they are sampled."""

from __future__ import annotations

import gc
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from vkq.bench import stats

# gpu: the device's timestamps around stacked dispatches. submit: the host's, from submission to fence, of one
# unstacked pass. call: the Python call, arrays in and out. host: the time that Python needs for the call on
# tensors in a chain that is not submitted meanwhile, so without the device's.
CLOCKS = ("gpu", "submit", "call", "host")


@dataclass(frozen=True)
class Settings:
    """How long is measured.

    ``samples``: at least so many for each arm and clock (three where a clock's ``time_s`` are over before).
    ``submission_us``: dispatches are stacked until a submission lasts so long. ``precision``: two arms are
    sampled on until the interval of their ratio is this narrow on either side, or the time is over.
    """

    samples: int = 10
    submission_us: float = 50_000
    time_s: float = 10.0
    precision: float = 0.02
    enough_s: float = 0.25  # a single arm is sampled so long, up to MOST samples

    MOST = 400
    LEAST = 3


class Arm(Protocol):
    """One of the things that are measured side by side."""

    @property
    def clocks(self) -> Sequence[str]:
        """The clocks it can be measured with."""

    def prepare(self, clock: str) -> None:
        """Makes ready what `sample` runs."""

    def sample(self, clock: str) -> float:
        """One time in microseconds, of one pass of the work."""


@dataclass(frozen=True)
class Samples:
    """Microseconds by arm, in the order taken, and whether each arm's warm-up settled."""

    times: list[list[float]]
    warm: list[bool]


def measure(arms: Sequence[Arm], clock: str, settings: Settings) -> Samples:
    """Samples of all arms with one clock, interleaved: A B, B A, A B, ...

    The order turns every round, so that neither drift nor what one arm leaves behind favours an arm.
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
    """The same work until five samples in a row agree within 3 %, or the time is over (False).

    A single pass longer than that time has warmed the device up by itself.
    """
    if getattr(arm, "pass_us", 0.0) > 1e6 * limit_s:  # and has run by now
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
    if count % 5:  # the interval is asked for now and then: looking at it often would make it too hopeful
        return False
    return all(stats.paired_ratio(one, times[0]).width <= settings.precision for one in times[1:])
