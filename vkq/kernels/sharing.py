"""The number of invocations that share one long sum, maximum or search."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile

SHARERS, LONG = 64, 256
NEIGHBOURS = 8  # invocations that together load 32 bytes, the least that a GPU fetches


def sharers(numbers: int, long: int = LONG) -> int:
    """Return the invocations of a workgroup that share one result of *numbers* numbers: one for few numbers,
    `SHARERS` for many. Drivers may end long loops early, and few results of many numbers leave a device
    idle."""
    return SHARERS if numbers >= long else 1


def sharers_of_rows(capabilities: Capabilities, rows: int, words: int) -> int:
    """Return the invocations that share each of some short rows: more of them, up to one for two words, until
    the device is busy. On a GPU at least `NEIGHBOURS`, because it loads contiguous memory for many
    invocations at once."""
    busy, shares = profile(capabilities).busy_workgroups * SHARERS, 1
    least = 1 if capabilities.device_type == "cpu" else NEIGHBOURS
    while (rows * shares < busy or shares < least) and 4 * shares <= words:
        shares *= 2
    return shares
