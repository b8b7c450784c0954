"""Functions of rows on a device: one dispatch each."""

from __future__ import annotations

from ...kernels.rows import rows_of
from ...runtime.builder import Value
from ..graph import Node
from .context import Context, DeviceOperator, anything


def _rows(context: Context, node: Node) -> Value:
    a = node.attributes
    attributes = {"epsilon": a["epsilon"]}
    return rows_of(
        context.builder, a["function"], context.value(node.inputs[0]), a["axis"], a["count"], attributes
    )


ROWS = {"rows": DeviceOperator(anything, _rows, ("float32",))}
