"""Measures the kernels of every family for a problem on a device, and every setting of the int8 matrix
product in registers; none counts that is not right first."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np

from ..device.profiles import preferred, tuned_families
from ..ops.conv2d import Conv2d
from ..ops.conv_transpose2d import ConvTranspose2d
from ..ops.linear import Linear
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..select import tune
from ..select.kernels import says
from ..select.tune import ProductShape, Setting
from .catalogue import Check
from .compare import compare, layer

SAMPLE_US = 20_000.0  # of each setting in a round, at least one run
ROUNDS = 3  # of the fastest ones, interleaved
FINALISTS = 4
WORTH = 1.03  # a setting this much faster than the default replaces it
NO_SETTING = Setting("", 0, 0)  # of a candidate that none is forced on


@dataclasses.dataclass(frozen=True)
class Trial:
    """A setting's time of the whole call on the device (the lower quartile of its samples), or why it is out.

    ``final``: it was among the fastest, and measured again in turn with them.
    """

    setting: Setting
    time_us: float | None
    error: str = ""
    final: bool = False


@dataclasses.dataclass(frozen=True)
class KernelTrial:
    """As `Trial`, of a choice of kernels: the candidate of a family, or none, which is the default."""

    choice: Mapping[str, str]
    variants: tuple[str, ...]
    time_us: float | None
    error: str = ""

    @property
    def name(self) -> str:
        """``matrix product: 32x32 through shared memory``"""
        return next((f"{family}: {name}" for family, name in self.choice.items()), "default")


Within = Callable[[], contextlib.AbstractContextManager[None]]


class Candidate:
    """What is measured within a context, with its samples."""

    def __init__(
        self,
        device: Device,
        setting: Setting,
        subject: Linear | Conv2d | ConvTranspose2d,
        x: Tensor,
        within: Within | None = None,
    ):
        self.device, self.setting = device, setting
        context = within or partial(tune.forced, setting)
        with context(), device.record() as probe:
            subject(x)
        self.timed = probe.dispatches if device.capabilities.timestamp_valid_bits else 0
        with context(), device.record(timestamps=self.timed) as self.recording:
            self.y = subject(x)
        self.samples: list[float] = []

    def sample(self) -> None:
        """Runs for about `SAMPLE_US`."""
        spent = 0.0
        while spent < SAMPLE_US:
            start = time.perf_counter()
            self.recording.run()
            host = (time.perf_counter() - start) * 1e6
            self.samples.append(sum(self.recording.gpu_times_us()) if self.timed else host)
            spent += max(host, 1.0)

    @property
    def time_us(self) -> float:
        return float(np.percentile(self.samples, 25))  # other programs only add time


class Recorder:
    """Notes the shapes of the products that a call asks for."""

    def __init__(self) -> None:
        self.shapes: list[ProductShape] = []

    def __enter__(self) -> Recorder:
        self._token = tune.observer.set(self.shapes.append)
        return self

    def __exit__(self, *_: object) -> None:
        tune.observer.reset(self._token)


def shapes_of(device: Device, check: Check, path: str) -> list[ProductShape]:
    """The products that a check's layer is made of on a path; empty where its kernels have nothing to
    tune."""
    data = check.data()
    subject, x = layer(device, check, data, path), Tensor.from_numpy(check.input(data), device)
    with Recorder() as recorder, device.record():
        subject(x)
    return list(dict.fromkeys(recorder.shapes))


def tuned(device: Device, check: Check, path: str) -> Iterator[Trial]:
    """Every setting that the device can run, the first one the default, as it is measured; then the finalists
    again."""
    data = check.data()
    given = check.input(data)
    want, x = check.expected(data, given), Tensor.from_numpy(given, device)
    subject = layer(device, check, data, path)
    shape = shapes_of(device, check, path)[0]
    standard = tune.default(device.capabilities, shape)
    others = [setting for setting in tune.candidates(device.capabilities) if setting != standard]
    exact: list[Candidate] = []
    for setting in (standard, *others):
        candidate = Candidate(device, setting, subject, x)
        candidate.recording.run()
        wrong = compare(check, path, candidate.y.numpy(), want)
        if wrong:
            yield Trial(setting, None, f"{wrong.wrong} of {wrong.total} elements differ")
            continue
        candidate.sample()
        exact.append(candidate)
        yield Trial(setting, candidate.time_us)
    best = sorted(exact, key=lambda c: c.time_us)[:FINALISTS]
    finalists = dict.fromkeys([*exact[:1], *best])
    for _ in range(ROUNDS):
        for candidate in finalists:
            candidate.sample()
    for candidate in finalists:
        yield Trial(candidate.setting, candidate.time_us, final=True)


def tuned_kernels(device: Device, check: Check, path: str) -> list[KernelTrial]:
    """Every choice of kernels that makes another plan of a check's layer, the default first; the right ones
    were measured in turn."""
    data = check.data()
    given = check.input(data)
    want, x = check.expected(data, given), Tensor.from_numpy(given, device)
    choices = [{}, *({family.name: name} for family in tuned_families() for name in family.candidates)]
    seen: set[object] = set()
    found: list[tuple[KernelTrial, Candidate | None]] = []
    for choice in choices:
        within = partial(preferred, says(choice))
        with within():
            subject = layer(device, check, data, path)
            plan = subject.plan(x.spec)
        made = tuple((s.program.variant.name, *s.program.constants.items()) for s in plan.steps if s.program)
        if made in seen:
            continue
        seen.add(made)
        candidate = Candidate(device, NO_SETTING, subject, x, within)
        candidate.recording.run()
        wrong = compare(check, path, candidate.y.numpy(), want)
        error = f"{wrong.wrong} of {wrong.total} elements differ" if wrong else ""
        found.append((KernelTrial(choice, plan.variants, None, error), None if wrong else candidate))
    for _ in range(ROUNDS if len(found) > 1 else 0):
        for _, each in found:
            if each:
                each.sample()
    return [
        dataclasses.replace(trial, time_us=each.time_us) if each and each.samples else trial
        for trial, each in found
    ]


def best_kernels(trials: Sequence[KernelTrial]) -> KernelTrial:
    """The fastest choice, where it is worth leaving the default, which is the first."""
    timed = [trial for trial in trials if trial.time_us is not None]
    best = min(timed, key=lambda trial: trial.time_us or 0.0, default=trials[0])
    usual = trials[0].time_us
    return best if usual is None or (best.time_us or usual) * WORTH < usual else trials[0]


def winner(results: Iterable[Trial], standard: Setting) -> Setting:
    """The setting to keep: the fastest of the final ones, where it is worth leaving the default."""
    times = {
        result.setting: result.time_us for result in results if result.final and result.time_us is not None
    }
    best = min(times, key=lambda setting: times[setting], default=standard)
    return best if standard not in times or times[best] * WORTH < times[standard] else standard
