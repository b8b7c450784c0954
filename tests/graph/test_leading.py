"""Tests of the pass that removes Reshapes around linear layers, which keep the leading axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from vkq.check import graph as oracle
from vkq.graph.graph import Graph, Node, Spec
from vkq.graph.operators.table import infer
from vkq.graph.passes.leading import keep_leading_axes
from vkq.numerics.qparams import QParams

X, Y = QParams(0.02, 3), QParams(0.3, -7)
WHOLE, ROWS = (2, 5, 8), (10, 8)
OPS = ["linear", "lookup", "lookup", "linear"]


def chain(shape: Sequence[int], results: list[str], back: Sequence[int] = WHOLE) -> Graph:
    """Return a graph: Reshape of x (*shape*) to rows; a linear layer; a lookup with a table per column; a
    lookup with one table; a second linear layer; a Reshape to *back*."""
    random = np.random.default_rng(1)
    weights = {name: random.integers(-128, 128, (8, 8)).astype(np.int8) for name in ("w", "v")}
    constants = {**weights, "rows": np.array(ROWS), "back": np.array(back)}
    tables = [random.integers(-128, 128, size).astype(np.int8) for size in ((8, 256), 256)]
    scales = {"w_scale": np.full(8, 0.01, np.float32), "w_zero_point": None, "activation": None}
    nodes = [
        Node("Reshape", ("x", "rows"), ("a",), {}),
        Node("linear", ("a", "w"), ("b",), {"x": X, "y": Y, **scales}),
        Node("lookup", ("b",), ("c",), {"table": tables[0], "axis": 1}),
        Node("lookup", ("c",), ("d",), {"table": tables[1]}),
        Node("linear", ("d", "v"), ("e",), {"x": Y, "y": X, **scales}),
        Node("Reshape", ("e", "back"), ("y",), {}),
    ]
    specs = {"x": Spec("int8", tuple(shape)), **{name: Spec.of(array) for name, array in constants.items()}}
    for node in nodes:
        arrays = [constants.get(name) for name in node.inputs]
        specs |= zip(node.outputs, infer(node, [specs[name] for name in node.inputs], arrays), strict=True)
    return Graph(["x"], results, nodes, constants, specs)


def same(graph: Graph, found: Graph) -> None:
    x = np.random.default_rng(2).integers(-128, 128, graph.specs["x"].shape).astype(np.int8)
    want, got = oracle.run(graph, {"x": x}), oracle.run(found, {"x": x})
    for name in graph.outputs:
        np.testing.assert_array_equal(got[name], want[name], strict=True)


@pytest.mark.parametrize(("back", "last"), [(WHOLE, "Identity"), ((2, 5, 2, 4), "Reshape")])
def test_reshapes_that_cancel(back: Sequence[int], last: str) -> None:
    """Both Reshapes are removed, except a last one that splits columns. An Identity keeps the result's
    name."""
    graph = chain(WHOLE, ["y"], back)
    found = keep_leading_axes(graph)
    assert [node.op for node in found.nodes] == [*OPS, last]
    assert [node.attributes.get("axis") for node in found.nodes[:4]] == [None, 2, None, None]
    same(graph, found)


@pytest.mark.parametrize(
    ("results", "back"),
    [(["y", "c"], WHOLE), (["e"], WHOLE), (["y"], (5, 2, 8)), (["y"], (2, 40))],
    ids=["both are results", "no Reshape", "other rows", "whole rows"],
)
def test_rows_that_are_read(results: list[str], back: Sequence[int]) -> None:
    """No node is removed if a matrix between the two Reshapes is a result of the graph, if the chain does
    not end in a Reshape, or if the last Reshape has other leading axes than the first."""
    graph = chain(WHOLE, results, back)
    assert keep_leading_axes(graph).nodes == graph.nodes


def test_heads_are_put_side_by_side() -> None:
    """If the first Reshape joins both the leading axes (to rows) and the heads (to columns), a Reshape of the
    heads remains. The Reshapes of leading axes cancel."""
    graph = chain((2, 5, 4, 2), ["y"])
    found = keep_leading_axes(graph)
    assert [node.op for node in found.nodes] == ["Reshape", *OPS, "Identity"]
    same(graph, found)


@pytest.mark.parametrize("shape", [(10, 4, 2), (5, 2, 2, 4), (5, 16)])
def test_other_reshapes_stay(shape: Sequence[int]) -> None:
    """A Reshape that splits columns, or that the last Reshape does not undo, stays."""
    graph = chain(shape, ["y"])
    assert keep_leading_axes(graph).nodes == graph.nodes


def test_float_layers_stay() -> None:
    graph = chain(WHOLE, ["y"])
    for node in graph.nodes:
        if node.op == "linear":
            node.attributes["x"] = None
    assert keep_leading_axes(graph).nodes == graph.nodes
