"""Whether a driver ends loops that run for long: counted by a shader.

Mesa's llvmpipe ends all loops of an invocation after 65,535 rounds together, without a word; what a kernel
adds up there is wrong then. Plans hold the rounds of each kernel against this limit
(`vkq.runtime.builder.Builder.dispatch`).
"""

from __future__ import annotations

from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog

ASKED = 1 << 20  # rounds, some milliseconds; a device that makes so many is taken for one without a limit
INVOCATIONS = 64


def measure(device: Device) -> int | None:
    """The rounds after which the driver ends an invocation's loops; None where it does not."""
    counted = Tensor(device, (INVOCATIONS,), "int32")
    program = device.program(catalog().find("selftest__loops"), {"LOCAL_X": INVOCATIONS})
    with device.operation() as recording:
        recording.dispatch(program, [counted.buffer], {"most": ASKED})
    least = int(counted.numpy().min())
    return None if least >= ASKED else least
