"""Normalizes MatMul and Gemm with one constant matrix: the right operand becomes the constant one, and the
bias becomes a vector.

A constant matrix is a constant or a DequantizeLinear of constants. A Transpose of a constant matrix is
folded. If the left matrix is constant, the pass transposes and exchanges the operands, and transposes the
result. Four things become separate nodes: transA, alpha, beta, and an addend that is not a vector."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from ..graph import Array, Graph, Node
from ..operators.operator import axis_of
from ..operators.table import compute
from .sweep import Sweep, swept


def plain_products(graph: Graph) -> Graph:
    """Normalize all MatMul and Gemm with one constant matrix, as the module's docstring describes."""
    return swept(graph, _visit, "Transpose", "MatMul", "Gemm")


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op == "Transpose":
        return _transposed_weight(sweep, node)
    if node.op == "Gemm" and node.input(2) and not node.attributes.get("beta", 1.0):
        node = dataclasses.replace(node, inputs=node.inputs[:2])  # even if the addend has infinities
        if not _visit(sweep, node):
            sweep.keep(node)
        return True
    left, right = (_is_constant(sweep, name) for name in node.inputs[:2])
    if left and right:
        return False
    if not (left or right):
        return node.op == "Gemm" and _of_activations(sweep, node)
    return _gemm(sweep, node, left) if node.op == "Gemm" else left and _matmul(sweep, node)


def real(sweep: Sweep, name: str) -> Array | None:
    """Return a float constant as an array: a constant of the graph, or the result of a DequantizeLinear of
    constants. Return None for other values."""
    made = sweep.producer(name, "DequantizeLinear")
    if made is None:
        return sweep.array(name)
    arrays = [sweep.array(one) if one else None for one in made.inputs]
    if any(one and array is None for one, array in zip(made.inputs, arrays, strict=True)):
        return None
    return compute(made, arrays)[0]


def _is_constant(sweep: Sweep, name: str) -> bool:
    made = sweep.producer(name, "DequantizeLinear")
    return name in sweep.constants or (
        made is not None and all(one in sweep.constants for one in made.inputs if one)
    )


def _transposed_weight(sweep: Sweep, node: Node) -> bool:
    """Replace the Transpose of a dequantized constant by a DequantizeLinear of the transposed constant."""
    made = sweep.producer(node.inputs[0], "DequantizeLinear")
    if made is None or not _is_constant(sweep, node.inputs[0]):
        return False
    data = sweep.constants[made.inputs[0]]
    perm = tuple(node.attributes.get("perm", range(data.ndim)[::-1]))
    inputs = [_moved(sweep, made.inputs[0], perm)]
    for name in made.inputs[1:]:
        inputs.append(_moved(sweep, name, perm) if name and sweep.constants[name].ndim == data.ndim else name)
    axis = {"axis": perm.index(axis_of(made, data.ndim, 1))} if data.ndim else {}
    sweep.emit("DequantizeLinear", inputs, node.outputs[0], node.source, **{**made.attributes, **axis})
    return True


def _moved(sweep: Sweep, name: str, perm: Sequence[int]) -> str:
    array: Array = sweep.constants[name]
    if array.ndim < 2:  # *array* has one scale or zero point for each slice, and needs no transpose
        return name
    return sweep.constant(np.ascontiguousarray(array.transpose(perm)), f"{name}/transposed")


def _transposed(sweep: Sweep, name: str, node: Node, output: str = "") -> str:
    """Emit a Transpose of the last two axes of a value."""
    rank = len(sweep.specs[name].shape)
    perm = (*range(rank - 2), rank - 1, rank - 2)
    turned = output or sweep.fresh(f"{name}/Transpose")
    inner = Node("Transpose", (name,), (turned,), {"perm": perm}, node.source)
    if not _transposed_weight(sweep, inner):
        sweep.keep(inner)
    return turned


def _matmul(sweep: Sweep, node: Node) -> bool:
    """Rewrite weight @ x as (x.T @ weight.T).T. The transpose of the constant weight is folded."""
    weight, x = node.inputs
    if len(sweep.specs[weight].shape) != 2 or len(sweep.specs[x].shape) < 2:
        return False
    turned = [_transposed(sweep, x, node), _transposed(sweep, weight, node)]
    _transposed(sweep, sweep.emit("MatMul", turned, source=node.source), node, node.outputs[0])
    return True


