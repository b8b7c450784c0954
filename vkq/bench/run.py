"""Runs cases: verifies every arm against the reference, then times all arms of a case in turn."""

from __future__ import annotations

import contextlib
import os
import platform
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from vkq.bench import data, stats, timer
from vkq.bench.ceilings import Sentinel, of_path
from vkq.bench.peers import Peer
from vkq.bench.result import Comparison, Failure, Result, Row
from vkq.check.cases import FLOAT, GROUPED, Case
from vkq.check.expected import Expected
from vkq.errors import ArgumentError, VkqError
from vkq.problem.linear import LinearProblem
from vkq.runtime.device import Device
from vkq.select.path import PATHS, refusal

Progress = Callable[[str], None]
FEW_ROWS = 32


@dataclass(frozen=True)
class Plan:
    """What is measured of every case. ``base``: the path or peer that the others are compared with; None
    compares nothing."""

    paths: tuple[str, ...] = ("auto",)
    clocks: tuple[str, ...] = timer.CLOCKS  # in this order
    base: str | None = None
    peers: tuple[Peer, ...] = ()
    settings: timer.Settings = field(default_factory=timer.Settings)
    device_option: str | None = None


@dataclass
class Measured:
    """A verified arm with what its rows say."""

    path: str
    kind: str
    arm: timer.Arm
    variant: str
    verified: str
    command: str
    dispatches: int = 0
    sets: int = 1
    check: Callable[[], str | None] = lambda: None  # again, after the timing
    samples: dict[str, list[float]] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)


def paths_of(words: Sequence[str], device: Device) -> tuple[str, ...]:
    """The paths that the command line names; ``all`` is every path that the device can take. Raises
    ArgumentError."""
    found: list[str] = []
    for word in words:
        if word != "all" and word not in PATHS:
            raise ArgumentError(f"path is {word!r}; it must be all or one of {', '.join(PATHS)}")
        found += [path for path in PATHS[2:] if refusal(device, path) is None] if word == "all" else [word]
    return tuple(dict.fromkeys(found))


def describe(device: Device) -> dict[str, Any]:
    """The device, as a result names it."""
    c = device.capabilities
    return {
        "name": c.name, "type": c.device_type, "software": c.device_type == "cpu", "driver": c.driver,
        "driver_version": c.driver_version, "uuid": c.device_uuid, "vulkan": c.api_version, "index": c.index,
        "vendor_id": c.vendor_id, "device_id": c.device_id,
        "timestamp_period_ns": c.timestamp_period_ns, "timestamp_valid_bits": c.timestamp_valid_bits,
    }  # fmt: skip


def host() -> dict[str, Any]:
    """The host, as a result names it."""
    model = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(
            (line.partition(":")[2].strip() for line in file if line.startswith("model name")), model
        )
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model,
        "cpus": usable,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }


