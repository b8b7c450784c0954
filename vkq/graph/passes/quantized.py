"""Fuses the QuantizeLinear of a float32 image into the convolution that reads the quantized image, if the
quantized image has no other reader. Some kernels of convolutions quantize the image while they load it. For
all other kernels, an earlier dispatch writes the quantized image in the kernel's layout."""

from __future__ import annotations

from ..graph import Graph, Node
from .sweep import Sweep, swept


def quantize_in_convolutions(graph: Graph) -> Graph:
    """Fuse each QuantizeLinear into the convolution that reads its result, if the result has no other
    reader."""
    uses = graph.uses()

    def visit(sweep: Sweep, node: Node) -> bool:
        before = sweep.producer(node.inputs[0], "quantize")
        if before is None or uses[node.inputs[0]] > 1 or before.attributes["y"] != node.attributes["x"]:
            return False
        inputs = (before.inputs[0], *node.inputs[1:])
        sweep.keep(Node(node.op, inputs, node.outputs, node.attributes, node.source))
        return True

    return swept(graph, visit, "conv2d")
