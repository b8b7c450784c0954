"""Interleaves independent branches. Nodes of different branches need no barrier between them, so a device can
run small nodes of several branches at the same time.

Nodes are sorted by level, the length of the longest path from an input. So the first node of every branch
comes first, then the second node of every branch, and so on."""

from __future__ import annotations

import dataclasses

from ..graph import Graph, Node


def side_by_side(graph: Graph) -> Graph:
    """Sort the nodes of a graph by level."""
    level: dict[str, int] = {}

    def after(node: Node) -> int:
        return 1 + max((level.get(name, 0) for name in node.inputs if name), default=0)

    for node in graph.nodes:
        level.update(dict.fromkeys(node.outputs, after(node)))
    return dataclasses.replace(graph, nodes=sorted(graph.nodes, key=after))
