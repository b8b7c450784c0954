"""Tests of typical uses of sessions: names, shapes, threads, processes, `map`, reports, and the fallback."""

import pickle
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest
from onnx import helper

import vkq
import vkq.onnx
from tests.onnx.networks import KINDS, Net, onnxruntime_results, quantized
from tests.runtime.work import counted, failing
from vkq.graph.executable import Executable
from vkq.kernels import binary
from vkq.numerics.elementwise import binary_table
from vkq.onnx.fallback import FallbackWarning
from vkq.runtime.plan import Resident


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def resnet(folder: Path) -> bytes:
    """Return a quantized residual network with a variable batch size."""
    net = Net(seed=3)
    results = KINDS["resnet"](net)
    return quantized(net.model(*results, batch="N"), "qdq_int8", folder, net.shape)


@pytest.fixture(scope="module")
def filter_(folder: Path) -> bytes:
    """Return a quantized fully convolutional model with variable sizes."""
    net = Net(seed=4)
    result = net.conv(net.relu(net.conv("x", 6)), 3)
    proto = net.model(result)
    for i, name in enumerate(("N", None, "H", "W")):
        if name:
            proto.graph.input[0].type.tensor_type.shape.dim[i].dim_param = name
    del proto.graph.value_info[:]
    proto.graph.output[0].type.tensor_type.ClearField("shape")
    return quantized(proto, "qdq_uint8", folder, net.shape)


def images(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 1.2, shape).astype(np.float32)


def test_as_onnxruntime(any_device: vkq.Device, resnet: bytes, folder: Path) -> None:
    path = folder / "resnet.onnx"
    path.write_bytes(resnet)
    session = vkq.onnx.InferenceSession(path, any_device)
    (x,), (y,) = session.get_inputs(), session.get_outputs()
    assert (x.name, x.type, x.shape) == ("x", "tensor(float)", ["N", 3, 16, 16])
    assert y.type == "tensor(float)"
    feed = {"x": images(2, 3, 16, 16)}
    want = onnxruntime_results(resnet, feed)
    np.testing.assert_array_equal(session.run([y.name], feed)[0], want[0])
    np.testing.assert_array_equal(vkq.onnx.load(resnet, any_device).run(None, feed)[0], want[0])


def test_pipelines_are_made_together_and_counted(device: vkq.Device, resnet: bytes) -> None:
    told: list[tuple[int, int]] = []
    with vkq.Device(device.name) as fresh:
        session = vkq.onnx.InferenceSession(resnet, fresh, progress=lambda *now: told.append(now))
        for _ in range(2):
            session.run(None, {"x": images(1, 3, 16, 16)})
    count = len(told)
    assert count >= 4
    assert told == [(i, count) for i in range(1, count + 1)], "once, at the first run"


def test_every_batch_and_size(any_device: vkq.Device, resnet: bytes, filter_: bytes) -> None:
    session = vkq.onnx.InferenceSession(resnet, any_device)
    for batch in (1, 3, 2, 1):
        feed = {"x": images(batch, 3, 16, 16, seed=batch)}
        np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(resnet, feed)[0])
    layers = dict(session._executables.layers)
    session.run(None, {"x": images(5, 3, 16, 16)})
    assert session._executables.layers == layers, "weights are shared between batches"
    session = vkq.onnx.InferenceSession(filter_, any_device)
    for size in ((16, 16), (7, 33), (1, 1)):
        feed = {"x": images(1, 3, *size)}
        np.testing.assert_array_equal(session.run(None, feed)[0], onnxruntime_results(filter_, feed)[0])


def test_the_least_recently_used_shape_goes(any_device: vkq.Device, filter_: bytes) -> None:
    """If the executables of all shapes take more memory than the limit, the session drops the least
    recently used executables. It always keeps one executable."""
    session = vkq.onnx.InferenceSession(filter_, any_device)
    made = session._executables

    def run(*widths: int) -> list[int]:
        for width in widths:
            session.run(None, {"x": images(1, 3, 4, width)})
        return [one.plan.inputs[0].shape[3] for one in made.kept.values()]

    assert run(*range(1, 21)) == [*range(1, 21)]
    made.limit = sum(one.memory_of_its_own()[0] for one in list(made.kept.values())[-3:])
    assert run(1, 18) == [*range(2, 18), 19, 20, 1, 18]  # all of them exist, so none is dropped
    assert run(5, 40)[-1] == 40
    assert 1 <= len(made.kept) <= 3
    made.limit = 0
    assert run(41) == [41]


