"""Tests of integers that are known only at run time: token ids, masks and positions."""

from __future__ import annotations

import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from vkq.bench.network import Network
from vkq.cli import main
from vkq.graph.graph import Graph, Node, Spec
from vkq.graph.passes.types import hold_types
from vkq.onnx.cpu_model import CpuModel
from vkq.ops.linear import Linear

from . import islands
from .networks import onnxruntime_results
from .test_operators import check, model
from .texts import WORDS, Bert, quantized, text


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return quantized(Bert(1).model(), tmp_path_factory.mktemp("bert"))


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def test_a_text_is_data(any_device: vkq.Device, bert: bytes) -> None:
    """Token ids are data: texts of equal length share a plan, and texts of any length share the layers."""
    session = vkq.onnx.InferenceSession(bert, any_device)
    for batch, length, seed in ((1, 7, 0), (1, 7, 1), (2, 11, 2), (1, 1, 3), (1, 7, 4)):
        feed = text(batch, length, seed)
        np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(bert, feed)[0])
    made = list(session._executables.kept.values())
    assert len(made) == 3
    layers = {id(one) for one in session._executables.layers.values() if isinstance(one, Linear)}
    session.run(None, text(1, 6))
    assert layers == {id(one) for one in session._executables.layers.values() if isinstance(one, Linear)}
    explained = session.explain(dict.fromkeys(feed, (1, 7)))
    assert {row.where for row in explained.rows} == {"device"}
    # The third Gather, of positions, is folded.
    assert sum(row.operator == "Gather" for row in explained.rows) == 2
    assert "the host" not in str(explained)


def test_ids_beyond_the_rows_are_refused(any_device: vkq.Device, bert: bytes) -> None:
    session = vkq.onnx.InferenceSession(bert, any_device)
    feed = text(1, 5)
    feed["input_ids"][0, 3] = WORDS
    with pytest.raises(vkq.ArgumentError, match=rf"'input_ids' .* to {WORDS}; .* -{WORDS} to {WORDS - 1}"):
        session.run(None, feed)
    feed["input_ids"][0, 3] = 1 << 31
    with pytest.raises(vkq.ArgumentError, match=r"'input_ids' holds \d+ to 2147483648; .*must fit int32"):
        session.run(None, feed)
    feed["input_ids"][0, 3] = -WORDS  # counts from the end of the table
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(bert, feed)[0])


def test_int32_ids_are_checked(any_device: vkq.Device) -> None:
    """A model whose integer inputs are all int32 refuses ids beyond the table's rows. It does not check
    integers that no operator reads as ids."""
    table = np.arange(12, dtype=np.float32).reshape(4, 3)
    fed = {"ids": np.int32([0, 3, -1]), "numbers": np.int32([-(2**31), 2**31 - 1, 5])}
    nodes = [node("Gather", "table ids", "rows", axis=0), node("Max", "numbers numbers", "most")]
    nodes += [node("Cast", "most", "reals", to=1), node("Add", "rows reals")]
    data = model(nodes, fed, {"table": table}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    (y,) = session.run(None, fed)
    np.testing.assert_array_equal(y, table[fed["ids"]] + np.maximum(*[fed["numbers"]] * 2).astype(np.float32))
    assert session.lowered({x: a.shape for x, a in fed.items()}).bounds == {"ids": (-4, 3)}
    with pytest.raises(vkq.ArgumentError, match=r"'ids' holds 0 to 4; this model takes -4 to 3"):
        session.run(None, fed | {"ids": np.int32([0, 4, 1])})


@pytest.mark.parametrize("ids", ["int32", "int64"])
@pytest.mark.parametrize("dtype", ["float32", "int32", "int8", "uint8"])
@pytest.mark.parametrize(
    ("shape", "axis", "count"),
    [((7, 5), 0, (2, 3)), ((3, 4, 6), 1, ()), ((2, 3, 2, 9), -1, (5,)), ((3,), 0, (0,))],
)
def test_rows_are_chosen_by_numbers_of_the_run(
    device: vkq.Device, shape: tuple[int, ...], axis: int, count: tuple[int, ...], dtype: str, ids: str
) -> None:
    r = np.random.default_rng(5)
    x, size = r.integers(-100, 100, shape).astype(np.int8).astype(dtype), shape[axis]
    feed = {"x": x, "i": r.integers(-size, size, count).astype(ids)}
    check(device, model([node("Gather", "x i", axis=axis)], feed, {}, dtype), feed)


def test_rows_of_a_quantized_table_stay_in_8_bits(any_device: vkq.Device) -> None:
    """A quantized embedding table is not copied to float32: Gather returns 8-bit rows, which are then
    dequantized."""
    table = np.random.default_rng(0).integers(-128, 128, (50, 6)).astype(np.int8)
    constants = {"w": table, "s": np.float32(0.1), "z": np.int8(3)}
    feed = {"i": np.array([[0, 49, -1]])}
    data = model([node("DequantizeLinear", "w s z", "d"), node("Gather", "d i")], feed, constants, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])
    (made,) = session._executables.kept.values()
    assert [one.op for one in made.graph.nodes] == ["Gather", "dequantize"]
    assert {a.dtype.name for a in made.graph.constants.values()} == {"int8"}


