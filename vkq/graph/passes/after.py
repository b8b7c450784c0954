"""What follows a convolution becomes its last step: a sum with another value (a residual), or a table. What
follows a linear layer does too: a table, or one for each channel, or that its results become float32.

Exact: the kernel requantizes its result first, and goes on with the bytes.
"""

from __future__ import annotations

from ...numerics.qparams import QParams
from ..graph import Graph, Node
from ..operators.quantized import OWN
from .sweep import Sweep, swept


def into_convolutions(graph: Graph) -> Graph:
    """The graph with sums and tables in the layers before them, and float32 results of linear layers, where
    nothing else reads what is between."""
    if graph.kinds.isdisjoint(("conv2d", "linear")):
        return graph
    uses, order = graph.uses(), {name: i for i, node in enumerate(graph.nodes) for name in node.outputs}

    def layer(sweep: Sweep, name: str, *ops: str) -> Node | None:
        """The layer that makes a value for one reader, and has no last step yet."""
        made = sweep.producer(name, *ops)
        a = {} if made is None else made.attributes
        whole = isinstance(a.get("x"), QParams) or (made is not None and made.op == "conv2d")
        free = whole and "after" not in a and a["y"] is not None
        return made if free and uses[name] == 1 else None

    def visit(sweep: Sweep, node: Node) -> bool:
        if node.op == "dequantize":
            return uses[node.inputs[0]] == 1 and _as_numbers(sweep, node)
        if node.op == "lookup":
            own, table = node.inputs[0], node.attributes["table"]
            last = node.attributes.get("axis", -1) == len(sweep.specs[own].shape) - 1
            ops = ("conv2d", "linear") if table.ndim == 1 else ("linear",) if last else ()
            plain = table.dtype.name == sweep.specs[own].dtype
        elif node.op in ("add", "sub"):
            # the later one of two, whose other operand is there by then
            ops = ("conv2d",)
            own = max(
                node.inputs, key=lambda name: (layer(sweep, name, *ops) is not None, order.get(name, -1))
            )
            plain = len({(sweep.specs[name].shape, sweep.specs[name].dtype) for name in node.inputs}) == 1
        else:
            return False
        made = layer(sweep, own, *ops) if ops else None
        if made is None or not plain or _type(node) not in (None, sweep.specs[own].dtype):
            return False
        others = [name for name in node.inputs if name != own]
        if node.op != "lookup" and len(others) != 1:
            return False
        last = Node(
            node.op, tuple(OWN if name == own else "other" for name in node.inputs), (), node.attributes
        )
        inputs = (made.inputs[0], made.inputs[1], made.input(2), *others)
        sweep.emit(made.op, inputs, node.outputs[0], made.source, **{**made.attributes, "after": last})
        return True

    return swept(graph, visit, "dequantize", "lookup", "add", "sub")


def _as_numbers(sweep: Sweep, node: Node) -> bool:
    """Makes the linear layer before a dequantize store the numbers that its results mean, if there is one."""
    made = sweep.producer(node.inputs[0], "linear")
    if made is None or "after" in made.attributes or made.attributes["y"] != node.attributes["x"]:
        return False
    last = Node(node.op, (OWN,), (), node.attributes)
    sweep.emit("linear", made.inputs, node.outputs[0], made.source, **{**made.attributes, "after": last})
    return True


def _type(node: Node) -> str | None:
    y: QParams | None = node.attributes.get("y")
    return None if y is None else y.dtype
