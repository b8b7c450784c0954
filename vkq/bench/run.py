"""Run cases: verify every arm of a case against the reference, then time the arms in alternation. An arm is
a path of vkq, or a peer (another library)."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from vkq.bench import data, stats, timer
from vkq.bench.arms import CallArm, CapturedWork, WorkArm
from vkq.bench.ceilings import Sentinel, of_path
from vkq.bench.peers import Peer
from vkq.bench.result import Comparison, Failure, Result, Row
from vkq.bench.rows import VerifiedArm, row_of, warnings_of
from vkq.check.cases import CHANNELS, FLOAT, FLOAT_WEIGHTS, GROUPED, Case
from vkq.check.expected import Expected
from vkq.check.tuning import with_variant
from vkq.errors import ArgumentError, VkqError
from vkq.problem.linear import LinearProblem
from vkq.runtime.device import Device
from vkq.select.path import PATHS, float_sums, refusal

Progress = Callable[[str], None]
FEW_ROWS = 32  # maximum number of rows of linear cases that share one reference result


@dataclass(frozen=True)
class Request:
    """What to measure for every case. ``base``: the baseline of comparisons, a path or a peer. With None,
    the baseline is vkq's first path if there are peers; else nothing is compared."""

    paths: tuple[str, ...] = ("auto",)
    clocks: tuple[str, ...] = timer.CLOCKS  # the clocks, in the order of the measurements
    base: str | None = None
    peers: tuple[Peer, ...] = ()
    settings: timer.Settings = field(default_factory=timer.Settings)
    device_option: str | None = None
    variant: str | None = None  # a pattern; every layer must run with a shader variant that matches it


def paths_of(words: Sequence[str], device: Device) -> tuple[str, ...]:
    """Return the paths that the command line names; ``all`` means every path that the device supports.
    Raises ArgumentError for a name that is not a path."""
    found: list[str] = []
    for word in words:
        if word != "all" and word not in PATHS:
            raise ArgumentError(f"path is {word!r}; it must be all or one of {', '.join(PATHS)}")
        found += [path for path in PATHS[2:] if refusal(device, path) is None] if word == "all" else [word]
    return tuple(dict.fromkeys(found))


