"""Folds element-wise operators into embedding tables. If ids choose rows of a constant table, an operator
on these rows is computed once for all rows of the table."""

from __future__ import annotations

import weakref
from collections.abc import Hashable

import numpy as np

from ...numerics.elementwise import swaps
from ..graph import Array, Graph, Node
from ..operators.operator import axis_of
from ..operators.table import compute
from .constants import LARGEST_FOLDED_BYTES
from .links import BYTES
from .sweep import Sweep, swept

PAIRS = ("add", "sub", "mul", "lookup2")
OPERATORS = (*PAIRS, "lookup")
PART = 1 << 16  # elements computed at a time, so that temporary arrays stay in the processor's cache
# Computed tables, by the id() of the model's table. A model's graphs for other input sizes share these
# tables.
_kept: dict[Hashable, tuple[weakref.ref[Array], Array]] = {}


def fold_into_tables(graph: Graph) -> Graph:
    """Replace an operator on gathered rows by a Gather from the operator's results for all rows. If the
    operator has another operand, this operand must be the same for all ids."""
    rows, ops = set[str](), set[str]()
    for node in graph.nodes:
        known = sum(name in graph.constants for name in node.inputs)
        if node.op in OPERATORS and known == len(node.inputs) - 1 and not rows.isdisjoint(node.inputs):
            ops.add(node.op)
            rows.update(node.outputs)
        elif node.op == "Gather" and node.inputs[0] in graph.constants:
            rows.update(node.outputs)
    return swept(graph, _visit, *ops)


def _visit(sweep: Sweep, node: Node) -> bool:
    found = [i for i, name in enumerate(node.inputs) if _table(sweep, name) is not None]
    if len(found) != 1 or sweep.specs[node.outputs[0]].dtype not in BYTES:
        return False
    gather, table = sweep.made[node.inputs[found[0]]], _table(sweep, node.inputs[found[0]])
    lead = len(sweep.specs[gather.inputs[1]].shape)
    form = (
        _of_one(node, len(sweep.specs[node.outputs[0]].shape), lead)
        if node.op == "lookup"
        else _of_two(sweep, node, found[0], lead)
    )
    if table is None or form is None or table.nbytes > min(LARGEST_FOLDED_BYTES, sweep.room_bytes):
        return False
    sweep.room_bytes -= table.nbytes
    name = sweep.constant(_chosen(*form, table), f"{gather.inputs[0]}/{node.op}")
    inputs = [name, gather.inputs[1]]
    sweep.emit("Gather", inputs, node.outputs[0], gather.source, **gather.attributes)
    return True


def _table(sweep: Sweep, name: str) -> Array | None:
    """Return the constant 8-bit table from which a Gather along the first axis, with ids computed on the
    device, gathers the value *name*. Return None if no such Gather computes the value, or if the value or the
    table has another reader."""
    made = sweep.producer(name, "Gather")
    if made is None or sweep.uses.get(name) != 1 or sweep.uses.get(made.inputs[0]) != 1:
        return None
    table, ids = sweep.array(made.inputs[0]), made.inputs[1]
    if table is None or not table.size or table.dtype.name not in BYTES or axis_of(made, table.ndim, 0):
        return None
    return None if ids in sweep.constants or not sweep.specs[ids].shape else table


def _of_one(node: Node, rank: int, lead: int) -> tuple[Array, Array] | None:
    """Return the arguments (results, row) of `_chosen` for a lookup; None if the lookup has different tables
    for different ids. The value has *rank* axes; the first *lead* of them are the axes of the ids."""
    tables: Array = node.attributes["table"]
    if tables.ndim == 1:
        return tables[None], np.zeros(1, np.uint8)
    # the number of axes after the axis along which the tables differ
    behind = rank - 1 - node.attributes["axis"]
    row = np.arange(len(tables)).reshape(-1, *(1,) * behind)
    return (tables, row) if node.attributes["axis"] >= lead else None


def _of_two(sweep: Sweep, node: Node, at: int, lead: int) -> tuple[Array, Array] | None:
    """Return the arguments (results, row) of `_chosen` for an operator of two operands. Operand *at* has the
    gathered rows; its first *lead* axes are the axes of the ids. Return None if the other operand is not a
    constant, or if its elements differ along these axes."""
    array, shapes = sweep.array(node.inputs[1 - at]), [sweep.specs[name].shape for name in node.inputs]
    if array is None or shapes[at] != sweep.specs[node.outputs[0]].shape:
        return None
    padded = array.reshape(*(1,) * (len(shapes[at]) - array.ndim), *array.shape)
    first = padded[(slice(0, 1),) * lead]
    if not np.all(padded == first):
        return None
    info = np.iinfo(array.dtype)
    every = np.arange(info.min, info.max + 1).astype(array.dtype)
    pair = [every[:, None], every[None, :]]
    # `add` swaps operands of the shapes (256, 1) and (1, 256), and swapping may change the rounding. If `add`
    # does not swap the node's own operands, give both arrays one shape, so that `add` does not swap them.
    if node.op != "add" or not swaps(*shapes):
        pair = [np.broadcast_to(x, (256, 256)) for x in pair]
    found = compute(node, pair)[0]
    return found if at == 1 else found.T, _codes(first.reshape(1, *first.shape[lead:]))


def _chosen(results: Array, row: Array, table: Array) -> Array:
    """Return results[row, code] for each element of a table, where code is the element minus the smallest
    value of its type. Results are cached for each table."""
    key = id(table), row.shape, row.tobytes(), results.shape, results.dtype.str, results.tobytes()
    of, found = _kept.get(key, (None, table))
    if of is None or of() is not table:
        found = np.empty_like(table, results.dtype)
        flat, first, step = results.reshape(-1), row.astype(np.int32) << 8, max(1, PART // table[:1].size)
        for i in range(0, len(table), step):
            found[i : i + step] = np.take(flat, first + _codes(table[i : i + step]))
        _kept[key] = weakref.ref(table, lambda _: _kept.pop(key, None)), found
    return found


def _codes(values: Array) -> Array:
    return np.asarray(values.view(np.uint8) ^ np.uint8(128 if values.dtype == np.int8 else 0))
