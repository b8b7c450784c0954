"""Tests of attention heads: the nodes between a product and attention become one node, with the same
results."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.graph.test_chains import compared, model, op
from tests.graph.test_layouts import plan_of
from tests.onnx.language import Sizes, llama
from tests.onnx.test_language import fed
from vkq.check import graph as oracle
from vkq.graph import passes
from vkq.graph.passes import lower
from vkq.graph.passes.heads import fuse_heads
from vkq.onnx.reader import read

TOKENS, ROWS, HEADS, WIDTH = 3, 7, 2, 16
KINDS: dict[str, Any] = {"float32": 1, "float16": 10}


def cached(rotated: str = "k", past: str = "past_v", k: str = "xk") -> list[Any]:
    """Return nodes that split x into queries, keys and values, rotate the queries and the parts
    *rotated*, and write keys and values into caches. *past*: the name of the past values. *k*: the name
    of the columns that hold the keys."""
    nodes = [op("Slice", f"x from_{part} to_{part} last", f"x{part}") for part in "qkv"]
    for part in "qkv":
        name = k if part == "k" else f"x{part}"
        if part == "q" or part in rotated:
            nodes.append(op("RotaryEmbedding", f"{name} cos sin", f"turned_{part}", num_heads=HEADS))
            name = f"turned_{part}"
        nodes.append(op("Reshape", f"{name} shape", f"heads_{part}"))
        nodes.append(
            op("Transpose", f"heads_{part}", "q" if part == "q" else f"first_{part}", perm=[0, 2, 1, 3])
        )
    nodes.append(op("TensorScatter", "past_k first_k start", "k"))
    nodes.append(op("TensorScatter", f"{past} first_v start", "v"))
    return nodes


def built(nodes: list[Any], dtype: str, *results: str) -> tuple[Any, dict[str, np.ndarray]]:
    """Return the model of these nodes, and its inputs."""
    rng, columns = np.random.default_rng(0), HEADS * WIDTH
    inputs: dict[str, np.ndarray] = {"x": rng.normal(0, 2, (1, TOKENS, 3 * columns)).astype(dtype)}
    inputs |= {f"past_{part}": rng.normal(0, 2, (1, HEADS, ROWS, WIDTH)).astype(dtype) for part in "kv"}
    inputs["start"] = np.array([2])
    constants: dict[str, Any] = {"shape": np.array([1, TOKENS, HEADS, WIDTH]), "last": np.array([2])}
    for i, part in enumerate("qkv"):
        constants |= {f"from_{part}": np.array([i * columns]), f"to_{part}": np.array([(i + 1) * columns])}
    angles = rng.normal(0, 2, (1, TOKENS, WIDTH // 2))
    constants |= {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}
    data = model(nodes, inputs, dict.fromkeys(results, KINDS[dtype]), **constants)
    data.opset_import[0].version = 24
    return data, inputs


def ops_of(data: Any, inputs: dict[str, np.ndarray]) -> list[str]:
    graph = lower(read(data).at({name: array.shape for name, array in inputs.items()}))
    return [node.op for node in graph.nodes if node.op not in ("Identity", "Reshape", "chain")]


@pytest.mark.parametrize("dtype", KINDS)
def test_one_node(device: vkq.Device, dtype: str) -> None:
    """One dispatch rotates queries and keys, and writes keys and values into the caches."""
    data, inputs = built(cached(), dtype, "q", "k", "v")
    assert ops_of(data, inputs) == ["heads"]
    compared(device, data, inputs)


@pytest.mark.parametrize(
    ("nodes", "results", "ops"),
    [
        (cached(past="k"), "q v", ["heads", "heads"]),
        ([*cached(), op("Neg", "xk", "z")], "q k v z", ["Slice", "heads", "heads"]),
        ([*cached(), op("Neg", "turned_k", "z")], "k z", ["heads", "heads"]),
        ([op("Neg", "xq", "minus"), *cached(k="minus")], "q k v", ["Slice", "heads", "heads", "heads"]),
    ],
    ids=["a cache depends on a part", "columns are read twice", "keys are read twice", "other columns"],
)
def test_other_readers(any_device: vkq.Device, nodes: list[Any], results: str, ops: list[str]) -> None:
    """A value remains in the graph if nodes outside the heads also read it. Heads are not fused into one
    node if they read columns of different tensors, or if one head depends on another."""
    data, inputs = built(nodes, "float16", *results.split())
    assert sorted(ops_of(data, inputs)) == sorted(ops)
    compared(any_device, data, inputs)


@pytest.mark.parametrize("most", [4, 6, 8])
def test_few_buffers(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, most: int) -> None:
    """On devices whose shaders read and write few arrays, q, k and v take one dispatch each, or two."""
    data, inputs = built(cached(), "float16", "q", "k", "v")
    properties = {**device.capabilities.properties, "maxPerStageDescriptorStorageBuffers": most}
    changed = dataclasses.replace(device.capabilities, properties=properties)
    monkeypatch.setattr(device, "capabilities", changed)
    graph = lower(read(data).at({name: array.shape for name, array in inputs.items()}))
    ran = [name for name in plan_of(graph, device).variants if not name.startswith("chain")]
    assert [name.split(":")[0] for name in ran].count("heads__vector") == 3
    assert len(ran) == (4 if most == 4 else 3)
    compared(device, data, inputs)


@pytest.mark.parametrize("tokens", [1, 5])
@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("dtype", KINDS)
def test_decoders(dtype: str, packed: bool, tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder's graph gives the same bits with and without the pass `fuse_heads`."""
    sizes = Sizes(layers=2, dtype=dtype, packed=packed)
    past = np.random.default_rng(3).normal(0, 1, (1, sizes.kv_heads, 9, sizes.width)).astype(dtype)
    given = fed(sizes, [5, 9, 100, 0, 7][:tokens], [past] * 2 * sizes.layers, 9)
    given = {name: x.astype(np.int32) if x.dtype == np.int64 else x for name, x in given.items()}
    graph = read(llama(sizes).SerializeToString()).known({name: x.shape for name, x in given.items()})[0]
    fused = lower(graph)
    single = 1 if packed else 3 if tokens > 1 else 2 if dtype == "float16" else 1
    assert [node.op for node in fused.nodes].count("heads") == single * sizes.layers
    monkeypatch.setattr(passes, "PASSES", tuple(one for one in passes.PASSES if one is not fuse_heads))
    plain = lower(graph)
    assert "heads" not in plain.kinds
    want, got = (oracle.run(one, given) for one in (plain, fused))
    for name, array in want.items():
        assert got[name].tobytes() == array.tobytes()
