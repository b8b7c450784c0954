"""Tests of operators on floats: results are within 1e-6 of NumPy's, with axes in the order of the file
(channels last)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.tflite import InferenceSession

from .writer import Writer

SHAPE = (2, 5, 3, 7)
UNARY: dict[str, Callable[[Any], Any]] = {
    "ABS": np.abs, "NEG": np.negative, "FLOOR": np.floor, "CEIL": np.ceil, "ROUND": np.rint, "SIN": np.sin,
    "COS": np.cos, "TANH": np.tanh, "EXP": np.exp, "LOGISTIC": lambda x: 1 / (1 + np.exp(-x)),
    "RELU": lambda x: np.maximum(x, 0), "RELU6": lambda x: np.clip(x, 0, 6),
    "RELU_N1_TO_1": lambda x: np.clip(x, -1, 1), "RELU_0_TO_1": lambda x: np.clip(x, 0, 1),
    "ELU": lambda x: np.where(x > 0, x, np.expm1(x)),
    "GELU": lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))), "SQUARE": np.square,
    "HARD_SWISH": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "LEAKY_RELU": lambda x: np.where(x > 0, x, 0.25 * x),
}  # fmt: skip
OPTIONS = {"GELU": ("GeluOptions", {}), "LEAKY_RELU": ("LeakyReluOptions", {"alpha": 0.25})}
ROOTS: dict[str, Callable[[Any], Any]] = {
    "SQRT": np.sqrt, "RSQRT": lambda x: 1 / np.sqrt(x), "LOG": np.log,
}  # fmt: skip
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "ADD": np.add, "SUB": np.subtract, "MUL": np.multiply, "DIV": np.divide, "MAXIMUM": np.maximum,
    "MINIMUM": np.minimum, "POW": lambda a, b: a**b, "SQUARED_DIFFERENCE": lambda a, b: (a - b) ** 2,
}  # fmt: skip
COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "GREATER": np.greater, "GREATER_EQUAL": np.greater_equal, "LESS": np.less, "LESS_EQUAL": np.less_equal,
    "EQUAL": np.equal, "NOT_EQUAL": np.not_equal,
}  # fmt: skip


def run(w: Writer, inputs: list[int], outputs: list[int], device: vkq.Device, *arrays: np.ndarray) -> Any:
    session = InferenceSession(w.file(inputs, outputs), device)
    return session.run(None, dict(zip([a.name for a in session.model.inputs], arrays, strict=True)))


def numbers(shape: tuple[int, ...] = SHAPE, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 2, shape).astype(np.float32)


@pytest.mark.parametrize("op", [*UNARY, *ROOTS])
def test_unary(op: str, device: vkq.Device) -> None:
    w, given = Writer(), np.abs(numbers()) + 0.01 if op in ROOTS else numbers()
    x, y = (w.tensor(SHAPE, "float32") for _ in range(2))
    kind, options = OPTIONS.get(op, ("", {}))
    w.operator(op, [x], [y], kind, **options)
    (got,) = run(w, [x], [y], device, given)
    np.testing.assert_allclose(got, (UNARY | ROOTS)[op](given.astype(np.float64)), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", BINARY)
def test_binary(op: str, device: vkq.Device) -> None:
    """Binary operators with broadcast channels give results near NumPy's, with a fused RELU if the
    operator supports one."""
    w, a, b = Writer(), numbers(), numbers((7,), 1)
    a = np.abs(a) if op == "POW" else a
    x, z, y = w.tensor(SHAPE, "float32"), w.tensor((7,), "float32"), w.tensor(SHAPE, "float32")
    fused = op in ("ADD", "SUB", "MUL", "DIV")
    options: dict[str, Any] = (
        {"kind": f"{op.title()}Options", "fused_activation_function": 1} if fused else {}
    )
    w.operator(op, [x, z], [y], **options)
    (got,) = run(w, [x, z], [y], device, a, b)
    want = BINARY[op](a.astype(np.float64), b)
    np.testing.assert_allclose(got, np.maximum(want, 0) if fused else want, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("op", COMPARED)
def test_chosen(op: str, device: vkq.Device) -> None:
    w, a, b = Writer(), np.rint(numbers()), np.rint(numbers(seed=1))
    x, z, y = (w.tensor(SHAPE, "float32") for _ in range(3))
    flags = w.tensor(SHAPE, "bool")
    w.operator(op, [x, z], [flags])
    w.operator("SELECT_V2", [flags, x, z], [y])
    (got,) = run(w, [x, z], [y], device, a, b)
    np.testing.assert_array_equal(got, np.where(COMPARED[op](a, b), a, b))


def test_flags(device: vkq.Device) -> None:
    w, a, b = Writer(), np.rint(numbers()), np.rint(numbers(seed=1))
    x, z, y = (w.tensor(SHAPE, "float32") for _ in range(3))
    flags = [w.tensor(SHAPE, "bool") for _ in range(5)]
    w.operator("GREATER", [x, z], flags[:1])
    w.operator("EQUAL", [x, z], flags[1:2])
    w.operator("LOGICAL_OR", flags[:2], flags[2:3])
    w.operator("LOGICAL_NOT", flags[:1], flags[3:4])
    w.operator("LOGICAL_AND", flags[2:4], flags[4:])  # true if x equals z
    w.operator("SELECT", [flags[4], x, z], [y])
    (got,) = run(w, [x, z], [y], device, a, b)
    np.testing.assert_array_equal(got, b)
    (got,) = run(w, [x, z], flags[4:], device, a, b)
    np.testing.assert_array_equal(got, a == b)


@pytest.mark.parametrize("axes", [[1, 2], [3], [0, 1, 2, 3]])
@pytest.mark.parametrize("op", ["MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN"])
def test_reductions(op: str, axes: list[int], device: vkq.Device) -> None:
    w, given = Writer(), numbers()
    function: Any = {"MEAN": np.mean, "SUM": np.sum, "REDUCE_MAX": np.max, "REDUCE_MIN": np.min}[op]
    want = function(given.astype(np.float64), axis=tuple(axes), keepdims=True)
    x, y = w.tensor(SHAPE, "float32"), w.tensor(want.shape, "float32")
    w.operator(op, [x, w.constant(np.array(axes, np.int32))], [y], "ReducerOptions", keep_dims=1)
    (got,) = run(w, [x], [y], device, given)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


def test_softmax_and_products(device: vkq.Device) -> None:
    w, a, b = Writer(), numbers((2, 5, 9)), numbers((2, 6, 9), 1)
    x, z = w.tensor(a.shape, "float32"), w.tensor(b.shape, "float32")
    product, y = w.tensor((2, 5, 6), "float32"), w.tensor((2, 5, 6), "float32")
    w.operator("BATCH_MATMUL", [x, z], [product], "BatchMatMulOptions", adj_y=1)
    w.operator("SOFTMAX", [product], [y], "SoftmaxOptions", beta=0.5)
    (got,) = run(w, [x, z], [y], device, a, b)
    e = np.exp(0.5 * a.astype(np.float64) @ b.swapaxes(1, 2))
    np.testing.assert_allclose(got, e / e.sum(-1, keepdims=True), rtol=1e-5)


def test_vector(device: vkq.Device) -> None:
    """FULLY_CONNECTED of a vector gives a vector if it keeps the number of axes, otherwise one row."""
    w, given, weight = Writer(), numbers((6,)), numbers((4, 6), 1)
    x, vector, row = (w.tensor(shape, "float32") for shape in ((6,), (4,), (1, 4)))
    for y, keep in ((vector, 1), (row, 0)):
        w.operator(
            "FULLY_CONNECTED", [x, w.constant(weight)], [y], "FullyConnectedOptions", 5, keep_num_dims=keep
        )
    one, two = run(w, [x], [vector, row], device, given)
    assert (one.shape, two.shape) == ((4,), (1, 4))
    np.testing.assert_allclose(one, weight @ given, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(two[0], one)


def loop(count: int, computed: bool = False) -> bytes:
    """Return a model of y = W y + x, which a WHILE computes *count* times. The first y is x. The body is
    subgraph 1, the condition subgraph 2. *computed*: the condition is that an element of y is below 0."""
    w, weight = Writer(), w_constant()
    x, y, next_y, product = (w.tensor((1, 4), "float32") for _ in range(4))
    i, next_i = (w.tensor((), "int32") for _ in range(2))
    result, last, goes = w.tensor((1, 4), "float32"), w.tensor((), "int32"), w.tensor((), "bool")
    zero, one, most = (w.constant(np.array(v, np.int32)) for v in (0, 1, count))
    options = {"cond_subgraph_index": 2, "body_subgraph_index": 1}
    w.operator("WHILE", [zero, x, x], [last, result, w.tensor((1, 4), "float32")], "WhileOptions", **options)
    w.operator("FULLY_CONNECTED", [y, w.constant(weight)], [product], "FullyConnectedOptions")
    w.operator("ADD", [product, x], [next_y], "AddOptions")
    w.operator("ADD", [i, one], [next_i], "AddOptions")
    if computed:
        least = w.tensor((), "float32")
        w.operator("REDUCE_MIN", [y, w.constant(np.array([0, 1], np.int32))], [least], "ReducerOptions")
        w.operator("LESS", [least, w.constant(np.array(0, np.float32))], [goes])
    else:
        w.operator("LESS", [i, most], [goes])
    parts = ([x], [result], 0, 1), ([i, y, x], [next_i, next_y, x], 1, 4), ([i, y, x], [goes], 4, 9)
    graphs = [
        {"tensors": w.tensors, "inputs": a, "outputs": b, "operators": w.operators[m:n], "name": str(m)}
        for a, b, m, n in parts
    ]
    return w.file([], [], subgraphs=graphs)


def w_constant() -> np.ndarray:
    return (numbers((4, 4), 3) / 5).astype(np.float32)


def test_loops(device: vkq.Device) -> None:
    """A WHILE whose number of iterations is known runs on the device, with one copy of its weights. Other
    loops are refused."""
    x = numbers((1, 4))
    session = InferenceSession(loop(5), device)
    (got,) = session.run(None, {"t0": x})
    want = x.astype(np.float64)
    for _ in range(5):
        want = want @ w_constant().astype(np.float64).T + x
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    assert sum(array.shape == (4, 4) for array in session.model.constants.values()) == 1
    np.testing.assert_array_equal(InferenceSession(loop(0), device).run(None, {"t0": x})[0], x)
    with pytest.raises(vkq.ModelError, match="it has more than 256 iterations"):
        InferenceSession(loop(257), device)
    with pytest.raises(vkq.ModelError, match="the number of its iterations depends on data"):
        InferenceSession(loop(5, computed=True), device)


def test_nested_loops_end(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loops inside loops are refused if all their iterations together are too many."""
    monkeypatch.setattr("vkq.tflite.control.MOST_OPERATORS", 999)
    w = Writer()
    x, y = (w.tensor((2,), "float32") for _ in range(2))
    i, after, inner, last, result = (w.tensor((), "int32") for _ in range(5))
    zero, one, most = (w.constant(np.array(v, np.int32)) for v in (0, 1, 200))
    goes = w.tensor((), "bool")
    w.operator("WHILE", [zero], [last], "WhileOptions", cond_subgraph_index=3, body_subgraph_index=1)
    w.operator("NEG", [x], [y])
    w.operator("WHILE", [zero], [inner], "WhileOptions", cond_subgraph_index=3, body_subgraph_index=2)
    w.operator("ADD", [i, one], [after], "AddOptions")
    w.operator("ADD", [i, one], [result], "AddOptions")
    w.operator("LESS", [i, most], [goes])
    parts = ([x], [y, last], 0, 2), ([i], [after], 2, 4), ([i], [result], 4, 5), ([i], [goes], 5, 6)
    graphs = [
        {"tensors": w.tensors, "inputs": a, "outputs": b, "operators": w.operators[m:n], "name": str(m)}
        for a, b, m, n in parts
    ]
    with pytest.raises(vkq.ModelError, match="it runs more than 999 operators"):
        InferenceSession(w.file([], [], subgraphs=graphs), device)


