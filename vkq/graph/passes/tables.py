"""Replaces connected element-wise operators between two 8-bit values by a lookup in a table of 256 entries.

HardSwish, SiLU, GELU, BatchNormalization and chains with constants are computed step by step in NumPy, once
for all 256 inputs. If a constant differs between channels, each channel has its own table. A function of two
8-bit values (a - b, a / b, max(a, b)) becomes a table of 256 x 256 entries. A float32 value computed from one
8-bit value becomes a lookup in a table of 256 float32 entries in two cases: if the value is a graph result,
or if an operator that is not element-wise reads the value."""

from __future__ import annotations

import dataclasses

import numpy as np

from ...errors import ModelError
from ..graph import Array, Graph, Node
from ..operators.table import TABLE
from .cones import evaluated
from .sweep import Sweep, every_equal, swept

BYTES = ("int8", "uint8")
# Operators of two operands: computing them is faster than a lookup in a table of 256 x 256 entries.
FORMULAS = ("add", "sub", "mul")
PAIRS = (*FORMULAS, "where", "lookup2")

ELEMENTWISE = frozenset(name for name, operator in TABLE.items() if operator.kind == "elementwise")


def to_tables(graph: Graph) -> Graph:
    """Replace element-wise operators on 8-bit values by tables."""
    if not any(spec.dtype in BYTES for spec in graph.specs.values()):
        return graph
    rows = [node for node in graph.nodes if node.op not in ELEMENTWISE]
    needed = {*graph.outputs, *(name for node in rows for name in node.inputs)}
    return swept(graph, Tables(needed).visit, *ELEMENTWISE)


@dataclasses.dataclass
class Tables:
    """The state of the pass. ``needed``: the graph results, and all inputs of operators that are not
    element-wise. ``roots`` maps a value to the one or two 8-bit values from which element-wise operators
    compute it."""

    needed: set[str]
    roots: dict[str, frozenset[str]] = dataclasses.field(default_factory=dict)

    def visit(self, sweep: Sweep, node: Node) -> bool:
        # an Identity only gives a graph result its name
        if node.op == "Identity" or len(node.outputs) != 1:
            return False
        node = _with_scalars(sweep, node) if node.op in FORMULAS else node
        found = [self._of(sweep, name) for name in node.inputs if name]
        name = node.outputs[0]
        if any(root is None for root in found):
            return False
        roots = frozenset().union(*(root for root in found if root is not None))
        if not 1 <= len(roots) <= 2 or (len(roots) == 2 and node.op in PAIRS):
            return False
        sweep.keep(node)
        self.roots[name] = roots
        dtype = sweep.specs[name].dtype
        real = dtype == "float32" and name in self.needed and node.op not in ("dequantize", "lookup")
        if dtype not in (*BYTES, "bool"):
            if real and len(roots) == 1:
                self._one(sweep, node, *roots)
            return True
        done = self._one(sweep, node, *roots) if len(roots) == 1 else self._two(sweep, node, *sorted(roots))
        if not done:
            del self.roots[name]  # no table is possible: later tables start from this value
        return True

    def _of(self, sweep: Sweep, name: str) -> frozenset[str] | None:
        if name in sweep.constants:
            return frozenset()
        made = sweep.producer(name, "DequantizeLinear")
        if made is not None and made.inputs[0] in sweep.constants:
            return frozenset()
        own = frozenset({name}) if sweep.specs[name].dtype in BYTES else None
        return self.roots.get(name, own)

    def _one(self, sweep: Sweep, node: Node, root: str) -> bool:
        name, spec = node.outputs[0], sweep.specs[root]
        cone = _cone(sweep, name, {root})
        axis = _channel_axis(sweep, cone, len(spec.shape))
        if sweep.specs[name].shape != spec.shape or axis is None:
            return False
        numbers = _all_values(spec.dtype, len(spec.shape), axis, spec.shape)
        table = evaluated(cone, name, {root: numbers}, sweep.constants)
        if axis >= 0:
            count, other = spec.shape[axis], 0 if axis else 1
            whole = np.broadcast_to(table, _ones_except(len(spec.shape), {axis: count, other: 256}))
            table = np.moveaxis(whole, (axis, other), (0, 1)).reshape(count, 256)
            if bool(np.all(table == table[:1])):
                table, axis = table[0], -1
        table = _stored(np.ascontiguousarray(table.reshape(-1) if axis < 0 else table))
        sweep.nodes.pop()
        if (
            axis < 0
            and np.array_equal(table, _all_values(spec.dtype, 1, -1, ()))
            and table.dtype.name == spec.dtype
        ):
            sweep.made.pop(name)
            sweep.alias(name, root)
        elif axis < 0:
            sweep.emit("lookup", [root], name, node.source, table=table)
        else:
            sweep.emit("lookup", [root], name, node.source, table=table, axis=axis)
        return True

    def _two(self, sweep: Sweep, node: Node, a: str, b: str) -> bool:
        name, specs = node.outputs[0], (sweep.specs[a], sweep.specs[b])
        cone = _cone(sweep, name, {a, b})
        same = specs[0].dtype == specs[1].dtype
        whole = np.broadcast_shapes(specs[0].shape, specs[1].shape) == sweep.specs[name].shape
        if not (same and whole) or _channel_axis(sweep, cone, 0) != -1:
            return False
        numbers = _all_values(specs[0].dtype, 1, -1, ())
        try:
            table = evaluated(cone, name, {a: numbers[:, None], b: numbers[None, :]}, sweep.constants)
        # Raised if the nodes also read a value that is neither a root nor a constant, such as a computed
        # bound.
        except ModelError:
            return False
        sweep.nodes.pop()
        sweep.emit(
            "lookup2",
            [a, b],
            name,
            node.source,
            table=_stored(np.ascontiguousarray(np.broadcast_to(table, (256, 256)))),
        )
        return True


