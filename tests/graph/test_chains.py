"""Tests of chains, in which element-wise operators are fused: which nodes are fused, and that fusing does
not change the results."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
from vkq.check import graph as oracle
from vkq.graph.passes import lower
from vkq.onnx.reader import read

FLOAT, HALF = TensorProto.FLOAT, TensorProto.FLOAT16


def model(nodes: list[Any], inputs: dict[str, np.ndarray], outputs: dict[str, int], **constants: Any) -> Any:
    infos = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
        for n, a in inputs.items()
    ]
    results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
    kept = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "g", infos, results, kept)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def chains(data: Any, inputs: dict[str, np.ndarray]) -> list[tuple[str, ...]]:
    """Return, for each node of the lowered graph, the operators that it fuses."""
    graph = lower(read(data).at({name: array.shape for name, array in inputs.items()}))
    return [node.attributes.get("ops", (node.op,)) for node in graph.nodes]


def compared(device: vkq.Device, data: Any, inputs: dict[str, np.ndarray]) -> list[Any]:
    """Check that the device gives the bits of the separate operators in NumPy; return the results."""
    graph = read(data).at({name: array.shape for name, array in inputs.items()})
    want = oracle.run(graph, inputs)
    session = vkq.onnx.InferenceSession(data, device)
    results = session.run(None, inputs)
    for output, got in zip(session.get_outputs(), results, strict=True):
        expected = want[output.name]
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
        width = f"u{got.dtype.itemsize}"
        np.testing.assert_array_equal(got.view(width), expected.view(width))
    return results


def op(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def normal(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


def test_a_gelu_by_hand_is_one_dispatch(device: vkq.Device) -> None:
    """A Gelu written as separate operators becomes one dispatch, also with a bias per channel and with a
    second result."""
    nodes = [
        op("Add", "x bias", "a"), op("Div", "a root", "b"), op("Erf", "b", "c"), op("Add", "c one", "d"),
        op("Mul", "a d", "e"), op("Mul", "e half", "y"), op("Sqrt", "d", "z"),
    ]  # fmt: skip
    inputs = {"x": normal(0, 3, 5, 7)}
    numbers = {"root": np.float32(1.4142135), "one": np.float32(1), "half": np.float32([0.5])}
    data = model(nodes, inputs, {"y": FLOAT, "z": FLOAT}, bias=normal(1, 5, 1), **numbers)
    assert chains(data, inputs) == [("Add", "Div", "Erf", "Add", "Mul", "Sqrt", "Mul")]
    compared(device, data, inputs)
    session = vkq.onnx.InferenceSession(data, device)
    assert str(session.explain()).count("chain__element") == 1


def test_what_reads_between_ends_a_chain(device: vkq.Device) -> None:
    """A reduction ends a chain: its input is stored, and the operators after it form another chain."""
    nodes = [
        op("Exp", "x", "a"), op("ReduceSum", "a axes", "s", keepdims=1), op("Neg", "a", "b"),
        op("Div", "b s", "c"), op("Abs", "c", "y"),
    ]  # fmt: skip
    inputs = {"x": normal(2, 4, 9)}
    data = model(nodes, inputs, {"y": FLOAT}, axes=np.array([1]))
    assert [ops for ops in chains(data, inputs) if len(ops) > 1] == [("Neg", "Div", "Abs")]
    compared(device, data, inputs)


def test_flags(device: vkq.Device) -> None:
    """Comparisons, logic and Where run in chains. Bool values may be inputs or results of chains, and a
    Transpose may be between two chains."""
    nodes = [
        op("Less", "x z", "a"), op("IsNaN", "x", "n"), op("Or", "a n", "o"), op("And", "o f", "p"),
        op("Where", "p x zero", "y"), op("Transpose", "o", "t", perm=[1, 0]), op("Not", "t", "u"),
        op("Cast", "u", "v", to=HALF),
    ]  # fmt: skip
    x = normal(3, 5, 7)
    x[1, 2] = np.nan
    inputs = {"x": x, "z": normal(4, 7), "f": np.random.default_rng(5).random((5, 1)) < 0.5}
    data = model(nodes, inputs, {"y": FLOAT, "u": TensorProto.BOOL, "v": HALF}, zero=np.float32(0))
    graph = read(data).at({name: array.shape for name, array in inputs.items()})
    want = oracle.run(graph, inputs)
    for name, got in zip("yuv", vkq.onnx.InferenceSession(data, device).run(None, inputs), strict=True):
        np.testing.assert_array_equal(got, want[name])


def test_half_and_normalization(device: vkq.Device) -> None:
    """One chain contains BatchNormalization and a power that becomes products; it rounds float16 values
    after each operator."""
    nodes = [
        op("BatchNormalization", "x s b m v", "a"), op("HardSwish", "a", "c"), op("Pow", "c two", "d"),
        op("Cast", "d", "e", to=HALF), op("Sigmoid", "e", "f"), op("Mul", "f e", "y"),
    ]  # fmt: skip
    inputs = {"x": normal(6, 2, 3, 5, 5)}
    parameters = {name: np.abs(normal(i, 3)) + 0.5 for i, name in enumerate("sbmv")}
    data = model(nodes, inputs, {"y": HALF}, two=np.float32(2), **parameters)
    assert len(chains(data, inputs)) == 1
    compared(device, data, inputs)


def test_many_operands(device: vkq.Device) -> None:
    """An operator with more operands than a kernel has buffers is split into several chains, without a
    change of its result."""
    inputs = {name: normal(i, 3, 4) for i, name in enumerate("abcdefg")}
    nodes = [op("Sum", "a b c d e f g", "s"), op("Mean", "a b c", "m"), op("Max", "s m d", "y")]
    data = model(nodes, inputs, {"y": FLOAT})
    assert all(len(ops) <= 4 for ops in chains(data, inputs))
    compared(device, data, inputs)


ONE = ["Exp", "Tanh", "Neg", "Abs", "Sigmoid", "Relu", "Softplus", "Floor", "Sin", "Erf"]
TWO = ["Add", "Mul", "Sub", "Div", "Max", "Min"]


@pytest.mark.parametrize("seed", range(6))
def test_random_graphs(device: vkq.Device, seed: int) -> None:
    """Random graphs give the bits of separate operators. Operators read any earlier values of three shapes,
    some of them transposed."""
    r = np.random.default_rng(seed)
    shapes = [(3, 5), (1, 5), (3, 1)]
    inputs = {f"v{i}": normal(seed + i, *shapes[i]) for i in range(3)}
    nodes = []
    for i in range(3, 18):
        known = [f"v{k}" for k in range(max(0, i - 6), i)]
        if r.random() < 0.1:
            nodes += [op("Transpose", r.choice(known), f"t{i}"), op("Transpose", f"t{i}", f"v{i}")]
        elif r.random() < 0.5:
            nodes.append(op(r.choice(ONE), r.choice(known), f"v{i}"))
        else:
            nodes.append(op(r.choice(TWO), " ".join(r.choice(known, 2)), f"v{i}"))
    results = sorted({f"v{k}" for k in r.integers(3, 17, 2)} | {"v17"})
    compared(device, model(nodes, inputs, dict.fromkeys(results, FLOAT)), inputs)


def test_what_is_left_alone() -> None:
    """Operators on 64-bit floats are not fused. Values without elements are constants."""
    x = np.zeros((0, 3), np.float32)
    assert chains(model([op("Exp", "x", "y")], {"x": x}, {"y": FLOAT}), {"x": x}) == []
    wide = np.zeros((2, 3), np.float64)
    data = model([op("Add", "x x", "y")], {"x": wide}, {"y": TensorProto.DOUBLE})
    assert chains(data, {"x": wide}) == [("Add",)]
