"""Tests of scripts written for ONNX Runtime, run with both libraries; of the information that sessions
give about themselves; and of closing sessions."""

from __future__ import annotations

import json
import logging
import threading
import time
import warnings
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from vkq.graph.executable import Executable
from vkq.onnx.fallback import FallbackWarning
from vkq.onnx.options import changed

node, info = helper.make_node, helper.make_tensor_value_info
# `ort` is the library, `path` a model, `x` an input. Each script assigns its results to `result`.
SCRIPTS = {
    "load and predict": """
session = ort.InferenceSession(path, providers=ort.get_available_providers())
input_name = session.get_inputs()[0].name
result = [session.run([output.name], {input_name: x})[0] for output in session.get_outputs()]
""",
    "options and providers": """
options = ort.SessionOptions()
options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
options.execution_mode = ort.ExecutionMode.ORT_SEQUENTIAL
options.intra_op_num_threads = 1
options.log_severity_level = 3
options.add_session_config_entry("session.qdqisint8allowed", "1")
session = ort.InferenceSession(path, options, ["CPUExecutionProvider"])
named = ort.InferenceSession(
    path, sess_options=options, providers=["CPUExecutionProvider"], provider_options=[{}]
)
entry = options.get_session_config_entry("session.qdqisint8allowed")
result = [*session.run(None, {"x": x}), *named.run([], {"x": x}), entry]
assert "CPUExecutionProvider" in session.get_providers()
assert "CPUExecutionProvider" in session.get_provider_options()
assert session.get_session_options().intra_op_num_threads == 1
assert ort.get_device() in ("CPU", "GPU")
""",
    "pairs of providers": """
session = ort.InferenceSession(
    Path(path).read_bytes(), providers=[("CPUExecutionProvider", {})])
session.set_providers(["CPUExecutionProvider"])
result = session.run(["second", "y"], {"x": x})
""",
    "metadata": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
meta = session.get_modelmeta()
result = [(i.name, i.type, i.shape) for i in (*session.get_inputs(), *session.get_outputs())]
result += [(i.name, i.type, i.shape) for i in session.get_overridable_initializers()]
result += [meta.custom_metadata_map, meta.description, meta.domain, meta.graph_name]
result += [meta.graph_description, meta.producer_name, meta.version]
""",
    "a size that is fixed": """
options = ort.SessionOptions()
options.add_free_dimension_override_by_name("n", 3)
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
result = [session.get_inputs()[0].shape, *session.run(None, {"x": x})]
""",
    "run options": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
options = ort.RunOptions()
options.log_severity_level = 3
options.logid = "run"
options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
result = session.run(None, {"x": x}, options) + session.run(None, {"x": x}, run_options=options)
""",
    "asynchronous": """
import threading
class Data:
    def __init__(self):
        self.event, self.results, self.error = threading.Event(), None, None
def callback(results, data, error):
    data.results, data.error = results, error
    data.event.set()
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
data = Data()
session.run_async(None, {"x": x}, callback, data)
assert data.event.wait(60)
result = [*data.results, data.error]
""",
    "inputs and outputs that are bound": """
import numpy as np
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
binding = session.io_binding()
binding.bind_cpu_input("x", x)
binding.bind_output("second")
binding.bind_output("y", "cpu")
session.run_with_iobinding(binding)
result = binding.copy_outputs_to_cpu()
value, y = ort.OrtValue.ortvalue_from_numpy(x[::-1].copy()), np.zeros((len(x), 6, 5, 7), np.float32)
into = ort.OrtValue.ortvalue_from_numpy(y, "cpu", 0)
binding.bind_ortvalue_input("x", value)
binding.clear_binding_outputs()
binding.bind_ortvalue_output("y", into)
binding.synchronize_inputs()
session.run_with_iobinding(binding, ort.RunOptions())
binding.synchronize_outputs()
result += [y, into.numpy(), *(x.numpy() for x in binding.get_outputs())]
binding = session.io_binding()
binding.bind_input("x", value.device_name(), 0, np.float32, value.shape(), value.data_ptr())
empty = ort.OrtValue.ortvalue_from_shape_and_type([3, 6, 2, 3], np.uint8, "cpu", 0)
binding.bind_output("second", "cpu", 0, np.uint8, empty.shape(), empty.data_ptr())
session.run_with_iobinding(binding)
result += [empty.numpy(), empty.shape(), empty.data_type(), empty.element_type(), empty.is_tensor()]
result += [empty.tensor_size_in_bytes(), empty.has_value(), value.data_type()]
value.update_inplace(x)
result += [x.numpy() for x in session.run_with_ort_values(["y"], {"x": value})]
""",
    "profiling": """
import json
options = ort.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = str(folder / ("profile_" + ort.__name__))
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
result = session.run(None, {"x": x})
assert session.get_profiling_start_time_ns() > 0
with open(session.end_profiling()) as file:
    runs = [event for event in json.load(file) if event["name"] == "model_run"]
result += [len(runs), runs[0]["ph"], runs[0]["dur"] > 0]
""",
}