def test_wrong_inputs(any_device: vkq.Device, resnet: bytes) -> None:
    session = vkq.onnx.InferenceSession(resnet, any_device)
    with pytest.raises(vkq.ArgumentError, match=r"inputs are given for \['a'\]; the model takes \['x'\]"):
        session.run(None, {"a": images(1)})
    with pytest.raises(vkq.DTypeError, match="input 'x' is float64; it must be float32"):
        session.run(None, {"x": np.zeros((1, 3, 16, 16))})
    with pytest.raises(vkq.ArgumentError, match=r"shape \(1, 3, 16\); it must be \['N', 3, 16, 16\]"):
        session.run(None, {"x": images(1, 3, 16)})
    with pytest.raises(vkq.ArgumentError, match=r"there are no outputs \['z'\]"):
        session.run(["z"], {"x": images(1, 3, 16, 16)})
    with pytest.raises(vkq.ArgumentError, match="fallback is 'cuda'"):
        vkq.onnx.InferenceSession(resnet, any_device, fallback="cuda")


@pytest.mark.parametrize(
    ("kind", "given", "want"),
    [
        ("float", [[1, -2]], [[1, -2]]), ("float", [[0.5, True]], [[0.5, 1]]), ("int64", [3, -4], [3, -4]),
        ("int8", [-128, 127], [-128, 127]), ("int8", [128], "int64; it must be int8"),
        ("int64", [1.5], "float64; it must be int64"), ("bool", [0, 1], [False, True]),
        ("bool", [2], "int64; it must be bool"), ("float", [["1"]], "<U1; it must be float32"),
    ],
)  # fmt: skip
def test_lists_take_the_type_of_the_input(any_device: vkq.Device, kind: str, given: Any, want: Any) -> None:
    """A list has no type: its numbers become the input's type if none of them changes."""
    free = f"{kind}[{', '.join('nm'[: np.ndim(given)])}]"
    data = onnx.parser.parse_model(
        f"""<ir_version: 9, opset_import: ["" : 17]> g ({free} x) => ({free} y) {{ y = Identity(x) }}"""
    )
    session = vkq.onnx.InferenceSession(data, any_device)
    if isinstance(want, str):
        with pytest.raises(vkq.DTypeError, match=want):
            session.run(None, {"x": given})
    else:
        (y,) = session.run(None, {"x": given})
        assert (y.tolist(), y.dtype) == (want, {"float": "float32"}.get(kind, kind))


