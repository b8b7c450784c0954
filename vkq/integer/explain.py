"""Explain which kernel computes an exact integer correlation, and why."""

from __future__ import annotations

from collections import Counter

from ..problem.conv2d import Conv2dProblem
from . import correlation as op
from .images import Images


def explained(owner: op.Correlation, p: Conv2dProblem, images: Images) -> str:
    """Return a few lines on the plan for these images. The plan is not run."""
    rows, columns = op.axes(p)
    plan = owner.plan(images, rows, columns)
    sums, kernel = owner.sums, owner.kernel(owner.shape(p.n, rows, columns))
    steps = ", ".join(f"{name} x {n}" if n > 1 else name for name, n in Counter(plan.variants).items())
    return "\n".join(
        (
            f"{p.name}: {p.macs:,} multiply-adds, {plan.macs:,} with padding and digits;"
            f" sums in int{64 if sums.wide else 32}",
            f"numbers: x in [{sums.x_range[0]}, {sums.x_range[1]}], w in [{sums.w_range[0]},"
            f" {sums.w_range[1]}]: {kernel.numbers()}",
            f"kernel: {plan.reasons['kernel']}",
            f"steps: {steps}",
            f"memory: {plan.scratch_bytes:,} bytes of scratch",
        )
    )
