"""A depthwise convolution in the dispatch of the 1x1 convolution that alone reads it."""

from __future__ import annotations

import dataclasses

from ...device.profiles import profile
from ...kernels.depthwise_pointwise import DepthwisePointwise
from ...kernels.repack import repacked
from ...ops.conv2d import Conv2d
from ...problem.conv2d import Conv2dProblem
from ...runtime.builder import Value
from ..graph import Node
from .context import Context
from .gates import plain
from .layers import conv_of


@dataclasses.dataclass(frozen=True)
class Pair:
    """The first of two convolutions, which the kernel of the second computes; see `layers.Before`."""

    first: Conv2d
    problem: Conv2dProblem
    x: Value
    name: str  # of what lies between

    def build(self, context: Context, layer: Conv2d, other: Value | None) -> Value:
        """Adds both; *other* is what the second adds its results to."""
        b, p, scheme = context.builder, self.problem, layer._scheme
        kernel = _kernel(context, self.name, self.first, layer)
        layout, tile = layer.input_layout(p.y_shape), kernel.tile(p) if kernel else None
        if kernel is None or tile is None:
            raise RuntimeError("a convolution waits for one that cannot compute it")
        x, _ = self.first._scheme.take(b, self.x, layout)
        spec = scheme.result((p.n, layer.weight_shape[0], p.oh, p.ow), layout)
        y = b.new(spec) if other is None else b.view(repacked(b, other, layout), spec)
        kernel.build(b, p, tile, x, y)
        between = scheme.result(p.y_shape, layout).nbytes
        b.why(self.name, f"in the dispatch of the 1x1 behind it ({tile}): {between} bytes stay on chip")
        return y


def waits(context: Context, node: Node) -> bool:
    """Whether a convolution is left to the kernel of its reader, which is the next node then."""
    name, graph = node.outputs[0], context.graph
    if not profile(context.builder.device.capabilities).depthwise_fused or node.attributes["y"] is None:
        return False
    behind = [one for one in context.readers(name) if one.op == "conv2d" and one.inputs[0] == name]
    if not behind or context.uses[name] != 1 or node.input(3):
        return False
    # nothing between them may write where the first one's input lies
    if graph.nodes[context.places(name)[0] - 1] is not node:
        return False
    first, second = conv_of(context, node), conv_of(context, behind[0])
    p, _ = first._problem_of(graph.specs[node.inputs[0]].shape)
    if not plain(second) or not p.groups == p.ic == p.oc:
        return False
    kernel = _kernel(context, name, first, second)
    if kernel is None or not kernel.fits(p) or kernel.tile(p) is None:
        return False
    context.waiting[name] = Pair(first, p, context.value(node.inputs[0]), name)
    return True


def _kernel(context: Context, name: str, first: Conv2d, second: Conv2d) -> DepthwisePointwise | None:
    gemm = second.gemm
    if gemm is None or not first._convolution.integer:  # of float activations
        return None
    key = "depthwise and 1x1", name, second._scheme.after.kind
    made: DepthwisePointwise = context.keep(
        key, lambda: DepthwisePointwise(first._convolution, gemm), first, second
    )
    return made
