"""Removes the Reshapes around Gemm. Exporters and ONNX Runtime's optimizer write a linear layer on values
(batch, rows, columns) as a Reshape to (batch * rows, columns), a Gemm, and a Reshape back. vkq's linear
layers read values of any rank. So they do not need these Reshapes.

The pass moves the first Reshape behind the linear layers and tables that follow it, until the second Reshape
cancels it. The first Reshape may also merge the heads of an attention's result."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from ...numerics.qparams import QParams
from ..graph import Graph, Node, Spec
from .sweep import Sweep

Leading = tuple[int, ...] | None  # the sizes (batch, rows); None if unknown


def keep_leading_axes(graph: Graph) -> Graph:
    """Remove the Reshape before a linear layer on 8-bit values (batch, rows, columns). The Reshape is removed
    only if later Reshapes split the rows of all the layer's results into (batch, rows) again."""
    matrices = {
        node.outputs[0] for node in graph.nodes if node.op == "Reshape" and _merges(graph.specs, node)
    }
    if not any(node.op == "linear" and node.inputs[0] in matrices for node in graph.nodes):
        return graph
    return Sweep(graph).run(_Moved(_leading_axes(graph)).visit, {"linear", "lookup", "Reshape"})


def _merges(specs: Mapping[str, Spec], node: Node) -> bool:
    """Return True if a Reshape makes a matrix (batch * rows, columns) from a value (batch, rows, columns) or
    (batch, rows, heads, columns of a head)."""
    given, to = specs[node.inputs[0]].shape, specs[node.outputs[0]].shape
    return len(given) in (3, 4) and to == (math.prod(given[:2]), math.prod(given[2:]))


def _leading_axes(graph: Graph) -> dict[str, Leading]:
    """Map each matrix to the sizes (batch, rows) into which later Reshapes split its rows; layers and tables
    may come before these Reshapes. Map a matrix to None if an operator of another kind reads it, or if the
    Reshapes split its rows into different sizes."""
    found: dict[str, Leading] = dict.fromkeys(graph.outputs)
    for node in reversed(graph.nodes):
        own: Leading = None
        if node.op == "Reshape":
            given, to = graph.specs[node.inputs[0]].shape, graph.specs[node.outputs[0]].shape
            own = to[:2] if len(given) == 2 < len(to) and math.prod(to[:2]) == given[0] else None
        elif _keeps_rows(node):
            own = found.get(node.outputs[0])
        for i, name in enumerate(node.inputs):
            lead = own if i == 0 else None
            found[name] = lead if found.get(name, lead) == lead else None
    return found


def _keeps_rows(node: Node) -> bool:
    if node.op == "lookup":
        return bool(node.attributes.get("axis", 1) == 1)
    return node.op == "linear" and isinstance(node.attributes["x"], QParams)


@dataclasses.dataclass
class _Moved:
    """Moves a Reshape that merges the axes (batch, rows) behind the layer or table that reads its result. The
    Reshape moves only if a later Reshape splits the rows of the layer's or table's result again
    (``leading``)."""

    leading: dict[str, Leading]

    def visit(self, sweep: Sweep, node: Node) -> bool:
        made = sweep.producer(node.inputs[0], "Reshape")
        if made is None or not _merges(sweep.specs, made):
            return False
        source, name = made.inputs[0], node.outputs[0]
        shape = sweep.specs[source].shape
        if node.op == "Reshape":
            if sweep.specs[name].shape == shape:
                sweep.alias(name, source)
            else:
                sweep.reshape(source, sweep.specs[name].shape, name, node.source)
            return True
        if self.leading.get(name) != shape[:2] or not _keeps_rows(node):
            return False
        if len(shape) == 4:
            source = sweep.reshape(source, (*shape[:2], math.prod(shape[2:])), "", made.source)
        attributes = {**node.attributes, **({"axis": 2} if "axis" in node.attributes else {})}
        moved = sweep.emit(node.op, [source, *node.inputs[1:]], "", node.source, **attributes)
        sweep.reshape(moved, sweep.specs[name].shape, name, node.source)
        return True
