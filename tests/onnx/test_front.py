"""Tests of the first operators of a quantized text encoder (mask and embeddings), as PyTorch and
quantize_static write them: the device gives ONNX Runtime's bytes in few dispatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results
from tests.onnx.nodes import Nodes
from vkq.graph.passes.embeddings import _chosen, _kept

TOKENS, WIDTH, WORDS, HEADS = 12, 32, 30, 2
INT64, FLOAT, BOOL = TensorProto.INT64, TensorProto.FLOAT, TensorProto.BOOL


class Written(Nodes):
    """A model with uint8 activations under construction."""

    op, constant = Nodes._op, Nodes._constant

    def __init__(self) -> None:
        super().__init__(0)

    def real(self, x: str, scale: float = 0.05, zero: int = 121, y: str = "") -> str:
        parameters = self.constant(np.float32(scale)), self.constant(np.uint8(zero))
        return self.op("DequantizeLinear", x, *parameters, y=y)

    def held(self, x: str, scale: float = 0.05, zero: int = 121, y: str = "") -> str:
        parameters = self.constant(np.float32(scale)), self.constant(np.uint8(zero))
        return self.real(self.op("QuantizeLinear", x, *parameters), scale, zero, y)

    def model(self, inputs: dict[str, Any], outputs: dict[str, int]) -> bytes:
        infos = [helper.make_tensor_value_info(n, kind, shape) for n, (kind, shape) in inputs.items()]
        results = [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()]
        graph = helper.make_graph(self.nodes, "front", infos, results, self.constants)
        opsets = [helper.make_opsetid("", 17)]
        return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())


def mask_of(w: Written, batch: int) -> str:
    """Add a mask (batch, 1, tokens, tokens) of 0 and -10, computed from the input "mask" (batch, tokens),
    which is true for visible tokens. Return its name."""
    places = np.arange(batch * TOKENS).reshape(batch, 1, 1, TOKENS)
    flags = w.op("Flatten", w.op("Cast", "mask", to=BOOL), axis=2)
    seen = w.op("Reshape", flags, w.constant([-1, 1]))
    seen = w.op("Gather", seen, w.constant(places), axis=0)
    seen = w.op("Reshape", seen, w.constant([batch, 1, 1, TOKENS]))
    seen = w.op("And", w.constant(np.ones((1, 1, TOKENS, 1), bool)), seen)
    seen = w.op("Expand", seen, w.constant([batch, 1, TOKENS, TOKENS]))
    hidden = w.op("Where", seen, w.constant(np.float32(0)), w.constant(np.float32(-10)))
    return w.held(hidden, 0.0392, 255)


def masked_scores(batch: int) -> bytes:
    w = Written()
    w.held(w.op("Add", w.held("x"), mask_of(w, batch)), 0.07, 200, "y")
    shapes = {"mask": (INT64, (batch, TOKENS)), "x": (FLOAT, (batch, HEADS, TOKENS, TOKENS))}
    return w.model(shapes, {"y": FLOAT})


def masked_attention(batch: int) -> bytes:
    """Return a model of self-attention of x (batch, heads, tokens, 16)."""
    w = Written()
    x = w.held("x")
    scores = w.held(w.op("MatMul", x, w.op("Transpose", x, perm=[0, 1, 3, 2])), 0.4, 100)
    weights = w.op("Softmax", w.held(w.op("Add", scores, mask_of(w, batch)), 0.4, 110), axis=-1)
    w.held(w.op("MatMul", w.held(weights, 1 / 255, 0), x), y="y")
    shapes = {"mask": (INT64, (batch, TOKENS)), "x": (FLOAT, (batch, HEADS, TOKENS, 16))}
    return w.model(shapes, {"y": FLOAT})


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize(
    ("data", "last", "steps"),
    [
        (masked_scores, TOKENS, {"add": 1, "chain": 2, "dequantize": 1, "quantize": 1}),
        (masked_attention, 16, {"attention_q8": 5, "chain": 1, "dequantize": 1, "quantize": 1}),
    ],
)
def test_a_mask_is_one_chain(
    device: vkq.Device, data: Callable[[int], bytes], last: int, steps: dict[str, int], batch: int
) -> None:
    """The device computes the mask with shape (batch, 1, 1, tokens), in the layout that attention reads.
    The sum with the scores broadcasts the mask. Results equal ONNX Runtime's."""
    random = np.random.default_rng(batch)
    x = random.normal(0, 3, (batch, HEADS, TOKENS, last)).astype(np.float32)
    feed = {"mask": random.integers(0, 2, (batch, TOKENS)), "x": x}
    session = vkq.onnx.InferenceSession(data(batch), device)
    assert {row.operator: len(row.shaders) for row in session.explain().rows if row.shaders} == steps
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data(batch), feed)[0])