class Runner:
    """Measures cases on a device and adds what it finds to *result*."""

    def __init__(self, device: Device, plan: Plan, result: Result, progress: Progress = lambda what: None):
        self.device = device
        self.plan = plan
        self.result = result
        self.progress = progress
        self._sentinel = Sentinel(device)
        self._taken: dict[
            str, str
        ] = {}  # of this case: the path asked for, and the one that auto or dot means
        # Of the last weights, which sweeps share: their key, they themselves, and what was made of them
        # (layers, answers).
        self._built: tuple[object, data.Weights, dict[Any, Any]] | None = None

    def run(self, case: Case) -> None:
        """Verifies and measures one case; what cannot run, or is wrong, is told in ``result.failures``."""
        self.progress(f"{case.name}: reference")
        weights, made = self._weights(case)
        x = data.activations(case)
        expected = self._expected(case, weights, x, made)
        self._taken = {}
        arms = [
            arm
            for path in self._paths(case)
            if (arm := self._vkq_arm(case, path, weights, made, x, expected))
        ]
        arms += [arm for peer in self.plan.peers if (arm := self._peer_arm(case, peer, weights, x, expected))]
        before = self._sentinel.throttled()
        for clock in self.plan.clocks:
            timed = [arm for arm in arms if clock in arm.arm.clocks]
            if timed:
                self.progress(f"{case.name}: {clock}")
                self._measure(timed, clock)
        after = self._sentinel.throttled()
        self._report(case, arms, min((s for s in (before, after) if s is not None), default=None))

    def _paths(self, case: Case) -> tuple[str, ...]:
        if case.scheme in FLOAT:
            return ("auto",)  # float activations: there is no dot product to choose
        base = [self.plan.base] if self.plan.base in PATHS else []
        return tuple(dict.fromkeys([*base, *self.plan.paths]))

    def _weights(self, case: Case) -> tuple[data.Weights, dict[Any, Any]]:
        window = "" if case.op == "linear" else case.name
        key = (case.problem.weight_shape, case.scheme, case.scale, window)
        if self._built is None or self._built[0] != key:
            self._built = None  # before the next are made: they may be large
            self._built = (key, data.weights(case), {})
        return self._built[1], self._built[2]

    def _expected(self, case: Case, weights: data.Weights, x: data.Array, made: dict[Any, Any]) -> Expected:
        """The reference's answer. What it costs with few rows is the weights, so it is asked once for
        `FEW_ROWS` of them."""
        if case.op != "linear" or case.layer.gemm_m > FEW_ROWS:
            return data.expected(case, weights, x)
        if "expected" not in made:
            more = replace(case, problem=LinearProblem(FEW_ROWS, case.layer.gemm_n, case.layer.gemm_k))
            made["expected"] = data.expected(more, weights, data.activations(more))
        found: Expected = made["expected"].first(case.layer.gemm_m)
        return found

    def _vkq_arm(
        self,
        case: Case,
        path: str,
        weights: data.Weights,
        made: dict[Any, Any],
        x: data.Array,
        expected: Expected,
    ) -> Measured | None:
        self.progress(f"{case.name}: verifying {path}")
        with self._failures(case, path, self._command(case, path)):
            if (path, case.method) not in made:
                made[path, case.method] = data.layer(case, weights, path, self.device)
            layer = made[path, case.method]
            taken = "auto" if case.scheme in FLOAT else layer.choice().path
            if taken in self._taken.values():  # auto, and the path that auto takes
                return None
            self._taken[path] = taken
            command = self._command(case, taken)
            wrong = expected.mismatch(layer(x))
            if wrong:
                self._fail(case, taken, "mismatch", wrong, command)
                return None
            arm = self._work(case, layer, x, taken)
            explanation = layer.explain(x.shape)

            def check() -> str | None:
                return next((w for y in arm.work.results() if (w := expected.mismatch(y.numpy()))), None)

            measured = Measured(
                explanation.path,
                "vkq",
                arm,
                " + ".join(explanation.variants),
                expected.how,
                command,
                check=check,
            )
            measured.dispatches, measured.sets = arm.work.dispatches, len(arm.work.sets)
            return measured
        return None

    def _work(self, case: Case, layer: Any, x: data.Array, path: str) -> timer.WorkArm:
        tensor = data.tensor(case, layer, x)
        ceiling, copy = of_path(path, self.result.ceilings), self.result.ceilings.get("copy")
        arithmetic_s = case.operations / ceiling[1] if ceiling else 0.0
        memory_bound = bool(copy) and case.bytes / (copy or 1) > 0.5 * arithmetic_s
        work = timer.Work(self.device, lambda: layer(tensor), case.bytes, memory_bound)
        return timer.WorkArm(work, self.plan.settings, lambda: layer(x))

    def _peer_arm(
        self, case: Case, peer: Peer, weights: data.Weights, x: data.Array, expected: Expected
    ) -> Measured | None:
        command = self._command(case, None, peer.name)
        with self._failures(case, peer.name, command):
            self.progress(f"{case.name}: verifying {peer.name}")
            if case.op not in ("linear", "conv2d") or case.scheme in ("dq8ca_q8csw", *GROUPED):
                raise NotImplementedError(
                    f"peers are not measured with {case.op} in the scheme {case.scheme}"
                )
            found = peer.arm(case, weights, x, expected, self.device)
            return Measured(peer.name, "peer", timer.CallArm(found.call), found.ran, found.agreement, command)
        return None

    @contextlib.contextmanager
    def _failures(self, case: Case, path: str, command: str) -> Iterator[None]:
        try:
            yield
        except (VkqError, NotImplementedError) as error:
            self._fail(case, path, "skipped", str(error), command)

    def _fail(self, case: Case, path: str, kind: str, reason: str, command: str) -> None:
        self.result.failures.append(Failure(case.name, case.scheme, case.scale, path, kind, reason, command))

    def _measure(self, arms: list[Measured], clock: str) -> None:
        if clock == "submit" and "gpu" in self.plan.clocks:
            known = [
                arm.arm.submits(arm.samples.get("gpu", [])) if isinstance(arm.arm, timer.WorkArm) else None
                for arm in arms
            ]
            if all(known):  # slow work: the gpu clock's submissions were of one pass each
                for arm, times in zip(arms, known, strict=True):
                    arm.samples[clock] = times or []
                return
        samples = timer.measure([one.arm for one in arms], clock, self.plan.settings)
        for one, times, warm in zip(arms, samples.times, samples.warm, strict=True):
            one.samples[clock] = times
            if not warm:
                one.unsettled.add(clock)

    def _report(self, case: Case, arms: list[Measured], throttled: float | None) -> None:
        rows: dict[tuple[str, str], Row] = {}
        for one in arms:
            wrong = one.check() if one.samples.keys() - {"call"} else None  # else the captured work never ran
            if wrong:
                self._fail(case, one.path, "mismatch", f"after the timed runs: {wrong}", one.command)
                continue
            for clock in one.samples:
                rows[one.path, clock] = self._row(case, one, clock, throttled)
        self.result.rows += rows.values()
        self._compare(case, rows)

    def _row(self, case: Case, one: Measured, clock: str, throttled: float | None) -> Row:
        samples = one.samples[clock]
        found = stats.summarize(samples)
        passes = getattr(one.arm, "passes", 1) if clock == "gpu" else 1
        overheads = getattr(one.arm, "overhead_us", []) if clock == "submit" else []
        row = Row(
            case=case.name, scheme=case.scheme, scale=case.scale, method=case.method, path=one.path,
            arm=one.kind, variant=one.variant, clock=clock, verified=one.verified, median_us=found.median,
            p20_us=found.p20, p80_us=found.p80, samples_us=samples, dispatches=one.dispatches, passes=passes,
            sets=one.sets if clock not in ("call", "host") else 1, operations=case.operations,
            bytes=case.bytes,
            compute_ceiling=None, compute_share=None, copy_share=None,
            overhead_us=float(np.median(overheads)) if overheads else None, warnings=[], command=one.command,
        )  # fmt: skip
        if one.kind == "vkq" and clock != "host":  # which measures no work of the device
            ceiling, copy = of_path(one.path, self.result.ceilings), self.result.ceilings.get("copy")
            if ceiling:
                row.compute_ceiling, row.compute_share = ceiling[0], row.gops / ceiling[1]
            row.copy_share = row.gbps / copy if copy else None
        row.warnings = list(self._warnings(row, one, throttled))
        return row

    def _warnings(self, row: Row, one: Measured, throttled: float | None) -> Iterator[str]:
        c, settings = self.device.capabilities, self.plan.settings
        if c.device_type == "cpu" and row.arm == "vkq":
            yield "software device: the times rank nothing on a GPU; they show overheads and regressions"
        if row.clock in one.unsettled:
            yield "the warm-up did not settle within 3 %: close other programs, or give more --time"
        if len(row.samples_us) < settings.samples:
            yield f"fewer than {settings.samples} samples in the time given: raise --time"
        change = stats.drift(row.samples_us)
        if change is not None and abs(change) > stats.DRIFT:
            yield (
                "drift of more than 5 % from the first to the last fifth: let the device cool down, or raise"
                " --time"
            )
        if stats.outliers(row.samples_us) > stats.OUTLIERS:
            yield "more than 5 % outliers: other work runs on this machine or device"
        ticks = row.median_us * row.passes * 1000 / c.timestamp_period_ns if c.timestamp_period_ns else 0.0
        if row.clock == "gpu" and ticks < 10:
            yield "shorter than ten timestamp ticks: raise --submission-ms"
        if throttled is not None:
            yield (
                "the sentinel kernel ran below 85 % of its median: throttling, or another program on the"
                " device"
            )
        if not c.timestamp_valid_bits and row.clock == "submit":
            yield "the device has no timestamps: there is no gpu clock, and submit includes the host's time"

    def _compare(self, case: Case, rows: Mapping[tuple[str, str], Row]) -> None:
        base = self._base(rows)
        for (_, clock), row in rows.items():
            other = rows.get((base, clock)) if base else None
            if other is None or other is row or len(row.samples_us) != len(other.samples_us):
                continue
            self.result.comparisons.append(
                Comparison.of(row, other, stats.paired_ratio(row.samples_us, other.samples_us))
            )

    def _base(self, rows: Mapping[tuple[str, str], Row]) -> str | None:
        """The row that others are compared with: the one asked for; with peers alone, vkq's first path."""
        if self.plan.base is not None:
            return self._taken.get(self.plan.base, self.plan.base)
        return next((path for path, _ in rows), None) if self.plan.peers else None

    def _command(self, case: Case, path: str | None, peer: str | None = None) -> str:
        words = ["vkq", "bench", case.name, *case.options]
        words += ["--path", path] if path else []
        words += ["--peer", peer] if peer else []
        words += ["--device", self.plan.device_option or str(self.device.capabilities.index)]
        return shlex.join(words)
