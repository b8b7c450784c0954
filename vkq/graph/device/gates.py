"""Squeeze-and-excite: two 1x1 convolutions of an image's means, in the dispatch that computes the means."""

from __future__ import annotations

import dataclasses

from ...kernels.excite import MOST_IMAGES, Excite
from ...ops.conv2d import Conv2d
from ...runtime.builder import Value
from ..graph import Node
from .context import Context
from .layers import conv_of


@dataclasses.dataclass(frozen=True)
class Gates:
    """The kernel, and the nodes that it replaces."""

    excite: Excite
    nodes: tuple[Node, ...]

    def keep(self, context: Context, gates: Value) -> None:
        """Store the result under the outputs of the replaced nodes: it is that of the last one, and no node
        reads the others."""
        context.ahead.update((node.outputs[0], gates) for node in self.nodes)


def behind(context: Context, mean: Node) -> Gates | None:
    """Return the two convolutions that are the only readers of a node's means, if one kernel can compute
    them; else None."""
    first = _only_reader(context, mean)
    second = first and _only_reader(context, first)
    if first is None or second is None or context.graph.specs[mean.outputs[0]].shape[0] > MOST_IMAGES:
        return None
    one, two = conv_of(context, first), conv_of(context, second)
    if one.gemm is None or two.gemm is None or not (_plain(one) and _plain(two)):
        return None
    made = Excite(context.builder.device, one.gemm, two.gemm)
    excite: Excite = context.keep(("excite", second.outputs[0], one, two), lambda: made)
    return Gates(excite, (first, second)) if excite.fits else None


def _only_reader(context: Context, node: Node) -> Node | None:
    """Return the convolution that is the only reader of a node's result, as its image, and adds no residual;
    else None."""
    name = node.outputs[0]
    readers = context.readers(name)
    if len(readers) != 1 or context.uses[name] != 1:  # a result of the graph is a use without a reader
        return None
    if readers[0].op != "conv2d" or readers[0].inputs[0] != name:
        return None
    return None if readers[0].input(3) else readers[0]


def _plain(layer: Conv2d) -> bool:
    """Return True if a layer is a product of one-pixel images with 8-bit results."""
    p = layer._options
    return layer.weight_shape[2:] == (1, 1) and p.groups == 1 and not any(p.padding) and p.stride == (1, 1)
