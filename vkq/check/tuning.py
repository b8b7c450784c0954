"""Measure choices of kernels for a problem on a device. A `Trial` runs, verifies and times one choice.
`vkq tune` and the measurement of a new device (measuring.py) use this module."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, cast

import numpy as np

from ..device.profiles import preferred
from ..device.tuner import Choice, legal, says, watched
from ..errors import ArgumentError, DeviceLostError, PathError, VkqError
from ..layout.extent import Spec
from ..ops.conv2d import Conv2d
from ..ops.expanded import applied
from ..runtime.device import Device
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from .catalogue import Check, check_of
from .compare import compare, layer

# Choices are timed in rounds. The first rounds time every choice, the last rounds only the fastest choices.
# Rounds are short, so that other programs slow all choices of a round equally.
SAMPLE_S = 0.004  # seconds for which each choice runs in a round (at least one run)
FIRST_ROUNDS, ROUNDS = 3, 15  # number of rounds that time all choices, and of rounds that time the fastest
FINALISTS = 8  # number of choices that the last rounds time
# A choice's time is this percentile of its samples. It is low, because other programs can only make a sample
# longer.
PERCENTILE = 10
CANDIDATES = 6  # maximum number of choices that are timed for a problem, including the default
TRIED = 40  # maximum number of choices whose plans are made to find the candidates
WORTH = 1.03  # a choice replaces the default if it is faster by this factor
LISTED = 12  # maximum number of variants that an error message names


class Chosen:
    """A layer (or a function of a tensor) that runs with the given choice of kernels. Stored choices are
    ignored."""

    def __init__(self, layer: Any, choice: Choice):
        self._layer, self._says, self.picks = layer, says(choice), choice

    def __call__(self, x: Any) -> Any:
        with preferred(self._says):
            return self._layer(x)

    def plan(self, x: Spec) -> Plan:
        """Return the layer's plan with this choice."""
        with preferred(self._says):
            return cast(Plan, self._layer.plan(x))

    def explain(self, shape: Sequence[int]) -> Any:
        """Return the layer's explanation with this choice."""
        with preferred(self._says):
            return self._layer.explain(shape)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._layer, name)


def choices(layer: Any, x: Spec) -> Iterator[Chosen]:
    """Yield the layer with each choice of kernels that it has for an input of spec x. The default choice
    comes first."""
    with preferred({}), watched() as rankings:
        layer.plan(x)
    yield from (Chosen(layer, choice) for choice in legal(rankings))


@dataclasses.dataclass
class Trial:
    """A choice of kernels. ``time_us``: its time, the percentile `PERCENTILE` of all samples. ``error``: why
    the choice was rejected. ``final``: whether it was among the fastest choices, which the last rounds timed
    again.
    """

    choice: Choice
    variants: tuple[str, ...]
    time_us: float | None = None
    error: str = ""
    final: bool = False

    @property
    def name(self) -> str:
        """The name of the choice, such as ``matrix product: 32x32 through shared memory``."""
        return next((f"{kind}: {name}" for kind, name in self.choice.items()), "default")

    def record(self, device: Device, call: Chosen, x: Tensor, last: bool = False) -> Tensor:
        """Record a call, and return its result tensor, which has no values before the recording runs.

        A sample is the device time of all dispatches (with *last*, of the last dispatch). On a device without
        timestamps it is the host time. On a CPU device, which other programs share, it is the processor time
        of this process."""
        c = device.capabilities
        cpu = c.device_type == "cpu"
        self._clock = time.process_time if cpu else time.perf_counter
        self._timed = slice(-1 if last else 0, None) if c.timestamp_valid_bits and not cpu else None
        self._samples = list[float]()
        with device.record() as probe:
            call(x)
        with device.record(timestamps=probe.dispatches if self._timed else 0) as self._recording:
            return cast(Tensor, call(x))

    def sample(self, seconds: float, least: int = 1) -> None:
        """Run the recorded call for about *seconds*, and at least *least* times."""
        end, count = time.perf_counter() + seconds, len(self._samples) + least
        while len(self._samples) < count or time.perf_counter() < end:
            self._samples.append(self.run())
        self.time_us = float(np.percentile(self._samples, PERCENTILE))

    def run(self) -> float:
        """Run the recorded call once, and return its time in microseconds."""
        start = self._clock()
        self._recording.run()
        host = (self._clock() - start) * 1e6
        return max(sum(self._recording.gpu_times_us()[self._timed]) if self._timed else host, 1e-3)


