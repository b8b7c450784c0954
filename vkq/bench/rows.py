"""Compute the rows of the table, and their warnings, from the samples of verified arms. An arm is a path of
vkq, or another library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from vkq.bench import stats
from vkq.bench.ceilings import set_shares
from vkq.bench.result import Row
from vkq.bench.timer import Arm, Settings
from vkq.check.cases import Case
from vkq.device.capabilities import Capabilities


@dataclass
class VerifiedArm:
    """An arm with verified results. The fields are equal in all of its rows."""

    path: str
    kind: str
    arm: Arm
    variant: str
    verified: str
    command: str
    dispatches: int = 0
    sets: int = 1
    # Compares the results with the reference once more, after the timing. Returns the difference as text,
    # or None.
    check: Callable[[], str | None] = lambda: None
    samples: dict[str, list[float]] = field(default_factory=dict)
    unsettled: set[str] = field(default_factory=set)


def row_of(case: Case, one: VerifiedArm, clock: str, ceilings: Mapping[str, float | None]) -> Row:
    """Return the result row of an arm for one clock."""
    samples = one.samples[clock]
    found = stats.summarize(samples)
    passes = getattr(one.arm, "passes", 1) if clock == "gpu" else 1
    overheads = getattr(one.arm, "overhead_us", []) if clock == "submit" else []
    row = Row(
        case=case.name, scheme=case.scheme, scale=case.scale, method=case.method, path=one.path,
        arm=one.kind, variant=one.variant, clock=clock, verified=one.verified, median_us=found.median,
        p20_us=found.p20, p80_us=found.p80, samples_us=samples, dispatches=one.dispatches, passes=passes,
        sets=one.sets if clock not in ("call", "host") else 1, operations=case.operations,
        bytes=case.bytes, compute_ceiling=None, compute_share=None, copy_share=None,
        overhead_us=float(np.median(overheads)) if overheads else None, warnings=[], command=one.command,
    )  # fmt: skip
    if one.kind == "vkq":
        set_shares(row, ceilings)
    return row


def warnings_of(
    row: Row, settled: bool, settings: Settings, c: Capabilities, throttled: float | None
) -> Iterator[str]:
    """Yield the warnings for a row, each with a remedy.

    *settled*: whether the times of the warm-up became stable. *throttled*: if the sentinel kernel was too
    slow, its rate divided by its median rate; else None.
    """
    if c.device_type == "cpu" and row.arm == "vkq":
        yield "software device: the times rank nothing on a GPU; they show overheads and regressions"
    if not settled:
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
        yield "the sentinel kernel ran below 85 % of its median: throttling, or another program on the device"
    if not c.timestamp_valid_bits and row.clock == "submit":
        yield "the device has no timestamps: there is no gpu clock, and submit includes the host's time"
