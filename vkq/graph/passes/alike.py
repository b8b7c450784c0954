"""Merges equal nodes that compute positions, lengths, masks or rows of a table. A decoder has such nodes once
for each layer. Nodes that compute other floats or 8-bit values are not merged, because passes that fuse nodes
require results with one reader."""

from __future__ import annotations

from collections.abc import Hashable

from ..graph import Graph, Node
from .sweep import Sweep

WHOLE = ("int32", "int64", "bool")
# Operators of decoders. The rules that emit these operators also emit the nodes that compute positions, once
# for each layer.
CACHED = (
    "rotate",
    "place",
    "append_cache",
    "heads",
)
MOVES = ("Gather", "Where")  # operators whose float results are merged, too
MOST_BYTES = 1 << 20  # constants up to this size are compared by their elements, larger ones by their names


def merge_alike(graph: Graph) -> Graph:
    """If the graph has operators of decoders, merge nodes with equal operators, inputs and attributes."""
    if graph.kinds.isdisjoint(CACHED):
        return graph
    seen: dict[Hashable, Node] = {}
    texts: dict[str, Hashable] = {}
    dtypes = {name: spec.dtype for name, spec in graph.specs.items()}

    def known(sweep: Sweep, name: str) -> Hashable:
        array = sweep.array(name)
        if array is None or array.nbytes > MOST_BYTES:
            return name
        if name not in texts:
            texts[name] = (array.dtype.str, array.shape, array.tobytes())
        return texts[name]

    def visit(sweep: Sweep, node: Node) -> bool:
        merged = node.op in MOVES or all(dtypes.get(name) in WHOLE for name in node.outputs)
        plain = all(isinstance(value, int | float | str | tuple) for value in node.attributes.values())
        if not merged or not plain or len(node.outputs) != 1 or node.outputs[0] in graph.outputs:
            return False
        inputs = tuple(known(sweep, name) for name in node.inputs)
        first = seen.setdefault((node.op, inputs, tuple(sorted(node.attributes.items()))), node)
        if first is node:
            return False
        sweep.alias(node.outputs[0], first.outputs[0])
        return True

    return Sweep(graph).run(visit)
