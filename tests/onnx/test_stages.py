"""Tests of models that run in several parts or stages: branches, loops, sequences, and shapes that are
known only after an earlier part has run."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx
from vkq.onnx import alone
from vkq.onnx.fallback import FallbackWarning, Mixed
from vkq.onnx.prepared import Executable, Staged

from .networks import onnxruntime_results
from .test_operators import MICROSOFT, model

X = np.random.default_rng(0).standard_normal((2, 3, 5)).astype(np.float32)
FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
pytestmark = pytest.mark.filterwarnings("ignore::vkq.onnx.fallback.FallbackWarning")


def info(name: str, kind: int, shape: Any = ()) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(op: str, inputs: str, outputs: str = "y", **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), **attributes)


def branch(op: str, result: str, shape: Any = X.shape) -> Any:
    return helper.make_graph([node(op, "r", result)], op, [], [info(result, FLOAT, shape)])


def check(device: vkq.Device, data: bytes, *feeds: dict[str, np.ndarray]) -> Any:
    """Check that results for all feeds are close to ONNX Runtime's; return the last executable."""
    session = vkq.onnx.InferenceSession(data, device, fallback="onnxruntime")
    for feed in feeds:
        (got,), (want,) = session.run(None, feed), onnxruntime_results(data, feed)
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    assert "CPU" in str(session.explain()) or len(feeds[0]) > 1
    return list(session._executables.kept.values())[-1] if not session._unread else session._unread


@pytest.mark.parametrize("flag", [False, True])
def test_a_branch_that_an_input_decides(any_device: vkq.Device, flag: bool) -> None:
    """An If whose condition is an input becomes the nodes of the chosen branch, which run on the device."""
    nodes = [
        node("Relu", "x", "r"),
        node("If", "c", "b", then_branch=branch("Sinh", "t"), else_branch=branch("Cosh", "e")),
        node("Add", "b r"),
    ]
    data = model(nodes, {"c": np.array(flag), "x": X}, {}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    for c in (flag, not flag, flag):
        feed = {"c": np.array(c), "x": X}
        np.testing.assert_allclose(session.run(None, feed)[0], onnxruntime_results(data, feed)[0], rtol=1e-5)
    assert len(session._executables.kept) == 2  # one for each branch
    assert all(isinstance(made, Executable) for made in session._executables.kept.values())


def test_a_branch_that_data_decide(any_device: vkq.Device) -> None:
    """The condition of an If is computed first. Then the nodes of the chosen branch and all nodes after the
    If are planned, once for each branch, and run on the device. Values computed before the If are kept."""
    nodes = [
        node("Relu", "x", "r"), node("ReduceSum", "x", "s", keepdims=0), node("Less", "s zero", "c"),
        node("If", "c", "b", then_branch=branch("Sinh", "t"), else_branch=branch("Cosh", "e")),
        node("Add", "b r"),
    ]  # fmt: skip
    data = model(nodes, {"x": X}, {"zero": np.float32(0)}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    for x in (X - 9, X + 9, X - 8, X + 8):
        want = onnxruntime_results(data, {"x": x})[0]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], want, rtol=1e-5)
    (made,) = session._executables.kept.values()
    assert isinstance(made, Staged)
    (then,) = made._then.values()
    assert len(then.kept) == 2
    assert all(isinstance(one, Executable) for one in then.kept.values())


def test_a_loop_whose_results_grow(any_device: vkq.Device) -> None:
    carried = [info("k", BOOL), info("a", FLOAT, [2, 3, 5])]
    body = helper.make_graph(
        [node("Add", "a0 r", "a"), node("Identity", "k0", "k"), node("ReduceSum", "a", "s", keepdims=0)],
        "body", [info("i", INT), info("k0", BOOL), info("a0", FLOAT, [2, 3, 5])],
        [*carried, info("s", FLOAT)],
    )  # fmt: skip
    nodes = [
        node("Relu", "x", "r"),
        node("ReduceMax", "r", "m", keepdims=0),
        node("Cast", "m", "n", to=INT),
        helper.make_node("Loop", ["n", "", "r"], ["last", "sums"], body=body),
        node("Neg", "sums"),
    ]
    made = check(any_device, model(nodes, {"x": X}, {}, "float32"), {"x": X}, {"x": -X})
    assert isinstance(made, Staged)
    assert [one.op for one in made.later] == ["Neg"]


