"""The Python examples of ONNX Runtime's documentation, with its models. Each script runs with ONNX Runtime,
and with vkq after a change of the import."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
import vkq.onnx
from vkq.onnx import backend, datasets
from vkq.onnx.fallback import FallbackWarning

# Each script assigns its results to `result`.
SCRIPTS = {
    "load and predict": """
import numpy as np
import onnxruntime as rt
from onnxruntime.datasets import get_example
session = rt.InferenceSession(get_example("sigmoid.onnx"), providers=rt.get_available_providers())
(x,), (y,) = session.get_inputs(), session.get_outputs()
result = [x.name, x.shape, x.type, y.name, y.shape, y.type]
result += session.run([y.name], {x.name: np.random.default_rng(0).random((3, 4, 5)).astype(np.float32)})
""",
    "common errors": """
import numpy as np
import onnxruntime as rt
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
from onnxruntime.datasets import get_example
session = rt.InferenceSession(get_example("logreg_iris.onnx"), providers=rt.get_available_providers())
name, label = session.get_inputs()[0].name, session.get_outputs()[0].name
good = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
result = [*session.run(None, {name: good}), *session.run([label], {name: good})]
result += [session.get_outputs()[1].type]
for names, feed in (([label], {name: good.astype("float64")}), (["none"], {name: good})):
    try:
        session.run(names, feed)
    except InvalidArgument:
        result.append("refused")
try:
    session.run([label], {"none": good})
except ValueError:
    result.append("refused")
for shape in ((4,), (1, 4), (2, 2), (3,), (1, 3), (1, 2, 2), (1, 1, 3), (2, 1, 2)):
    for names in (None, [label]):
        try:
            result += session.run(names, {name: np.ones(shape, np.float32)})
        except (RuntimeError, InvalidArgument):
            result.append(f"{shape} is refused")
""",
    "profiling": """
import json
import numpy as np
import onnx
import onnxruntime as rt
from onnxruntime.datasets import get_example
model = onnx.load(get_example("mul_1.onnx"))
model.opset_import[0].version = 11
options = rt.SessionOptions()
options.enable_profiling = True
options.profile_file_prefix = str(folder / "profile")
session = rt.InferenceSession(model.SerializeToString(), options, providers=rt.get_available_providers())
x = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
result = session.run(None, {session.get_inputs()[0].name: x})
with open(session.end_profiling()) as file:
    events = json.load(file)
result += [type(events) is list, any(event["name"] == "model_run" for event in events)]
""",
    "backend": """
import numpy as np
import onnxruntime.backend as backend
from onnx import load
from onnxruntime import datasets, get_device
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument
result = [backend.supports_device(get_device())]
name = datasets.get_example("logreg_iris.onnx")
for model in (load(name), name):
    prepared = backend.prepare(model, get_device())
    label, probabilities = prepared.run(np.arange(1, 7, dtype=np.float32).reshape(3, 2))
    result += [label, probabilities]
    try:
        prepared.run(np.array([[-1.0, -2.0]], dtype=np.float32))
    except (RuntimeError, InvalidArgument):
        result.append("one row is refused")
""",
    "metadata": """
import onnxruntime as rt
from onnxruntime.datasets import get_example
session = rt.InferenceSession(get_example("logreg_iris.onnx"), providers=rt.get_available_providers())
meta = session.get_modelmeta()
result = [meta.custom_metadata_map, meta.description, meta.domain, meta.graph_name, meta.producer_name]
result += [meta.version]
""",
}


def ran(script: str, folder: Path) -> list[Any]:
    names: dict[str, Any] = {"folder": folder}
    exec(script, names)
    found: list[Any] = names["result"]
    return found


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.filterwarnings("ignore::vkq.onnx.fallback.FallbackWarning")
@pytest.mark.filterwarnings("ignore:onnx.version is deprecated")
def test_examples_run(
    any_device: vkq.Device, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vkq.runtime.opened._default", any_device)
    want = ran(SCRIPTS[name], tmp_path)
    got = ran(SCRIPTS[name].replace("onnxruntime", "vkq.onnx").replace("vkq.onnx_", "onnxruntime_"), tmp_path)
    assert len(got) == len(want)
    for a, b in zip(got, want, strict=True):
        if isinstance(b, np.ndarray) and b.dtype == np.float32:
            np.testing.assert_array_max_ulp(a, b, 2)  # both libraries approximate the sigmoid
        else:
            assert type(a) is type(b)
            np.testing.assert_array_equal(a, b)


def test_what_the_device_refuses_is_told_or_refused(
    any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = datasets.get_example("logreg_iris.onnx")
    with pytest.warns(FallbackWarning, match="the whole model runs on the CPU"):
        assert backend.prepare(path, any_device).session.get_providers()[-1] == "CPUExecutionProvider"
    with pytest.raises(vkq.onnx.ModelError, match="opset 0"):
        backend.prepare(path, any_device, fallback=None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(vkq.onnx.ModelError, match="opset 0"):
        backend.prepare(path, any_device)


def test_examples_are_onnx_runtimes(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileNotFoundError, match="nothing"):
        datasets.get_example("nothing.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(vkq.ArgumentError, match=r"needs the package onnxruntime, .* pip install onnxruntime"):
        datasets.get_example("sigmoid.onnx")
