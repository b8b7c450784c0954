"""Removes the Reshapes around Gemm. Exporters and ONNX Runtime's optimizer write a linear layer of values
(batch, rows, columns) as a Reshape to a matrix, a Gemm, and a Reshape back. vkq's linear layers read values
of any rank.

A Reshape to a matrix moves behind linear layers and tables, until a Reshape back cancels it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...numerics.qparams import QParams
from ..graph import Graph, Node, Spec
from .sweep import Sweep, swept


def keep_leading_axes(graph: Graph) -> Graph:
    """Let linear layers of 8-bit values (batch, rows, columns) read these without a Reshape."""
    matrices = {
        node.outputs[0] for node in graph.nodes if node.op == "Reshape" and _merges(graph.specs, node)
    }
    if not any(node.op == "linear" and node.inputs[0] in matrices for node in graph.nodes):
        return graph
    return swept(graph, _visit, "linear", "lookup", "Reshape")


def _merges(specs: Mapping[str, Spec], node: Node) -> bool:
    """Return True if a Reshape merges the leading axes of a value (batch, rows, columns)."""
    given, to = specs[node.inputs[0]].shape, specs[node.outputs[0]].shape
    return len(given) == 3 and to == (math.prod(given[:2]), given[2])


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op == "Reshape":
        return _cancelled(sweep, node)
    source, attributes = _whole(sweep, node.inputs[0]), dict(node.attributes)
    if source is None or (node.op == "linear" and not isinstance(attributes["x"], QParams)):
        return False
    if "axis" in attributes:
        if attributes["axis"] != 1:
            return False
        attributes["axis"] = 2
    made = sweep.emit(node.op, [source, *node.inputs[1:]], "", node.source, **attributes)
    sweep.reshape(made, sweep.old.specs[node.outputs[0]].shape, node.outputs[0], node.source)
    return True


def _whole(sweep: Sweep, name: str) -> str | None:
    """Return the value (batch, rows, columns) of which a Reshape merges the leading axes to get *name*."""
    made = sweep.producer(name, "Reshape")
    return made.inputs[0] if made and _merges(sweep.specs, made) else None


def _cancelled(sweep: Sweep, node: Node) -> bool:
    """Remove a Reshape that undoes `_whole`'s."""
    source = _whole(sweep, node.inputs[0])
    if source is None or sweep.specs[source].shape != sweep.old.specs[node.outputs[0]].shape:
        return False
    sweep.alias(node.outputs[0], source)
    return True
