"""Reductions, softmax and normalizations of rows on a device, one dispatch each."""

from __future__ import annotations

from ...kernels.chain import chained
from ...kernels.repack import repacked
from ...kernels.rows import LAYOUTS, Ends, rows_after
from ...layout.extent import BLOCKED, MATRIX
from ...runtime.builder import Value
from ..graph import Node
from .context import BUFFERS, BYTES, Context, DeviceOperator, anything, unnamed
from .layouts import wanted


def _rows(context: Context, node: Node) -> tuple[Value, ...]:
    a, b = node.attributes, context.builder
    inputs, shape = [context.value(name) for name in node.inputs], context.graph.specs[node.outputs[0]].shape
    prologue, reads = a.get("prologue"), a.get("reads", ())
    second: list[Value] = []
    if prologue is None:
        shape = inputs[0].spec.shape
    elif len(node.inputs) + len(node.outputs) > int(b.device.capabilities.properties[BUFFERS]):
        x, *second = chained(b, prologue, inputs[: len(reads)], shape)
        inputs, prologue, reads = [x, *inputs[len(reads) :]], None, ()
    layout = MATRIX
    if "x" in a and inputs[0].spec.layout not in LAYOUTS:
        inputs[0] = repacked(b, inputs[0], MATRIX)
    if "y" in a and shape[-1] % 16 == 0 and wanted(context, node.outputs[0]) == BLOCKED:
        layout = BLOCKED
    ends = Ends(
        a.get("x"), a.get("chain"), a.get("operands", ()), a.get("y"), a.get("real", False), prologue, reads
    )
    y, *more = rows_after(
        b, a["function"], inputs, shape, a["axis"], a["count"], {"epsilon": a["epsilon"]}, ends, layout
    )
    return unnamed(context, y), *more, *second


ROWS = {"rows": DeviceOperator(anything, _rows, (*BYTES, "float32", "float16", "int32"))}
