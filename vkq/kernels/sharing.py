"""The number of invocations that share one long sum, maximum or search, and the shared memory of a
workgroup."""

from __future__ import annotations

from collections.abc import Mapping

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..runtime.builder import lets_loop
from ..runtime.device import Device
from ..runtime.program import refusals
from ..shader.spec import Value as Constant
from ..shader.spec import Variant

SHARERS, LONG = 64, 256
# Maximum bytes of shared memory of a workgroup, and at most two thirds of the device's maximum: a core can
# then run several workgroups.
SHARED = 32768
NEIGHBOURS = 8  # invocations that load 32 bytes, the smallest memory transaction of a GPU


def sharers(numbers: int, long: int = LONG) -> int:
    """Return the number of invocations of a workgroup that compute one result from *numbers* elements:
    `SHARERS` for *long* elements or more, else 1. Sharing shortens loops (drivers may abort long loops),
    and lets few results occupy more of the device."""
    return SHARERS if numbers >= long else 1


def sharers_of_rows(capabilities: Capabilities, rows: int, words: int) -> int:
    """Return the number of invocations that share each of *rows* short rows of *words* words: enough to
    occupy the device, but at most one for two words. On a GPU, at least `NEIGHBOURS` share a row that is
    long enough, because a GPU loads contiguous memory for neighbouring invocations at once."""
    busy, shares = profile(capabilities).busy_workgroups * SHARERS, 1
    least = 1 if capabilities.device_type == "cpu" else NEIGHBOURS
    while (rows * shares < busy or shares < least) and 4 * shares <= words:
        shares *= 2
    return shares


def runs_beside_others(
    device: Device, variant: Variant, constants: Mapping[str, Constant], push: Mapping[str, int | float]
) -> bool:
    """Return True if the device can run the variant with these constants, and shared memory has room for
    several of its workgroups."""
    c, values = device.capabilities, variant.constants(constants)
    most = min(SHARED, int(c.properties["maxComputeSharedMemorySize"]) * 2 // 3)
    if variant.shared_bytes(values) > most or refusals(variant, values, c):
        return False
    return lets_loop(device, variant.iterations(push, values))
