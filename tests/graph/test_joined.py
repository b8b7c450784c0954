"""Tests of operators fused into row functions (softmax, normalizations), and of attention heads: the passes
do not change the results."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.graph.test_chains import chains, compared, model, op
from tests.graph.test_layouts import plan_of
from vkq.check import graph as oracle
from vkq.graph.executable import Executable
from vkq.graph.passes import lower
from vkq.onnx.reader import read

Q = {"s": np.float32(0.05), "z": np.int8(3), "s2": np.float32(0.031), "z2": np.int8(-9)}


def bytes_of(*shape: int) -> dict[str, np.ndarray]:
    return {"x": np.random.default_rng(2).integers(-128, 128, shape).astype(np.int8)}


@pytest.mark.parametrize(("width", "ops"), [(24, ["rows"]), (22, ["dequantize", "rows", "quantize"])])
def test_normalization_of_bytes(device: vkq.Device, width: int, ops: list[str]) -> None:
    """A normalization between 8-bit values is one dispatch if the number of bytes of a row is a multiple
    of 4, and three dispatches otherwise."""
    nodes = [
        op("DequantizeLinear", "x s z", "r"),
        op("LayerNormalization", "r gamma beta", "n", axis=-1),
        op("QuantizeLinear", "n s2 z2", "y"),
    ]
    rng = np.random.default_rng(3)
    gamma, beta = (rng.normal(1, 0.2, width).astype(np.float32) for _ in range(2))
    fed = bytes_of(3, 7, width)
    data = model(nodes, fed, {"y": 3}, gamma=gamma, beta=beta, **Q)
    assert [names[0] if len(names) == 1 else "chain" for names in chains(data, fed)] == ops
    compared(device, data, fed)


def test_the_chain_alone(any_device: vkq.Device) -> None:
    """A row function of floats is fused with the scale and residual after it, unless another node reads its
    result."""
    nodes = [
        op("Softmax", "x", "n", axis=-1),
        op("Mul", "n gamma", "m"),
        op("Add", "m x", "y"),
    ]
    fed = {"x": np.random.default_rng(2).normal(0, 2, (3, 5, 11)).astype(np.float32)}
    gamma = np.linspace(-1, 2, 11, dtype=np.float32)
    data = model(nodes, fed, {"y": 1}, gamma=gamma)
    assert chains(data, fed) == [("rows",)]
    compared(any_device, data, fed)
    data = model(nodes, fed, {"y": 1, "n": 1}, gamma=gamma)
    assert chains(data, fed) == [("rows",), ("Mul", "Add")]
    compared(any_device, data, fed)


@pytest.mark.parametrize(("tokens", "width", "movements"), [(8, 24, 1), (8, 18, 4), (5, 24, 4)])
def test_heads(device: vkq.Device, tokens: int, width: int, movements: int) -> None:
    """If the columns of a head are whole blocks of the layout, products read and write the heads in place,
    and only one operand of the second product is transposed. Otherwise three operands and the result are
    copied, each once."""
    q, k = (0, 2, 1, 3), (0, 2, 3, 1)
    nodes = [
        *(op("Reshape", "x shape", f"x{i}") for i in range(3)),
        *(op("Transpose", f"x{i}", f"h{i}", perm=perm) for i, perm in enumerate((q, k, q))),
        *(op("DequantizeLinear", f"h{i} s z", f"r{i}") for i in range(3)),
        op("MatMul", "r0 r1", "m"),
        op("QuantizeLinear", "m s2 z2", "b"),
        op("DequantizeLinear", "b s2 z2", "r"),
        op("MatMul", "r r2", "n"),
        op("QuantizeLinear", "n s2 z2", "c"),
        op("Transpose", "c", "d", perm=q),
        op("Reshape", "d whole", "y"),
    ]
    fed = bytes_of(2, tokens, width)
    shape, whole = np.array([2, tokens, 3, width // 3]), np.array([2, tokens, width])
    data = model(nodes, fed, {"y": 3}, shape=shape, whole=whole, **Q)
    graph = lower(read(data).at({"x": (2, tokens, width)}))
    assert sorted(node.op for node in graph.nodes) == ["matmul", "matmul", "permute"]
    moved = [name for name in plan_of(graph, device).variants if name.startswith("move_q8")]
    assert len(moved) == movements
    got = Executable(graph, device, {}).run(fed)
    np.testing.assert_array_equal(got["y"], oracle.run(graph, fed)["y"], strict=True)


def test_images_keep_their_kernels(device: vkq.Device) -> None:
    nodes: list[Any] = [op("Transpose", "x", "a", perm=(0, 2, 3, 1)), op("Reshape", "a whole", "y")]
    fed = bytes_of(2, 5, 3, 4)
    data = model(nodes, fed, {"y": 3}, whole=np.array([2, 12, 5]))
    compared(device, data, fed)


def skipped(dtype: int, *outputs: str) -> list[Any]:
    """Return the nodes of a normalization of x + skip in float32, which compute what
    SkipSimplifiedLayerNormalization computes. The sum in *dtype* is "sum", and the normalized sum is "n"."""
    nodes = [op("Cast", name, f"{name}32", to=1) for name in ("x", "skip")]
    nodes += [op("Add", "x32 skip32", "total"), op("Cast", "total", "sum", to=dtype)]
    nodes += [op("RMSNormalization", "total gamma", "m", axis=-1), op("Cast", "m", "n", to=dtype)]
    return nodes


@pytest.mark.parametrize("dtype", [1, 10], ids=["float32", "float16"])
@pytest.mark.parametrize(
    ("more", "results", "ops"),
    [
        ([op("Neg", "n", "y")], "y", ["rows"]),
        ([op("Add", "sum n", "y")], "y", ["rows", "chain"]),
        ([op("Transpose", "sum", "z"), op("Neg", "n", "y")], "y z", ["rows", "Transpose"]),
        ([op("Transpose", "sum", "z"), op("Add", "z n", "y")], "y", ["rows", "Transpose", "chain"]),
        ([op("Neg", "n", "y")], "y total", ["rows"]),
    ],
    ids=["unread", "in the chain", "before it", "through it", "a result"],
)
def test_a_residual_before(
    any_device: vkq.Device, more: list[Any], results: str, ops: list[str], dtype: int
) -> None:
    """The dispatch of a normalization adds a residual, stores the sum if other nodes read it, and runs the
    chain after the normalization unless this chain depends on the sum."""
    held = np.float32 if dtype == 1 else np.float16
    fed = {name: np.random.default_rng(i).normal(0, 2, (24, 24)) for i, name in enumerate(("x", "skip"))}
    fed = {name: array.astype(held) for name, array in fed.items()}
    nodes = [*skipped(dtype), *more]
    if "z" in more[0].output:
        nodes.insert(4, nodes.pop(6))  # the Transpose, directly after the sum
    outputs = {name: 1 if name == "total" else dtype for name in results.split()}
    data = model(nodes, fed, outputs, gamma=np.linspace(-1, 2, 24, dtype=np.float32))
    data.opset_import[0].version = 23
    graph = lower(read(data).at({name: array.shape for name, array in fed.items()}))
    assert [node.op for node in graph.nodes] == ops
    compared(any_device, data, fed)


def test_few_buffers(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a device whose shaders read and write at most four arrays, a separate dispatch adds the
    residual."""
    fed = {
        name: np.random.default_rng(i).normal(0, 2, (3, 24)).astype(np.float16)
        for i, name in enumerate(("x", "skip"))
    }
    data = model([*skipped(10), op("Neg", "n", "y")], fed, {"y": 10, "sum": 10}, gamma=np.float32([1] * 24))
    data.opset_import[0].version = 23
    graph = lower(read(data).at({name: array.shape for name, array in fed.items()}))
    assert plan_of(graph, device).variants == (
        "rows__group:cast.cast.add.cast.normalize_root.mul.cast.neg.2x3",
    )
    properties = {**device.capabilities.properties, "maxPerStageDescriptorStorageBuffers": 4}
    monkeypatch.setattr(
        device, "capabilities", dataclasses.replace(device.capabilities, properties=properties)
    )
    assert plan_of(graph, device).variants == (
        "chain__element:cast.cast.add.cast",
        "rows__group:normalize_root.mul.cast.neg.2x3",
    )
    compared(device, data, fed)