def test_threads(any_device: vkq.Device, resnet: bytes) -> None:
    session = vkq.onnx.InferenceSession(resnet, any_device)
    feeds = [{"x": images(1 + i % 2, 3, 16, 16, seed=i)} for i in range(6)]
    want = [onnxruntime_results(resnet, feed)[0] for feed in feeds]
    wrong: list[int] = []

    def work(i: int) -> None:
        for _ in range(4):
            if not np.array_equal(session.run(None, feeds[i])[0], want[i]):
                wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(feeds))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_pickle(any_device: vkq.Device, resnet: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkq.runtime.opened._default", any_device)
    session = vkq.onnx.InferenceSession(resnet)
    feed = {"x": images(1, 3, 16, 16)}
    want = session.run(None, feed)[0]
    again = pickle.loads(pickle.dumps(session))
    np.testing.assert_array_equal(again.run(None, feed)[0], want)


def test_what_is_wrong_with_the_model_is_said_before_what_is_with_the_device(
    any_device: vkq.Device, resnet: bytes
) -> None:
    """A broken model is reported before a missing device, although the device is opened while the model is
    read."""
    with pytest.raises(vkq.NoDeviceError, match="'none of them'"):
        vkq.onnx.InferenceSession(resnet, "none of them")
    with pytest.raises(vkq.onnx.ModelError, match="not an ONNX model"):
        vkq.onnx.InferenceSession(b"\xff" * 9, "none of them")
    name = any_device.name
    with vkq.onnx.InferenceSession(resnet, name).device as opened:  # the session's own device
        assert (opened.name, opened is any_device) == (name, False)


def test_sums_are_prepared_before_the_first_run(
    any_device: vkq.Device, resnet: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session without a fallback prepares the tables of integer sums at load, while the driver is opened.
    With a fallback, the first run prepares them."""
    made: list[object] = []
    monkeypatch.setattr(binary, "binary_table", lambda *which: (made.append(which), binary_table(*which))[1])
    for fallback, ahead in ((None, True), ("onnxruntime", False)):
        for kept in (binary.arithmetic, binary._table):
            kept.cache_clear()
        made.clear()
        session = vkq.onnx.InferenceSession(resnet, any_device, fallback)
        count = len(made)
        session.run(None, {"x": images(1, 3, 16, 16)})
        assert (count > 0, len(made) == count) == (ahead, ahead)
        session.close()  # the next session would share tables with an open one


def test_weights_are_uploaded_once_whatever_the_shapes(
    any_device: vkq.Device, resnet: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    uploaded: list[Resident] = []
    upload = Resident._upload
    monkeypatch.setattr(Resident, "_upload", lambda self: (uploaded.append(self), upload(self))[1])
    session = vkq.onnx.InferenceSession(resnet, any_device)
    for batch in (1, 3, 1):
        feed = {"x": images(batch, 3, 16, 16)}
        want = onnxruntime_results(resnet, feed)[0]
        np.testing.assert_array_equal(session.run(None, feed)[0], want)
    assert len(uploaded) == len({id(one) for one in uploaded}) > 3


@pytest.mark.parametrize(("count", "batch"), [(7, 3), (1, 4), (0, 2), (8, 1)])
def test_map(device: vkq.Device, resnet: bytes, count: int, batch: int) -> None:
    session = vkq.onnx.InferenceSession(resnet, device)
    inputs = [images(3, 16, 16, seed=i) for i in range(count)]
    got = list(session.map(iter(inputs), batch))
    assert len(got) == count
    for y, x in zip(got, inputs, strict=True):
        np.testing.assert_array_equal(y, onnxruntime_results(resnet, {"x": x[None]})[0][0])


def test_map_takes_arrays_of_every_kind(any_device: vkq.Device, resnet: bytes) -> None:
    session = vkq.onnx.InferenceSession(resnet, any_device)
    x = images(4, 3, 16, 16)
    frozen = x[0].copy()
    frozen.flags.writeable = False
    odd = [frozen, x[1].astype(">f4"), np.asfortranarray(x[2]), x[3][:, ::-1, ::-1].copy()[:, ::-1, ::-1]]
    for got, want in zip(session.map(odd, 4), session.run(None, {"x": x})[0], strict=True):
        np.testing.assert_array_equal(got, want)
    for given in ([x[0], x[1][:, :8]], [x[0], x[1].astype(np.float64)]):
        with pytest.raises(
            vkq.ArgumentError, match=r"array 1 of the batch is .*, the first float32 \(3, 16, 16"
        ):
            list(session.map(given, 2))
    with pytest.raises(vkq.DTypeError, match="float64; it must be float32"):
        list(session.map([x[0].astype(np.float64)]))


def test_map_again_prepares_nothing(any_device: vkq.Device, resnet: bytes) -> None:
    session = vkq.onnx.InferenceSession(resnet, any_device)
    x = images(5, 3, 16, 16)
    want = session.run(None, {"x": x})[0]
    begun = session.map(x, 2)
    np.testing.assert_array_equal(next(begun), want[0])
    begun.close()  # type: ignore[attr-defined]
    list(session.map(x, 2))
    with failing("vkAllocateMemory", 0):
        for _ in range(3):
            np.testing.assert_array_equal(list(session.map(x, 2)), want)
        assert counted() == 0
    assert len(session._executables.kept) == 3  # one each for batches of 5, 2 and 1


def test_map_on_the_cpu_too(any_device: vkq.Device, folder: Path) -> None:
    """`map` gives the results of single runs also for models with parts on the CPU, whose runs cannot
    overlap."""
    model, x = partly(folder), images(2, 3, 16, 16)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        session = vkq.onnx.InferenceSession(model, any_device, fallback="onnxruntime")
        for got, one in zip(session.map(x, 1), x, strict=True):
            np.testing.assert_array_equal(got, onnxruntime_results(model, {"x": one[None]})[0][0])


def test_explain(any_device: vkq.Device, resnet: bytes) -> None:
    report = vkq.onnx.InferenceSession(resnet, any_device).explain({"x": (2, 3, 16, 16)})
    text = str(report)
    assert {row.where for row in report.rows} == {"device"}
    conv = next(row for row in report.rows if row.operator == "conv2d")
    assert conv.shaders
    assert conv.why.startswith("path ")
    assert "[2, 3, 16, 16]" in text
    assert "dispatches" in text
    assert "at least" in text


def partly(folder: Path) -> bytes:
    """Return a network with two operators in the middle that vkq does not support."""
    net = Net(seed=5)
    x = net.relu(net.conv("x", 8, 3, 2))
    x = net.op("LpPool", net.conv(net.op("LpPool", x, kernel_shape=[1, 1]), 4, 3), kernel_shape=[1, 1])
    return quantized(net.model(net.head(x)), "qdq_int8", folder, net.shape)


def test_arguments_are_told_as_by_onnxruntime(any_device: vkq.Device) -> None:
    """get_inputs and get_outputs describe types and sizes, named or not, as ONNX Runtime does."""
    shapes = {"a": ("float32", ["N", None, 3]), "b": ("int8", ["N", 2, 3]), "c": ("bool", [None])}
    kinds = {name: np.dtype(dtype) for name, (dtype, _) in shapes.items()}
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(kinds[name]), shape)
        for name, (_, shape) in shapes.items()
    ]
    results = [
        helper.make_tensor_value_info(f"{name}y", helper.np_dtype_to_tensor_dtype(kinds[name]), shape)
        for name, (_, shape) in shapes.items()
    ]
    nodes = [helper.make_node("Identity", [name], [f"{name}y"]) for name in shapes]
    graph = helper.make_graph(nodes, "g", infos, results)
    data = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    ).SerializeToString()
    ours, theirs = vkq.onnx.InferenceSession(data, any_device), ort.InferenceSession(data)
    for got, want in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
        assert [(x.name, x.type, x.shape) for x in got] == [(x.name, x.type, x.shape) for x in want]


def steps(inputs: str, outputs: str, given: str = "x") -> bytes:
    """Return a model with these inputs and outputs that quantizes and dequantizes the value *given* with a
    scale of 1/2."""
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g ({inputs}) => ({outputs})
      <float s = {{0.5}}, int8 z = {{0}}, float[3] c = {{1, 2, 3}}>
      {{ q = QuantizeLinear({given}, s, z) y = DequantizeLinear(q, s, z) }}"""
    return bytes(onnx.parser.parse_model(text).SerializeToString())


@pytest.mark.parametrize("library", [vkq.onnx, ort], ids=["vkq", "onnxruntime"])
def test_outputs_that_are_computed_alone(device: vkq.Device, library: Any) -> None:
    """With ``only_execute_path_to_fetches``, a run computes only nodes that its outputs need. Here "y" needs
    one node on the device, and "z" a node that only ONNX Runtime runs."""
    text = "g (float[2, 3, 3] x) => (float[2, 3, 3] y, float[2] z) { y = Neg (x) z = Det (y) }"
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(onnx.parser.parse_graph(text), opset_imports=opsets, ir_version=8)
    x, options = images(2, 3, 3), library.RunOptions()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        session = vkq.onnx.InferenceSession(model, device, fallback="onnxruntime")
        whole = session.run(None, {"x": x}, options)
        options.only_execute_path_to_fetches = True
        for names in (["y"], ["y", "y"], ["z", "y"], ["z"], ["y"]):
            found = session.run(names, {"x": x}, options)
            for name, one in zip(names, found, strict=True):
                np.testing.assert_array_equal(one, whole["yz".index(name)])
    everything, only_z, only_y = session._executables.kept.values()
    assert (everything.cpu_nodes, only_z.cpu_nodes) == (1, 1)
    assert isinstance(only_y, Executable)
    assert (only_y.results, len(only_y.plan.steps)) == (["y"], 1)


def test_a_result_that_is_named_twice(any_device: vkq.Device) -> None:
    model, x = steps("float[3] x", "float[3] y, float[3] y"), np.float32([0.3, 1, 9])
    session = vkq.onnx.InferenceSession(model, any_device)
    for found, want in zip(session.run(None, {"x": x}), onnxruntime_results(model, {"x": x}), strict=True):
        np.testing.assert_array_equal(found, want)
    assert [y.name for y in session.get_outputs()] == ["y", "y"]


@pytest.mark.parametrize("op", ["Relu", "com.microsoft.SampleOp"], ids=["device", "fallback"])
@pytest.mark.filterwarnings("ignore::vkq.onnx.fallback.FallbackWarning")
def test_results_may_be_changed(any_device: vkq.Device, op: str) -> None:
    """A caller may change result arrays, also those of results that are constants or inputs: the results of
    the next run do not change."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>
        g (float[3] x) => (float[3] y, int64[1] k, float[2] c, float[3] x) <float[2] c = {{1, 2}}>
        {{ y = {op}(x) k = Shape(x) }}"""
    )
    session = vkq.onnx.InferenceSession(model, any_device, "onnxruntime")
    x = np.ones(3, np.float32)
    want = [y.tolist() for y in session.run(None, {"x": x})]
    for y in session.run(None, {"x": x}):
        y[...] = 7
    assert x.tolist() == [1, 1, 1]
    assert [y.tolist() for y in session.run(None, {"x": x})] == want


def test_constant_inputs_may_be_changed(any_device: vkq.Device) -> None:
    """A caller may change an input array that counted as a constant: the session caches results under the
    values of the array, not under the array object."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> g (int64[2] k) => (int64[2, 1] y)
        <int64[1] axis = {1}> { y = Unsqueeze(k, axis) }"""
    )
    session, k = vkq.onnx.InferenceSession(model, any_device), np.array([1, 2])
    assert session.run(None, {"k": k})[0].tolist() == [[1], [2]]
    k[:] = 9
    assert session.run(None, {"k": np.array([1, 2])})[0].tolist() == [[1], [2]]


