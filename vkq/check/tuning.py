"""Measures every setting of the int8 matrix product for a problem on a device; none counts that is not exact
first."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Iterator

import numpy as np

from ..ops.conv2d import Conv2d
from ..ops.conv_transpose2d import ConvTranspose2d
from ..ops.linear import Linear
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..select import tune
from ..select.tune import ProductShape, Setting
from .catalogue import Check
from .compare import compare, layer

SAMPLE_US = 20_000.0  # of each setting in a round, at least one run
ROUNDS = 3  # of the fastest ones, interleaved
FINALISTS = 4
WORTH = 1.03  # a setting this much faster than the default replaces it


@dataclasses.dataclass(frozen=True)
class Trial:
    """A setting's time of the whole call on the device (the lower quartile of its samples), or why it is out.

    ``final``: it was among the fastest, and measured again in turn with them.
    """

    setting: Setting
    time_us: float | None
    error: str = ""
    final: bool = False


class Candidate:
    """A setting with its samples."""

    def __init__(
        self, device: Device, setting: Setting, subject: Linear | Conv2d | ConvTranspose2d, x: Tensor
    ):
        self.device, self.setting = device, setting
        with tune.forced(setting), device.record() as probe:
            subject(x)
        self.timed = probe.dispatches if device.capabilities.timestamp_valid_bits else 0
        with tune.forced(setting), device.record(timestamps=self.timed) as self.recording:
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


def winner(results: Iterable[Trial], standard: Setting) -> Setting:
    """The setting to keep: the fastest of the final ones, where it is worth leaving the default."""
    times = {
        result.setting: result.time_us for result in results if result.final and result.time_us is not None
    }
    best = min(times, key=lambda setting: times[setting], default=standard)
    return best if standard not in times or times[best] * WORTH < times[standard] else standard
