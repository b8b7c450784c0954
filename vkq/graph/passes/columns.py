"""Rewrites queries, keys and values as column Slices of one product.

timm's attention splits the columns of a product by a Reshape to (batch, rows, 3, heads, columns), a
Transpose and three Slices. After this pass each Slice reads columns of the product, and the heads lie side by
side in these columns, as `transposes` requires."""

from __future__ import annotations

import dataclasses
import math

import numpy as np

from ..graph import Graph, Node
from ..operators.movement import neighbours, permutation
from .simplify import slice_of
from .sweep import Sweep, every_equal, swept

PRODUCTS = ("Gemm", "MatMul", "linear")


def take_columns(graph: Graph) -> Graph:
    """Move Slices before the Reshape that splits the columns; drop axes of length 1 from Transposes between
    Reshapes; move lookups before Transposes, Reshapes and some Slices."""
    if "Slice" not in graph.kinds:
        return swept(graph, _visit, "lookup")
    graph = swept(graph, _visit, "Slice", "Reshape", "lookup")
    return Sweep(graph).run(_BeforeSlices(_sliced_tables(graph)).visit, {"Slice", "lookup"})


def _visit(sweep: Sweep, node: Node) -> bool:
    if node.op == "Slice":
        return _slice(sweep, node)
    return _lookup(sweep, node) if node.op == "lookup" else _reshape(sweep, node)


def sliced(sweep: Sweep, node: Node) -> tuple[int, range] | None:
    """Return (axis, indices) of a Slice node of consecutive elements along one axis, else None
    (`neighbours`)."""
    arrays = [sweep.array(name) if name else None for name in node.inputs[1:]]
    return neighbours(node, sweep.specs[node.inputs[0]].shape, arrays)


def _is_product(sweep: Sweep, name: str) -> bool:
    """Return True if a matrix product computes a value, perhaps followed by quantizations, lookups, additions
    of a constant, and Reshapes."""
    while (made := sweep.producer(name, "quantize", "Reshape", "lookup", "add")) is not None:
        own = [one for one in made.inputs if one not in sweep.constants]
        if len(own) != 1:
            return False
        name = own[0]
    return sweep.producer(name, *PRODUCTS) is not None


def _slice(sweep: Sweep, node: Node) -> bool:
    """Replace a Slice after a Reshape, or after a Reshape and a Transpose, by a Slice of columns before the
    Reshape. The Reshape splits the columns into several axes; the Slice must be along the first of these
    axes."""
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
    """Simplify three consecutive nodes: Reshape, Transpose, and the Reshape *node*. If the first Reshape adds
    axes of length 1 and the last removes them, drop these axes from the Transpose."""
    turned = sweep.producer(node.inputs[0], "Transpose")
    split = sweep.producer(turned.inputs[0], "Reshape") if turned else None
    if turned is None or split is None or sweep.uses.get(node.inputs[0]) != 1:
        return False
    given, to = sweep.specs[turned.inputs[0]].shape, sweep.specs[node.outputs[0]].shape
    perm = [axis for axis in permutation(turned, len(given)) if given[axis] > 1]
    long = [place for place, size in enumerate(to) if size > 1]
    if len(given) <= len(to) or [given[axis] for axis in perm] != [to[place] for place in long]:
        return False
    order = sorted(perm)  # the axes longer than 1, in their order before the Transpose
    shape, moved = list(to), list(range(len(to)))
    for place, axis, own in zip(long, perm, order, strict=True):
        shape[place], moved[place] = given[own], long[order.index(axis)]
    x = sweep.reshape(split.inputs[0], shape, "", node.source)
    sweep.emit("Transpose", [x], node.outputs[0], node.source, perm=tuple(moved))
    return True


def _lookup(sweep: Sweep, node: Node) -> bool:
    """Move a lookup before Reshapes, so that the lookup can be fused into the product. Also move a lookup
    before the Transposes and Reshapes that follow a Slice of columns."""
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


Part = tuple[range, Node | None]  # the columns of a Slice, and the lookup that reads the Slice, if any


def _sliced_tables(graph: Graph) -> dict[str, list[Part]]:
    """Return a dict that maps the name of a value to its Slices, each as a pair (columns, lookup). The dict
    has the values that fulfil three conditions:

    - the node that computes the value has a table or an addend for each column
    - only Slices of disjoint columns read the value
    - a lookup reads at least one of these Slices"""
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for name in node.inputs:
            readers.setdefault(name, []).append(node)
    uses, found = graph.uses(), dict[str, list[Part]]()
    for made in graph.nodes:
        if not (name := made.outputs[0]) or not _differs_by_column(graph, made):
            continue
        parts, last = list[Part](), len(graph.specs[name].shape) - 1
        for node in readers.get(name, ()):
            arrays = [graph.constants.get(one) if one else None for one in node.inputs[1:]]
            own = neighbours(node, graph.specs[name].shape, arrays) if node.op == "Slice" else None
            if own and own[0] == last:
                (reader, *others) = readers.get(node.outputs[0], [node])
                table = reader.op == "lookup" and "axis" not in reader.attributes and not others
                plain = table and reader.attributes["table"].dtype.name == graph.specs[name].dtype
                parts.append((own[1], reader if plain and uses[node.outputs[0]] == 1 else None))
        separate = len({i for part, _ in parts for i in part}) == sum(len(part) for part, _ in parts)
        if len(parts) == uses.get(name, 0) and separate and any(table for _, table in parts):
            found[name] = parts
    return found


def _differs_by_column(graph: Graph, node: Node) -> bool:
    """Return True for a lookup with a table for each column, and for an addition of a constant whose
    elements differ."""
    last = len(graph.specs[node.outputs[0]].shape) - 1
    if node.op == "lookup":
        return bool(node.attributes.get("axis", -1) == last)
    constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
    return node.op == "add" and not all(map(every_equal, constants))


@dataclasses.dataclass
class _BeforeSlices:
    """Replaces the lookups after Slices of one value by one lookup before the Slices, with a table for each
    column. *parts* is the result of `_sliced_tables`."""

    parts: dict[str, list[Part]]
    wholes: dict[str, str] = dataclasses.field(default_factory=dict)

    def visit(self, sweep: Sweep, node: Node) -> bool:
        if node.op == "lookup":
            moved = any(table is node for parts in self.parts.values() for _, table in parts)
            if moved:
                sweep.alias(node.outputs[0], node.inputs[0])
            return moved
        name = node.inputs[0]
        if name not in self.parts:
            return False
        if name not in self.wholes:
            self.wholes[name] = self._looked_up(sweep, name, node.source)
        sweep.emit("Slice", [self.wholes[name], *node.inputs[1:]], node.outputs[0], node.source)
        return True

    def _looked_up(self, sweep: Sweep, name: str, source: str) -> str:
        spec = sweep.specs[name]
        info, axis = np.iinfo(spec.dtype), len(spec.shape) - 1
        entries = np.tile(np.arange(info.min, info.max + 1).astype(spec.dtype), (spec.shape[axis], 1))
        for part, table in self.parts[name]:
            if table is not None:
                entries[part.start : part.stop] = table.attributes["table"]
        return sweep.emit("lookup", [name], "", source, table=entries, axis=axis)