def test_results_that_depend_on_no_input(any_device: vkq.Device) -> None:
    """A model whose results depend on no input runs nothing, and its profile is empty."""
    session = vkq.onnx.InferenceSession(steps("", "float[3] y", "c"), any_device)
    assert session.run(None, {})[0].tolist() == [1, 2, 3]
    assert session.profile({}) == []


def test_refused_with_the_whole_list(any_device: vkq.Device, folder: Path) -> None:
    with pytest.raises(vkq.UnsupportedModelError, match="2 of 10 nodes cannot run on a device") as caught:
        vkq.onnx.InferenceSession(partly(folder), any_device)
    assert len(caught.value.refusals) == 2
    assert "fallback='onnxruntime'" in str(caught.value)
    assert "in floats" not in str(caught.value)


def test_nodes_refused_for_one_reason_are_told_together(any_device: vkq.Device) -> None:
    """The error reports nodes refused for the same reason in one line; its attribute `refusals` lists every
    node."""
    net = Net(seed=3)
    x = "x"
    for _ in range(5):
        x = net.op("LpPool", x, kernel_shape=[1, 1])
    with pytest.raises(vkq.UnsupportedModelError, match="cannot run on a device") as caught:
        vkq.onnx.InferenceSession(net.model(x).SerializeToString(), any_device)
    refused = [text for text in caught.value.refusals if text.startswith("LpPool ")]
    assert len(refused) == 5
    (line,) = [line for line in str(caught.value).splitlines() if line.startswith("  LpPool ")]
    assert line.startswith(f"  {refused[0]}; the same for 4 more: ")
    assert line.endswith(", ...")
    assert line.count("'") == 2 * 4