def test_what_follows_is_planned_when_its_shape_is_known(any_device: vkq.Device) -> None:
    """Nodes after NonZero are planned in each run, when the shape of its result is known."""
    nodes = [
        node("Round", "x", "r"),
        node("NonZero", "r", "i"),
        node("Transpose", "i", "t"),
        node("GatherND", "r t", "g"),
        node("Mul", "g g"),
    ]
    feeds = [{"x": X}, {"x": X * 0}, {"x": X + 1}]
    made = check(any_device, model(nodes, {"x": X}, {}, "float32"), *feeds)
    assert isinstance(made, Staged)
    assert "NonZero" in str(made.rest.why)
    assert [one.attributes["op"] for one in made.found] == ["NonZero"]


def test_sizes_of_shapes_are_constants_of_later_stages(any_device: vkq.Device) -> None:
    """Detectors divide the places of scores (NonZero) by the number of classes, which a Shape gives. With
    this number as a constant, the division runs on the device."""
    nodes = [
        node("Shape", "x", "n", start=2), node("Reshape", "x minus", "f"), node("NonZero", "f", "i"),
        node("Div", "i n", "j"), node("Mod", "i n", "k"), node("Sub", "j k"),
    ]  # fmt: skip
    feeds = [{"x": np.maximum(X, 0)}, {"x": np.maximum(-X, 0)}]
    made = check(any_device, model(nodes, feeds[0], {"minus": np.array([-1])}, "int64"), *feeds)
    (then,) = made._then.values()
    assert all(isinstance(one, Executable) for one in then.kept.values())


def test_a_length_that_the_device_counts(any_device: vkq.Device) -> None:
    """A Range whose length the device computes needs no fallback: a later stage reads the length."""
    nodes = [
        node("Max", "x zero", "m"),
        node("ReduceSum", "m", "s", keepdims=0),
        node("Range", "zero s one", "r"),
        node("Mul", "r r"),
    ]
    constants = {"zero": np.float32(0), "one": np.float32(1)}
    data = model(nodes, {"x": X}, constants, "float32")
    session = vkq.onnx.InferenceSession(data, any_device)
    for feed in ({"x": X}, {"x": X + 1}):
        np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(data, feed)[0])


def test_sequences_stay_on_the_cpu(any_device: vkq.Device) -> None:
    nodes = [
        node("SplitToSequence", "x one", "s", axis=1, keepdims=0),
        node("SequenceAt", "s one", "a"),
        node("Relu", "a"),
    ]
    made = check(any_device, model(nodes, {"x": X}, {"one": np.array(1)}, "float32"), {"x": X})
    assert [one.attributes["op"] for one in made.found] == ["SplitToSequence", "SequenceAt"]


