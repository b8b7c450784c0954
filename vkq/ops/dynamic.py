"""Activations quantized on the device by rows, with scale and zero point from each row's own values (scheme dq8ca)."""

from __future__ import annotations

from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..shader.catalog import catalog
from .gemm import ceil4

INVOCATIONS = 256  # of a row at most


def rows_program(device: Device, k: int) -> Program:
    """The pipeline that quantizes rows of so many values."""
    most = min(INVOCATIONS, int(device.capabilities.properties["maxComputeWorkGroupInvocations"]))
    wide = 32
    while 2 * wide <= most and 8 * wide <= k:
        wide *= 2
    return device.program(catalog().find("quantize_dq8ca__row"), {"LOCAL_X": wide})


def quantize_rows(recording: Recording, x: Buffer, m: int, k: int) -> tuple[Buffer, Buffer]:
    """Records the quantization of m rows of k float32: (int8 as kPackedInt8_4H4W, [m] = (bits of the scale, zero point))."""
    device = recording.device
    packed, parameters = device.allocate(16 * ceil4(m) * ceil4(k)), device.allocate(8 * m)
    recording.dispatch(rows_program(device, k), [x, packed, parameters], {"m": m, "k": k})
    return packed, parameters
