"""Measure choices of kernels for a problem on a device. Each choice is compared with the reference before it
is timed."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..device.profiles import preferred
from ..errors import DeviceLostError, VkqError
from ..runtime.device import Device
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..select.tuner import Choice, legal, says, watched
from .catalogue import Check
from .compare import compare, layer

# All choices run in turn, then only the fastest. Rounds are short, so that other programs slow all choices of
# a round equally.
SAMPLE_US = 4_000.0  # microseconds of each choice in a round of at least one run
FIRST_ROUNDS, ROUNDS = 3, 15
FINALISTS = 8
# This percentile of the samples is compared, because other programs can only make a sample longer.
PERCENTILE = 10
CANDIDATES = 6  # maximum number of choices that are timed for a problem, including the default
TRIED = 40  # maximum number of plans that are made to find the candidates
WORTH = 1.03  # factor by which a choice must be faster than the default to replace it


@dataclasses.dataclass(frozen=True)
class Trial:
    """The time of a choice for the whole call on the device (`PERCENTILE` of its samples), or why it was
    rejected.

    ``final``: the choice was one of the fastest, which are timed a second time.
    """

    choice: Choice
    variants: tuple[str, ...]
    time_us: float | None
    error: str = ""
    final: bool = False

    @property
    def name(self) -> str:
        """The name of the choice: ``matrix product: 32x32 through shared memory``."""
        return next((f"{kind}: {name}" for kind, name in self.choice.items()), "default")


class Candidate:
    """A recorded call under a choice, with its samples in microseconds. The samples are device times; on a
    CPU device, which other programs share, processor times."""

    def __init__(self, device: Device, subject: Any, x: Tensor, choice: Choice, plan: Plan):
        c = device.capabilities
        self.choice, self.variants = choice, plan.variants
        self.clock = time.process_time if c.device_type == "cpu" else time.perf_counter
        with preferred(says(choice)):
            with device.record() as probe:
                subject(x)
            self.timed = probe.dispatches if c.timestamp_valid_bits and c.device_type != "cpu" else 0
            with device.record(timestamps=self.timed) as self.recording:
                self.y = subject(x)
        self.samples: list[float] = []

    def sample(self) -> None:
        """Run for about `SAMPLE_US`."""
        end = time.perf_counter() + SAMPLE_US * 1e-6
        while True:
            start = self.clock()
            self.recording.run()
            host = (self.clock() - start) * 1e6
            self.samples.append(sum(self.recording.gpu_times_us()) if self.timed else max(host, 1e-3))
            if time.perf_counter() >= end:
                return

    @property
    def time_us(self) -> float:
        return float(np.percentile(self.samples, PERCENTILE))


def trials(device: Device, check: Check, path: str, most: int | None = CANDIDATES) -> list[Trial]:
    """Time choices for a check's layer: the default, and further choices with different plans and correct
    results, *most* in all (None: no limit); then the fastest again in turn."""
    found = list(_candidates(device, check, path, most))
    right = [each for each in found if isinstance(each, Candidate)]
    for each in FIRST_ROUNDS * right:
        each.sample()
    finalists = sorted(right, key=lambda each: each.time_us)[:FINALISTS]
    finalists = list(dict.fromkeys([*right[:1], *finalists]))
    for each in ROUNDS * finalists if len(finalists) > 1 else ():
        each.sample()
    return [
        each
        if isinstance(each, Trial)
        else Trial(each.choice, each.variants, each.time_us, final=each in finalists)
        for each in found
    ]


def _candidates(device: Device, check: Check, path: str, most: int | None) -> Iterable[Candidate | Trial]:
    """Yield the recorded call of each choice, or a Trial with the reason of its rejection."""
    data = check.data()
    given = check.input(data)
    want, x = check.expected(data, given, device), Tensor.from_numpy(given, device)
    subject = layer(device, check, data, path)
    seen: set[object] = set()
    right = 0
    with preferred({}), watched() as rankings:
        subject.plan(x.spec)
    for tried, choice in enumerate(legal(rankings)):
        if most is not None and (right >= most or tried >= TRIED):
            return
        try:
            with preferred(says(choice)):
                plan = subject.plan(x.spec)
            made = tuple((s.program, s.push, s.grids) if s.program else s.value for s in plan.steps)
            if made in seen:
                continue
            seen.add(made)
            candidate = Candidate(device, subject, x, choice, plan)
            candidate.recording.run()
            wrong = compare(check, path, candidate.y.numpy(), want)
        except DeviceLostError:
            raise
        except VkqError as error:
            yield Trial(choice, (), None, f"{type(error).__name__}: {error}")
            continue
        if wrong:
            said = wrong.error or f"{wrong.wrong} of {wrong.total} elements differ"
            yield Trial(choice, plan.variants, None, said)
            continue
        right += 1
        yield candidate


def best(found: Sequence[Trial]) -> Trial:
    """Return the fastest choice if it is faster than the default (the first) by the factor `WORTH`, else the
    default."""
    timed = [trial for trial in found if trial.time_us is not None and trial.final]
    fastest = min(timed, key=lambda trial: trial.time_us or 0.0, default=found[0])
    usual = found[0].time_us
    return fastest if usual is None or (fastest.time_us or usual) * WORTH < usual else found[0]


def regret(found: Sequence[Trial], chosen: Trial) -> float:
    """Return how much longer *chosen* takes than the fastest choice: 0.05 is 5 %."""
    least = min(trial.time_us for trial in found if trial.time_us is not None)
    return (chosen.time_us or math.inf) / least - 1


def mean_regret(regrets: Sequence[float]) -> float:
    """Return the geometric mean of regrets."""
    return math.exp(sum(math.log1p(one) for one in regrets) / len(regrets)) - 1
