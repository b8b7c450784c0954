"""Moves Expand after element-wise operators, which then compute fewer elements. If the operator broadcasts
its operands to the shape of the Expand, the Expand is removed."""

from __future__ import annotations

import numpy as np

from ...numerics.elementwise import swaps
from ..graph import Graph, Node
from ..operators.table import TABLE
from .sweep import Sweep, swept

# An Expand is not moved after these operators: they have parameters for each channel, or their results have
# more bytes than their operands (dequantize).
OTHERS = ("BatchNormalization", "QuantizeLinear", "DequantizeLinear", "dequantize", "CastLike")
ELEMENTWISE = frozenset(op for op, row in TABLE.items() if row.kind == "elementwise").difference(OTHERS)
SUMS = ("Add", "Sum", "add")  # the operands' shapes decide their order (`swaps`), which affects the rounding
SELECTIONS = ("Where", "where")  # on a device, broadcasting an 8-bit operand is an additional copy


def move_expands(graph: Graph) -> Graph:
    """Move Expands from the operands of element-wise operators to their results."""
    expanded = {name for node in graph.nodes if node.op == "Expand" for name in node.outputs}
    read = any(node.op in ELEMENTWISE and not expanded.isdisjoint(node.inputs) for node in graph.nodes)
    return swept(graph, _visit, *ELEMENTWISE) if read else graph


def _visit(sweep: Sweep, node: Node) -> bool:
    makers = [sweep.producer(name, "Expand") for name in node.inputs]
    expanded = [name for name, made in zip(node.inputs, makers, strict=True) if made]
    if not expanded or not {"axis", "why"}.isdisjoint(node.attributes):
        return False
    inputs = [made.inputs[0] if made else name for name, made in zip(node.inputs, makers, strict=True)]
    before, after = ([sweep.specs[x].shape for x in names if x] for names in (node.inputs, inputs))
    if node.op in SUMS and len(before) == 2 and swaps(*before) != swaps(*after):
        return False
    shape, whole = np.broadcast_shapes(*after), sweep.specs[node.outputs[0]].shape
    alone = all(sweep.uses.get(name) == 1 for name in expanded)
    if not alone and (shape != whole or node.op in SELECTIONS):
        return False
    name = sweep.emit(
        node.op, inputs, node.outputs[0] if shape == whole else "", node.source, **node.attributes
    )
    if shape != whole:
        wanted = sweep.constant(np.array(whole, np.int64), "shape")
        sweep.emit("Expand", [name, wanted], node.outputs[0], node.source)
    return True
