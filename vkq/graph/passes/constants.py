"""Constants: what depends on constants and shapes alone is computed now.

DequantizeLinear of a constant stays: the integers behind it are what the quantized operators take. This is
the walk that first knows the shapes, so lines become images here (`lines`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..graph import Array, Graph, Node, Spec
from ..operators.operator import UnsupportedForm
from ..operators.table import TABLE, compute
from .lines import as_image
from .sweep import Sweep

LARGEST_FOLDED_BYTES = 1 << 28


def fold_constants(graph: Graph, otherwise: Callable[[Node, str], Node] | None = None) -> Graph:
    """The graph without Shape and Size, and without nodes whose inputs are all constant.

    otherwise: what is kept instead of a node in a form that the graph has not, with the reason.
    """

    def visit(sweep: Sweep, node: Node) -> bool:
        if node.op != "DequantizeLinear" and (_fold(sweep, node) or as_image(sweep, node)):
            return True
        try:
            sweep.keep(node)
        except UnsupportedForm as error:
            if otherwise is None:
                raise
            sweep.keep(otherwise(node, str(error).removeprefix(f"{node}: ")))
        return True

    return Sweep(graph).run(visit)


def fold_weights(graph: Graph) -> Graph:
    """The same, with DequantizeLinear: for what no quantized operator took."""
    return Sweep(graph).run(_fold)


def _fold(sweep: Sweep, node: Node) -> bool:
    if node.op in ("Shape", "Size"):
        shape = sweep.specs[node.inputs[0]].shape
        return _make(sweep, node, compute(node, [np.broadcast_to(np.zeros((), np.int8), shape)]))
    arrays = [sweep.array(name) if name else None for name in node.inputs]
    if any(name and array is None for name, array in zip(node.inputs, arrays, strict=True)):
        return False
    if node.op in TABLE and TABLE[node.op].compute is None:
        return False
    sweep.keep(node)  # refused here, with its sizes, before anything is computed
    if sum(sweep.specs[name].nbytes for name in node.outputs if name) > LARGEST_FOLDED_BYTES:
        return True
    sweep.nodes.pop()
    return _make(sweep, node, compute(node, arrays))


def _make(sweep: Sweep, node: Node, results: Sequence[Array]) -> bool:
    for name, array in zip(node.outputs, results, strict=False):
        if name:
            sweep.made.pop(name, None)
            sweep.constants[name], sweep.specs[name] = array, Spec.of(array)
    return True
