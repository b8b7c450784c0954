"""Quantize activations on the device with a scale and zero point for each row (scheme dq8ca)."""

from __future__ import annotations

from ..layout.extent import BLOCKED, Spec
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.program import Program
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant

INVOCATIONS = 256  # maximum number of invocations for each row
PIECE = 1 << 16  # number of values that one workgroup quantizes, a multiple of 16


def rows_program(device: Device, k: int, name: str, infinities: bool = False, turn: int = 0) -> Program:
    """Return a pipeline that quantizes rows of k values into the layout *name*. *turn*: 0: everything in
    one dispatch. 1: the first of two dispatches, which finds the minimum and maximum of each piece of a
    row. 2: the second of two dispatches, which quantizes."""
    most = min(INVOCATIONS, int(device.capabilities.properties["maxComputeWorkGroupInvocations"]))
    wide = 32
    while 2 * wide <= most and 8 * wide <= k:
        wide *= 2
    constants: dict[str, Constant] = {
        "LOCAL_X": wide, "BLOCKED": name == BLOCKED, "INFINITIES": infinities, "PASS": turn,
    }  # fmt: skip
    return device.program(catalog().find("quantize_dq8ca__row"), constants)


def quantize_rows(
    b: Builder, x: Value, m: int, k: int, name: str, infinities: bool = False
) -> tuple[Value, Value]:
    """Add the quantization of m rows of k float32 values to a plan. Return (int8 rows in the layout *name*,
    int32 (bits of the scale, zero point) of each row). *infinities*: the range of a row includes infinite
    values, as in ONNX; its scale is then infinite. A row of more than `PIECE` values is divided among
    workgroups, in two dispatches."""
    packed, parameters = b.new(Spec((m, k), "int8", name)), b.words(2 * m)
    parts = max(1, -(-k // PIECE))
    slots = [x, packed, parameters, b.words(2 * m * parts) if parts > 1 else parameters]
    push = {"m": m, "k": k, "parts": parts, "piece": PIECE if parts > 1 else max(16, -(-k // 16) * 16)}
    for turn in (1, 2) if parts > 1 else (0,):
        b.dispatch(rows_program(b.device, k, name, infinities, turn), slots, push)
    return packed, parameters
