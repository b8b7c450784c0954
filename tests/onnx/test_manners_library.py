"""Tests of the functions of ONNX Runtime's API page and examples, run with both libraries, and of functions
that vkq refuses or ignores."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import vkq
import vkq.onnx
from tests.onnx.test_manners import compared, images, model, path  # noqa: F401  a fixture
from vkq.onnx import library

SCRIPTS = {
    "the module": """
assert ort.get_version_string() == ort.__version__
assert ort.get_build_info()
ort.set_default_logger_severity(3)
ort.set_default_logger_verbosity(0)
ort.disable_telemetry_events()
ort.enable_telemetry_events()
result = ["CPUExecutionProvider" in ort.get_all_providers(), ort.get_device() in ("CPU", "GPU")]
""",
    "arguments by name": """
session = ort.InferenceSession(path_or_bytes=path, providers=["CPUExecutionProvider"], enable_fallback=0)
session.disable_fallback()
session.enable_fallback()
result = session.run(output_names=["y"], input_feed={"x": x}, run_options=None)
""",
    "errors": """
from importlib import import_module
state = import_module(ort.__name__ + ".capi.onnxruntime_pybind11_state")
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
result = []
for feed in ({"x": x.astype("float64")}, {"x": x[0]}):
    try:
        session.run(None, feed)
    except ort.capi.onnxruntime_pybind11_state.InvalidArgument:
        result.append("the input is refused")
try:
    session.run(None, {"images": x})
except ValueError:
    result.append("a name is refused")
try:
    session.run(["nothing"], {"x": x})
except state.InvalidArgument:
    result.append("an output is refused")
try:
    ort.InferenceSession(b"no model", providers=["CPUExecutionProvider"])
except state.InvalidProtobuf:
    result.append("a file is refused")
try:
    ort.InferenceSession(str(folder / "nothing.onnx"), providers=["CPUExecutionProvider"])
except state.NoSuchFile:
    result.append("no file is refused")
""",
    "values": """
import numpy as np
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
value = ort.OrtValue.ortvalue_from_numpy(x)
result = session.run(["y"], {"x": value})
result += [value.device_name(), value.shape(), value.data_type(), value.is_tensor(), value.numpy()]
result += [value.is_sparse_tensor(), value.is_tensor_sequence(), value.has_value(), value.element_type()]
result += [ort.OrtValue.from_dlpack(x).numpy(), np.from_dlpack(value), tuple(value.__dlpack_device__())]
place = ort.OrtDevice.make("cpu", 0)
result += [place.device_type(), place.device_id()]
""",
    "lists of values": """
session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
value, place, fetched = ort.OrtValue.ortvalue_from_numpy(x), ort.OrtDevice.make("cpu", 0), []
binding = session.io_binding()
assert isinstance(binding, ort.SessionIOBinding) or isinstance(binding, ort.IOBinding)
binding.bind_ortvalue_input("x", value)
binding.bind_output("y", "cpu")
session.run_with_iobinding(binding)
result = [binding.get_outputs_as_ortvaluevector()[0].numpy()]
""",
    "what a device needs not": """
from importlib import import_module
collection = import_module(ort.__name__ + ".capi.onnxruntime_inference_collection")
options = ort.SessionOptions()
options.add_free_dimension_override_by_denotation("DATA_BATCH", 2)
if hasattr(ort, "preload_dlls"):
    ort.preload_dlls()
session = collection.InferenceSession(path, options, providers=["CPUExecutionProvider"])
assert isinstance(session, ort.InferenceSession)
result = session.run(None, {"x": x})
""",
    "initializers that are given": """
import numpy as np
import onnx
weight = np.full((6, 3, 3, 3), 3, np.int8)
value = ort.OrtValue.ortvalue_from_numpy(weight)  # ONNX Runtime keeps its address alone
options = ort.SessionOptions()
options.add_initializer("w", value)
session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
result = session.run(None, {"x": x})
proto = onnx.load(path)
names = [tensor.name for tensor in proto.graph.initializer if tensor.name != "w"]
arrays = [onnx.numpy_helper.to_array(t) for t in proto.graph.initializer if t.name != "w"]
values = [ort.OrtValue.ortvalue_from_numpy(array) for array in (weight, *arrays)]
onnx.save(proto, folder / "beside.onnx", save_as_external_data=True, location="data", size_threshold=1)
(folder / "data").rename(folder / "moved")
options = ort.SessionOptions()
options.add_external_initializers(["w", *names], values)
session = ort.InferenceSession(str(folder / "beside.onnx"), options, providers=["CPUExecutionProvider"])
result += session.run(None, {"x": x})
""",
    "providers of the options": """
options = ort.SessionOptions()
result = [options.has_providers()]
options.add_provider("CPUExecutionProvider", {})
session = ort.InferenceSession(path, options)
result += [options.has_providers(), *session.run(None, {"x": x})]
assert "CPUExecutionProvider" in session.get_providers()
""",
    "an allocator for all sessions": """
