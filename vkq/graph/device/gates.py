"""Squeeze-and-excite on a device: one dispatch computes the mean of each channel of an image, and the two
1x1 convolutions that follow."""

from __future__ import annotations

import dataclasses

from ...kernels.excite import MOST_IMAGES, Excite
from ...runtime.builder import Value
from ..graph import Node
from .context import Context
from .layers import conv_of, only_reader


@dataclasses.dataclass(frozen=True)
class Gates:
    """A squeeze-and-excite kernel, and the two convolutions that it replaces."""

    excite: Excite
    nodes: tuple[Node, ...]

    def keep(self, context: Context, gates: Value) -> None:
        """Store the kernel's result as the result of both convolutions. Only the second result is ever read:
        the kernel replaces the only reader of the first."""
        context.ahead.update((node.outputs[0], gates) for node in self.nodes)


def behind(context: Context, mean: Node) -> Gates | None:
    """Return a squeeze-and-excite kernel that replaces the two convolutions after *mean*, the node that
    computes the mean of each channel.

    Return None if other nodes read the means, if there are more than `MOST_IMAGES` images, or if the kernel
    does not support the convolutions."""
    first = only_reader(context, mean)
    second = first and only_reader(context, first)
    if first is None or second is None or context.graph.specs[mean.outputs[0]].shape[0] > MOST_IMAGES:
        return None
    one, two = conv_of(context, first), conv_of(context, second)
    if one.gemm is None or two.gemm is None or not (one.is_product and two.is_product):
        return None
    made = Excite(context.builder.device, one.gemm, two.gemm)
    excite: Excite = context.keep(("excite", second.outputs[0], one, two), lambda: made)
    return Gates(excite, (first, second)) if excite.fits else None