def _of_activations(sweep: Sweep, node: Node) -> bool:
    """Replace a Gemm of two computed matrices by a MatMul, a product with alpha, and a sum with beta times
    the addend."""
    a = node.attributes
    pair = [
        _transposed(sweep, name, node) if a.get(key, 0) else name
        for name, key in zip(node.inputs[:2], ("transA", "transB"), strict=True)
    ]
    alpha, beta = float(a.get("alpha", 1.0)), float(a.get("beta", 1.0))
    steps: list[Callable[[str, str], str]] = [lambda x, y: sweep.emit("MatMul", pair, y, node.source)]
    if alpha != 1.0:
        steps.append(lambda x, y: _scaled(sweep, x, alpha, node, y))
    if node.input(2):
        steps.append(lambda x, y: _added(sweep, x, beta, node, y))
    return _in_turn(node, "", steps)


def _in_turn(node: Node, x: str, steps: Sequence[Callable[[str, str], str]]) -> bool:
    """Call ``step(x, output)`` for all *steps*. The argument x of a step is the result of the preceding step;
    the first step gets *x*. The last step writes the node's output."""
    for step in steps[:-1]:
        x = step(x, "")
    steps[-1](x, node.outputs[0])
    return True


def _gemm(sweep: Sweep, node: Node, left: bool) -> bool:
    a, (one, two), added = node.attributes, node.inputs[:2], node.input(2)
    alpha, beta = float(a.get("alpha", 1.0)), float(a.get("beta", 1.0)) if added else 1.0
    turn_one, turn_two = bool(a.get("transA", 0)), bool(a.get("transB", 0))
    width = sweep.specs[two].shape[0 if turn_two else 1]
    vector = not added or _is_vector(sweep, added, width)
    single = bool(added) and int(np.prod(sweep.specs[added].shape)) != width
    # A quantized layer rounds every bias to int32, even a bias of one element.
    single = single and sweep.producer(one, "dequantize") is None
    if not left and not turn_one and alpha == beta == 1.0 and vector and not single:
        return False
    if left:  # (A B).T = B.T A.T
        one, two, turn_one, turn_two = two, one, not turn_two, not turn_one
    whole = not left and alpha == beta == 1.0 and vector  # the addend can be the new Gemm's bias
    more = [_vector(sweep, added, width)] if whole and added else []
    steps: list[Callable[[str, str], str]] = [
        lambda x, y: sweep.emit("Gemm", [x, two, *more], y, node.source, transB=int(turn_two))
    ]
    if turn_one:
        steps.insert(0, lambda x, y: _transposed(sweep, x, node, y))
    if left:
        steps.append(lambda x, y: _transposed(sweep, x, node, y))
    if alpha != 1.0:
        steps.append(lambda x, y: _scaled(sweep, x, alpha, node, y))
    if added and not whole:
        steps.append(lambda x, y: _added(sweep, x, beta, node, y))
    return _in_turn(node, one, steps)


def _is_vector(sweep: Sweep, name: str, width: int) -> bool:
    """Return True if an addend is a constant with one value for all columns, or one for each column."""
    shape = sweep.specs[name].shape
    size = int(np.prod(shape))
    return _is_constant(sweep, name) and size in (1, width) and shape[-1:] in ((), (size,))


def _vector(sweep: Sweep, name: str, width: int) -> str:
    """Return the name of a constant bias with one element for each column. If *name* has only one element,
    repeat it."""
    found = real(sweep, name)
    if found is None or found.size == width:
        return name
    return sweep.constant(np.full(width, found.reshape(-1)[0], found.dtype), f"{name}/bias")


def _scaled(sweep: Sweep, name: str, factor: float, node: Node, output: str = "") -> str:
    number = np.array(factor, sweep.specs[name].dtype)
    return sweep.emit("Mul", [name, sweep.constant(number, "factor")], output, node.source)


def _added(sweep: Sweep, product: str, beta: float, node: Node, output: str) -> str:
    addend = node.inputs[2]
    known = sweep.array(addend)
    if beta != 1.0 and known is not None:
        addend = sweep.constant(np.asarray(known * known.dtype.type(beta)), f"{addend}/beta")
    elif beta != 1.0:
        addend = _scaled(sweep, addend, beta, node)
    return sweep.emit("Add", [product, addend], output, node.source)
