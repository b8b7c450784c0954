"""Measures choices of kernels for a problem on a device. A `Trial` makes, verifies and times one choice.
`vkq tune` and the measurement of a whole device (measuring.py) use it, each with its own choices and time
limits."""

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

# In each round every choice of kernels is timed once; the last rounds time only the fastest choices. Rounds
# are short, so that other programs slow all choices of a round equally.
SAMPLE_S = 0.004  # seconds for which each choice runs in a round (at least one run)
FIRST_ROUNDS, ROUNDS = 3, 15
FINALISTS = 8
# A choice's time is this percentile of its samples. It is low, because other programs can only make a sample
# longer.
PERCENTILE = 10
CANDIDATES = 6  # maximum number of choices that are timed for a problem, including the default
TRIED = 40  # maximum number of plans that are made to find the candidates
WORTH = 1.03  # factor by which a choice must be faster than the default to replace it
LISTED = 12  # maximum number of variants that an error message names


class Chosen:
    """A layer, or a function of a tensor, that uses one choice of kernels and ignores stored choices."""

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
    """Yield a layer with each choice of kernels for an input of spec x, the default first."""
    with preferred({}), watched() as rankings:
        layer.plan(x)
    yield from (Chosen(layer, choice) for choice in legal(rankings))


@dataclasses.dataclass
class Trial:
    """A choice and its time: the `PERCENTILE` of its samples of the whole call, or the reason why it was
    rejected.

    ``final``: the choice was among the fastest ones, which were timed a second time.
    """

    choice: Choice
    variants: tuple[str, ...]
    time_us: float | None = None
    error: str = ""
    final: bool = False

    @property
    def name(self) -> str:
        """The name of the choice: ``matrix product: 32x32 through shared memory``."""
        return next((f"{kind}: {name}" for kind, name in self.choice.items()), "default")

    def record(self, device: Device, call: Chosen, x: Tensor, last: bool = False) -> Tensor:
        """Record a call, and return its result, which the first run of the recording computes. Samples are
        device times of all dispatches (of the last one if *last* is True). Without timestamps they are host
        times. On a CPU device, which other programs share, they are processor times of this process."""
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
            start = self._clock()
            self._recording.run()
            host = (self._clock() - start) * 1e6
            found = sum(self._recording.gpu_times_us()[self._timed]) if self._timed else host
            self._samples.append(max(found, 1e-3))
        self.time_us = float(np.percentile(self._samples, PERCENTILE))


class Subject:
    """A check's problem on a device: layer, input and reference result. *then*: the check of a second
    convolution, which reads the result of the first one. A profile may fuse both into one dispatch."""

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
        """Return the subject of a family's problem: ``conv2d[...]``, or ``conv2d[...] > conv2d[...]``, where
        the second convolution reads the result of the first. Two convolutions use the path "auto", which may
        be matrix units."""
        first, *second = (check_of(name) for name in problem.split(" > "))
        return cls(device, first, "auto", second[0]) if second else cls(device, first, path)

    def tried(self, choice: Choice, variants: tuple[str, ...] = ()) -> Trial:
        """Record the call with a choice, run it once and compare its result with the reference. The trial has
        an error if the call cannot run here or its result is wrong."""
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


def trials(device: Device, check: Check, path: str, most: int | None = CANDIDATES) -> list[Trial]:
    """Verify and time choices for a check's layer: the default first, then choices with other plans, until
    *most* choices are correct (None: all choices). Then time the fastest ones again, alternating between
    them."""
    found = list(_trials(Subject(device, check, path), most))
    right = [each for each in found if not each.error]
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
    """Yield the trial of each choice whose plan differs from all earlier plans. A choice that has no plan
    yields its error, but choices that this device or size does not support are left out."""
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
            # A PathError means that this device or this size does not support the choice.
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
    """Return the fastest choice if it is faster than the default by the factor `WORTH`; else return the
    default, which is the first of *found*."""
    timed = [trial for trial in found if trial.time_us is not None and trial.final]
    fastest = min(timed, key=lambda trial: trial.time_us or 0.0, default=found[0])
    usual = found[0].time_us
    return fastest if usual is None or (fastest.time_us or usual) * WORTH < usual else found[0]


def regret(found: Sequence[Trial], chosen: Trial) -> float:
    """Return the regret of *chosen*: its time / the fastest time - 1 (0.05: 5 % slower than the fastest
    choice)."""
    least = min(trial.time_us for trial in found if trial.time_us is not None)
    return (chosen.time_us or math.inf) / least - 1


def mean_regret(regrets: Sequence[float]) -> float:
    """Return the geometric mean of regrets (of the time ratios 1 + regret)."""
    return math.exp(sum(math.log1p(one) for one in regrets) / len(regrets)) - 1


def variant_names(pattern: str) -> set[str]:
    """Return the names of the shader variants that match a pattern (`Catalog.matching`). Raises ArgumentError
    if none does."""
    found = {variant.name for variant in catalog().matching(pattern)}
    if not found:
        raise ArgumentError(
            f"--variant is {pattern!r}, which names no shader; `vkq shaders list` has them all"
        )
    return found


def with_variant(layer: Any, x: Spec, pattern: str) -> Chosen:
    """Return the layer with the first choice of kernels whose plan for *x* runs a variant that matches
    *pattern*.

    Raises PathError if no choice does; the error lists variants that the layer can run here.
    """
    wanted, seen = variant_names(pattern), dict[str, None]()
    if not hasattr(layer, "plan"):
        raise PathError("--variant: this operator has only one kernel on each path; leave it out")
    for chosen in choices(layer, x):
        try:
            variants = chosen.plan(x).variants
        except VkqError:  # this size or this device does not support the choice
            continue
        if not wanted.isdisjoint(variants):
            return chosen
        seen |= dict.fromkeys(variants)
    more = f" and {len(seen) - LISTED} more" if len(seen) > LISTED else ""
    raise PathError(
        f"no choice of kernels runs {pattern} here; this path and method can run"
        f" {', '.join(list(seen)[:LISTED])}{more}"
    )