def integers(*nodes: Node, **constants: Any) -> Graph:
    """Return a graph of these nodes from x to y, in which every value is int64, as before any pass."""
    arrays = {name: np.asarray(v, np.int64) for name, v in constants.items()}
    specs = {"x": Spec("int64", (2, 3))} | {name: Spec.of(v) for name, v in arrays.items()}
    specs |= {name: Spec("int64", (2, 3)) for one in nodes for name in one.outputs}
    return Graph(["x"], ["y"], list(nodes), arrays, specs)


@pytest.mark.parametrize(
    ("nodes", "constants", "bound"),
    [
        ([Node("Add", ("x", "c"), ("y",))], {"c": 1}, (-(1 << 24), (1 << 24) - 1)),
        ([Node("Add", ("x", "c"), ("y",))], {"c": 0}, (-(1 << 31), (1 << 31) - 1)),
        ([Node("Mul", ("x", "x"), ("y",))], {}, (-(1 << 15), (1 << 15) - 1)),
        (
            [Node("Neg", ("x",), ("a",)), Node("Max", ("a", "c"), ("y",))],
            {"c": 5},
            (-(1 << 24), (1 << 24) - 1),
        ),
        ([Node("Gather", ("c", "x"), ("y",))], {"c": range(9)}, (-9, 8)),
        (
            [
                Node("CumSum", ("x", "c"), ("a",)),
                Node("Mul", ("a", "x"), ("b",)),
                Node("Mul", ("b", "x"), ("y",)),
            ],
            {"c": 1},
            (-(1 << 8), (1 << 8) - 1),
        ),
    ],
    ids=["plus one", "plus zero", "square", "negative", "rows", "positions"],
)
def test_inputs_are_bounded_so_that_int32_holds(
    nodes: list[Node], constants: dict[str, Any], bound: tuple[int, int]
) -> None:
    held = hold_types(integers(*nodes, **constants))
    assert held.bounds == {"x": bound}
    assert {held.specs[name].dtype for one in held.nodes for name in one.outputs} == {"int32"}


def test_arithmetic_that_could_leave_int32_stays_wide() -> None:
    nodes = [Node("Mul", ("x", "c"), ("y",), {}, "far")]
    held = hold_types(integers(*nodes, c=1 << 40))
    assert [one.op for one in held.nodes] == ["Cast", "Mul"]
    assert "may exceed int32" in held.nodes[0].attributes["why"]
    assert held.specs["y"].dtype == "int64"
    assert held.bounds == {"x": (-(1 << 31), (1 << 31) - 1)}  # no narrower range would help


