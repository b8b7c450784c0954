"""Replay workloads many times, and compare the results of every run with the reference. Integer results must
be equal. Float sums must be within their bound in the first run, and have the same bits in all later runs.

Some released phone drivers give wrong results in some runs, in all runs except the first, or only when the
device is warm or has just woken up. So inputs alternate, results and scratch memory are overwritten before
each run, and large problems run on a cold device, after a load, and after a rest.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence

import numpy as np

from ..runtime.device import Device
from ..runtime.recording import Recording
from ..runtime.tensor import Tensor
from . import workgroups
from .compare import Array
from .expected import Expected
from .symptom import symptom, when
from .works import INPUTS, Work, works

TIMES = 200
SECONDS = 30.0  # seconds for all replays; large workloads are replayed as often as this time allows
GARBAGE = (0xA5, 0x5C)  # bytes written to results and scratch memory before a replay, alternately
LEAST = 2 * INPUTS  # minimum number of runs of each workload, however slow it is
POWER_S = 1.0  # for this many seconds the device is kept busy, and then as long idle
POWERED = 2  # number of large workloads that are replayed again after the busy and after the idle time
# Shares of the time at which the small workloads (some hundred) and the large workloads must have ended. The
# remaining time is for the runs after the busy and after the idle time.
SMALL, LARGE = 0.5, 0.75
# The share of the remaining time that one workload may use, as (small workload, large workload).
SHARE = 1 / 30, 1 / 4


@dataclasses.dataclass(frozen=True)
class Replay:
    """The outcome of a workload that was replayed *times* times on a path.

    - wrong: the number of wrong runs
    - operator: the first operator with a wrong result; "" if there is none
    - said: the symptom, and which runs were wrong; "" if there are none
    - state: the device's power state before the replay: "cold", "loaded" or "idle"
    """

    case: str
    path: str
    times: int
    wrong: int
    operator: str = ""
    said: str = ""
    state: str = "cold"


def replays(
    device: Device, paths: Sequence[str], times: int = TIMES, seconds: float = SECONDS, texels: bool = True
) -> Iterator[Replay]:
    """Replay every workload on every path, each at most *times* times. Then keep the device busy, replay some
    large workloads, leave the device idle, and replay them again. All this takes about *seconds*; large
    workloads for which no time is left are skipped. *texels*: include kernels that read texels."""
    start = time.monotonic()
    powered: list[Replayer] = []
    for work in works(device, paths, texels):
        left = start + seconds * (LARGE if work.large else SMALL) - time.monotonic()
        if work.large and left <= 0:
            break
        replayer = Replayer(device, work)
        yield replayer.run(times, max(0.0, left * SHARE[work.large]))
        if work.large and len(powered) < POWERED:
            powered.append(replayer)
    rest = min(POWER_S, seconds / 10)
    if powered:
        _load(powered[0], rest)
    for replayer in powered:
        yield replayer.run(min(times, LEAST), 0.0, "loaded")
    if powered:
        time.sleep(rest)
    for replayer in powered:
        yield replayer.run(min(times, LEAST), 0.0, "idle")


def _load(replayer: Replayer, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        replayer.recording.run()


class Replayer:
    """A workload that is recorded once, and its expected results."""

    def __init__(self, device: Device, work: Work):
        self.device, self.work = device, work
        self.x = Tensor.from_numpy(work.inputs[0], device)
        with device.record() as recording:
            self.results = work.call(self.x)
        self.recording: Recording = recording
        self.wants = [list(wants) for wants in work.wants]

    def run(self, times: int, seconds: float, state: str = "cold") -> Replay:
        """Replay the workload *times* times. Stop earlier if *seconds* have passed, but not before `LEAST`
        runs."""
        end, wrong, said, operator = time.monotonic() + seconds, [], "", ""
        ran = 0
        while ran < times and (ran < LEAST or time.monotonic() < end):
            found = self._once(ran)
            ran += 1
            if found:
                wrong.append(ran)
                operator, said = (operator, said) if said else found
        said = f"{said}; {when(wrong, ran)}" if wrong else ""
        return Replay(self.work.name, self.work.path, ran, len(wrong), operator, said, state)

    def _once(self, number: int) -> tuple[str, str] | None:
        """Run the workload once. *number*: how many runs came before. Return (the first operator with a wrong
        result, the symptom), or None if all results are correct."""
        turn = number % INPUTS
        self.x.write(self.work.inputs[turn])
        self._poison(GARBAGE[number % 2])
        self.recording.run()
        found = None
        for place, y in enumerate(self.results):
            got, want = y.numpy(), self.wants[turn][place]
            if found is None and want.mismatch(got) is not None:
                before = self.wants[turn - 1][place].y if number else None
                poison = _poisoned(got, GARBAGE[number % 2], y.dtype)
                said = symptom(got, want, before, poison) + self._groups(y, want, got)
                found = self.work.operators[place], said
            # A result with a bound must be within the bound in the first run. From then on its bytes are the
            # expected result.
            elif want.bound is not None:
                self.wants[turn][place] = Expected(got)
        return found

    def _groups(self, y: Tensor, want: Expected, got: Array) -> str:
        """Return a text that names the workgroups that wrote the wrong elements; "" if they are not known."""
        known = "" if want.unlike(got) else workgroups.named(self.recording, y.buffer, want.wrong(got))
        return known and f"; {known}"

    def _poison(self, byte: int) -> None:
        scratch = {one.scratch for one in self.recording.steps if one.scratch is not None}
        with self.device.operation() as before:
            for buffer in (*(y.buffer for y in self.results), *scratch):
                before.fill(buffer, byte * 0x01010101)


def _poisoned(got: Array, byte: int, dtype: str) -> Array:
    """Return the array that is read back if no kernel wrote the result, so that each of its bytes is still
    *byte*. A device stores uint8 values minus 128, so their bytes are read with the highest bit inverted."""
    seen = byte ^ 0x80 if dtype == "uint8" else byte
    return np.full(got.nbytes, seen, np.uint8).view(got.dtype).reshape(got.shape)
