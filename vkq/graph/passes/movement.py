"""Makes movement operators work on 8-bit elements: each dequantize before a movement operator moves behind
the operator, and each quantize after a movement operator moves before the operator.

The results stay the same, because movement, including the maximum of a window, commutes with an increasing
function. A quantize cancels a dequantize with the same parameters. If the parameters differ, a table
remains (`tables`)."""

from __future__ import annotations

import numpy as np

from ...numerics.qparams import QParams, are_scales
from ...numerics.quantize import dequantize, quantize
from ..graph import Graph, Node
from ..operators.movement import OPERATORS, moves
from .sweep import Sweep, scalar, swept


def move_in_8_bits(graph: Graph) -> Graph:
    """Move each dequantize after, and each quantize before, the movement operators."""
    if graph.kinds.isdisjoint(("quantize", "dequantize", "DequantizeLinear")):
        return graph
    return swept(graph, _visit, "quantize", *OPERATORS)


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op == "quantize":
        y = node.attributes["y"]
        _replace(sweep, node.outputs[0], quantized(sweep, node.inputs[0], y, node.outputs[0], node.source))
        return True
    return moves(node) and _sink(sweep, node)


def _replace(sweep: Sweep, name: str, found: str) -> None:
    if found != name:
        sweep.alias(name, found)


def _moved(node: Node) -> int:
    """Return the number of a node's data inputs, which come first. The node's other inputs are parameters."""
    return len(node.inputs) if node.op == "Concat" else 1


def _sink(sweep: Sweep, node: Node) -> bool:
    """Replace op(dequantize(x)) by dequantize(op(x))."""
    count = _moved(node)
    if node.op == "Gather" and sweep.array(node.inputs[1]) is None and _rows(sweep, node):
        return True
    makers = [sweep.producer(name, "dequantize") for name in node.inputs[:count]]
    found = [maker for maker in makers if maker is not None]
    q = found[0].attributes["x"] if found else None
    if len(found) < count or q is None or any(maker.attributes["x"] != q for maker in found):
        return False
    inputs = (*(maker.inputs[0] for maker in found), *node.inputs[count:])
    padded = _with_fill(sweep, node, inputs, q)
    if padded is None:
        return False
    moved = sweep.emit(node.op, padded, source=node.source, **node.attributes)
    sweep.emit("dequantize", [moved], node.outputs[0], node.source, x=q)
    return True


def _rows(sweep: Sweep, node: Node) -> bool:
    """Replace a Gather from a dequantized constant table by a Gather of 8-bit rows and a dequantize."""
    made = sweep.producer(node.inputs[0], "DequantizeLinear")
    if made is None or made.inputs[0] not in sweep.constants:
        return False
    scale, zero = scalar(sweep.array(made.inputs[1])), np.zeros((), sweep.constants[made.inputs[0]].dtype)[()]
    if made.input(2):
        zero = scalar(sweep.array(made.inputs[2]))
    known = scale is not None and zero is not None and scale.dtype == np.float32
    if not known or zero.dtype.name not in ("int8", "uint8") or not are_scales(scale):
        return False
    chosen = sweep.emit("Gather", [made.inputs[0], node.inputs[1]], source=node.source, **node.attributes)
    sweep.emit("dequantize", [chosen], node.outputs[0], node.source, x=QParams.of(scale, zero))
    return True


def _with_fill(sweep: Sweep, node: Node, inputs: tuple[str, ...], q: QParams) -> tuple[str, ...] | None:
    """Return the inputs of the 8-bit form of a node; for a Pad, with the quantized fill value. Return None
    if no 8-bit value represents the fill value exactly."""
    if node.op != "Pad" or node.attributes.get("mode", "constant") != "constant":
        return inputs
    fill = np.float32(0)
    if node.input(2):
        given = sweep.array(node.input(2))
        if given is None or given.size != 1:
            return None
        fill = np.float32(given.reshape(()))
    stored = quantize(np.full((), fill, np.float32), q)
    if dequantize(stored, q) != fill:
        return None
    return (*inputs[:2], sweep.constant(stored, "fill"), *inputs[3:])


def quantized(sweep: Sweep, name: str, q: QParams, output: str = "", source: str = "") -> str:
    """Return the name of the value *name* quantized with *q*. If a new node computes the quantized value, the
    value has the name *output*. The quantize moves as far back in the graph as possible."""
    constant = sweep.array(name)
    if constant is not None and constant.dtype == np.float32:
        return sweep.constant(quantize(constant, q), f"{name}/quantized")
    before = sweep.producer(name)
    if before is not None and before.op == "dequantize" and before.attributes["x"] == q:
        return before.inputs[0]
    if before is not None and moves(before):
        count = _moved(before)
        fill = before.inputs[2:3] if before.op == "Pad" and before.input(2) else ()
        rest = list(before.inputs[count:])
        if not fill or sweep.array(fill[0]) is not None:
            data = [quantized(sweep, x, q, source=source) for x in before.inputs[:count]]
            if before.op == "Pad" and before.attributes.get("mode", "constant") == "constant":
                value = np.asarray(sweep.array(fill[0]) if fill else 0, np.float32).reshape(())
                rest[1:2] = [sweep.constant(quantize(value, q), "fill")]
            return sweep.emit(before.op, [*data, *rest], output, before.source, **before.attributes)
    return sweep.emit("quantize", [name], output, source, y=q)
