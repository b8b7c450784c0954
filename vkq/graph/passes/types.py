"""Types that a device holds in place of the model's: flags are bytes, 0 or 1."""

from __future__ import annotations

from ..graph import Graph, Spec
from .constants import HELD
from .sweep import Sweep


def hold_types(graph: Graph) -> Graph:
    """The graph with inputs of types that a device holds. (Results of operators that vkq does not know have
    them already.)"""
    changed = {name: graph.specs[name] for name in graph.inputs if graph.specs[name].dtype in HELD}
    if not changed:
        return graph
    sweep = Sweep(graph)
    for name, spec in changed.items():
        sweep.specs[name] = Spec(HELD[spec.dtype], spec.shape)
    return sweep.run(lambda sweep, node: False)