def model() -> onnx.ModelProto:
    """Return a model with a batch of any size, two results of different shapes, metadata, and an
    initializer that is an input."""
    rng = np.random.default_rng(5)
    stored = {
        "s": np.float32(0.1), "z": np.uint8(120), "w": rng.integers(-90, 90, (6, 3, 3, 3)).astype(np.int8),
        "ws": rng.uniform(0.01, 0.02, 6).astype(np.float32), "wz": np.zeros(6, np.int8),
        "ys": np.float32(0.2), "yz": np.uint8(128),
    }  # fmt: skip
    nodes = [
        node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        node("QLinearConv", ["q", "s", "z", "w", "ws", "wz", "ys", "yz"], ["c"], pads=[1, 1, 1, 1]),
        node("DequantizeLinear", ["c", "ys", "yz"], ["y"]),
        node("MaxPool", ["c"], ["second"], kernel_shape=[2, 2], strides=[2, 2]),
    ]
    graph = helper.make_graph(
        nodes, "two results",
        [info("x", TensorProto.FLOAT, ["n", 3, 5, 7]), info("s", TensorProto.FLOAT, [])],
        [info("y", TensorProto.FLOAT, ["n", 6, 5, 7]), info("second", TensorProto.UINT8, ["n", 6, 2, 3])],
        [numpy_helper.from_array(np.asarray(v), k) for k, v in stored.items()], doc_string="of a graph",
    )  # fmt: skip
    proto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name="a test",
        model_version=7, doc_string="for both", domain="org.example",
    )  # fmt: skip
    helper.set_model_props(proto, {"classes": "cat,dog"})
    return proto


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    target = tmp_path_factory.mktemp("manners") / "model.onnx"
    onnx.save(model(), target)
    return str(target)


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0, 4, (n, 3, 5, 7)).astype(np.float32)


def ran(script: str, library: ModuleType, path: str, x: np.ndarray, folder: Path) -> Any:
    names: dict[str, Any] = {"ort": library, "path": path, "x": x, "folder": folder, "Path": Path}
    level = logging.getLogger("vkq").level
    try:
        exec(script, names)
    finally:
        logging.getLogger("vkq").setLevel(level)  # restore the level, which a script may change
    return names["result"]