def test_an_open_batch_that_must_be_one_size(any_device: vkq.Device) -> None:
    """A Reshape with a fixed batch in a model with a variable batch raises an error for other batch
    sizes."""
    net = Net(seed=6, shape=(1, 2, 4, 4))
    proto = net.model(net.op("Reshape", "x", net.constant(np.array([3, 8, 4], np.int64))))
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "N"
    session = vkq.onnx.InferenceSession(proto.SerializeToString(), any_device)
    x = images(3, 2, 4, 4)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], x.reshape(3, 8, 4))
    with pytest.raises(vkq.ModelError, match=r"\(2, 2, 4, 4\) has 64 elements and cannot become"):
        session.run(None, {"x": x[:2]})
    with pytest.raises(vkq.ModelError, match=r"\(1, 2, 4, 4\) has 32 elements and cannot become"):
        session.explain()
    proto.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 1
    with pytest.raises(vkq.ModelError, match="cannot become"):  # fixed sizes: an error at load
        vkq.onnx.InferenceSession(proto.SerializeToString(), any_device)


def test_fallback(device: vkq.Device, folder: Path) -> None:
    model, feed = partly(folder), {"x": images(1, 3, 16, 16)}
    session = vkq.onnx.InferenceSession(model, device, fallback="onnxruntime")
    said = (
        r"2 of 10 nodes run on the CPU through ONNX Runtime \(LpPool\); 6144 bytes cross"
        " in each run"
    )
    with pytest.warns(FallbackWarning, match=said) as warned:
        got = session.run(None, feed)[0]
    assert warned[0].filename == __file__  # the warning points to the caller's file
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a second warning would be an error
        session.run(None, feed)
    np.testing.assert_array_equal(got, onnxruntime_results(model, feed)[0])
    report = session.explain()
    assert [row.operator for row in report.rows if row.where == "CPU"] == ["LpPool", "LpPool"]
    assert "6144 bytes cross in each run" in str(report)