def test_branches(device: vkq.Device) -> None:
    """Of an IF whose condition follows from the shape of x, only the branch that runs is planned."""
    w, options = Writer(), {"then_subgraph_index": 1, "else_subgraph_index": 2}
    x, y, inner, result = (w.tensor((2, 3), "float32") for _ in range(4))
    size, one, wide = w.tensor((2,), "int32"), w.tensor((1,), "int32"), w.tensor((1,), "bool")
    w.operator("SHAPE", [x], [size], "ShapeOptions", out_type=2)
    w.operator("SLICE", [size, *(w.constant(np.array([1], np.int32)) for _ in range(2))], [one])
    w.operator("GREATER", [one, w.constant(np.array([2], np.int32))], [wide])
    w.operator("IF", [wide, x], [result], "IfOptions", **options)
    w.operator("NEG", [y], [inner])
    w.operator("Something", [y], [inner])
    parts = ([x], [result], 0, 4), ([y], [inner], 4, 5), ([y], [inner], 5, 6)
    graphs = [
        {"tensors": w.tensors, "inputs": a, "outputs": b, "operators": w.operators[m:n], "name": str(m)}
        for a, b, m, n in parts
    ]
    given = numbers((2, 3))
    (got,) = InferenceSession(w.file([], [], subgraphs=graphs), device).run(None, {"t0": given})
    np.testing.assert_array_equal(got, -given)