info = ort.OrtMemoryInfo(
    "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
ort.create_and_register_allocator(info, ort.OrtArenaCfg({"max_mem": 1 << 30, "arena_extend_strategy": 1}))
options = ort.SessionOptions()
options.add_session_config_entry("session.use_env_allocators", "1")
result = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})
""",
    "the backend of ONNX": """
from importlib import import_module
backend = import_module(ort.__name__ + ".backend")
result = [backend.supports_device("CPU")]
prepared = backend.prepare(path, "CPU")
result += [*prepared.run(x), *prepared.run([x])]
""",
}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore::vkq.onnx.IgnoredWarning")
@pytest.mark.filterwarnings("ignore:onnx.version is deprecated")
def test_scripts_of_onnxruntime_run(
    any_device: vkq.Device, path: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,  # noqa: F811
) -> None:  # fmt: skip
    """Scripts for ONNX Runtime give ONNX Runtime's results with vkq if only the import is changed."""
    monkeypatch.setattr("vkq.runtime.opened._default", any_device)
    compared(SCRIPTS[name], path, tmp_path)


@pytest.mark.parametrize("place", ["cpu", "cuda"])
def test_values_are_fetched_where_they_are_wanted(any_device: vkq.Device, path: str, place: str) -> None:  # noqa: F811
    session = vkq.onnx.InferenceSession(path, any_device)
    fetched: list[Any] = []
    given = vkq.onnx.OrtValue(images(2))
    where = vkq.onnx.OrtDevice.make(place, 0)
    session.run_with_ortvaluevector(None, ["x"], [given], ["second", "y"], fetched, [where, where])
    assert [value.device_name() for value in fetched] == ["cpu" if place == "cpu" else "vulkan"] * 2
    for value, want in zip(fetched, session.run(["second", "y"], {"x": images(2)}), strict=True):
        np.testing.assert_array_equal(value.numpy(), want)
        np.testing.assert_array_equal(np.from_dlpack(value), want)


def test_what_a_process_asks_for_in_vain_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_told", set())
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for _ in range(2):
            vkq.onnx.set_seed(3)
            vkq.onnx.set_global_thread_pool_sizes(2, 2)
    assert ["set_seed" in str(one.message) for one in said] == [True, False]
    assert all(one.filename == __file__ for one in said)


def test_refused(any_device: vkq.Device, path: str) -> None:  # noqa: F811
    with pytest.raises(vkq.DTypeError, match=r"no argument 'provider'; did you mean 'providers'"):
        vkq.onnx.InferenceSession(path, provider=["CPUExecutionProvider"])
    for given in ({}, {"model": path, "path_or_bytes": path}):
        with pytest.raises(vkq.DTypeError, match="takes one model"):
            vkq.onnx.InferenceSession(**given)
    with pytest.warns(vkq.onnx.IgnoredWarning, match=r"disabled_optimizers=\['Fusion'\]"):
        vkq.onnx.InferenceSession(path, any_device, disabled_optimizers=["Fusion"])
    options = vkq.onnx.SessionOptions()
    with pytest.raises(vkq.UnsupportedModelError, match="functions of the model"):
        options.register_custom_ops_library("ops.so")
    with pytest.raises(vkq.ArgumentError, match="must be a dictionary or numbers"):
        vkq.onnx.OrtArenaCfg("x")
    for name, value, error, why in (
        (
            "q",
            vkq.onnx.OrtValue(images(1)),
            vkq.ArgumentError,
            r"no initializers \['q'\]; it has \['s', 'w'",
        ),
        (
            "s",
            vkq.onnx.OrtValue(images(1)),
            vkq.ArgumentError,
            r"\(1, 3, 5, 7\); it must be float32 \(\)",
        ),
        ("s", 0.5, vkq.DTypeError, "must be an OrtValue"),
    ):
        options = vkq.onnx.SessionOptions()
        options.add_initializer(name, value)
        with pytest.raises(error, match=why):
            vkq.onnx.InferenceSession(path, options)


def test_given_initializers_stay_with_a_fallback(any_device: vkq.Device, path: str) -> None:  # noqa: F811
    """The fallback, too, uses initializers that the user gives with SessionOptions.add_initializer. The
    session does not change a ModelProto."""
    proto = model()
    before, options = proto.SerializeToString(), vkq.onnx.SessionOptions()
    options.add_initializer("w", vkq.onnx.OrtValue(np.full((6, 3, 3, 3), -2, np.int8)))
    want = vkq.onnx.InferenceSession(path, any_device, sess_options=options).run(None, {"x": images(2)})
    for given in (proto, before):
        session = vkq.onnx.InferenceSession(given, any_device, "onnxruntime", sess_options=options)
        for feed in ({"x": images(2)}, {"x": images(2), "s": np.float32(0.1)}):
            for a, b in zip(session.run(None, feed), want, strict=True):
                np.testing.assert_array_equal(a, b)
    assert proto.SerializeToString() == before
    assert onnx.load(path).SerializeToString() == before
