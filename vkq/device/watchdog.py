"""How much one dispatch, and one submission, may do. Drivers end what takes too long, so every device has a
bound on its dispatches, from its profile. Where the GPU also draws the screen, long work freezes it: there
the bound follows measured rates, and what takes longer is several submissions.
"""

from __future__ import annotations

from collections.abc import Mapping

from . import verdict
from .capabilities import Capabilities
from .profiles import profile

LONGEST_S = 0.1
LEAST_SHARE = 0.125  # of the rate that the probe measured: what kernels reach at least
SHARED = ("integrated", "other")  # device types


def macs_in_time(c: Capabilities) -> int | None:
    """The multiply-adds that end within `LONGEST_S` at the slowest rate that the probe measured there; None
    for devices that share no screen, and where nothing was measured."""
    rates = [rate for form, rate in _rates(c).items() if form in verdict.FORMS]
    return max(1, int(min(rates) / 2 * LONGEST_S * LEAST_SHARE)) if rates else None


def groups_in_time(c: Capabilities, total: int, macs: int) -> int:
    """Of *total* workgroups with *macs* multiply-adds in all: how many one dispatch may safely have."""
    most = _most_macs(c)
    return total if macs <= most else max(1, total * most // macs)


def seconds_of(c: Capabilities, macs: int, size: int) -> float:
    """How long that many multiply-adds on *size* bytes may take: estimated as `macs_in_time`, and by the rate
    of a copy. 0.0 for devices that share no screen."""
    if c.device_type not in SHARED:
        return 0.0
    copied = _rates(c).get("copy")
    return max(LONGEST_S * macs / _most_macs(c), size / (copied * LEAST_SHARE) if copied else 0.0)


def _most_macs(c: Capabilities) -> int:
    most = profile(c).macs_per_dispatch
    return min(most, macs_in_time(c) or most)


def _rates(c: Capabilities) -> Mapping[str, float]:
    """What was measured on a device that shares a screen."""
    found = verdict.known(c) if c.device_type in SHARED else None
    return found.rates if found else {}