def _with_scalars(sweep: Sweep, node: Node) -> Node:
    """Return the node with each constant of equal elements, such as a mask of zeros, replaced by a scalar.
    A constant is replaced only if the node's other operand has the shape of the result."""
    names, shape = list(node.inputs), sweep.specs[node.outputs[0]].shape
    for i, name in enumerate(names):
        array = sweep.array(name)
        whole = array is not None and array.size > 1 and sweep.specs[names[1 - i]].shape == shape
        if array is not None and whole and every_equal(array):
            names[i] = sweep.constant(array.reshape(-1)[:1], name)
    return node if names == list(node.inputs) else dataclasses.replace(node, inputs=tuple(names))


def _stored(table: Array) -> Array:
    """Return a Boolean table as uint8, the type in which a device stores Boolean values. Return other tables
    unchanged."""
    return table.astype(np.uint8) if table.dtype == bool else table


def _cone(sweep: Sweep, name: str, roots: set[str]) -> list[Node]:
    """Return the nodes that compute the value *name* from the values *roots*, in topological order."""
    found: dict[int, Node] = {}
    waiting = [(name, False)]
    while waiting:
        value, ready = waiting.pop()
        made = sweep.made.get(value)
        if made is None or id(made) in found:
            continue
        if ready:
            found[id(made)] = made
        else:
            waiting += [(value, True), *((v, False) for v in made.inputs if v and v not in roots)]
    return list(found.values())


def _channel_axis(sweep: Sweep, cone: list[Node], rank: int) -> int | None:
    """Return the only axis along which the constants of these nodes have several elements. Return -1 if
    there is no such axis, and None if there are several."""
    axes: set[int] = set()
    for node in cone:
        if node.op == "lookup" and "axis" in node.attributes:
            axes.add(node.attributes["axis"])
        if node.op in ("QuantizeLinear", "DequantizeLinear"):
            if node.inputs[0] not in sweep.constants and np.prod(sweep.specs[node.inputs[1]].shape) > 1:
                if node.attributes.get("block_size", 0):
                    return None
                axes.add(int(node.attributes.get("axis", 1)) % max(rank, 1))
            continue
        for name in node.inputs:
            constant = name in sweep.constants or sweep.producer(name, "DequantizeLinear") is not None
            if not constant or not name or np.prod(sweep.specs[name].shape) == 1:
                continue
            shape = sweep.specs[name].shape
            if node.op == "BatchNormalization":
                axes.add(1)
                continue
            axes |= {rank - len(shape) + i for i, d in enumerate(shape) if d != 1}
    if not axes:
        return -1
    only = axes.pop()
    return only if not axes and 0 <= only < rank and rank > 1 else None


def _ones_except(rank: int, sizes: dict[int, int]) -> tuple[int, ...]:
    return tuple(sizes.get(i, 1) for i in range(rank))


def _all_values(dtype: str, rank: int, axis: int, shape: tuple[int, ...]) -> Array:
    """Return all 256 values of an 8-bit type. If *axis* is negative, return a 1-D array. Otherwise return an
    array of *rank* axes, because constants differ along *axis*: the values are along another axis, repeated
    for each index along *axis*."""
    info = np.iinfo(dtype)
    numbers = np.arange(info.min, info.max + 1).astype(dtype)
    if axis < 0:
        return numbers
    other = 0 if axis else 1
    along = numbers.reshape(_ones_except(rank, {other: 256}))
    return np.broadcast_to(along, _ones_except(rank, {axis: shape[axis], other: 256}))
