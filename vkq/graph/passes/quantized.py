"""Convolutions of float32 images: a QuantizeLinear with no other reader is fused into the convolution, which
quantizes while it loads, or quantizes into the layout of the kernel."""

from __future__ import annotations

from ..graph import Graph, Node
from .sweep import Sweep, swept


def quantize_in_convolutions(graph: Graph) -> Graph:
    """Fuse such QuantizeLinear into convolutions."""
    uses = graph.uses()

    def visit(sweep: Sweep, node: Node) -> bool:
        before = sweep.producer(node.inputs[0], "quantize")
        if before is None or uses[node.inputs[0]] > 1 or before.attributes["y"] != node.attributes["x"]:
            return False
        inputs = (before.inputs[0], *node.inputs[1:])
        sweep.keep(Node(node.op, inputs, node.outputs, node.attributes, node.source))
        return True

    return swept(graph, visit, "conv2d")