def test_forms_that_the_graph_has_not_fall_back(any_device: vkq.Device) -> None:
    """MaxPool with indices, which vkq's graph does not support, is listed in the refusals. The fallback,
    if there is one, runs it."""
    net = Net(seed=6, shape=(1, 2, 4, 4))
    proto = net.model(net.op("MaxPool", net.op("Neg", "x"), kernel_shape=[2, 2]))
    next(node for node in proto.graph.node if node.op_type == "MaxPool").output.append("indices")
    model = proto.SerializeToString()
    with pytest.raises(vkq.UnsupportedModelError, match=r"(?s)1 of 2 nodes.*\(indices\) is not supported"):
        vkq.onnx.InferenceSession(model, any_device)
    session, feed = vkq.onnx.InferenceSession(model, any_device, "onnxruntime"), {"x": images(1, 2, 4, 4)}
    with pytest.warns(FallbackWarning, match="MaxPool"):
        got = session.run(None, feed)[0]
    np.testing.assert_array_equal(got, onnxruntime_results(model, feed)[0])


def test_map_beside_runs(any_device: vkq.Device, resnet: bytes) -> None:
    """Two interleaved `map` iterators, and runs between their steps, give the right results."""
    session = vkq.onnx.InferenceSession(resnet, any_device)
    inputs = [images(3, 16, 16, seed=i) for i in range(6)]
    want = [onnxruntime_results(resnet, {"x": x[None]})[0][0] for x in inputs]
    one, two = session.map(inputs, 1), session.map(reversed(inputs), 1)
    for i in range(6):
        np.testing.assert_array_equal(next(one), want[i])
        np.testing.assert_array_equal(session.run(None, {"x": inputs[0][None]})[0][0], want[0])
        np.testing.assert_array_equal(next(two), want[5 - i])


FRAME = np.zeros((3, 16, 16), np.float32)
MISUSED = {  # method -> lists of wrong arguments
    "run": [
        ("input_feed", {"output_names": None, "input_feed": FRAME}),
        ("output_names", {"output_names": "abc", "input_feed": {"x": FRAME[None]}}),
        ("no outputs", {"output_names": ["abc"], "input_feed": {"x": FRAME[None]}}),
        ("inputs are given for", {"output_names": None, "input_feed": {"x": FRAME[None], 5: FRAME}}),
        ("'x' is not an array", {"output_names": None, "input_feed": {"x": [[1.0], [2.0, 3.0]]}}),
    ],
    "map": [
        ("inputs", {"inputs": 5}),
        ("batch", {"inputs": [FRAME], "batch": 1.5}),
        ("batch is 0", {"inputs": [FRAME], "batch": 0}),
        ("element 1 of the batch", {"inputs": [{"x": FRAME}, {"y": FRAME}], "batch": 2}),
        ("must be equal", {"inputs": [FRAME, FRAME[:, 1:]], "batch": 2}),
    ],
    "explain": [
        ("shapes", {"shapes": 5}),
        ("shapes are given for", {"shapes": {"z": (1, 3, 16, 16)}}),
        ("must be integers", {"shapes": {"x": (1, 3, 16, 16.5)}}),
        ("it must be", {"shapes": {"x": (1, 3, 16)}}),
        ("0 or more", {"shapes": {"x": (-1, 3, 16, 16)}}),
        ("bytes at most", {"shapes": {"x": (2**40, 3, 16, 16)}}),
    ],
    "profile": [("input_feed", {"input_feed": None})],
}


@pytest.mark.parametrize("method", MISUSED)
def test_misuse_is_told_at_once(any_device: vkq.Device, resnet: bytes, method: str) -> None:
    session = vkq.onnx.InferenceSession(resnet, any_device)
    for told, given in MISUSED[method]:
        with pytest.raises(vkq.VkqError, match=told):
            list(getattr(session, method)(**given))
    assert len(list(session.map([FRAME] * 3, 2))) == 3


def test_options_that_mean_nothing_are_refused(any_device: vkq.Device, resnet: bytes) -> None:
    for told, options in (
        ("constant_inputs", {"constant_inputs": "x"}),
        ("the model's inputs are", {"constant_inputs": ["nobody"]}),
        ("progress", {"progress": 5}),
        ("fallback", {"fallback": "cpu"}),
        ("device", {"device": 1.5}),
    ):
        with pytest.raises(vkq.VkqError, match=told):
            vkq.onnx.InferenceSession(resnet, **{"device": any_device, **options})