def embeddings(kind: str, other: np.ndarray, first: bool, ids: tuple[int, ...], readers: int) -> bytes:
    """Return a model that combines rows of a table with a constant operand, and then adds positions. Many
    sums are near ties, and their rounding depends on the order of the operands."""
    w, random, part = Written(), np.random.default_rng(8), (2, 4, 4) if other.shape == (2, 4, 1) else (WIDTH,)
    table = w.real(w.constant(random.integers(0, 256, (WORDS, *part)).astype(np.uint8)), 0.01)
    rows = w.held(w.op("Gather", table, "ids"), 0.01)
    pair = [w.held(w.constant(other.astype(np.float32)), 0.03, 90), rows]
    made = w.held(w.op(kind, *(pair if first else pair[::-1])), 0.06, 131)
    places = w.held(w.constant(random.normal(0, 2, (TOKENS, *part)).astype(np.float32)))
    w.held(w.op("Add", made, places), 0.09, 100, "y")
    for i in range(1, readers):
        w.op("Identity", rows, y=f"y{i}")
    return w.model({"ids": (INT64, ids)}, {f"y{i or ''}": FLOAT for i in range(readers)})


ROW = np.random.default_rng(9).normal(0, 2, WIDTH)
EMBEDDINGS: list[tuple[str, str, np.ndarray, bool, tuple[int, ...], int, list[str]]] = [
    ("sum", "Add", np.tile(ROW, (2, TOKENS, 1)), False, (2, TOKENS), 1, ["Gather", "add"]),
    ("sum of the other order", "Add", ROW, True, (2, TOKENS), 1, ["Gather", "add"]),
    ("product", "Mul", ROW[None], False, (TOKENS,), 1, ["Gather", "add"]),
    ("difference", "Sub", ROW, True, (2, TOKENS), 1, ["Gather", "add"]),
    ("number", "Max", np.array(0.1), False, (2, TOKENS), 1, ["Gather", "add"]),
    ("rows that differ", "Mul", np.outer(np.arange(TOKENS), ROW), False, (2, TOKENS), 1,
     ["Gather", "mul", "add"]),
    ("rows with two readers", "Add", ROW, False, (2, TOKENS), 2, ["Gather", "lookup", "add"]),
    ("numbers of each id", "Mul", np.arange(TOKENS)[:, None], False, (TOKENS,), 1,
     ["Gather", "lookup", "add"]),
    ("product of whole rows", "Mul", np.tile(ROW, (TOKENS, 1)), True, (TOKENS,), 1, ["Gather", "add"]),
    ("sum of swapped operands", "Add", ROW[:8].reshape(2, 4, 1), True, (TOKENS,), 1, ["Gather", "add"]),
    ("sum of broadcast operands", "Add", ROW[:8].reshape(2, 4, 1), False, (TOKENS,), 1, ["Gather", "add"]),
    ("larger", "Add", np.tile(ROW, (3, 1, 1)), False, (TOKENS,), 1, ["Gather", "add", "add"]),
]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "other", "first", "ids", "readers", "ops"),
    [case[1:] for case in EMBEDDINGS], ids=[case[0] for case in EMBEDDINGS],
)  # fmt: skip
def test_embeddings(
    any_device: vkq.Device, kind: str, other: np.ndarray, first: bool, ids: tuple[int, ...], readers: int,
    ops: list[str],
) -> None:  # fmt: skip
    """A binary operator combines gathered rows with another operand. If this operand is equal for all
    ids, vkq applies the operator to the whole table at load."""
    data = embeddings(kind, other, first, ids, readers)
    session = vkq.onnx.InferenceSession(data, any_device)
    found = [row.operator for row in session.explain().rows]
    assert [op for op in found if op not in ("dequantize", "Identity")] == ops
    feed = {"ids": np.random.default_rng(1).integers(-WORDS, WORDS, ids)}
    for got, want in zip(session.run(None, feed), onnxruntime_results(data, feed), strict=True):
        np.testing.assert_array_equal(got, want)


