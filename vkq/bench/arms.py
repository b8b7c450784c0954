"""The arms of a benchmark: the candidates that are timed. An arm is one path of vkq, or one other library,
on one case. It is either GPU work, which is recorded once and repeated within a submission, or a Python
call."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from vkq.bench.timer import CLOCKS, Settings
from vkq.device.profiles import profile
from vkq.runtime.buffer import Buffer
from vkq.runtime.device import Device
from vkq.runtime.recording import Recording
from vkq.runtime.tensor import Tensor

HOST_CHAIN = 64  # maximum number of calls in one sample of the clock `host`
MAX_PASSES = 20_000  # maximum number of passes in one submission: it limits the size of the command buffer
MAX_SETS = 64  # maximum number of copies of the buffers; consecutive passes use different copies
SET_BYTES = 1 << 30  # maximum number of bytes of all copies of the buffers together


class CapturedWork:
    """The dispatches of one call of *run*. They are captured once. A submission repeats them, on the
    original buffers or on copies of all buffers.

    - *work_bytes*: the number of bytes that one call must read and write.
    - *rotate*: make enough copies of the buffers to exceed the device's cache. Consecutive passes use
      different copies, so that each pass reads its data from memory.
    """

    def __init__(self, device: Device, run: Callable[[], Tensor], work_bytes: int, rotate: bool):
        self.device = device
        self.run = run
        with device.record() as once:
            self.y = run()
        self.steps = list(once.steps)
        self.dispatches = sum(step.dispatches for step in self.steps)
        self.sets: list[dict[Buffer, Buffer]] = [{}]
        if rotate:
            self._rotate(work_bytes)
        self.record(self.sets, 1).run()  # fills every copy, because `results` reads them all

    def _rotate(self, work_bytes: int) -> None:
        cache = profile(self.device.capabilities).cache_bytes
        buffers = dict.fromkeys(b for step in self.steps for b in step.buffers)
        used = max(1, work_bytes, sum(b.bytes for b in buffers))
        for _ in range(min(MAX_SETS, math.ceil(cache / max(1, work_bytes)), SET_BYTES // used)):
            copies = {b: self.device.allocate(b.bytes) for b in buffers}
            with self.device.operation() as recording:
                for source, target in copies.items():
                    recording.copy(source, target, source.bytes)
            self.sets.append(copies)

    def results(self) -> list[Tensor]:
        """Return the result tensor of every copy, with the values of the last run."""
        y = self.y
        return [
            Tensor(y.device, y.shape, y.dtype, y.layout, y.qparams, one.get(y.buffer, y.buffer))
            for one in self.sets
        ]

    def record(self, sets: Sequence[dict[Buffer, Buffer]], rounds: int, extra: int = 0) -> Recording:
        """Record *rounds* passes over each set of buffers in *sets*, and *extra* passes over the first set.

        A barrier separates the passes. If the device has timestamps, they are taken before the first and
        after the last pass.
        """
        with self.device.record(marks=2 if self.device.capabilities.timestamp_valid_bits else 0) as recording:
            if self.device.capabilities.timestamp_valid_bits:
                recording.mark()
            recording.barrier()
            if extra:
                self._pass(recording, sets[0], extra)
            first = recording.position
            for one in sets:
                self._pass(recording, one)
            if rounds > 1:
                recording.repeat(first, rounds - 1)
            if self.device.capabilities.timestamp_valid_bits:
                recording.mark()
        return recording

    def _pass(self, recording: Recording, buffers: dict[Buffer, Buffer], times: int = 1) -> None:
        first = recording.position
        for step in self.steps:
            recording.again(step, buffers)
        recording.barrier()
        if times > 1:
            recording.repeat(first, times - 1)


class WorkArm:
    """A path of vkq as an arm. The clocks ``gpu``, ``submit`` and ``host`` time *work*; the clock ``call``
    times *call*.

    - *inject*: the number of extra passes, as a share of all passes (0.1: 10 % more). Extra passes run but
      are not counted: the self-test uses them to make an arm appear slower.
    - *least_passes*: the minimum number of passes over each copy of the buffers in one submission.
    """

    def __init__(
        self,
        work: CapturedWork,
        settings: Settings,
        call: Callable[[], Any] | None = None,
        inject: float = 0.0,
        least_passes: int = 1,
    ):
        self.work = work
        self.settings = settings
        self.passes = 0
        self.pass_us = 0.0  # time of one pass, measured while the number of passes is chosen
        self.overhead_us: list[float] = []  # for each sample of the clock "submit": host time - device time
        self._submits: list[float] = []  # for each sample of the clock "gpu": host time of the submission
        self._call = call
        self._inject = inject
        self._least_passes = least_passes
        self._stacked: Recording | None = None
        self._single: list[Recording] = []
        self._next = 0

    @property
    def clocks(self) -> tuple[str, ...]:
        timed = bool(self.work.device.capabilities.timestamp_valid_bits)
        return tuple(c for c in CLOCKS if (c != "gpu" or timed) and (c != "call" or self._call))

    def prepare(self, clock: str) -> None:
        if clock == "gpu" and self._stacked is None:
            self._stack()
        if clock == "submit" and not self._single:
            self._single = [self.work.record([one], 1) for one in self.work.sets]

    def _stack(self) -> None:
        """Record a submission that lasts at least ``submission_us`` when the caches are warm. Until it
        does, record again with at least twice the passes."""
        sets, rounds = self.work.sets, self._least_passes
        while True:
            self.passes = rounds * len(sets)
            extra = round(self.passes * self._inject)
            self._stacked = self.work.record(sets, rounds, extra)
            lasted = self._shortest_us(self._stacked)
            wanted = math.ceil(rounds * 1.1 * self.settings.submission_us / lasted)
            self.pass_us = lasted / self.passes
            if lasted >= self.settings.submission_us or 2 * self.passes > MAX_PASSES:
                return
            rounds = min(max(wanted, 2 * rounds), 64 * rounds, max(1, MAX_PASSES // len(sets)))

    def submits(self, gpu: Sequence[float]) -> list[float] | None:
        """Return the host times of the submissions in which the samples *gpu* were measured, as samples of
        the clock ``submit``.

        Return None if a submission had several passes; then ``submit`` must be measured separately.
        """
        if self.passes != 1 or len(self.work.sets) != 1:
            return None
        taken = self._submits[-len(gpu) :]
        self.overhead_us = [host - device for host, device in zip(taken, gpu, strict=True)]
        return taken

    def _shortest_us(self, recording: Recording) -> float:
        """Return the shortest time of up to four runs, because other programs may interrupt a run."""
        shortest, spent_us = math.inf, 0.0
        for _ in range(4):
            lasted = max(self._run_us(recording)[0], 1e-3)
            shortest, spent_us = min(shortest, lasted), spent_us + lasted
            if shortest < self.settings.submission_us or spent_us > 1e5 * self.settings.time_s:
                break
        return shortest

    def _run_us(self, recording: Recording) -> tuple[float, float]:
        """Run one submission. Return (time between its timestamps, host time), in microseconds.

        On a device without timestamps, both values are the host's time.
        """
        elapsed = _elapsed_us(recording.run)
        timed = self.work.device.capabilities.timestamp_valid_bits
        return (recording.mark_times_us()[0] if timed else elapsed), elapsed

    def sample(self, clock: str) -> float:
        if clock == "gpu":
            assert self._stacked is not None
            lasted, elapsed = self._run_us(self._stacked)
            self._submits.append(elapsed)
            return lasted / self.passes
        if clock == "submit":
            recording = self._single[self._next % len(self._single)]
            self._next += 1
            lasted, elapsed = self._run_us(recording)
            if self.work.device.capabilities.timestamp_valid_bits:
                self.overhead_us.append(elapsed - lasted)
            return elapsed
        if clock == "host":
            return self._host_us()
        assert self._call is not None
        return _elapsed_us(self._call)

    def _host_us(self) -> float:
        """Return the host time of one call: the mean over a chain of calls. The chain is too short for the
        queue to submit it during the measurement."""
        device = self.work.device
        most: int = (device.queue.operations_per_chain - 1) // max(1, self.work.dispatches)
        calls = max(1, min(HOST_CHAIN, most))
        device.synchronize()

        def chain() -> None:
            for _ in range(calls):
                self.work.run()

        elapsed = _elapsed_us(chain)
        device.synchronize()
        return elapsed / calls


class CallArm:
    """A Python function as an arm, timed by the clock ``call``: a call of another library or of a model."""

    clocks = ("call",)

    def __init__(self, call: Callable[[], Any]):
        self._call = call

    def prepare(self, clock: str) -> None:
        """Do nothing: a call needs no preparation."""

    def sample(self, clock: str) -> float:
        return _elapsed_us(self._call)


def _elapsed_us(run: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    run()
    return (time.perf_counter() - begin) * 1e6
