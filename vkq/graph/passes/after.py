"""Fuses epilogues into convolutions and linear layers. An epilogue is a lookup in a table, the addition of
another value (a residual), or a lookup and then an addition. A linear layer also accepts a dequantize, or a
lookup with a table for each channel.

The fusion is exact: the kernel requantizes the layer's result to bytes, and the epilogue reads these bytes.
"""

from __future__ import annotations

from ...numerics.qparams import QParams
from ..graph import Graph, Node
from ..operators.quantized import OWN
from .sweep import Sweep, swept

LAYERS = ("conv2d", "linear")


def into_layers(graph: Graph) -> Graph:
    """Fuse each lookup or dequantize into the layer that computes its operand, and each addition into a layer
    that computes one of its operands. No other node may read this operand."""
    if graph.kinds.isdisjoint(LAYERS):
        return graph
    return swept(graph, _LastSteps(graph).visit, "dequantize", "lookup", "add", "sub")


class _LastSteps:
    def __init__(self, graph: Graph):
        self.uses = graph.uses()
        self.order = {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}

    def visit(self, sweep: Sweep, node: Node) -> bool:
        if node.op == "dequantize":
            return self.uses[node.inputs[0]] == 1 and _as_numbers(sweep, node)
        own, made = self._looked_up(sweep, node) if node.op == "lookup" else self._summed(sweep, node)
        if made is None or _type(node) not in (None, sweep.specs[own].dtype):
            return False
        others = [name for name in node.inputs if name != own]
        inputs = tuple(OWN if name == own else "other" for name in node.inputs)
        step = Node(node.op, inputs, (), node.attributes)
        given = (made.inputs[0], made.inputs[1], made.input(2), *others)
        after = (*made.attributes.get("after", ()), step)
        sweep.emit(made.op, given, node.outputs[0], made.source, **{**made.attributes, "after": after})
        return True

    def _looked_up(self, sweep: Sweep, node: Node) -> tuple[str, Node | None]:
        """Return (the operand of a lookup, the layer that computes this operand). The layer is None if no
        layer can include the lookup. Only linear layers support one table for each channel."""
        own, table = node.inputs[0], node.attributes["table"]
        columns = node.attributes.get("axis", -1) == len(sweep.specs[own].shape) - 1
        ops = LAYERS if table.ndim == 1 else ("linear",) if columns else ()
        plain = ops and table.dtype.name == sweep.specs[own].dtype
        return own, self._layer(sweep, own, (), *ops) if plain else None

    def _summed(self, sweep: Sweep, node: Node) -> tuple[str, Node | None]:
        """Return (an operand of the addition, the layer that computes this operand). If layers compute both
        operands, choose the later layer: when it runs, the earlier layer's result exists. The layer is None
        if no layer can include the addition."""
        made = {name: self._layer(sweep, name, ("lookup",), *LAYERS) for name in node.inputs}
        own = max(node.inputs, key=lambda name: (made[name] is not None, self.order.get(name, -1)))
        alike = len({(sweep.specs[name].shape, sweep.specs[name].dtype) for name in node.inputs}) == 1
        return own, made[own] if alike and len(made) == 2 else None

    def _layer(self, sweep: Sweep, name: str, before: tuple[str, ...], *ops: str) -> Node | None:
        """Return the layer that computes a value. Return None in these cases:

        - the operator of the node that computes the value is not in *ops*
        - the layer cannot have an epilogue, or its epilogue already has an operator that is not in *before*
        - the value has several readers"""
        made = sweep.producer(name, *ops)
        if made is None or (made.op == "linear" and not isinstance(made.attributes["x"], QParams)):
            return None
        steps = {step.op for step in made.attributes.get("after", ())}
        free = steps <= {*before} and made.attributes["y"] is not None
        return made if free and self.uses[name] == 1 else None


def _as_numbers(sweep: Sweep, node: Node) -> bool:
    """If a linear layer computes the input of the dequantize *node*, fuse the node into the layer, which then
    stores float32. Return True if the node was fused."""
    made = sweep.producer(node.inputs[0], "linear")
    if made is None or "after" in made.attributes or made.attributes["y"] != node.attributes["x"]:
        return False
    last = Node(node.op, (OWN,), (), node.attributes)
    sweep.emit("linear", made.inputs, node.outputs[0], made.source, **{**made.attributes, "after": (last,)})
    return True


def _type(node: Node) -> str | None:
    y: QParams | None = node.attributes.get("y")
    return None if y is None else y.dtype