class Runner:
    """Measure cases on a device, and add rows, comparisons and failures to *result*."""

    def __init__(
        self, device: Device, request: Request, result: Result, progress: Progress = lambda what: None
    ):
        self.device = device
        self.request = request
        self.result = result
        self.progress = progress
        self._sentinel = Sentinel(device)
        # For the current case: {requested path: path that ran}. The paths differ for "auto" and "dot".
        self._taken: dict[str, str] = {}
        # (key, weights of the last case, {key: layer or expected result with these weights}). Cases with
        # equal keys have equal weights, as the cases of a sweep often do.
        self._built: tuple[object, data.Weights, dict[Any, Any]] | None = None

    def run(self, case: Case) -> None:
        """Verify and measure one case. If an arm cannot run, or its results are wrong, a failure is added to
        ``result.failures``."""
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
        arms += [
            arm for peer in self.request.peers if (arm := self._peer_arm(case, peer, weights, x, expected))
        ]
        before = self._sentinel.throttled()
        for clock in self.request.clocks:
            timed = [arm for arm in arms if clock in arm.arm.clocks]
            if timed:
                self.progress(f"{case.name}: {clock}")
                self._measure(timed, clock)
        after = self._sentinel.throttled()
        self._report(case, arms, min((s for s in (before, after) if s is not None), default=None))

    def skip(self, case: Case, reason: str) -> None:
        """Add a failure to the result: the case was not measured, for the given reason."""
        path = ",".join(self.request.paths)
        self._fail(case, path, "skipped", reason, self._command(case, path))

    def _paths(self, case: Case) -> tuple[str, ...]:
        if case.scheme in FLOAT:
            return ("auto",)  # layers with float activations have no choice of an integer path
        base = [self.request.base] if self.request.base in PATHS else []
        return tuple(dict.fromkeys([*base, *self.request.paths]))

    def _weights(self, case: Case) -> tuple[data.Weights, dict[Any, Any]]:
        window = "" if case.op == "linear" else case.name
        key = (case.problem.weight_shape, case.scheme, case.scale, window)
        if self._built is None or self._built[0] != key:
            self._built = None  # frees the old weights first: old and new weights may not fit into memory
            self._built = (key, data.weights(case), {})
        return self._built[1], self._built[2]

    def _expected(self, case: Case, weights: data.Weights, x: data.Array, made: dict[Any, Any]) -> Expected:
        """Return the reference's result. *made*: the cache of results for these weights.

        With few rows, the reference spends most of its time on reading the weights. So one result with
        `FEW_ROWS` rows is computed for all linear cases with at most that many rows. A case uses its first
        rows."""
        sums = float_sums(self.device, CHANNELS.get(case.scheme, "float32"))
        if case.op != "linear" or case.layer.gemm_m > FEW_ROWS:
            return data.expected(case, weights, x, sums)
        if "expected" not in made:
            more = replace(case, problem=LinearProblem(FEW_ROWS, case.layer.gemm_n, case.layer.gemm_k))
            made["expected"] = data.expected(more, weights, data.activations(more), sums)
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
    ) -> VerifiedArm | None:
        self.progress(f"{case.name}: verifying {path}")
        with self._failures(case, path, self._command(case, path)):
            if (path, case.method) not in made:
                made[path, case.method] = data.layer(case, weights, path, self.device)
            layer = made[path, case.method]
            if self.request.variant:
                layer = with_variant(layer, data.tensor(case, layer, x).spec, self.request.variant)
            taken = "auto" if case.scheme in FLOAT else layer.choice().path
            # "auto" and "dot" may stand for a path that already has an arm.
            if taken in self._taken.values():
                return None
            self._taken[path] = taken
            command = self._command(case, taken)
            wrong = expected.mismatch(layer(x))
            if wrong:
                self._fail(case, taken, "mismatch", wrong, command)
                return None
            arm = self._work(case, layer, x, taken)
            said = layer.explain(x.shape)

            def check() -> str | None:
                return next((w for y in arm.work.results() if (w := expected.mismatch(y.numpy()))), None)

            variants = " + ".join(said.variants)
            measured = VerifiedArm(said.path, "vkq", arm, variants, expected.how, command, check=check)
            measured.dispatches, measured.sets = arm.work.dispatches, len(arm.work.sets)
            return measured
        return None

    def _work(self, case: Case, layer: Any, x: data.Array, path: str) -> WorkArm:
        tensor = data.tensor(case, layer, x)
        ceiling, copy = of_path(path, self.result.ceilings), self.result.ceilings.get("copy")
        arithmetic_s = case.operations / ceiling[1] if ceiling else 0.0
        memory_bound = bool(copy) and case.bytes / (copy or 1) > 0.5 * arithmetic_s
        work = CapturedWork(self.device, lambda: layer(tensor), case.bytes, memory_bound)
        return WorkArm(work, self.request.settings, lambda: layer(x))

    def _peer_arm(
        self, case: Case, peer: Peer, weights: data.Weights, x: data.Array, expected: Expected
    ) -> VerifiedArm | None:
        command = self._command(case, None, peer.name)
        with self._failures(case, peer.name, command):
            self.progress(f"{case.name}: verifying {peer.name}")
            without = ("dq8ca_q8csw", "q8csw_f16", *GROUPED, *FLOAT_WEIGHTS)
            if case.op not in ("linear", "conv2d") or case.scheme in without:
                raise NotImplementedError(
                    f"peers are not measured with {case.op} in the scheme {case.scheme}"
                )
            found = peer.arm(case, weights, x, expected, self.device)
            return VerifiedArm(peer.name, "peer", CallArm(found.call), found.ran, found.agreement, command)
        return None

    @contextlib.contextmanager
    def _failures(self, case: Case, path: str, command: str) -> Iterator[None]:
        try:
            yield
        except (VkqError, NotImplementedError) as error:
            self._fail(case, path, "skipped", str(error), command)

    def _fail(self, case: Case, path: str, kind: str, reason: str, command: str) -> None:
        self.result.failures.append(Failure(case.name, case.scheme, case.scale, path, kind, reason, command))

    def _measure(self, arms: list[VerifiedArm], clock: str) -> None:
        if clock == "submit" and "gpu" in self.request.clocks:
            known = [
                arm.arm.submits(arm.samples.get("gpu", [])) if isinstance(arm.arm, WorkArm) else None
                for arm in arms
            ]
            if all(known):  # the host times of one-pass submissions were kept
                for arm, times in zip(arms, known, strict=True):
                    arm.samples[clock] = times or []
                return
        samples = timer.measure([one.arm for one in arms], clock, self.request.settings)
        for one, times, warm in zip(arms, samples.times, samples.warm, strict=True):
            one.samples[clock] = times
            if not warm:
                one.unsettled.add(clock)

    def _report(self, case: Case, arms: list[VerifiedArm], throttled: float | None) -> None:
        rows: dict[tuple[str, str], Row] = {}
        for one in arms:
            # The check reads the results of recorded work, which the clock "call" does not run.
            wrong = one.check() if one.samples.keys() - {"call"} else None
            if wrong:
                self._fail(case, one.path, "mismatch", f"after the timed runs: {wrong}", one.command)
                continue
            for clock in one.samples:
                row = rows[one.path, clock] = row_of(case, one, clock, self.result.ceilings)
                settled = clock not in one.unsettled
                capabilities = self.device.capabilities
                row.warnings = list(warnings_of(row, settled, self.request.settings, capabilities, throttled))
        self.result.rows += rows.values()
        self._compare(case, rows)

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
        """Return the baseline of comparisons: the requested path or peer. If none was requested, return
        vkq's first path if there are peers, else None."""
        if self.request.base is not None:
            return self._taken.get(self.request.base, self.request.base)
        return next((path for path, _ in rows), None) if self.request.peers else None

    def _command(self, case: Case, path: str | None, peer: str | None = None) -> str:
        words = ["vkq", "bench", case.name, *case.options]
        words += ["--path", path] if path else []
        words += ["--peer", peer] if peer else []
        words += ["--variant", self.request.variant] if self.request.variant and not peer else []
        words += ["--device", self.request.device_option or str(self.device.capabilities.index)]
        return shlex.join(words)
