"""Limits for the work of one dispatch and of one submission. Drivers end work that takes too long, so the
profile of every device limits its dispatches. On a GPU that also drives the screen, long work freezes the
screen: there the limit follows from measured rates, and longer work is split into several submissions."""

from __future__ import annotations

from collections.abc import Mapping

from . import verdict
from .capabilities import Capabilities
from .profiles import profile

LONGEST_S = 0.1
LEAST_SHARE = 0.125  # kernels reach at least this share of the measured rate
SHARED = ("integrated", "other")  # types of devices that drive the screen
# Operations and bytes per second of devices without known rates, such as devices for which a file is
# exported. These values approximate the slowest phones (a Mali-G52's peak) and are not measured.
ASSUMED, ASSUMED_COPY = 1e11, 1e10


def macs_in_time(c: Capabilities, own: verdict.Verdict | None = None) -> int | None:
    """Return how many multiply-adds a dispatch can do within `LONGEST_S` at the slowest measured rate; None
    for devices that do not drive a screen. *own*: the verdict to use if this machine does not have the
    device."""
    if c.device_type not in SHARED:
        return None
    rates = [rate for form, rate in _rates(c, own).items() if form in verdict.FORMS]
    return max(1, int(min(rates, default=ASSUMED) / 2 * LONGEST_S * LEAST_SHARE))


def groups_in_time(
    c: Capabilities, total: int, macs: int, size: int = 0, own: verdict.Verdict | None = None
) -> int:
    """Return the maximum number of workgroups of one dispatch that end before a watchdog would act. All
    *total* workgroups together do *macs* multiply-adds on *size* bytes. *own*: see `macs_in_time`."""
    most = _most_macs(c, own)
    fit = total if macs <= most else total * most // macs
    copied = _bytes_in_time(c, own)
    if copied is not None and size > copied:
        fit = min(fit, total * copied // size)
    return max(1, fit)


def seconds_of(c: Capabilities, macs: int, size: int, own: verdict.Verdict | None = None) -> float:
    """Return the estimated seconds of *macs* multiply-adds on *size* bytes, by the rates of `macs_in_time`
    and of a copy. Return 0.0 for devices that do not drive a screen."""
    copied = _bytes_in_time(c, own)
    return 0.0 if copied is None else LONGEST_S * max(macs / _most_macs(c, own), size / copied)


def _most_macs(c: Capabilities, own: verdict.Verdict | None) -> int:
    most = profile(c).macs_per_dispatch
    return min(most, macs_in_time(c, own) or most)


def _bytes_in_time(c: Capabilities, own: verdict.Verdict | None) -> int | None:
    """Return the bytes that a dispatch can read and write within `LONGEST_S`; None for devices that do not
    drive a screen."""
    if c.device_type not in SHARED:
        return None
    return max(1, int(_rates(c, own).get("copy", ASSUMED_COPY) * LEAST_SHARE * LONGEST_S))


def _rates(c: Capabilities, own: verdict.Verdict | None) -> Mapping[str, float]:
    found = own or verdict.known(c)
    return found.rates if found else {}
