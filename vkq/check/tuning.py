"""Measures choices of kernels for a problem on a device: each is compared with the reference, and timed only
then."""

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

# All choices in turn, then the fastest ones, in short rounds: other programs slow all of a round down alike.
SAMPLE_US = 4_000.0  # of each choice in a round, at least one run
FIRST_ROUNDS, ROUNDS = 3, 15
FINALISTS = 8
PERCENTILE = 10  # of samples: other programs only add time
CANDIDATES = 6  # of a problem that is tuned, the default among them
TRIED = 40  # plans that are looked at for them
WORTH = 1.03  # a choice this much faster than the default replaces it


@dataclasses.dataclass(frozen=True)
class Trial:
    """A choice's time of the whole call on the device (`PERCENTILE` of its samples), or why it is out.

    ``final``: it was among the fastest, and measured again in turn with them.
    """

    choice: Choice
    variants: tuple[str, ...]
    time_us: float | None
    error: str = ""
    final: bool = False

    @property
    def name(self) -> str:
        """``matrix product: 32x32 through shared memory``"""
        return next((f"{kind}: {name}" for kind, name in self.choice.items()), "default")


class Candidate:
    """A recorded call under a choice, with its samples in microseconds: by the device's clock, or by the
    processor's time where the device is the processor, which other programs share."""

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
        """Runs for about `SAMPLE_US`."""
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
    """Of the choices that make another plan of a check's layer, the first *most* that are right (None: all),
    timed: the default first, the fastest again in turn."""
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
    """Each choice's recorded call, or what is wrong with it."""
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
    """The fastest choice, where it is worth leaving the default, which is the first."""
    timed = [trial for trial in found if trial.time_us is not None and trial.final]
    fastest = min(timed, key=lambda trial: trial.time_us or 0.0, default=found[0])
    usual = found[0].time_us
    return fastest if usual is None or (fastest.time_us or usual) * WORTH < usual else found[0]


def regret(found: Sequence[Trial], chosen: Trial) -> float:
    """How much longer the chosen one takes than the fastest: 0.05 is 5 %."""
    least = min(trial.time_us for trial in found if trial.time_us is not None)
    return (chosen.time_us or math.inf) / least - 1


def mean_regret(regrets: Sequence[float]) -> float:
    """Their geometric mean."""
    return math.exp(sum(math.log1p(one) for one in regrets) / len(regrets)) - 1
