"""Reductions, softmax and normalizations of rows on a device, one dispatch each."""

from __future__ import annotations

from ...kernels.repack import repacked
from ...kernels.rows import LAYOUTS, Ends, rows_of
from ...layout.extent import BLOCKED, MATRIX
from ...runtime.builder import Value
from ..graph import Node
from .context import BYTES, Context, DeviceOperator, anything, unnamed
from .layouts import wanted


def _rows(context: Context, node: Node) -> Value:
    a, b = node.attributes, context.builder
    attributes = {"epsilon": a["epsilon"]}
    x, *operands = (context.value(name) for name in node.inputs)
    layout = MATRIX
    if "x" in a and x.spec.layout not in LAYOUTS:
        x = repacked(b, x, MATRIX)
    if "y" in a and x.spec.shape[-1] % 16 == 0 and wanted(context, node.outputs[0]) == BLOCKED:
        layout = BLOCKED
    ends = Ends(a.get("x"), a.get("chain"), a.get("operands", ()), a.get("y"), a.get("real", False))
    y = rows_of(b, a["function"], x, a["axis"], a["count"], attributes, ends, operands, layout)
    return unnamed(context, y)


ROWS = {"rows": DeviceOperator(anything, _rows, (*BYTES, "float32"))}
