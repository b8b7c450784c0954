"""Measure with a counting shader whether a driver ends long loops.

Mesa's llvmpipe counts the iterations of all loops of an invocation together. After 65,535 iterations it
ends the loops without an error, which makes a kernel's sum wrong. Plans compare each kernel's iterations
with this limit (`vkq.runtime.builder.Builder.dispatch`).
"""

from __future__ import annotations

from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog

# Iterations of the test (a few milliseconds). A device that completes them counts as unlimited.
ASKED = 1 << 20
INVOCATIONS = 64


def measure(device: Device) -> int | None:
    """Return the number of iterations after which the driver ends an invocation's loops, or None if it does
    not."""
    counted = Tensor(device, (INVOCATIONS,), "int32")
    program = device.program(catalog().find("selftest__loops"), {"LOCAL_X": INVOCATIONS})
    with device.operation() as recording:
        recording.dispatch(program, [counted.buffer], {"most": ASKED})
    least = int(counted.numpy().min())
    return None if least >= ASKED else least
