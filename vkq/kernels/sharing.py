"""How many invocations of a workgroup compute one long sum, maximum or search together, and how much shared
memory a workgroup may use."""

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
# Maximum bytes of shared memory of a workgroup. It is also limited to two thirds of the device's maximum,
# so that a core can run several workgroups.
SHARED = 32768
NEIGHBOURS = 8  # invocations that together load 32 bytes, the smallest memory transaction of a GPU


def sharers(numbers: int, long: int = LONG) -> int:
    """Return how many invocations of a workgroup compute one result from *numbers* elements: `SHARERS` for
    *long* elements or more, else 1. If several invocations share a result, their loops are shorter (drivers
    may abort long loops), and few results occupy more of the device."""
    return SHARERS if numbers >= long else 1


def sharers_of_rows(capabilities: Capabilities, rows: int, words: int) -> int:
    """Return how many invocations share each of *rows* short rows of *words* words: enough to occupy the
    device, but at most one invocation for two words. On a GPU, at least `NEIGHBOURS` share a row that is
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
