"""How much one dispatch may do. Drivers end one that takes too long, so every device has a bound, from its
profile. Where the GPU also draws the screen, a long dispatch freezes it, so the bound follows measured rates.
"""

from __future__ import annotations

from . import verdict
from .capabilities import Capabilities
from .profiles import profile

LONGEST_S = 0.1
LEAST_SHARE = 0.125  # of the rate that the probe measured: what kernels reach at least
SHARED = ("integrated", "other")  # device types


def macs_in_time(c: Capabilities) -> int | None:
    """The multiply-adds that end within `LONGEST_S` at the slowest rate that the probe measured there; None
    for devices that share no screen, and where nothing was measured."""
    found = verdict.known(c) if c.device_type in SHARED else None
    rates = [rate for form, rate in found.rates.items() if form in verdict.FORMS] if found else []
    return max(1, int(min(rates) / 2 * LONGEST_S * LEAST_SHARE)) if rates else None


def groups_in_time(c: Capabilities, total: int, macs: int) -> int:
    """Of *total* workgroups with *macs* multiply-adds in all: how many one dispatch may safely have."""
    most = profile(c).macs_per_dispatch
    most = min(most, macs_in_time(c) or most)
    return total if macs <= most else max(1, total * most // macs)
