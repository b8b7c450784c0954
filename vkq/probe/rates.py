"""Measure the rates of the int8 kernels' arithmetic on a device: each dot form (integer or float products),
float32 FMA and a copy. Also measure the number of cores, if the driver does not report it.

A Vulkan property states only that a dot product is accelerated; its rate shows by how much.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping

from ..device.cores import told_cores
from ..device.profiles import profile
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..shader.catalog import catalog

LOCAL = 64  # invocations of a workgroup: the shader's LOCAL_X
# Microseconds of one run, by clock: longer for less exact clocks. Runs are short, because other programs
# only make a run longer: the shortest of several short runs was hardly disturbed.
TARGET_US = {"gpu": 500.0, "host": 4_000.0, "cpu": 4_000.0}
# the time of all samples of a rate together, in microseconds, by clock
SAMPLED_US = {"gpu": 20_000.0, "host": 80_000.0, "cpu": 40_000.0}
LEAST_SAMPLES, MOST_SAMPLES = 8, 80
# attempts to sample a rate; each has more iterations, in case other programs delayed the short runs
ATTEMPTS = 3
MOST_LOOPS = 65_000  # lavapipe ends loops after 65,535 iterations
DOT_FORMS = ("s8s8", "u8s8", "u8u8", "float")


@dataclasses.dataclass(frozen=True)
class Rates:
    """Operations per second of each dot form and of ``fma`` (a multiply-add counts as two operations), and
    bytes per second (read plus written) of ``copy``.

    - ``clock``: "gpu" (timestamps), "host", or "cpu": this process's processor time, for devices that run on
      the CPU. It excludes other programs; its rates are those of one processor.
    - ``cores``: see `measured_cores`.

    Rates that could not be measured are missing.
    """

    per_second: Mapping[str, float]
    clock: str
    cores: int | None = None


class _Work:
    """The measurement of one rate: a program of *groups* workgroups of *local* invocations. Samples
    alternate between runs without loop iterations (``empty``) and runs with ``loops`` iterations
    (``full``)."""

    def __init__(
        self,
        device: Device,
        op: str,
        clock: str,
        buffers: tuple[Buffer, Buffer],
        groups: int = 0,
        local: int = LOCAL,
    ):
        self.device, self.op, self.clock, self.buffers, self.local = device, op, clock, buffers, local
        variant = catalog().find("selftest__rates", op=op)
        self.program: Program = device.program(variant, {"LOCAL_X": local})
        self.groups = groups or profile(device.capabilities).fill_workgroups
        self.most = MOST_LOOPS
        if op == "copy":
            per_loop = 16 * LOCAL * self.groups
            self.most = max(1, min(self.most * per_loop, *(b.bytes for b in buffers)) // per_loop)
        self._recordings = dict[int, Recording]()  # {number of loop iterations: recording}
        self.loops = self._calibrated()
        self.empty, self.full = list[float](), list[float]()

    def sample(self) -> None:
        self.empty.append(self.time_us(0))
        self.full.append(self.time_us(self.loops))

    @property
    def is_sampled(self) -> bool:
        """True if there are enough samples, in number and in time."""
        count = len(self.full)
        return count >= LEAST_SAMPLES and count * min(self.full) >= SAMPLED_US[self.clock]

    def _calibrated(self) -> int:
        """Return the loop count of a run of about the target time. The first runs also raise the GPU's
        clock."""
        loops, target = 1, TARGET_US[self.clock]
        empty = min(self.time_us(0) for _ in range(3))  # other programs can only make a run longer
        for _ in range(12):
            took = min(self.time_us(loops) for _ in range(3)) - empty
            if took >= target / 2 or loops >= self.most:
                break
            loops = min(self.most, max(loops + 1, round(loops * min(16.0, target / max(took, 1.0)))))
        return loops

    def lengthen(self) -> bool:
        """If the work took far less than the target time, raise the loop count, drop the samples, and
        return True."""
        took, target = min(self.full) - min(self.empty), TARGET_US[self.clock]
        if took > target / 4 or self.loops >= self.most:
            return False
        self.loops = min(self.most, round(self.loops * min(8.0, target / max(took, 1.0))))
        self.empty, self.full = [], []
        return True

    def time_us(self, loops: int) -> float:
        """Run the program with this number of loop iterations, and return the microseconds."""
        recording = self._recordings.get(loops) or self._recorded(loops)
        now = time.process_time if self.clock == "cpu" else time.perf_counter
        start = now()
        recording.run()
        host = (now() - start) * 1e6
        return recording.gpu_times_us()[0] if self.clock == "gpu" else host

    def _recorded(self, loops: int) -> Recording:
        push: dict[str, int | float] = {"groups": self.groups, "loops": loops, "seed": 1.0}
        with self.device.record(timestamps=int(self.clock == "gpu")) as recording:
            recording.dispatch(self.program, self.buffers, push)
        self._recordings[loops] = recording
        return recording

    def per_loop(self) -> float:
        """Return the operations (or bytes) of one iteration."""
        invocations = self.local * self.groups
        if self.op == "copy":
            return 32.0 * invocations
        steps = int(self.program.variant.defines["STEPS"])
        return float(invocations * steps * (2 * 16 if self.op == "fma" else 8 * 16))

    def per_second(self) -> float | None:
        """Return the rate. Return None if runs with iterations took no longer than runs without: the clock
        is too coarse."""
        took = (min(self.full) - min(self.empty)) * 1e-6
        return self.per_loop() * self.loops / took if took > 0 else None


def measure(device: Device) -> Rates:
    """Measure and return the rates of a device, for every form whose features it has."""
    facts = device.capabilities
    clock = "cpu" if facts.device_type == "cpu" else "gpu" if facts.timestamp_valid_bits else "host"
    limits = [
        facts.properties.get(name, 0)
        for name in ("maxStorageBufferRange", "maxMemoryAllocationSize", "maxBufferSize")
    ]
    known = profile(facts)
    size = min(known.cache_bytes, *(limit for limit in limits if limit))
    size = max(size, 16 * LOCAL * known.fill_workgroups)
    x, y = device.allocate(size), device.allocate(size)
    has_dot = facts.features["shaderIntegerDotProduct"]
    ops = [op for op in (*DOT_FORMS, "fma", "copy") if op in ("float", "fma", "copy") or has_dot]
    works = [_Work(device, op, clock, (x, y)) for op in ops]
    _sample(works)
    found = {work.op: work.per_second() for work in works}
    rates = {op: rate for op, rate in found.items() if rate is not None}
    # On a CPU, other programs take cores, so its cores are not measured.
    ask = told_cores(facts) is None and facts.device_type != "cpu"
    return Rates(rates, clock, measured_cores(device, clock, (x, y)) if ask else None)


def measured_cores(device: Device, clock: str, buffers: tuple[Buffer, Buffer]) -> int | None:
    """Return the number of workgroups that run at once without slowing each other: the rate of many
    workgroups divided by the rate of one, each with enough invocations to fill a core. Return None if the
    clock is too coarse."""
    local = min(1024, device.capabilities.properties["maxComputeWorkGroupInvocations"])
    many = profile(device.capabilities).fill_workgroups * LOCAL // local
    works = [_Work(device, "fma", clock, buffers, groups, local) for groups in (1, many)]
    _sample(works)
    one, all_of_them = (work.per_second() for work in works)
    return max(1, round(all_of_them / one)) if one and all_of_them else None


def _sample(works: list[_Work]) -> None:
    """Sample all rates in rounds, with one sample of each rate: a disturbance then does not hit all samples
    of a rate. Sample rates with too short runs again, with more iterations."""
    pending = works
    for left in reversed(range(ATTEMPTS)):
        unfinished = pending
        for _ in range(MOST_SAMPLES):
            for work in unfinished:
                work.sample()
            unfinished = [work for work in unfinished if not work.is_sampled]
        pending = [work for work in pending if work.lengthen()] if left else []