def compared(script: str, path: str, folder: Path) -> None:
    """Run a script with ONNX Runtime and with vkq, and check that the results are equal."""
    folders = [folder / library for library in ("theirs", "own")]
    for one in folders:
        one.mkdir()
    want, got = (
        ran(script, library, path, images(3), own)
        for library, own in zip((onnxruntime, vkq.onnx), folders, strict=True)
    )
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if isinstance(b, np.ndarray):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype
        else:
            assert a == b


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore::vkq.onnx.IgnoredWarning")
def test_scripts_of_onnxruntime_run(
    device: vkq.Device, path: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts for ONNX Runtime give ONNX Runtime's results with vkq if only the import is changed. They run
    on the default device, whatever providers they name."""
    monkeypatch.setattr("vkq.runtime.opened._default", device)
    compared(SCRIPTS[name], path, tmp_path)


def told(call: Any) -> list[str]:
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        call()
    assert {one.category for one in said} <= {vkq.onnx.IgnoredWarning}
    assert all(one.filename == __file__ for one in said), "at the caller's line"
    return [str(one.message) for one in said]


@pytest.mark.parametrize("library", [vkq.onnx, onnxruntime], ids=["vkq", "onnxruntime"])
def test_what_is_ignored_is_told_once(any_device: vkq.Device, path: str, library: Any) -> None:
    """Options that vkq ignores are reported once. Sessions and runs accept option objects of vkq and of
    ONNX Runtime."""
    options, run = library.SessionOptions(), library.RunOptions()
    assert not changed(options, vkq.onnx.SessionOptions)
    assert not changed(run, vkq.onnx.RunOptions)
    options.intra_op_num_threads, options.use_deterministic_compute = 2, True
    options.graph_optimization_level = library.GraphOptimizationLevel.ORT_DISABLE_ALL
    run.terminate, run.logid = True, "mine"
    providers = ["CUDAExecutionProvider", ("VulkanExecutionProvider", {"device_id": 0, "speed": 2})]
    sessions: list[Any] = []
    (said,) = told(
        lambda: sessions.append(
            vkq.onnx.InferenceSession(path, any_device, sess_options=options, providers=providers)
        )
    )
    for word in ("CUDAExecutionProvider", "speed", "intra_op_num_threads=2", "=ORT_DISABLE_ALL"):
        assert word in said
    assert "deterministic" not in said
    assert any_device.name in said
    assert sessions[0].get_providers() == ["VulkanExecutionProvider"]
    feed = {"x": images(1)}
    (said,) = told(lambda: [sessions[0].run(None, feed, run) for _ in range(3)])
    assert "terminate=True" in said
    assert "mine" not in said
    (said,) = told(lambda: sessions[0].set_providers(["CPUExecutionProvider"]))
    assert "stays on" in said


def test_providers_choose(any_device: vkq.Device, path: str) -> None:
    """*providers* choose a device by its index, and allow the CPU as a fallback if they name it."""
    index = any_device.capabilities.index
    given = [("VulkanExecutionProvider", {"device_id": str(index)}), "CPUExecutionProvider"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session = vkq.onnx.InferenceSession(path, providers=given)
    assert session.device.capabilities.index == index
    assert session.get_providers() == ["VulkanExecutionProvider", "CPUExecutionProvider"]
    assert session.get_provider_options()["VulkanExecutionProvider"] == {"device_id": str(index)}
    graph = helper.make_graph(
        [node("Det", ["x"], ["y"])], "g", [info("x", TensorProto.FLOAT, [2, 3, 3])],
        [info("y", TensorProto.FLOAT, [2])],
    )  # fmt: skip
    refused = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(vkq.UnsupportedModelError, match="Det"):
        vkq.onnx.InferenceSession(refused, any_device, providers=["VulkanExecutionProvider"])
    x = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    with pytest.warns(FallbackWarning, match="Det"):
        (y,) = vkq.onnx.InferenceSession(refused, providers=given).run(None, {"x": x})
    np.testing.assert_allclose(y, np.linalg.det(x), rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "error", "why"),
    [
        ({"providers": "CPUExecutionProvider"}, vkq.DTypeError, "list of names of providers"),
        ({"providers": [3]}, vkq.ArgumentError, "providers has 3"),
        ({"providers": ["CPUExecutionProvider"], "provider_options": []}, vkq.ArgumentError, "each of the 1"),
        ({"providers": [("VulkanExecutionProvider", {"device_id": "x"})]}, vkq.ArgumentError, "a number"),
        ({"fallback": "cuda"}, vkq.ArgumentError, "None or 'onnxruntime'"),
        ({"device": 1.5}, vkq.DTypeError, "or a SessionOptions"),
    ],
)
def test_refused(path: str, given: dict[str, Any], error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        vkq.onnx.InferenceSession(path, **given)
    options = vkq.onnx.SessionOptions()
    options.add_free_dimension_override_by_name("m", 3)
    with pytest.raises(vkq.ArgumentError, match=r"lacks the free dimensions \['m'\]; it has \['n'\]"):
        vkq.onnx.InferenceSession(path, options)
    with pytest.raises(vkq.ArgumentError, match="no entry 'x'"):
        options.get_session_config_entry("x")


def test_available() -> None:
    assert vkq.onnx.get_available_providers() == ["VulkanExecutionProvider", "CPUExecutionProvider"]
    with pytest.raises(vkq.ArgumentError, match="0 \\(verbose\\) to 4"):
        vkq.onnx.set_default_logger_severity(7)


def slow(monkeypatch: pytest.MonkeyPatch) -> tuple[threading.Event, threading.Event]:
    """Make every run wait. Return two events: a run sets the first when it begins, and waits for the
    second."""
    begun, go = threading.Event(), threading.Event()
    run = Executable.run

    def waits(self: Executable, inputs: Any) -> Any:
        begun.set()
        assert go.wait(60)
        return run(self, inputs)

    monkeypatch.setattr(Executable, "run", waits)
    return begun, go


def test_a_timeout_ends_the_wait_alone(
    any_device: vkq.Device, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A timeout ends the call, but not the run on the device. A later run that waits for this run is
    cancelled at its own timeout, and the session works afterwards."""
    session, feed = vkq.onnx.InferenceSession(path, any_device), {"x": images(2)}
    want = session.run(None, feed)
    for got, one in zip(session.run(None, feed, timeout=60), want, strict=True):
        np.testing.assert_array_equal(got, one)
    begun, go = slow(monkeypatch)
    with pytest.raises(vkq.TimedOutError, match=r"within 0\.05 s; the work goes on"):
        session.run(None, feed, timeout=0.05)
    assert begun.is_set()
    with pytest.raises(vkq.TimedOutError, match="had not begun"):
        session.run(None, feed, timeout=0.02)
    assert issubclass(vkq.TimedOutError, TimeoutError)
    go.set()
    for got, one in zip(session.run(None, feed, timeout=60), want, strict=True):
        np.testing.assert_array_equal(got, one)
    for bad in (0, -1, float("nan")):
        with pytest.raises(vkq.ArgumentError, match="above 0 seconds"):
            session.run(None, feed, timeout=bad)
    with pytest.raises(vkq.DTypeError, match="timeout"):
        session.run(None, feed, timeout="1")  # type: ignore[arg-type]


def test_errors_of_asynchronous_runs(
    any_device: vkq.Device, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An asynchronous run raises errors in its arguments at once, and passes later failures to the
    callback."""
    session, done = vkq.onnx.InferenceSession(path, any_device), threading.Event()
    said: list[Any] = []

    def callback(*given: Any) -> None:
        said.append(given)
        done.set()

    with pytest.raises(vkq.ArgumentError, match="the model takes"):
        session.run_async(None, {}, callback)
    with pytest.raises(vkq.ArgumentError, match="not a function"):
        session.run_async(None, {"x": images(1)}, None)  # type: ignore[arg-type]

    def fails(self: Executable, inputs: Any) -> Any:
        raise vkq.DeviceError("it is gone")

    monkeypatch.setattr(Executable, "run", fails)
    session.run_async(None, {"x": images(1)}, callback, 5)
    assert done.wait(60)
    assert said == [([], 5, "DeviceError: it is gone")]


def test_close(any_device: vkq.Device, path: str) -> None:
    """Closing a session frees its device memory at once. The device stays open, and later calls of the
    session raise an error."""
    for _ in range(2):  # twice: the first session leaves tables on the device
        before = any_device.memory_used_bytes
        opened_and_closed(any_device, path)
    assert any_device.memory_used_bytes <= before


def opened_and_closed(any_device: vkq.Device, path: str) -> None:
    before = any_device.memory_used_bytes
    with vkq.onnx.InferenceSession(path, any_device) as session:
        session.run(None, {"x": images(2)})
        list(session.map(images(4), 2))
        assert any_device.memory_used_bytes > before
        assert "two results: x float[n, 3, 5, 7] -> y float[n, 6, 5, 7], second" in repr(session)
        assert f"on {any_device.short_name}>" in repr(session)
    assert repr(session).endswith("(closed)>")
    session.close()
    for call in (
        lambda: session.run(None, {"x": images(1)}),
        lambda: session.run(None, {"x": images(1)}, timeout=60),
        lambda: list(session.map(images(1))),
        session.explain,
        lambda: session.profile({"x": images(1)}),
    ):
        with pytest.raises(vkq.DeviceError, match="the session is closed"):
            call()
    assert session.get_inputs()[0].name == "x"
    assert not any_device.closed


def test_closed_while_others_run(any_device: vkq.Device, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    session, feed = vkq.onnx.InferenceSession(path, any_device), {"x": images(2)}
    want, got = session.run(None, feed), []
    begun, go = slow(monkeypatch)
    thread = threading.Thread(target=lambda: got.extend(session.run(None, feed)))
    thread.start()
    assert begun.wait(60)
    session.close()
    go.set()
    thread.join(60)
    for a, b in zip(got, want, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("batch", [1, 2, 5])
def test_map_gives_every_output(device: vkq.Device, path: str, batch: int) -> None:
    """`map` returns the requested outputs in the given order, also one output twice, for inputs with and
    without a batch axis."""
    session, x = vkq.onnx.InferenceSession(path, device), images(5, seed=2)
    y, second = session.run(None, {"x": x})
    got = list(session.map(x, batch, []))
    assert [len(one) for one in got] == [2] * 5
    for inputs in (x, x[:, None], [{"x": one} for one in x], [x[0], *x[1:, None]]):
        chosen = list(session.map(inputs, batch, ["second", "y", "second"]))
        for i, (a, b, c) in enumerate(chosen):
            np.testing.assert_array_equal(a, second[i])
            np.testing.assert_array_equal(b, y[i])
            np.testing.assert_array_equal(c, second[i])
            np.testing.assert_array_equal(got[i][1], second[i])
        assert len(chosen) == 5
    for one, want in zip(session.map(x[:, None], batch), y, strict=True):
        np.testing.assert_array_equal(one, want)
    with pytest.raises(vkq.ArgumentError, match="give its elements one by one"):
        list(session.map([x[:2]], batch))
    with pytest.raises(vkq.ArgumentError, match="there are no outputs"):
        session.map(x, batch, ["third"])


def test_a_trace_is_written_once(any_device: vkq.Device, path: str, tmp_path: Path) -> None:
    options = vkq.onnx.SessionOptions(enable_profiling=True, profile_file_prefix=str(tmp_path / "trace"))
    begin = time.monotonic_ns()
    session = vkq.onnx.InferenceSession(path, any_device, sess_options=options)
    assert begin <= session.get_profiling_start_time_ns() <= time.monotonic_ns()
    for _ in range(3):
        session.run(None, {"x": images(1)})
    events = json.loads(Path(session.end_profiling()).read_text())
    assert [event["name"] for event in events] == ["model_run"] * 3
    assert all(event["ts"] > 0 and event["dur"] > 0 for event in events)
    assert session.end_profiling() == ""