def test_embeddings_are_one_dispatch(device: vkq.Device) -> None:
    """One dispatch gathers the rows of words, adds the token type, which is equal for all tokens, and adds
    the positions."""
    data, ids = embeddings("Add", ROW, False, (3, TOKENS), 1), (3, TOKENS)
    session = vkq.onnx.InferenceSession(data, device)
    shaders = [row.shaders for row in session.explain().rows if row.operator in ("Gather", "add")]
    assert shaders == [("gather_binary_q8__vector:add",), ()]
    feed = {"ids": np.random.default_rng(2).integers(0, WORDS, ids)}
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])


@pytest.mark.parametrize("kind", ["Add", "Mul"])
def test_sums_of_two_embeddings(any_device: vkq.Device, kind: str) -> None:
    """The dispatch that gathers rows of one embedding also adds the rows of another."""
    w, random = Written(), np.random.default_rng(11)
    tables = [random.integers(0, 256, (WORDS, WIDTH)).astype(np.uint8) for _ in "ab"]
    one, two = (
        w.held(w.op("Gather", w.real(w.constant(table), 0.02 * i), f"ids{i}"), 0.02 * i)
        for i, table in enumerate(tables, 1)
    )
    w.held(w.op(kind, one, two), 0.06, 130, "y")
    data = w.model({f"ids{i}": (INT64, (2, TOKENS)) for i in (1, 2)}, {"y": FLOAT})
    session = vkq.onnx.InferenceSession(data, any_device)
    names = [name.split(":")[0] for row in session.explain().rows for name in row.shaders]
    assert names == ["gather_rows__element", "gather_binary_q8__vector", "dequantize_q8ta__rows"]
    feed = {f"ids{i}": random.integers(0, WORDS, (2, TOKENS)) for i in (1, 2)}
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])


def test_tables_are_kept_with_the_model() -> None:
    """The graphs of one model share a folded table. It is freed when the table from which it was computed
    is freed."""
    table, row = np.arange(12).astype(np.int8).reshape(4, 3), np.array([[128, 127, 0]], np.uint8)
    results = np.random.default_rng(2).integers(0, 256, (256, 256)).astype(np.uint8)
    found, count = _chosen(results, row, table), len(_kept)
    np.testing.assert_array_equal(found, results[row, table.astype(int) + 128])
    assert _chosen(results, row, table) is found
    assert _chosen(results, row, table.copy()) is not found
    del table
    assert len(_kept) == count - 1


@pytest.mark.parametrize(("shape", "ops"), [((4, 1), {"Expand"}), ((1, 8), set())])
def test_sums_keep_the_order_of_operands(
    any_device: vkq.Device, shape: tuple[int, int], ops: set[str]
) -> None:
    """An Expand before a quantized Add is removed, except along the last axis: an operand of size 1 along
    that axis would make the Add swap its operands, as in ONNX Runtime (`swaps`), and round differently."""
    w, random = Written(), np.random.default_rng(4)
    wide = w.op("Expand", w.held("x", 0.031), w.constant([4, 8]))
    w.held(w.op("Add", wide, w.held("z", 0.047)), 0.053, 3, "y")
    data = w.model({"x": (FLOAT, shape), "z": (FLOAT, (4, 8))}, {"y": FLOAT})
    session = vkq.onnx.InferenceSession(data, any_device)
    assert {row.operator for row in session.explain().rows} & {"Expand"} == ops
    feed = {"x": random.normal(0, 2, shape), "z": random.normal(0, 2, (4, 8))}
    feed = {name: array.astype(np.float32) for name, array in feed.items()}
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])
