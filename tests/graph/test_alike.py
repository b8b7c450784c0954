"""Tests of merging nodes that compute the same positions, masks or rows of a table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkq
import vkq.onnx
from tests.onnx.language import Sizes, llama
from vkq.graph.passes.alike import merge_alike
from vkq.onnx import read

from .test_chains import model, op


def kinds(session: vkq.onnx.InferenceSession, fed: dict[str, Any]) -> list[str]:
    return [node.op for node in session.lowered({name: x.shape for name, x in fed.items()}).nodes]


def test_layers_of_a_decoder_share_positions_and_masks(any_device: vkq.Device) -> None:
    """All layers of a decoder share positions, masks and angles: a third layer adds no node that computes
    them."""
    found = []
    for layers in (2, 3):
        sizes = Sizes(layers=layers, context=512)
        session = vkq.onnx.InferenceSession(llama(sizes).SerializeToString(), any_device)
        fed = {"input_ids": np.ones((1, 1), np.int64), "attention_mask": np.ones((1, 300), np.int64)}
        past = np.zeros((1, sizes.kv_heads, 300, sizes.width), np.float32)
        fed |= {f"past_key_values.{i}.{x}": past for i in range(layers) for x in ("key", "value")}
        ops = kinds(session, fed)
        assert ops.count("heads") == layers
        assert ops.count("attention") == layers
        found.append({kind: ops.count(kind) for kind in set(ops)})
    more = {kind: count - found[0][kind] for kind, count in found[1].items() if count != found[0][kind]}
    assert more["chain"] == 1  # the product with the activation
    assert more["MatMulNBits"] == 5
    assert not more.keys() & {"Gather", "Where", "LessOrEqual"}


def test_only_equal_nodes_are_merged(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal comparisons are merged into one. Comparisons with different constants are not merged, nor are
    equal products of floats. A graph without operators of decoders is left as it is."""
    nodes = [
        op("Less", "i one", "a"), op("Less", "i same", "b"), op("Less", "i two", "c"),
        op("Where", "a x y", "d"), op("Where", "b x y", "e"), op("Where", "c x y", "f"),
        op("MatMul", "x w", "p"), op("MatMul", "x w", "q"),
    ]  # fmt: skip
    fed: dict[str, Any] = {"i": np.array([[0, 1], [2, 3]]), "x": np.eye(2, dtype=np.float32)}
    fed["y"] = w = np.ones((2, 2), np.float32)
    constants = {"one": np.array(1), "same": np.array(1), "two": np.array(2), "w": w}
    results = dict.fromkeys("defpq", TensorProto.FLOAT)
    nodes += [op("Add", f"{name} y", f"{name}1") for name in results]
    data = model(nodes, fed, {f"{name}1": kind for name, kind in results.items()}, **constants)
    graph = read(data).known({name: x.shape for name, x in fed.items()})[0]
    assert merge_alike(graph) is graph
    monkeypatch.setattr("vkq.graph.passes.alike.CACHED", ("Where",))
    left = [node.op for node in merge_alike(graph).nodes]
    assert {kind: left.count(kind) for kind in left} == {"Less": 2, "Where": 2, "MatMul": 2, "Add": 5}
    session = vkq.onnx.InferenceSession(data.SerializeToString(), any_device)
    got = dict(zip(results, session.run(None, fed), strict=True))
    for name, limit in (("d", 1), ("e", 1), ("f", 2)):
        np.testing.assert_array_equal(got[name], np.where(fed["i"] < limit, fed["x"], fed["y"]) + 1)
    np.testing.assert_array_equal(got["p"], got["q"])