def test_texts_run_whole_on_the_cpu(any_device: vkq.Device) -> None:
    encode = helper.make_node(
        "LabelEncoder", ["t"], ["y"], domain="ai.onnx.ml", keys_strings=["a", "b"], values_floats=[1.0, 2.0]
    )
    text = info("t", TensorProto.STRING, [2])
    graph = helper.make_graph([encode], "g", [text], [info("y", FLOAT, [2])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("ai.onnx.ml", 3)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=9).SerializeToString()
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    assert session.run(["y"], {"t": np.array(["b", "a"])})[0].tolist() == [2, 1]
    assert session.get_inputs()[0].type == "tensor(string)"
    assert session.run(["y"], {"t": ["b", "a"]})[0].tolist() == [2, 1]
    with pytest.raises(vkq.ModelError, match="'t' is of object"):
        vkq.onnx.InferenceSession(data, any_device)


def test_results_that_are_texts(any_device: vkq.Device) -> None:
    made = info("y", TensorProto.STRING, [2])
    graph = helper.make_graph([node("Identity", "t")], "g", [info("t", TensorProto.STRING, [2])], [made])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    assert session.run(None, {"t": np.array(["b", "a"])})[0].tolist() == ["b", "a"]


def test_operators_of_microsoft(any_device: vkq.Device) -> None:
    """An operator of com.microsoft that vkq lacks runs in the fallback. ONNX Runtime also infers its
    result's shape."""
    nodes = [
        node("Relu", "x", "r"),
        helper.make_node("Trilu", ["r"], ["g"], domain=MICROSOFT),
        node("Mul", "g g"),
    ]
    data = model(nodes, {"x": X}, {}, "float32")
    made = check(any_device, data, {"x": X})
    assert isinstance(made, Mixed)
    assert made.cpu_nodes == 1
    with pytest.raises(vkq.UnsupportedModelError, match=r"1 of 3 .*\n.*know the .* com.microsoft.Trilu"):
        vkq.onnx.InferenceSession(data, any_device)


def test_results_of_unknown_rank(any_device: vkq.Device) -> None:
    """ONNX Runtime shows the shape [] for scalars and for results of unknown rank, as those of
    scikit-learn's Scaler. The latter are planned once they are known."""
    scale = helper.make_node(
        "Scaler", ["x"], ["s"], domain="ai.onnx.ml", offset=[1.0, 2.0, 3.0], scale=[2.0, 3.0, 4.0]
    )
    proto = onnx.load_from_string(model([scale, node("Relu", "s")], {"x": X[:, :, 0]}, {}, "float32"))
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    made = check(any_device, proto.SerializeToString(), {"x": X[:, :, 0]}, {"x": X[:, :, 1]})
    assert [one.op for one in made.later] == ["Relu"]


def test_integers_for_a_part_on_the_cpu(any_device: vkq.Device) -> None:
    """scikit-learn's classifiers choose labels by ArrayFeatureExtractor. It takes only int64 indices, which
    the device stores as int32."""
    labels = helper.make_node("ArrayFeatureExtractor", ["labels", "i"], ["z"], domain="ai.onnx.ml")
    nodes = [node("ArgMax", "x", "i", axis=1, keepdims=0), labels, node("Relu", "z")]
    feed = {"x": X[:, :, 0]}
    data = model(nodes, feed, {"labels": np.array([4.0, 5.0, 6.0], np.float32)}, "float32")
    proto = onnx.load_from_string(data)
    proto.opset_import.append(helper.make_opsetid("ai.onnx.ml", 1))
    assert isinstance(check(any_device, proto.SerializeToString(), feed), Staged)


@pytest.mark.parametrize("installed", [True, False])
def test_unknown_operators_on_constants_are_computed_at_load(
    any_device: vkq.Device, installed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Operators that vkq lacks are folded at load if their inputs are constants, as in the pads of a Swin.
    ONNX Runtime computes them, or onnx's reference implementation if ONNX Runtime is not installed."""
    if not installed:
        monkeypatch.setitem(__import__("sys").modules, "onnxruntime", None)
    nodes = [
        node("Shape", "x", "sh"),
        node("Mod", "sh two", "m"),
        node("Concat", "none m", "pads", axis=0),
        node("Pad", "x pads"),
    ]
    data = model(nodes, {"x": X}, {"two": np.full(3, 2), "none": np.zeros(3, np.int64)}, "float32")
    got = vkq.onnx.InferenceSession(data, any_device).run(None, {"x": X})[0]
    np.testing.assert_array_equal(got, np.pad(X, ((0, 0), (0, 1), (0, 1))))


def test_arithmetic_on_constants_ends(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constant folding stops an endless Loop, which then counts as a node that cannot run. Random numbers
    are not folded."""
    monkeypatch.setattr(alone, "SECONDS", 0.2)
    body = helper.make_graph(
        [node("Identity", "k0", "k"), node("Mul", "a0 a0", "a")], "body",
        [info("i", INT), info("k0", BOOL), info("a0", FLOAT)], [info("k", BOOL), info("a", FLOAT)],
    )  # fmt: skip
    loop = helper.make_node("Loop", ["", "on", "one"], ["l"], body=body)
    constants = {"on": np.array(True), "one": np.float32(1)}
    data = model([loop, node("Add", "x l")], {"x": X}, constants, "float32")
    with pytest.raises(vkq.UnsupportedModelError, match="1 of 2 nodes"):
        vkq.onnx.InferenceSession(data, any_device)
    noise = model([node("RandomNormal", "", "n", shape=[5]), node("Add", "x n")], {"x": X}, {}, "float32")
    session = vkq.onnx.InferenceSession(noise, any_device, fallback="onnxruntime")
    assert not np.array_equal(*(session.run(None, {"x": X})[0] for _ in range(2)))


def test_sessions_on_the_cpu_serve_all_shapes(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = []
    real = vkq.onnx.part.cpu_session
    monkeypatch.setattr(vkq.onnx.part, "cpu_session", lambda *a: made.append(1) or real(*a))
    nodes = [
        node("Relu", "x", "r"),
        node("SampleOp", "r", "s", domain=MICROSOFT),
        node("Flatten", "s", "f", axis=2),
        node("SampleOp", "f", domain=MICROSOFT),
    ]
    proto = helper.make_graph(nodes, "g", [info("x", FLOAT, ["a", "b", 5])], [info("y", FLOAT, ["c", 5])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MICROSOFT, 1)]
    data = helper.make_model(proto, opset_imports=opsets, ir_version=9)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    for x in (X, X[:1], X[:, :2]):
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.maximum(x, 0).reshape(-1, 5), rtol=0)
    assert len(made) == 2  # one for each SampleOp, whatever the number of shapes


def test_half_precision_normalization(any_device: vkq.Device) -> None:
    """LayerNormalization of float16 is computed in float32 before the scale, as ONNX defines, and is close
    to ONNX Runtime's."""
    x = X.astype(np.float16)
    constants = {"g": np.linspace(1, 2, 5, dtype=np.float16), "b": np.ones(5, np.float16)}
    data = model([node("LayerNormalization", "x g b")], {"x": x}, constants, "float16")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    got, want = session.run(None, {"x": x})[0], onnxruntime_results(data, {"x": x})[0]
    assert got.dtype == np.float16
    np.testing.assert_allclose(got, want, rtol=2**-9, atol=2**-9)  # scale and bias may nearly cancel


@pytest.mark.parametrize("sizes", [(-1, 3, -1, -1), ("?", 3, "?", "?")], ids=["-1", "question"])
def test_open_sizes_of_paddle(any_device: vkq.Device, sizes: tuple[Any, ...]) -> None:
    """In Paddle's models several sizes named "?" may differ."""
    graph = helper.make_graph([node("Relu", "x")], "g", [info("x", FLOAT, sizes)], [info("y", FLOAT, sizes)])
    data = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    session = vkq.onnx.InferenceSession(data, any_device)
    assert session.get_inputs()[0].shape == [None, 3, None, None]
    x = np.random.default_rng(0).standard_normal((2, 3, 4, 7)).astype(np.float32)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.maximum(x, 0))


def test_sizes_of_a_resize_that_the_cpu_runs(any_device: vkq.Device) -> None:
    """The size of a Resize is a float32 product, as in ONNX Runtime: 0.7 * 30 is 21. In float64, the product
    is less than 21, because the float32 number 0.7 is less than 0.7."""
    x = np.random.default_rng(0).integers(0, 256, (1, 30, 4, 3)).astype(np.uint8)
    scales = {"none": np.zeros(0, np.float32), "scales": np.float32([1, 0.7, 1, 1])}
    # the device interpolates bytes along the last two axes only
    nodes = [node("Resize", "x none scales", "r", mode="linear"), node("Cast", "r", to=FLOAT)]
    data = model(nodes, {"x": x}, scales, "float32")
    check(any_device, data, {"x": x})
    assert onnxruntime_results(data, {"x": x})[0].shape == (1, 21, 4, 3)


def test_dead_nodes_may_be_anything(any_device: vkq.Device) -> None:
    nodes = [node("Relu", "x"), node("Reshape", "x far", "dead"), node("Conv", "x x x", "dead2")]
    data = model(nodes, {"x": X}, {"far": np.array([7, 7])}, "float32")
    got = vkq.onnx.InferenceSession(data, any_device).run(None, {"x": X})[0]
    np.testing.assert_array_equal(got, np.maximum(X, 0))


def test_what_neither_can_run_is_told(any_device: vkq.Device) -> None:
    """If neither vkq nor the fallback can run a node, the error gives vkq's reason."""
    own = helper.make_node("Own", ["x"], ["y"], domain="mine")
    graph = helper.make_graph([own], "g", [info("x", FLOAT, [2])], [info("y", FLOAT, [2])])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("mine", 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=9)
    with pytest.raises(vkq.ModelError, match=r"know the operator mine\.Own"):
        vkq.onnx.InferenceSession(data, any_device)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.raises(vkq.ModelError, match=r"know the operator mine\.Own.*ONNX Runtime refuses"):
        session.run(None, {"x": X[0, 0, :2]})


def test_the_last_resort_is_the_whole_model(any_device: vkq.Device) -> None:
    """If parts cannot run (here a later stage reads a sequence), the fallback runs the whole model."""
    nodes = [
        node("NonZero", "x", "i"),
        node("SplitToSequence", "i one", "s", axis=1),
        node("Cast", "i", "f", to=FLOAT),
        node("ReduceMax", "f", "m", keepdims=0),
        node("Cast", "m", "at", to=INT),
        node("SequenceAt", "s at", "a"),
        node("Cast", "a", to=FLOAT),
    ]
    feed = {"x": np.abs(X) + 1}
    data = model(nodes, feed, {"one": np.array(1)}, "float32")
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning, match="whole model"):
        got = session.run(None, feed)[0]
    np.testing.assert_array_equal(got, onnxruntime_results(data, feed)[0])


def test_a_shape_that_no_stage_finds_is_an_error(any_device: vkq.Device) -> None:
    """An Expand to sizes that are floats raises an error. Otherwise each stage would leave it to the next
    stage, without end."""
    constants = {"q": np.array([2, 3], np.int8), "s": np.float32(1), "z": np.int8(0)}
    nodes = [node("Relu", "x", "r"), node("DequantizeLinear", "q s z", "sizes"), node("Expand", "r sizes")]
    session = vkq.onnx.InferenceSession(model(nodes, {"x": X[0, :1, :3]}, constants, "float32"), any_device)
    with pytest.raises(vkq.ModelError, match=r"Expand .*input 1 must be a constant"):
        session.run(None, {"x": X[0, :1, :3]})
