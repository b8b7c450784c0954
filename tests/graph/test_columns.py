"""Tests of the pass that makes attention read queries, keys and values as columns of one product. The
model is a transformer block as timm writes it, quantized by onnxruntime.quantization."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx
from tests.kernels import emulated
from tests.onnx.networks import onnxruntime_results, quantized
from tests.onnx.nodes import Nodes
from tests.ops import doctored
from vkq.check import graph as oracle
from vkq.graph.executable import Executable
from vkq.graph.graph import Graph, Node, Spec
from vkq.graph.operators.movement import neighbours
from vkq.graph.operators.table import infer
from vkq.graph.passes import lower
from vkq.graph.passes.columns import take_columns
from vkq.onnx.reader import read

TOKENS, HEADS, DEPTH = 5, 3, 16
WIDTH = HEADS * DEPTH
LATE = (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)  # permutations of q, k and v in the form "split"


class Block(Nodes):
    """Attention and a two-layer perceptron. *form*: "gemm" (products are Gemm, with Reshapes to and from
    matrices), "add" (products are MatMul, with biases added and quantized separately), or "split" (as
    "add", and each of q, k and v has its own Transpose after the Split, as onnxruntime.quantization's
    preparation writes it)."""

    def __init__(self, batch: int, form: str):
        self.batch, self.form = batch, form
        super().__init__(3)
        rows = self._gemm("x", WIDTH, 3 * WIDTH)
        shape = (batch, TOKENS, 3, HEADS, DEPTH)
        q, k, v = self._split(self._reshape(rows, shape))
        k = self._op("Mul", k, self._constant(np.float32(0.3)))
        weights = self._op("Softmax", self._op("MatMul", q, k), axis=-1)
        seen = self._op("Transpose", self._op("MatMul", weights, v), perm=(0, 2, 1, 3))
        x = self._op("Add", "x", self._gemm(self._reshape(seen, (batch, TOKENS, WIDTH)), WIDTH, WIDTH))
        wide = self._op("Gelu", self._gemm(x, WIDTH, 2 * WIDTH))
        self._op("Add", x, self._gemm(wide, 2 * WIDTH, WIDTH), y="y")

    def _split(self, x: str) -> list[str]:
        """Return queries, keys (transposed) and values."""
        late, names = self.form == "split", [f"part_{i}" for i in range(3)]
        x = x if late else self._op("Transpose", x, perm=(2, 0, 3, 1, 4))
        axis = 2 if late else 0
        self.nodes.append(helper.make_node("Split", [x], names, axis=axis, num_outputs=3))
        parts = [self._op("Squeeze", name, self._constant(np.array([axis]))) for name in names]
        if late:
            return [self._op("Transpose", part, perm=p) for part, p in zip(parts, LATE, strict=True)]
        return [parts[0], self._op("Transpose", parts[1], perm=(0, 1, 3, 2)), parts[2]]

    def _reshape(self, x: str, shape: tuple[int, ...]) -> str:
        return self._op("Reshape", x, self._constant(np.array(shape)))

    def _gemm(self, x: str, k: int, n: int) -> str:
        weight = self.random.normal(0, k**-0.5, (k, n)).astype(np.float32)
        bias = self.random.normal(0, 0.1, n).astype(np.float32)
        if self.form != "gemm":
            return self._op("Add", self._constant(bias), self._op("MatMul", x, self._constant(weight)))
        rows = self._reshape(x, (self.batch * TOKENS, k))
        y = self._op("Gemm", rows, self._constant(weight), self._constant(bias))
        return self._reshape(y, (self.batch, TOKENS, n))

    def model(self) -> Any:
        shape = (self.batch, TOKENS, WIDTH)
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
        graph = helper.make_graph(self.nodes, "block", [x], [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


BLOCKS = {"one": (1, "gemm"), "eight": (8, "gemm"), "add": (1, "add"), "split": (8, "split")}


@pytest.fixture(scope="module", params=BLOCKS.values(), ids=list(BLOCKS))
def block(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Graph, Any, Any]:
    """Return (lowered graph, input, ONNX Runtime's result) for a batch of one text or of eight, in a form of
    `Block`."""
    batch, form = request.param
    shape = (batch, TOKENS, WIDTH)
    model = quantized(Block(batch, form).model(), "qdq_int8", tmp_path_factory.mktemp("block"), shape)
    # With this input no quotient of the softmax is a tie, which versions of ONNX Runtime round differently.
    feed = {"x": np.random.default_rng(5).normal(0, 1, shape).astype(np.float32)}
    return lower(read(model).at({"x": shape})), feed, onnxruntime_results(model, feed)[0]


def test_attention_reads_columns(block: tuple[Graph, Any, Any]) -> None:
    found = Counter(node.op for node in block[0].nodes)
    assert found["attention_q8"] == 1
    assert not {"Slice", "Transpose", "permute", "matmul", "softmax"} & found.keys()
    # A lookup may remain, which multiplies the keys by 0.3. All other tables are parts of epilogues.
    assert found["lookup"] <= 1
    first = next(node for node in block[0].nodes if node.op == "linear")
    assert not found["lookup"] or first.label == "linear"
    (node,) = (node for node in block[0].nodes if node.op == "attention_q8")
    assert [(own.start, own.stop) for own in node.attributes["columns"]] == [
        (0, WIDTH), (WIDTH, 2 * WIDTH), (2 * WIDTH, 3 * WIDTH)
    ]  # fmt: skip


@pytest.mark.parametrize("steps", [False, True])
def test_bytes(
    any_device: vkq.Device, block: tuple[Graph, Any, Any], steps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model gives ONNX Runtime's bytes, whether attention runs in separate steps or in one dispatch.
    Without matrix units, one dispatch is possible only for a batch of one here, because the layout stores
    blocks of four rows and a sequence has five."""
    graph, feed, want = block
    changed = doctored.capabilities(any_device, choices=(("attention_in_steps", steps),))
    monkeypatch.setattr(any_device, "capabilities", changed)
    executable = Executable(graph, any_device, {})
    one = any("attention_q8" in name for name in executable.plan.variants)
    assert one == (not steps and len(feed["x"]) == 1)
    np.testing.assert_array_equal(executable.run(feed)["y"], want)


def test_in_blocks_of_columns(
    strict_device: vkq.Device, block: tuple[Graph, Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On matrix units the joined product is in kPackedInt8_16C, and attention reads its columns in place,
    also for several sequences of an odd number of tokens. No dispatch moves data."""
    graph, feed, want = block
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    changed = dataclasses.replace(strict_device.capabilities, choices=(("attention_in_steps", False),))
    monkeypatch.setattr(strict_device, "capabilities", changed)
    executable = Executable(graph, strict_device, {})
    ran = executable.plan.variants
    if len(feed["x"]) > 1:  # matrix units need at least 29 rows
        assert any("coopmat" in name for name in ran)
        assert any(name.startswith("attention_q8__tile") and name.endswith("16c") for name in ran)
        assert not any(name.startswith(("move", "take")) for name in ran)
    np.testing.assert_array_equal(executable.run(feed)["y"], want)


@pytest.mark.parametrize("change", ["none", "overlap", "other reader", "result", "one table", "dtype"])
def test_tables_of_parts(change: str) -> None:
    """A lookup after a Slice of columns moves before the Slice and gets a table for each column. This
    requires that the node before the Slice has a table for each column, too, and that only Slices of
    disjoint columns read its result."""
    random = np.random.default_rng(1)
    before, own = (random.integers(-128, 128, shape).astype(np.int8) for shape in ((6, 256), 256))
    nodes = [
        Node(
            "lookup",
            ("x",),
            ("whole",),
            {"table": own} if change == "one table" else {"table": before, "axis": 1},
        ),
        Node("Slice", ("whole", "0", "4", "1"), ("left",), {}),
        Node("Slice", ("whole", "3" if change == "overlap" else "4", "6", "1"), ("right",), {}),
        Node("lookup", ("left",), ("y",), {"table": own.view(np.uint8) if change == "dtype" else own}),
        *([Node("Transpose", ("whole",), ("z",), {"perm": (1, 0)})] if change == "other reader" else []),
    ]
    constants = {str(i): np.array([i]) for i in (0, 1, 3, 4, 6)}
    results = ["y", "right", *(["left"] if change == "result" else []), *(["z"] if len(nodes) > 4 else [])]
    specs = {"x": Spec("int8", (2, 6))} | {name: Spec.of(array) for name, array in constants.items()}
    graph = Graph(["x"], results, nodes, constants, specs)
    for node in nodes:
        given = [graph.specs[name] for name in node.inputs]
        arrays = [constants.get(name) for name in node.inputs]
        graph.specs.update(zip(node.outputs, infer(node, given, arrays), strict=True))
    found = take_columns(graph)
    assert Counter(node.op for node in found.nodes)["lookup"] == 2
    assert (found.nodes[1].op == "lookup") == (change == "none")
    x = random.integers(-128, 128, (2, 6)).astype(np.int8)
    for name, want in oracle.run(graph, {"x": x}).items():
        np.testing.assert_array_equal(oracle.run(found, {"x": x})[name], want, strict=True)


@pytest.mark.parametrize(
    ("lists", "found"),
    [
        (([2], [5], [1]), (1, range(2, 5))),
        (([-3], [2**62], [-1], [1]), (1, range(3, 6))),
        (([0, 1], [4, 2], [0, 1], [1, 1]), (1, range(1, 2))),  # the Slice takes all of axis 0
        (([0], [6], [1]), None),
        (([0, 1], [3, 2], [0, 1]), None),
        (([0], [6], [1], [2]), None),
        (([5], [3], [1]), None),
    ],
)
def test_neighbours(lists: tuple[list[int], ...], found: tuple[int, range] | None) -> None:
    """`neighbours` returns (axis, range) for a Slice of contiguous elements along one axis, else None."""
    names = ("starts", "ends", "axes", "steps")[: len(lists)]
    node = Node("Slice", ("x", *names), ("y",), {})
    assert neighbours(node, (4, 6), [np.array(one) for one in lists]) == found
    assert neighbours(node, (4, 6), [None, *(np.array(one) for one in lists[1:])]) is None