def test_wide_arithmetic_is_refused_by_name_or_the_fallbacks(any_device: vkq.Device) -> None:
    nodes = [node("Mul", "x c", "m"), node("Div", "m c", "d"), node("Cast", "d", to=1)]
    feed = {"x": np.array([3, -7])}
    data = model(nodes, feed, {"c": np.array(1 << 40)}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(vkq.onnx.fallback.FallbackWarning):
        assert session.run(None, feed)[0].tolist() == [3, -7]


def test_what_the_host_computes_is_counted(any_device: vkq.Device) -> None:
    """The host computes integers that a device cannot compute. The input x then counts as a constant, and
    `explain` says so."""
    nodes = [node("Mul", "x c", "m"), node("Div", "m c", "d"), node("Cast", "d", to=1)]
    feed = {"x": np.array([3, -7])}
    data = model(nodes, feed, {"c": np.array(1 << 40)}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    with pytest.warns(vkq.onnx.ConstantInputWarning, match="int32"):
        assert session.run(None, feed)[0].tolist() == [3, -7]
    assert "3 nodes depend on ['x'] alone, which count as constants: the host" in str(session.explain())


def test_a_refused_node_makes_its_own_inputs_constants(any_device: vkq.Device) -> None:
    """One warning names a node that the device refuses and the inputs on which it depends. Only these inputs
    count as constants. constant_inputs accepts this without a warning."""
    nodes = [node("Mul", "x c", "m"), node("Div", "m c", "d"), node("Gather", "w i", "g"), node("Add", "g d")]
    constants = {"c": np.array(1 << 40), "w": np.arange(6)}
    feeds = [{"x": np.array([x, -7]), "i": np.array([i, 0])} for x, i in ((3, 1), (3, 2), (4, 5))]
    data = model(nodes, feeds[0], constants, "int64")
    session = vkq.onnx.InferenceSession(data, any_device)
    said = r"Mul.*may exceed int32.* the values of \['x'\] count as constants.*fallback='onnxruntime'"
    with pytest.warns(vkq.onnx.ConstantInputWarning, match=said) as told:
        got = [session.run(None, feed)[0].tolist() for feed in feeds]
    assert got == [[4, -7], [5, -7], [9, -7]]
    assert len(told) == 1
    assert session._constant == {"x"}
    assert len(session._executables.kept) == 2
    stated = vkq.onnx.InferenceSession(data, any_device, constant_inputs=["x"])
    assert stated.run(None, feeds[2])[0].tolist() == [9, -7]


def test_lengths_of_a_run_decide_a_shape(any_device: vkq.Device) -> None:
    """An input whose values decide a shape counts as a constant in each run. An input of ids does not."""
    nodes = [node("Slice", "w zero n", "rows"), node("Gather", "rows i")]
    constants = {"w": np.arange(12, dtype=np.float32).reshape(6, 2), "zero": np.array([0])}
    feed = {"n": np.array([4]), "i": np.array([3, 0])}
    data = model(nodes, feed, constants, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    for n, i in ((4, [3, 0]), (4, [1, 1]), (6, [5, 2])):
        given = {"n": np.array([n]), "i": np.array(i)}
        np.testing.assert_array_equal(session.run(None, given)[0], constants["w"][:n][i])
    assert session._constant == {"n"}
    assert len(session._executables.kept) == 2


def test_inspect_says_what_a_session_does(
    bert: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`vkq inspect` reports what a session does: ids are data, every node runs on the device, and the host
    computes integers that a device does not support."""
    (tmp_path / "bert.onnx").write_bytes(bert)
    assert main(["inspect", str(tmp_path / "bert.onnx")]) == 0
    said = capsys.readouterr().out
    assert "nowhere" not in said
    assert "input   input_ids: int64['batch', 'length'], here [1, 32]" in said
    nodes = [node("Mul", "x c", "m"), node("Div", "m c", "d"), node("Cast", "d", to=1)]
    data = model(nodes, {"x": np.array([3, -7])}, {"c": np.array(1 << 40)}, "float32")
    (tmp_path / "wide.onnx").write_bytes(data)
    assert main(["inspect", str(tmp_path / "wide.onnx")]) == 0
    said = capsys.readouterr().out
    assert "host    Mul" in said
    assert "3 nodes depend on ['x'] alone" in said


def test_a_model_of_texts_is_measured(bert: bytes, tmp_path: Path, any_device: vkq.Device) -> None:
    """The benchmark draws integer inputs that are valid row numbers of the table that they index, or that
    are in the range of --ids."""
    (tmp_path / "bert.onnx").write_bytes(bert)
    path = str(tmp_path / "bert.onnx")
    shapes = [f"{name}=2x9" for name in text(1, 1)]
    found = Network(path, None, any_device, None, shapes, ["attention_mask=1:2"])
    assert found.feed["input_ids"].shape == (2, 9)
    assert 2 < found.feed["input_ids"].max() < WORDS
    assert found.feed["attention_mask"].min() == found.feed["token_type_ids"].max() == 1
    assert found.wrong(found.executable.run(found.held), found.expected()[0]) == 0
    assert "--ids attention_mask=1:2" in found.command
    for wrong, rule in ((["input_ids=5"], "NAME=LOW:HIGH"), (["other=0:2"], "names .'other'")):
        with pytest.raises(vkq.ArgumentError, match=rule):
            Network(path, None, any_device, None, shapes, wrong)


ARITHMETIC: dict[str, list[Any]] = {
    "sums": [node("Mul", "i i", "m"), node("Sub", "m i", "s"), node("Max", "s c", "x"), node("Neg", "x")],
    "quotients": [node("Div", "i c", "d"), node("Mod", "i c", "m"), node("Add", "d m")],
    "along an axis": [node("Concat", "i i", "j", axis=1), node("Abs", "j")],
    "sums of rows": [node("ReduceSum", "i axis", keepdims=0)],
}


@pytest.mark.parametrize("nodes", ARITHMETIC.values(), ids=ARITHMETIC.keys())
def test_whole_numbers(any_device: vkq.Device, nodes: list[Any]) -> None:
    """Integer arithmetic runs on the device: int64 inputs are stored as int32, and results are
    int64 again."""
    feed = {"i": np.random.default_rng(0).integers(-50, 50, (3, 5))}
    data = model(nodes, feed, {"c": np.array(7), "axis": np.array([1])}, "int64")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", vkq.onnx.fallback.FallbackWarning)
        (got,) = session.run(None, feed)
    np.testing.assert_array_equal(got, onnxruntime_results(data, feed)[0])
    assert got.dtype == np.int64
    assert not session._constant
    assert not isinstance(next(iter(session._executables.kept.values())), CpuModel)


POSITIONS: dict[str, list[Any]] = {  # RoBERTa's, OPT's and CLIP's
    "of words": [
        node("Equal", "i pad", "e"), node("Not", "e", "n"), node("Cast", "n", "m", to=6),
        node("CumSum", "m one", "s"), node("Mul", "s m", "p"), node("Cast", "p", "w", to=7),
        node("Add", "w pad", "q"), node("Gather", "table q"),
    ],
    "of a mask": [
        node("CumSum", "i one", "s"), node("Mul", "s i", "p"), node("Add", "p pad", "q"),
        node("Gather", "table q"),
    ],
    "of the largest id": [
        node("Cast", "i", "n", to=6), node("ArgMax", "n", "q", axis=1), node("Gather", "table q"),
    ],
    "of a choice": [
        node("Equal", "i pad", "e"), node("Where", "e one pad", "q"), node("Gather", "table q"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("nodes", POSITIONS.values(), ids=POSITIONS.keys())
def test_positions_are_counted_on_the_device(device: vkq.Device, nodes: list[Any]) -> None:
    """Positions that a model counts from ids or a mask are rows of a table, without a fallback. The ids do
    not become constants, so a new text prepares nothing."""
    constants = {
        "pad": np.array(2),
        "one": np.array(1),
        "table": np.arange(60, dtype=np.float32).reshape(20, 3),
    }
    feed = {"i": np.array([[1, 1, 1, 0, 1], [0, 1, 1, 1, 2]])}
    data = model(nodes, feed, constants, "float32")
    session = vkq.onnx.InferenceSession(data, device)
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])
    assert not session._constant


def test_a_mask_narrows_no_ids(any_device: vkq.Device) -> None:
    """A product of a mask and its sums narrows the range of the mask alone."""
    nodes = [node("CumSum", "m one", "s"), node("Mul", "s m", "p"), node("Gather", "table p", "rows")]
    nodes += [node("Cast", "i", "f", to=1), node("Add", "rows f")]
    feed = {"m": np.array([[1, 1, 0]]), "i": np.array([[1 << 30, 2, 3]])}
    constants = {"one": np.array(1), "table": np.arange(5, dtype=np.float32)}
    data = model(nodes, feed, constants, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])
    assert not session._constant


@pytest.mark.parametrize("fallback", [None, "onnxruntime"])
def test_large_numbers_are_computed_on_the_host(any_device: vkq.Device, fallback: str | None) -> None:
    """Numbers for which int64 arithmetic would overflow int32 count as constants from then on."""
    nodes = [node("Mul", "i i", "a"), node("Mul", "a i", "b"), node("Cast", "b", to=1)]
    feed = {"i": np.array([3, -200, 255])}
    data = model(nodes, feed, {}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device, fallback=fallback)
    for numbers, constant in (([3, -200, 255], set[str]()), ([3, -700, 2000], {"i"}), ([1, 2, 3], {"i"})):
        (got,) = session.run(None, {"i": np.array(numbers)})
        assert got.tolist() == [x**3 for x in numbers]
        assert session._constant == constant


FLAGS: dict[str, list[Any]] = {
    "Not": [node("Not", "b", "n"), node("And", "n d", "a"), node("Where", "a x zero")],
    "Greater": [node("Greater", "i c", "g"), node("Where", "g zero x")],
    "Cast": [node("Cast", "i", "g", to=9), node("Where", "g x zero")],
    "IsNaN": [node("IsNaN", "x", "g"), node("Where", "g zero x")],
    "of flags": [node("Cast", "b", "f", to=1), node("Sub", "one f", "s"), node("Mul", "s x")],
}


@pytest.mark.parametrize("nodes", FLAGS.values(), ids=FLAGS.keys())
def test_masks(device: vkq.Device, nodes: list[Any]) -> None:
    """Operators on run-time flags, and Where with such flags as its condition, give ONNX Runtime's
    results on the device."""
    r = np.random.default_rng(1)
    feed = {
        "x": np.where(r.random((3, 5)) < 0.2, np.nan, r.standard_normal((3, 5))).astype(np.float32),
        "i": r.integers(-9, 9, (3, 5)),
        "b": r.integers(0, 2, (3, 5)).astype(bool),
        "d": r.integers(0, 2, (3, 5)).astype(bool),
    }
    read = {name for one in nodes for name in one.input}
    used = {name: x for name, x in feed.items() if name in read}
    constants = {"zero": np.float32(0), "one": np.float32(1), "c": np.array(2)}
    data = model(nodes, used, constants, "float32")
    session = vkq.onnx.InferenceSession(data, device)
    np.testing.assert_array_equal(session.run(None, used)[0], onnxruntime_results(data, used)[0])
    assert not session._constant


@pytest.mark.parametrize("inputs", ["b f", "f g", "g f b", "b k", "g k", "k f"])
def test_flags_one_after_the_other(device: vkq.Device, inputs: str) -> None:
    """Concatenations of flags have ONNX Runtime's order, also if a Where reads them. Operands are an input,
    its negation, a comparison of floats, and constants."""
    feed = {"b": np.array([[1, 0, 1], [0, 0, 1]], bool), "x": np.float32([[1, -1, 0], [2, 3, -4]])}
    count = len(inputs.split())
    nodes = [
        node("Not", "b", "f"), node("Greater", "x zero", "g"), node("Concat", inputs, "c", axis=1),
        node("Tile", "x wide", "wider"), node("Where", "c wider zero"),
    ]  # fmt: skip
    constants = {
        "zero": np.float32(0),
        "k": np.array([[1, 1, 0], [0, 1, 0]], bool),
        "wide": np.array([1, count]),
    }
    check(device, model(nodes, feed, constants, "float32"), feed)
    check(device, model([*nodes[:2], node("Concat", inputs, axis=0)], feed, constants, "bool"), feed)


def test_whole_numbers_made_of_floats_are_refused_by_name(any_device: vkq.Device) -> None:
    """The error for integers cast from floats names the Cast, because the range of its result is known
    only at run time. With a fallback, the fallback runs the Cast, and later nodes run on the device."""
    feed = {"x": np.float32([[1.7, -3e9, 4e9]])}
    # Casts to int64 and to float32.
    nodes = [node("Abs", "x", "a"), node("Cast", "a", "i", to=7), node("Cast", "i", to=1)]
    data = model(nodes, feed, {}, "float32")
    with pytest.raises(vkq.onnx.ModelError, match=r"made of float32 may exceed int32.*: cast to int32"):
        vkq.onnx.InferenceSession(data, any_device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
        (got,) = session.run(None, feed)
    np.testing.assert_array_equal(got, onnxruntime_results(data, feed)[0])


def test_islands(any_device: vkq.Device) -> None:
    """Random graphs give ONNX Runtime's results; `python -m tests.onnx.islands 5000` runs more of them."""
    for seed in range(25):
        islands.attempt(any_device, seed)
    assert islands.attempt(any_device, 1872) == "Mixed"  # a CPU result decides flags on the device


def test_another_length_costs_its_plan_alone(
    any_device: vkq.Device, bert: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new text of the same length lowers no graph. A new length makes a plan, but does not read the model
    again and makes no layer."""
    session = vkq.onnx.InferenceSession(bert, any_device)
    session.run(None, text(1, 7))
    count = Counter[str]()

    def counted(where: Any, name: str) -> None:
        real = getattr(where, name)
        monkeypatch.setattr(where, name, lambda *a, **k: (count.update([name]), real(*a, **k))[1])

    counted(vkq.onnx.prepared, "lower")
    counted(vkq.onnx.session, "read")
    counted(Linear, "__init__")
    session.run(None, text(1, 7, 1))
    assert not count
    session.run(None, text(2, 5, 2))
    assert count == {"lower": 1}