class Subject:
    """The layer of a check on a device, with its input and its expected result. *then*: the check of a second
    convolution, which reads the result of the first. A profile may fuse the two into one dispatch."""

    def __init__(self, device: Device, check: Check, path: str, then: Check | None = None):
        data = check.data()
        given = check.input(data)
        self.device, self.check, self.path = device, check, path
        self.want, self.x = check.expected(data, given, device), Tensor.from_numpy(given, device)
        self.layer = layer(device, check, data, path)
        self.call: Callable[[Tensor], Tensor] = self.layer
        if then is not None:
            behind = dataclasses.replace(then.data(), x=self.want.y, x_q=data.y_q)
            second = layer(device, then, behind, path)
            self.check, self.want = then, then.expected(behind, self.want.y, device)
            self.call = partial(applied, cast(Conv2d, self.layer), cast(Conv2d, second))

    @classmethod
    def of(cls, device: Device, problem: str, path: str) -> Subject:
        """Return the subject for a ``problem`` of profiles.yaml: a layer, or two convolutions such as
        ``conv2d[...] > conv2d[...]``, of which the second reads the result of the first. For two
        convolutions *path* is ignored: they use "auto", which may be matrix units."""
        first, *second = (check_of(name) for name in problem.split(" > "))
        return cls(device, first, "auto", second[0]) if second else cls(device, first, path)

    def tried(self, choice: Choice, variants: tuple[str, ...] = ()) -> Trial:
        """Record the call with a choice of kernels, run it once, and compare the result with the reference.
        The returned trial has an error if the call cannot run on the device, or its result is wrong."""
        trial = Trial(choice, variants)
        try:
            y = trial.record(self.device, Chosen(self.call, choice), self.x)
            trial._recording.run()
            wrong = compare(self.check, self.path, y.numpy(), self.want)
        except DeviceLostError:
            raise
        except VkqError as error:
            trial.error = f"{type(error).__name__}: {error}"
        else:
            if wrong:
                trial.error = wrong.error or f"{wrong.wrong} of {wrong.total} elements differ"
        return trial


def trials(
    device: Device,
    check: Check,
    path: str,
    most: int | None = CANDIDATES,
    awake: Callable[[], None] = lambda: None,
) -> list[Trial]:
    """Verify choices of kernels for a check's layer: the default, then others whose plans differ, until
    *most* choices are correct (None: all choices). Time the correct choices, then the fastest ones again, in
    alternation. Return all trials, the default first. *awake* is called before the first time (`Awake`)."""
    found = list(_trials(Subject(device, check, path), most))
    right = [each for each in found if not each.error]
    awake()
    for each in FIRST_ROUNDS * right:
        each.sample(SAMPLE_S)
    finalists = sorted(right, key=lambda each: each.time_us or 0.0)[:FINALISTS]
    finalists += [each for each in right[:1] if each not in finalists]
    for each in ROUNDS * finalists if len(finalists) > 1 else ():
        each.sample(SAMPLE_S)
    for each in finalists:
        each.final = True
    return found


def _trials(subject: Subject, most: int | None) -> Iterator[Trial]:
    """Yield the trial of each choice whose plan differs from all earlier plans. If making the plan fails, the
    trial has the error. Choices that the device or the size does not support are left out."""
    seen: set[object] = set()
    right = 0
    for tried, chosen in enumerate(choices(subject.layer, subject.x.spec)):
        if most is not None and (right >= most or tried >= TRIED):
            return
        try:
            plan = chosen.plan(subject.x.spec)
        except DeviceLostError:
            raise
        except VkqError as error:
            # A PathError means that the device, or the size, does not support the choice.
            if not (chosen.picks and isinstance(error, PathError)):
                yield Trial(chosen.picks, (), error=f"{type(error).__name__}: {error}")
            continue
        made = tuple((s.program, s.push, s.grids) if s.program else s.value for s in plan.steps)
        if made not in seen:
            seen.add(made)
            trial = subject.tried(chosen.picks, plan.variants)
            right += not trial.error
            yield trial


def best(found: Sequence[Trial]) -> Trial:
    """Return the trial of the fastest choice if it is faster than the default by the factor `WORTH`; else
    return the default, which is the first trial."""
    timed = [trial for trial in found if trial.time_us is not None and trial.final]
    fastest = min(timed, key=lambda trial: trial.time_us or 0.0, default=found[0])
    usual = found[0].time_us
    return fastest if usual is None or (fastest.time_us or usual) * WORTH < usual else found[0]


def regret(found: Sequence[Trial], chosen: Trial) -> float:
    """Return the regret of *chosen*: (its time / the time of the fastest choice) - 1. 0.05 means 5 %
    slower."""
    least = min(trial.time_us for trial in found if trial.time_us is not None)
    return (chosen.time_us or math.inf) / least - 1


def mean_regret(regrets: Sequence[float]) -> float:
    """Return the geometric mean of the time ratios (1 + regret), minus 1."""
    return math.exp(sum(math.log1p(one) for one in regrets) / len(regrets)) - 1


def variant_names(pattern: str) -> set[str]:
    """Return the names of the shader variants that match a pattern (`Catalog.matching`). Raises ArgumentError
    if no variant matches."""
    found = {variant.name for variant in catalog().matching(pattern)}
    if not found:
        raise ArgumentError(
            f"--variant is {pattern!r}, which names no shader; `vkq shaders list` has them all"
        )
    return found


def with_variant(layer: Any, x: Spec, pattern: str) -> Chosen:
    """Return the layer with the first choice of kernels whose plan for *x* runs a variant that matches
    *pattern*.

    Raises PathError if there is no such choice; the message lists the variants that the layer can run on
    this device.
    """
    wanted, seen = variant_names(pattern), dict[str, None]()
    if not hasattr(layer, "plan"):
        raise PathError("--variant: this operator has only one kernel on each path; leave it out")
    for chosen in choices(layer, x):
        try:
            variants = chosen.plan(x).variants
        except VkqError:  # the size or the device does not support the choice
            continue
        if not wanted.isdisjoint(variants):
            return chosen
        seen |= dict.fromkeys(variants)
    more = f" and {len(seen) - LISTED} more" if len(seen) > LISTED else ""
    raise PathError(
        f"no choice of kernels runs {pattern} here; this path and method can run"
        f" {', '.join(list(seen)[:LISTED])}{more}"
    )
