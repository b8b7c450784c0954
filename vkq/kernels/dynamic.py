"""Activations quantized on the device by rows, with scale and zero point from each row's own values (scheme
dq8ca)."""

from __future__ import annotations

from ..layout.pack import layout
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..runtime.tensor import BLOCKED, extent_of
from ..shader.catalog import catalog

INVOCATIONS = 256  # of a row at most


def rows_program(device: Device, k: int, name: str) -> Program:
    """The pipeline that quantizes rows of so many values into a layout."""
    most = min(INVOCATIONS, int(device.capabilities.properties["maxComputeWorkGroupInvocations"]))
    wide = 32
    while 2 * wide <= most and 8 * wide <= k:
        wide *= 2
    return device.program(
        catalog().find("quantize_dq8ca__row"), {"LOCAL_X": wide, "BLOCKED": name == BLOCKED}
    )


def rows_bytes(m: int, k: int, name: str) -> int:
    """The bytes of m rows of k int8 in a layout of this name."""
    return 4 * layout(name).words(extent_of((m, k), name))


def quantize_rows(recording: Recording, x: Buffer, m: int, k: int, name: str) -> tuple[Buffer, Buffer]:
    """Records the quantization of m rows of k float32: (int8 in the layout, [m] = (bits of the scale, zero
    point))."""
    device = recording.device
    packed, parameters = device.allocate(rows_bytes(m, k, name)), device.allocate(8 * m)
    recording.dispatch(rows_program(device, k, name), [x, packed, parameters], {"m": m, "k": k})
    return packed, parameters
