"""Products of two float activations, on a device."""

from __future__ import annotations

from ...ops.float_matmul import multiplied
from ...runtime.builder import Value
from ..graph import Graph, Node
from .context import Context, DeviceOperator

FLOATS = ("float32", "float16")


def _check(graph: Graph, node: Node) -> str | None:
    dtypes = {graph.specs[name].dtype for name in node.inputs}
    if len(dtypes) > 1 or not dtypes <= set(FLOATS):
        return f"takes {', '.join(sorted(dtypes))}; both must be float32, or float16"
    return None


def _record(context: Context, node: Node) -> Value:
    a, b = (context.value(name) for name in node.inputs)
    return multiplied(context.builder, a, b)


ROWS: dict[str, DeviceOperator] = {"MatMul": DeviceOperator(_check, _record, FLOATS)}
