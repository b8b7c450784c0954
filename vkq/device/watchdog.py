"""Limit the work of one dispatch and of one submission: drivers end work that takes too long.

The profile of every device limits its dispatches. A GPU that also drives the screen has a lower limit, from
measured rates, because the screen freezes during a dispatch. Its work is also split into several
submissions."""

from __future__ import annotations

from collections.abc import Mapping

from . import verdict
from .capabilities import Capabilities
from .profiles import profile

LONGEST_S = 0.1  # longest time of a dispatch on a device that drives the screen, in seconds
LEAST_SHARE = 0.125  # kernels are assumed to reach at least this share of a measured rate
SHARED = ("integrated", "other")  # the types of devices that are assumed to drive the screen
# Operations per second, and bytes per second of a copy, of devices with unknown rates (as when a file is
# exported for them). They approximate the slowest phones (the peak of a Mali-G52), and were not measured.
ASSUMED, ASSUMED_COPY = 1e11, 1e10


def macs_in_time(c: Capabilities, own: verdict.Verdict | None = None) -> int | None:
    """Return the number of multiply-adds that a dispatch does within `LONGEST_S` at the slowest measured
    rate; None for devices that do not drive a screen. *own*: the verdict with the rates; None: the device's
    known verdict."""
    if c.device_type not in SHARED:
        return None
    rates = [rate for form, rate in _rates(c, own).items() if form in verdict.FORMS]
    return max(1, int(min(rates, default=ASSUMED) / 2 * LONGEST_S * LEAST_SHARE))


def groups_in_time(
    c: Capabilities, total: int, macs: int, size: int = 0, own: verdict.Verdict | None = None
) -> int:
    """Return the number of workgroups of one dispatch that stays within the limits. *total*: the number of
    workgroups of the whole work: *macs* multiply-adds on *size* bytes. *own*: see `macs_in_time`."""
    most = _most_macs(c, own)
    fit = total if macs <= most else total * most // macs
    copied = _bytes_in_time(c, own)
    if copied is not None and size > copied:
        fit = min(fit, total * copied // size)
    return max(1, fit)


def seconds_of(c: Capabilities, macs: int, size: int, own: verdict.Verdict | None = None) -> float:
    """Return an estimate of the seconds for *macs* multiply-adds on *size* bytes, from the rates of
    arithmetic and of a copy; 0.0 for devices that do not drive a screen. *own*: see `macs_in_time`."""
    copied = _bytes_in_time(c, own)
    return 0.0 if copied is None else LONGEST_S * max(macs / _most_macs(c, own), size / copied)


def _most_macs(c: Capabilities, own: verdict.Verdict | None) -> int:
    most = profile(c).macs_per_dispatch
    return min(most, macs_in_time(c, own) or most)


def _bytes_in_time(c: Capabilities, own: verdict.Verdict | None) -> int | None:
    """Return the number of bytes that a dispatch reads and writes within `LONGEST_S`; None for devices that
    do not drive a screen."""
    if c.device_type not in SHARED:
        return None
    return max(1, int(_rates(c, own).get("copy", ASSUMED_COPY) * LEAST_SHARE * LONGEST_S))


def _rates(c: Capabilities, own: verdict.Verdict | None) -> Mapping[str, float]:
    found = own or verdict.known(c)
    return found.rates if found else {}
