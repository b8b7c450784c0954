"""Self-test of time comparisons on this machine. The verdict must be "equal" for a kernel compared with
itself, and "slower" for a kernel with 10 % more work."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vkq.bench import data, stats, timer
from vkq.bench.arms import CapturedWork, WorkArm
from vkq.check.cases import Case
from vkq.problem.names import parse
from vkq.runtime.device import Device
from vkq.runtime.tensor import Tensor

TRIALS = 20  # number of trials of each kind
NEEDED = 19  # minimum number of correct verdicts of each kind
INJECTED = 0.10  # extra work of the slower arm, as a share of a submission's work
CASE = Case(parse("linear[M=64,K=256,N=256]"))
# Many pairs of short submissions are measured. A disturbance usually slows both submissions of a pair. If
# it slows only one, the pair is an outlier, which the median ignores.
SETTINGS = timer.Settings(samples=60, submission_us=0, time_s=8.0, precision=0.03)
PASSES = 10  # passes of a submission: one more pass is 10 % more work (INJECTED)


@dataclass(frozen=True)
class Trials:
    """The ratios that two kinds of trials measured."""

    equal: list[stats.Ratio]  # of two arms that do the same work
    slower: list[stats.Ratio]  # of a first arm and a second arm that does more work

    @property
    def right(self) -> tuple[int, int]:
        """The number of trials of each kind with the correct verdict."""
        return sum(r.verdict == "equal" for r in self.equal), sum(r.verdict == "slower" for r in self.slower)

    @property
    def passed(self) -> bool:
        return min(self.right) >= NEEDED

    def lines(self) -> list[str]:
        """Return the lines of the report."""
        names = ("one kernel as both arms: called equal", f"{INJECTED:.0%} more work: called slower")
        lines = []
        for name, right, ratios in zip(names, self.right, (self.equal, self.slower), strict=True):
            values = sorted(r.value for r in ratios)
            pairs = sum(r.pairs for r in ratios) // len(ratios)
            lines.append(
                f"{name} in {right} of {len(ratios)} (at least {NEEDED}); ratios {values[0]:.3f} to"
                f" {values[-1]:.3f}, {pairs} pairs each"
            )
        lines.append(
            "passed"
            if self.passed
            else "FAILED: times on this machine are too noisy now; close other programs"
        )
        return lines


def run(device: Device, trials: int = TRIALS, progress: Callable[[str], None] = lambda what: None) -> Trials:
    """Run the trials. Sampling and statistics are those of every comparison in ``vkq bench``."""
    layer = data.layer(CASE, data.weights(CASE), "auto", device)
    x = Tensor.from_numpy(data.activations(CASE), device)
    base, same, more = (_arm(device, lambda: layer(x), extra) for extra in (0.0, 0.0, INJECTED))
    clock = "gpu"  # on a device without timestamps, this is the host's time of these passes
    equal: list[stats.Ratio] = []
    slower: list[stats.Ratio] = []
    for trial in range(trials):
        progress(f"self-test {trial + 1}/{trials}")
        for other, found in ((same, equal), (more, slower)):
            times = timer.measure([base, other], clock, SETTINGS).times
            found.append(stats.paired_ratio(times[1], times[0]))
    return Trials(equal, slower)


def _arm(device: Device, call: Callable[[], Tensor], extra: float) -> WorkArm:
    work = CapturedWork(device, call, CASE.bytes, rotate=False)
    return WorkArm(work, SETTINGS, inject=extra, least_passes=PASSES)
