"""Tests of large graphs: planning visits each node only a few times, however many nodes there are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
from vkq.graph.executable import Executable
from vkq.graph.graph import unused
from vkq.graph.passes import lower
from vkq.onnx.reader import read
from vkq.runtime.builder import Builder

SHAPE = (2, 16, 3, 3)
BLOCK = 7  # minimum number of operators in a block of `Long` after lowering


class Counted(list[Any]):
    """A list that counts how many of its elements are read."""

    looked_at = 0

    def __iter__(self) -> Iterator[Any]:
        for one in super().__iter__():
            Counted.looked_at += 1
            yield one

    def __getitem__(self, index: Any) -> Any:
        Counted.looked_at += len(range(*index.indices(len(self)))) if isinstance(index, slice) else 1
        return super().__getitem__(index)

    def index(self, *given: Any) -> int:
        Counted.looked_at += (found := super().index(*given)) + 1
        return found


CONSTANTS = {
    "s": np.float32(0.02), "z": np.int8(3), "zero": np.int8(0),
    "image": np.arange(256, dtype=np.int8).reshape(16, 16, 1, 1), "square": np.eye(16, dtype=np.int8),
    "line": np.array([2, 16]), "plane": np.array([2, 16, 1, 1]),
}  # fmt: skip


class Long:
    """A model of equal blocks. Each block has all patterns for which planning inspects a node's producers
    and consumers: sums after convolutions, concatenated branches, gates, means, matrix products and row
    functions."""

    def __init__(self, blocks: int):
        self.nodes: list[Any] = []
        x = self.quantized("x")
        self.image, self.square = (self.op("DequantizeLinear", w, "s", "zero") for w in ("image", "square"))
        for _ in range(blocks):
            x = self.block(x)
        self.nodes.append(helper.make_node("Identity", [x], ["y"]))

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], **attributes))
        return name

    def quantized(self, x: str) -> str:
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, "s", "z"), "s", "z")

    def q(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """Add an operator and quantize its result; return the name of the dequantized result."""
        return self.quantized(self.op(kind, *inputs, **attributes))

    def conv(self, x: str) -> str:
        return self.q("Conv", x, self.image)

    def block(self, x: str) -> str:
        one = self.conv(x)
        two = self.q("Add", self.conv(one), one)
        both = self.q("Concat", self.conv(two), self.conv(two), axis=1)
        gate = self.conv(self.q("Relu", self.conv(self.q("GlobalAveragePool", two))))
        scaled = self.q("Mul", two, self.q("Sigmoid", gate))
        row = self.op("Reshape", self.q("GlobalAveragePool", scaled), "line")
        row = self.q("Softmax", self.q("MatMul", row, self.square), axis=-1)
        x = self.q("Add", two, self.op("Reshape", row, "plane"))
        return self.q("Add", x, self.q("ReduceMax", both, axes=[1, 2, 3], keepdims=1))

    def model(self) -> bytes:
        held = [numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items()]
        given = helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)
        result = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
        graph = helper.make_graph(self.nodes, "long", [given], [result], held)
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
        return bytes(made.SerializeToString())


def test_planning_looks_at_each_node_a_few_times(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Planning a graph with four times as many nodes reads entries of the lists of nodes and steps at most
    4.4 times as often."""
    made = Builder.__init__

    def counted(builder: Builder, device: vkq.Device) -> None:
        made(builder, device)
        builder._steps = Counted()

    monkeypatch.setattr(Builder, "__init__", counted)
    looked_at = []
    for blocks in (5, 20):
        graph = lower(read(Long(blocks).model()).at({"x": SHAPE}))
        assert len(graph.nodes) > BLOCK * blocks
        graph.nodes = Counted(graph.nodes)
        Counted.looked_at = 0
        executable = Executable(graph, device, {})
        assert len(executable.plan.steps) > BLOCK * blocks
        looked_at.append(Counted.looked_at)
    few, many = looked_at
    assert 0 < many < 4 * few * 1.1


def test_names_of_one_hint_are_found_soon() -> None:
    """A thousand names are derived from one hint, with less than 20 lookups of taken names for each, on
    average."""

    class Taken(set[str]):
        looks = 0

        def __contains__(self, name: object) -> bool:
            Taken.looks += 1
            return super().__contains__(name)

    taken = Taken()
    assert [unused("x", taken) for _ in range(1000)] == ["x", *(f"x_{i}" for i in range(1, 1000))]
    assert Taken.looks < 1000 * 2 * (1000).bit_length()
    assert unused("y", taken) == "y"
