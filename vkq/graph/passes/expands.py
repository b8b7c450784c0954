"""Moves Expand after element-wise operators, which then compute fewer elements. An Expand vanishes before an
operator that broadcasts its operands to the same shape."""

from __future__ import annotations

import numpy as np

from ...numerics.elementwise import swaps
from ..graph import Graph, Node
from ..operators.table import TABLE
from .sweep import Sweep, swept

# An Expand stays before these: operators with parameters for each channel, and dequantize, whose results are
# wider than its operands.
OTHERS = ("BatchNormalization", "QuantizeLinear", "DequantizeLinear", "dequantize", "CastLike")
ELEMENTWISE = frozenset(op for op, row in TABLE.items() if row.kind == "elementwise").difference(OTHERS)
SUMS = ("Add", "Sum", "add")  # rounding depends on the order of the operands (`swaps`)
SELECTIONS = ("Where", "where")  # on 8-bit values, a device copies an operand that it broadcasts


def move_expands(graph: Graph) -> Graph:
    """Let element-wise operators read values before they are expanded."""
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
