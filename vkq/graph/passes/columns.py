"""Makes queries, keys and values column Slices of one product. timm's attention splits the product by a
Reshape to (batch, rows, 3, heads, columns), a Transpose and three Slices. After this pass, the heads of each
Slice are stored side by side (`transposes`)."""

from __future__ import annotations

import math

from ..graph import Graph, Node
from ..operators.movement import neighbours, permutation
from .simplify import slice_of
from .sweep import Sweep, swept

PRODUCTS = ("Gemm", "MatMul", "linear")


def take_columns(graph: Graph) -> Graph:
    """Move Slices of columns before the Reshape that splits the columns, drop axes of length 1 from
    Transposes between Reshapes, and move lookups before Transposes and Reshapes."""
    movement = ("Slice", "Reshape") if "Slice" in graph.kinds else ()
    return swept(graph, _visit, *movement, "lookup")


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op == "Slice":
        return _slice(sweep, node)
    return _lookup(sweep, node) if node.op == "lookup" else _reshape(sweep, node)


def sliced(sweep: Sweep, node: Node) -> tuple[int, range] | None:
    """Return `neighbours` of a Slice node."""
    arrays = [sweep.array(name) if name else None for name in node.inputs[1:]]
    return neighbours(node, sweep.specs[node.inputs[0]].shape, arrays)


def _is_product(sweep: Sweep, name: str) -> bool:
    """Return True if a product computes a value. Tables, additions of a constant bias, and Reshapes may
    follow the product."""
    while (made := sweep.producer(name, "quantize", "Reshape", "lookup", "add")) is not None:
        own = [one for one in made.inputs if one not in sweep.constants]
        if len(own) != 1:
            return False
        name = own[0]
    return sweep.producer(name, *PRODUCTS) is not None


def _slice(sweep: Sweep, node: Node) -> bool:
    """Replace a Slice after a Reshape (and a Transpose) by a Slice of columns before the Reshape. The old
    Slice must be along the first of the axes into which the Reshape splits the columns."""
    turned = sweep.producer(node.inputs[0], "Transpose")
    name = turned.inputs[0] if turned else node.inputs[0]
    split, found = sweep.producer(name, "Reshape"), sliced(sweep, node)
    if split is None or found is None:
        return False
    given, shape = sweep.specs[split.inputs[0]].shape, list(sweep.specs[name].shape)
    perm = tuple(permutation(turned, len(shape)) if turned else range(len(shape)))
    axis, part = perm[found[0]], found[1]
    rest = math.prod(shape[axis + 1 :])
    whole = axis > 0 and len(given) > 1 and given[-1] == shape[axis] * rest > 0
    if not whole or not _is_product(sweep, split.inputs[0]):
        return False
    shape[axis] = len(part)
    last = len(given) - 1
    columns = slice_of(sweep, node, split.inputs[0], "", last, part.start * rest, part.stop * rest)
    columns = sweep.reshape(columns, shape, "" if turned else node.outputs[0], node.source)
    if turned:
        sweep.emit("Transpose", [columns], node.outputs[0], turned.source, perm=perm)
    return True


def _reshape(sweep: Sweep, node: Node) -> bool:
    """Drop the axes of length 1 of a Transpose if a Reshape before it adds them and this Reshape removes
    them."""
    turned = sweep.producer(node.inputs[0], "Transpose")
    split = sweep.producer(turned.inputs[0], "Reshape") if turned else None
    if turned is None or split is None or sweep.uses.get(node.inputs[0]) != 1:
        return False
    given, to = sweep.specs[turned.inputs[0]].shape, sweep.specs[node.outputs[0]].shape
    perm = [axis for axis in permutation(turned, len(given)) if given[axis] > 1]
    long = [place for place, size in enumerate(to) if size > 1]
    if len(given) <= len(to) or [given[axis] for axis in perm] != [to[place] for place in long]:
        return False
    order = sorted(perm)  # the long axes in the order before the Transpose
    shape, moved = list(to), list(range(len(to)))
    for place, axis, own in zip(long, perm, order, strict=True):
        shape[place], moved[place] = given[own], long[order.index(axis)]
    x = sweep.reshape(split.inputs[0], shape, "", node.source)
    sweep.emit("Transpose", [x], node.outputs[0], node.source, perm=tuple(moved))
    return True


def _lookup(sweep: Sweep, node: Node) -> bool:
    """Move a lookup before the Reshape of a product's result, so that the product's kernel can compute it, or
    before the movement of sliced columns."""
    name, between = node.inputs[0], list[Node]()
    while (made := sweep.producer(name, "Transpose", "Reshape")) is not None:
        if sweep.uses.get(name, 1) != 1:
            return False
        between.insert(0, made)
        name = made.inputs[0]
    part = sweep.producer(name, "Slice")
    behind = part is None and all(one.op == "Reshape" for one in between)
    if not between or not (part or behind) or not _is_product(sweep, part.inputs[0] if part else name):
        return False
    if "axis" in node.attributes or sweep.uses.get(name, 1) != 1:
        return False
    name = sweep.emit("lookup", [name, *node.inputs[1:]], "", node.source, **node.attributes)
    for i, each in enumerate(between):
        output = node.outputs[0] if i == len(between) - 1 else ""
        name = sweep.emit(each.op, [name, *each.inputs[1:]], output, each.source, **each.attributes)
    return True
