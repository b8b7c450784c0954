"""Tests of positions, lengths and limits of decoders: one chain computes them, and the results do not
change."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from tests.graph.test_chains import compared, model, op
from tests.onnx.language import Sizes, llama
from tests.onnx.test_language import fed
from vkq.check import graph as oracle
from vkq.graph import passes
from vkq.graph.passes import lower
from vkq.graph.passes.counts import flatten_counts
from vkq.onnx.reader import read


def without(monkeypatch: pytest.MonkeyPatch, graph: Any) -> Any:
    """Return the graph lowered without the pass `flatten_counts`."""
    with monkeypatch.context() as patch:
        patch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one is not flatten_counts))
        return lower(graph)


@pytest.mark.parametrize("tokens", [1, 3])
def test_positions_of_a_decoder(monkeypatch: pytest.MonkeyPatch, tokens: int) -> None:
    """For one token, one chain computes all positions. The results of the graph are the same with and
    without the pass."""
    sizes = Sizes(layers=2, context=512)
    past = np.random.default_rng(3).normal(0, 1, (1, sizes.kv_heads, 300, sizes.width)).astype(np.float32)
    given = fed(sizes, [5, 9, 7][:tokens], [past] * 2 * sizes.layers, 290)
    given["attention_mask"] = (np.arange(300)[None] < 290).astype(np.int64)
    given = {name: x.astype(np.int32) if x.dtype == np.int64 else x for name, x in given.items()}
    graph = read(llama(sizes).SerializeToString()).known({name: x.shape for name, x in given.items()})[0]
    plain, flat = without(monkeypatch, graph), lower(graph)

    def whole(graph: Any) -> int:
        return sum(n.op == "chain" and graph.specs[n.outputs[0]].dtype == "int32" for n in graph.nodes)

    assert (whole(plain), whole(flat)) == ((5, 1) if tokens == 1 else (6, 4))
    want, got = (oracle.run(one, given) for one in (plain, flat))
    for name, array in want.items():
        assert got[name].tobytes() == array.tobytes()


def test_several_sequences(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Vectors with an element for each sequence become one chain, too. Sums of a column and a row stay."""
    nodes = [
        op("Reshape", "n column", "a"), op("Add", "a one", "b"), op("Reshape", "b flat", "c"),
        op("Max", "c zero", "d"), op("Reshape", "d column", "e"), op("Sub", "e a", "f"),
        op("Add", "f line", "g"), op("Identity", "f", "y"), op("Identity", "g", "z"),
    ]  # fmt: skip
    fed = {"n": np.array([3, -9, 4], np.int32)}
    constants: dict[str, Any] = {
        "column": np.array([3, 1, 1]),
        "flat": np.array([3]),
        "one": np.int32([[[1]]]),
    }
    constants |= {"zero": np.int32(0), "line": np.int32([[[0, 1]]])}
    data = model(nodes, fed, {"y": 6, "z": 6}, **constants)
    monkeypatch.setattr("vkq.graph.passes.counts.CACHED", ("Max",))
    graph = read(data).known({"n": (3,)})[0]
    chains = [node.attributes["ops"] for node in lower(graph).nodes if node.op == "chain"]
    assert chains == [("Add", "Max", "Sub"), ("Add",)]
    compared(any_device, data, fed)
    monkeypatch.setattr("vkq.graph.passes.counts.CACHED", ())
    assert flatten_counts(graph) is graph


@pytest.mark.parametrize(("dtype", "count"), [("float32", 11), ("float16", 11)])
def test_dispatches_of_a_layer(any_device: vkq.Device, dtype: str, count: int) -> None:
    """For one token, a layer of a decoder takes few dispatches: two normalizations, five products, one for
    the heads, two for attention, and one for the activation."""
    found = []
    for layers in (1, 2):
        sizes = Sizes(layers=layers, context=512, dtype=dtype)
        session = vkq.onnx.InferenceSession(llama(sizes).SerializeToString(), any_device)
        past = np.zeros((1, sizes.kv_heads, 300, sizes.width), dtype)
        given = fed(sizes, [5], [past] * 2 * layers, 300)
        found.append(len(session._executable(given).plan.variants))
    assert found[1] - found[0] == count
    assert found[0] - count <= 8
