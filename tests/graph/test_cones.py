"""Tests that a graph computes each lookup table once, and uses it for all input sizes."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx import texts
from vkq.graph.graph import Node
from vkq.graph.passes import cones, lower
from vkq.graph.passes.cones import evaluated
from vkq.onnx import read

X = {"x": np.arange(-128, 128).astype(np.int8).astype(np.float32)}


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Empty the cache of tables. Return a list that collects the operators that are computed."""
    monkeypatch.setattr(cones, "_kept", {})
    done: list[str] = []
    compute = cones.compute

    def noted(one: Node, arrays: Any) -> Any:
        done.append(one.op)
        return compute(one, arrays)

    monkeypatch.setattr(cones, "compute", noted)
    return done


def test_a_new_length_computes_no_table(computed: list[str], tmp_path: Path) -> None:
    model = read(texts.quantized(texts.Bert(2).model(), tmp_path))
    tables = []
    for length in (7, 11):
        shapes = {name: array.shape for name, array in texts.text(2, length).items()}
        graph = lower(model.known(shapes)[0])
        tables.append([n.attributes["table"] for n in graph.nodes if n.op == "lookup"])
        assert ("Gelu" in computed, bool(computed)) == (length == 7, length == 7)
        computed.clear()
    assert tables[0]
    for first, second in zip(*tables, strict=True):
        np.testing.assert_array_equal(first, second)


def node(op: str, *inputs: str, **attributes: Any) -> list[Node]:
    return [Node(op, inputs, ("y",), attributes)]


def test_what_is_not_the_same_is_computed(computed: list[str]) -> None:
    """A table is computed again if an attribute or a constant differs (also 0.0 and -0.0, which compare
    equal), if the order of the operands differs, or if x differs."""
    zeros = {"c": np.float32([0.0]), "d": np.float32([-0.0])}
    asked = [
        node("LeakyRelu", "x", alpha=0.0), node("LeakyRelu", "x", alpha=-0.0), node("Mul", "x", "c"),
        node("Mul", "x", "d"), node("Sub", "x", "c"), node("Sub", "c", "x"),
    ]  # fmt: skip
    for nodes in asked:
        evaluated(nodes, "y", X, zeros)
    evaluated(asked[0], "y", {"x": X["x"].reshape(16, 16)}, zeros)
    assert len(computed) == 7
    for nodes in asked:
        renamed = [Node(n.op, n.inputs, ("z",), n.attributes, "other") for n in nodes]
        np.testing.assert_array_equal(
            evaluated(renamed, "z", X, zeros).view(np.int32),
            cones._computed(nodes, "y", X, zeros).view(np.int32),
        )
    assert len(computed) == 7 + len(asked)  # `_computed` does not use the cache


def test_few_are_kept(computed: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache drops the oldest table first. It does not keep large results, nor results of operators with
    unhashable attributes."""
    monkeypatch.setattr(cones, "MOST_KEPT", 3)
    for alpha in (0.1, 0.2, 0.3, 0.4, 0.2, 0.1):
        evaluated(node("LeakyRelu", "x", alpha=alpha), "y", X, {})
    assert len(computed) == 5
    assert len(cones._kept) == 3
    large = {"x": np.zeros((cones.MOST_BYTES // 4 + 1,), np.float32)}
    for nodes, given in ((node("Relu", "x"), large), (node("Relu", "x", note={1}), X)):
        for _ in range(2):
            evaluated(nodes, "y", given, {})
    assert len(computed) == 9
    assert not evaluated(node("LeakyRelu", "x", alpha=0.1), "y", X, {}).flags.writeable
