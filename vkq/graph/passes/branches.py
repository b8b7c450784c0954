"""Independent branches side by side: between their nodes no barrier is needed, so that small ones share a
device.

Nodes come by their levels, a level being the longest way from an input: first the first ones of all branches,
then the second ones.
"""

from __future__ import annotations

import dataclasses

from ..graph import Graph, Node


def side_by_side(graph: Graph) -> Graph:
    """The graph with its nodes by levels."""
    level: dict[str, int] = {}

    def after(node: Node) -> int:
        return 1 + max((level.get(name, 0) for name in node.inputs if name), default=0)

    for node in graph.nodes:
        level.update(dict.fromkeys(node.outputs, after(node)))
    return dataclasses.replace(graph, nodes=sorted(graph.nodes, key=after))
