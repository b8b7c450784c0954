"""How many invocations share one long sum, maximum or search."""

from __future__ import annotations

SHARERS, LONG = 64, 256


def sharers(numbers: int, long: int = LONG) -> int:
    """The invocations of a workgroup that share one result made of so many numbers: one where they are few,
    `SHARERS` where they are many. Drivers may end loops that run for long, and few results of many numbers
    leave a device idle."""
    return SHARERS if numbers >= long else 1
