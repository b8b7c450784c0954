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
# Of devices of which no rate is known, as of those that a file is exported for: operations and bytes a
# second, about those of the slowest phones (a Mali-G52's peak). Not measured.
ASSUMED, ASSUMED_COPY = 1e11, 1e10


def macs_in_time(c: Capabilities, own: verdict.Verdict | None = None) -> int | None:
    """The multiply-adds that end within `LONGEST_S` at the slowest rate that the probe measured; None for
    devices that share no screen. *own*: the verdict of a device that is not here."""
    if c.device_type not in SHARED:
        return None
    rates = [rate for form, rate in _rates(c, own).items() if form in verdict.FORMS]
    return max(1, int(min(rates, default=ASSUMED) / 2 * LONGEST_S * LEAST_SHARE))


def groups_in_time(
    c: Capabilities, total: int, macs: int, size: int = 0, own: verdict.Verdict | None = None
) -> int:
    """Of *total* workgroups with *macs* multiply-adds on *size* bytes in all: how many one dispatch may
    safely have."""
    most = _most_macs(c, own)
    fit = total if macs <= most else total * most // macs
    copied = _bytes_in_time(c, own)
    if copied is not None and size > copied:
        fit = min(fit, total * copied // size)
    return max(1, fit)


def seconds_of(c: Capabilities, macs: int, size: int, own: verdict.Verdict | None = None) -> float:
    """How long that many multiply-adds on *size* bytes may take: estimated as `macs_in_time`, and by the rate
    of a copy. 0.0 for devices that share no screen."""
    copied = _bytes_in_time(c, own)
    return 0.0 if copied is None else LONGEST_S * max(macs / _most_macs(c, own), size / copied)


def _most_macs(c: Capabilities, own: verdict.Verdict | None) -> int:
    most = profile(c).macs_per_dispatch
    return min(most, macs_in_time(c, own) or most)


def _bytes_in_time(c: Capabilities, own: verdict.Verdict | None) -> int | None:
    """The bytes that are read and written within `LONGEST_S`; None for devices that share no screen."""
    if c.device_type not in SHARED:
        return None
    return max(1, int(_rates(c, own).get("copy", ASSUMED_COPY) * LEAST_SHARE * LONGEST_S))


def _rates(c: Capabilities, own: verdict.Verdict | None) -> Mapping[str, float]:
    found = own or verdict.known(c)
    return found.rates if found else {}
