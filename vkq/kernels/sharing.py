"""How many invocations share one long sum, maximum or search."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile

SHARERS, LONG = 64, 256
NEIGHBOURS = 8  # invocations that read 32 bytes together, the least that GPUs fetch


def sharers(numbers: int, long: int = LONG) -> int:
    """The invocations of a workgroup that share one result made of so many numbers: one where they are few,
    `SHARERS` where they are many. Drivers may end loops that run for long, and few results of many numbers
    leave a device idle."""
    return SHARERS if numbers >= long else 1


def sharers_of_rows(capabilities: Capabilities, rows: int, words: int) -> int:
    """The invocations that share each of some short rows: more of them, up to one for two words, until the
    device is busy. A GPU has at least `NEIGHBOURS`: it reads for many invocations at a time what lies
    together."""
    busy, shares = profile(capabilities).busy_workgroups * SHARERS, 1
    least = 1 if capabilities.device_type == "cpu" else NEIGHBOURS
    while (rows * shares < busy or shares < least) and 4 * shares <= words:
        shares *= 2
    return shares