def test_blocks_of_lines(device: vkq.Device) -> None:
    """SPACE_TO_BATCH_ND and its inverse are exact for 3 axes, as the converter writes them around a dilated
    Conv1D."""
    w, given = Writer(), numbers((2, 7, 5))
    x, middle, y = (w.tensor(shape, "float32") for shape in ((2, 7, 5), (6, 3, 5), (2, 8, 5)))
    block = w.constant(np.array([3], np.int32))
    margins, crops = (w.constant(np.array([pair], np.int32)) for pair in ((2, 0), (1, 0)))
    w.operator("SPACE_TO_BATCH_ND", [x, block, margins], [middle])
    w.operator("BATCH_TO_SPACE_ND", [middle, block, crops], [y])
    one, two = run(w, [x], [middle, y], device, given)
    wide = np.pad(given, ((0, 0), (2, 0), (0, 0)))
    np.testing.assert_array_equal(one, np.concatenate([wide[:, i::3] for i in range(3)]))
    np.testing.assert_array_equal(two, wide[:, 1:])


def test_slices_chosen(device: vkq.Device) -> None:
    """SELECT with one flag per slice selects along the first axis, also if the last axis has the
    same size."""
    w, a, b = Writer(), numbers((7, 5, 3, 7)), numbers((7, 5, 3, 7), 1)
    ends = [w.tensor(shape, "float32") for shape in ((7,), a.shape, b.shape, a.shape)]
    flags, zero = w.tensor((7,), "bool"), w.constant(np.zeros(7, np.float32))
    w.operator("GREATER", [ends[0], zero], [flags])
    w.operator("SELECT", [flags, *ends[1:3]], ends[3:])
    given = np.array([1, -1, -1, 1, 1, -1, 1], np.float32)
    (got,) = run(w, ends[:3], ends[3:], device, given, a, b)
    np.testing.assert_array_equal(got, np.where((given > 0)[:, None, None, None], a, b))
