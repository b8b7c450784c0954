"""Tests of sweeps over a graph: they visit only nodes that they may change, and return their input graph
object if nothing changes."""

from collections.abc import Container
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx import texts
from vkq.graph.graph import Graph, Node, Spec
from vkq.graph.passes import PASSES, lower
from vkq.graph.passes.sweep import Sweep, swept
from vkq.onnx import read


def counted(patch: pytest.MonkeyPatch) -> dict[str, int]:
    """Return two counts that every sweep increases: "nodes" by the number of nodes of its graph, and
    "visits" by the number of nodes that it visits."""
    count, walk = {"nodes": 0, "visits": 0}, Sweep.walk

    def walked(sweep: Sweep, visit: Any, ops: Container[str] | None = None) -> None:
        def one(sweep: Sweep, node: Node) -> bool:
            count["visits"] += 1
            return bool(visit(sweep, node))

        count["nodes"] += len(sweep.old.nodes)
        walk(sweep, one, ops)

    patch.setattr(Sweep, "walk", walked)
    return count


@pytest.mark.parametrize("form", ["float", "QDQ"])
def test_a_new_length(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, form: str) -> None:
    """For a new length, the sweeps of lowering and constant folding together iterate over a node at most 11.5
    times on average, and visit it at most 4.7 times."""
    data = texts.Bert(2).model()
    model = read(data if form == "float" else texts.quantized(data, tmp_path))
    for length in (7, 11):
        with monkeypatch.context() as patch:
            count = counted(patch)
            shapes = {name: array.shape for name, array in texts.text(2, length).items()}
            lower(model.known(shapes)[0])
        assert count["visits"] <= 4.7 * len(model.nodes), (count, len(model.nodes))
        assert count["nodes"] <= 11.5 * len(model.nodes), (count, len(model.nodes))


def graph_of(*nodes: Node, **constants: Any) -> Graph:
    specs = {"x": Spec("float32", (2, 3)), **{name: Spec.of(array) for name, array in constants.items()}}
    raw = Graph(["x"], ["y"], list(nodes), dict(constants), specs)
    return Sweep(raw).run(lambda sweep, node: False)


def test_what_is_left_alone_is_the_same_graph() -> None:
    """A pass returns its input graph object if the graph has no operator of the pass, if the pass keeps all
    operators, or if only a name would change."""
    graph = graph_of(Node("Relu", ("x",), ("a",)), Node("Add", ("a", "c"), ("y",)), c=np.float32([1, 2, 3]))
    seen: list[str] = []

    def visit(sweep: Sweep, node: Node) -> bool:
        seen.append(node.op)
        sweep.constant(np.float32([9]), "nobody reads it")
        return False

    assert swept(graph, visit, "Mul") is graph
    assert seen == []
    assert swept(graph, visit, "Add", "Mul") is graph
    assert seen == ["Add"]
    assert all(one(graph) is graph for one in PASSES[:6])


def test_what_follows_a_change_is_inferred_again() -> None:
    """The specs of later nodes are inferred again after a change: a node whose result has another shape, a
    constant instead of a node, or an input with another spec."""
    relu, add = Node("Relu", ("x",), ("a",)), Node("Add", ("a", "c"), ("y",))
    graph = graph_of(relu, add, c=np.float32([[1, 2, 3]]))

    def wider(sweep: Sweep, node: Node) -> bool:
        sweep.emit("Concat", ["x", "x"], node.outputs[0], axis=0)
        return True

    assert swept(graph, wider, "Relu").specs["y"] == Spec("float32", (4, 3))

    def folded(sweep: Sweep, node: Node) -> bool:
        sweep.fold(node.outputs[0], np.zeros((5, 2, 3), np.float32))
        return True

    after = swept(graph, folded, "Relu")
    assert (after.specs["y"].shape, [node.op for node in after.nodes]) == ((5, 2, 3), ["Add"])
    sweep = Sweep(graph)
    sweep.hold("x", Spec("float32", (7, 1)))
    assert sweep.run(lambda sweep, node: False).specs["y"] == Spec("float32", (7, 3))
    assert graph.specs["y"] == Spec("float32", (2, 3))
