"""What stands around a function of rows goes into its kernel: DequantizeLinear before it, a chain and
QuantizeLinear behind it."""

from __future__ import annotations

from ...kernels.chain import MOST_BUFFERS
from ...kernels.rows import LIKE, ONE, PLACES, RESULT
from ...numerics.rows import FUNCTIONS
from ..graph import Graph, Node
from .sweep import Sweep, swept

OTHERS = MOST_BUFFERS - 1  # operands of a chain beside the result


def join_ends(graph: Graph) -> Graph:
    """The graph with functions of rows that quantize, dequantize and scale by themselves."""
    if "rows" not in graph.kinds:
        return graph
    uses = graph.uses()

    def alone(sweep: Sweep, name: str) -> Node | None:
        """The function of rows that makes a value for one reader."""
        made = sweep.producer(name, "rows") if uses[name] == 1 else None
        return made if made is not None and "y" not in made.attributes and _whole(sweep, made) else None

    def visit(sweep: Sweep, node: Node) -> bool:
        if node.op == "rows":
            made = sweep.producer(node.inputs[0], "dequantize")
            if made is None or not _whole(sweep, node) or not _bytes(sweep, made.inputs[0]):
                return False
            sweep.emit("rows", made.inputs[:1], node.outputs[0], node.source,
                       **{**node.attributes, "x": made.attributes["x"]})  # fmt: skip
            return True
        if node.op == "quantize":
            made = alone(sweep, node.inputs[0])
            if made is None or not _bytes(sweep, node.inputs[0]):
                return False
            sweep.emit("rows", made.inputs, node.outputs[0], made.source,
                       **{**made.attributes, "y": node.attributes["y"]})  # fmt: skip
            return True
        made = next((found for name in node.inputs if (found := alone(sweep, name)) is not None), None)
        return made is not None and "chain" not in made.attributes and _chained(sweep, node, made)

    return swept(graph, visit, "rows", "chain", "quantize")


def _whole(sweep: Sweep, node: Node) -> bool:
    """Whether rows are the last axis, and each of their numbers has a result."""
    a, rank = node.attributes, len(sweep.specs[node.inputs[0]].shape)
    return FUNCTIONS[a["function"]].each is not None and a["axis"] + a["count"] == rank and a["count"] == 1


def _bytes(sweep: Sweep, name: str) -> bool:
    """Whether rows of 8-bit numbers of this shape are whole words, and lie as matrices do."""
    shape = sweep.specs[name].shape
    return len(shape) != 4 and bool(shape) and shape[-1] % 4 == 0


def _chained(sweep: Sweep, node: Node, made: Node) -> bool:
    """Gives a function of rows the chain behind it."""
    chain, shape = node.attributes["chain"], sweep.specs[made.outputs[0]].shape
    ways: list[int] = []
    for name, dtype in zip(node.inputs, chain.inputs, strict=True):
        own = sweep.specs[name]
        if name == made.outputs[0]:
            way = RESULT
        elif own.dtype != dtype:  # flags or bytes, which are made numbers first
            return False
        elif own.shape == shape:
            way = LIKE
        elif set(own.shape[:-1]) <= {1} and len(own.shape) <= len(shape):
            way = PLACES if own.shape and own.shape[-1] != 1 else ONE
        else:
            return False
        ways.append(way)
    others = [name for name in node.inputs if name != made.outputs[0]]
    gives = node.attributes["gives"]
    if gives != ("float32",) or node.attributes["shape"] != shape or len(others) > OTHERS:
        return False
    more = {"chain": chain, "operands": tuple(ways)}
    sweep.emit("rows", [made.inputs[0], *others], node.outputs[0], node.source, **{**made.attributes, **more})
    return True
