"""The interpreter's methods, as LiteRT has them, and the command line on .tflite files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.cli import main
from vkq.errors import ArgumentError, DTypeError, ModelError
from vkq.tflite import InferenceSession, Interpreter

from .answers import network_case
from .writer import Writer


def small() -> bytes:
    """Two inputs, one of an open size, two results, a signature."""
    w = Writer()
    a = w.tensor((1, 3), "int8", 0.5, 3, name="a:0", shape_signature=[-1, 3])
    b = w.tensor((1, 3), "int8", 0.25, -1, name="b:0", shape_signature=[-1, 3])
    total, bounded = w.tensor((1, 3), "int8", 0.5, 1), w.tensor((1, 3), "int8", 0.5, 1)
    for number in (total, bounded):
        w.tensors[number]["shape_signature"] = [-1, 3]
    w.operator("ADD", [a, b], [total], "AddOptions", 2)
    w.operator("RELU", [total], [bounded], "", 2)
    signature = {
        "signature_key": "serve",
        "inputs": [{"name": "b", "tensor_index": b}, {"name": "a", "tensor_index": a}],
        "outputs": [{"name": "sum", "tensor_index": total}, {"name": "relu", "tensor_index": bounded}],
    }  # fmt: skip
    return w.file([a, b], [total, bounded], signature_defs=[signature])


A, B = np.array([[3, 5, -7]], np.int8), np.array([[-1, 3, 1]], np.int8)
SUM, RELU = np.array([[1, 5, -8]]), np.array([[1, 5, 1]])


def test_interpreter(any_device: vkq.Device, tmp_path: Path) -> None:
    (tmp_path / "small.tflite").write_bytes(small())
    interpreter = Interpreter(str(tmp_path / "small.tflite"), device=any_device)
    interpreter.allocate_tensors()
    first, second = interpreter.get_input_details()
    assert (first["name"], first["index"], first["quantization"]) == ("a:0", 0, (0.5, 3))
    assert first["shape_signature"].tolist() == [-1, 3]
    interpreter.set_tensor(first["index"], A)
    interpreter.set_tensor(second["index"], B)
    with pytest.raises(ArgumentError, match="call invoke"):
        interpreter.get_tensor(2)
    interpreter.invoke()
    found = [interpreter.get_tensor(detail["index"]) for detail in interpreter.get_output_details()]
    np.testing.assert_array_equal(found, [SUM, RELU])


def test_signature_and_resizing(any_device: vkq.Device) -> None:
    interpreter = Interpreter(model_content=small(), device=any_device)
    assert interpreter.get_signature_list() == {"serve": {"inputs": ["a", "b"], "outputs": ["relu", "sum"]}}
    run = interpreter.get_signature_runner()
    np.testing.assert_array_equal(run(a=A, b=B)["relu"], RELU)
    many = run(a=np.repeat(A, 5, 0), b=np.repeat(B, 5, 0))
    np.testing.assert_array_equal(many["sum"], np.repeat(SUM, 5, 0))
    with pytest.raises(ArgumentError, match=r"takes \['a', 'b'\]"):
        run(a=A)


def test_misuse(any_device: vkq.Device) -> None:
    interpreter = Interpreter(model_content=small(), device=any_device)
    with pytest.raises(DTypeError, match="is float32; it must be int8"):
        interpreter.set_tensor(0, A.astype(np.float32))
    with pytest.raises(ArgumentError, match="shape"):
        interpreter.set_tensor(0, A[0])
    with pytest.raises(ArgumentError, match="tensor 2 is none of the inputs"):
        interpreter.set_tensor(2, A)
    with pytest.raises(ArgumentError, match="cannot become"):
        interpreter.resize_tensor_input(0, (3,))
    with pytest.raises(ArgumentError, match="one of model_path and model_content"):
        Interpreter()
    with pytest.raises(ArgumentError, match="there is no signature 'x'"):
        interpreter.get_signature_runner("x")


class Stand:
    """LiteRT's place, where the package is not installed: an interpreter that answers zeros."""

    def __init__(self, model_content: bytes, num_threads: int | None):
        self.model_content = model_content

    def get_input_details(self) -> list[dict[str, Any]]:
        return []

    def allocate_tensors(self) -> None:
        pass

    def set_tensor(self, number: int, value: np.ndarray) -> None:
        self.value = value

    def invoke(self) -> None:
        pass

    def get_tensor(self, number: int) -> np.ndarray:
        return np.zeros(self.value.shape if self.value.size < 9 else (1, 21), np.int8)


@pytest.fixture
def litert(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = type(sys)("ai_edge_litert"), type(sys)("ai_edge_litert.interpreter")
    module.Interpreter = Stand  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ai_edge_litert", package)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)


def unknown() -> bytes:
    w = Writer()
    x, y = w.tensor((1, 3), "int8", 0.5), w.tensor((1, 3), "int8", 0.5)
    w.operator("Something", [x], [y])
    return w.file([x], [y])


def test_fallback(any_device: vkq.Device, litert: None) -> None:
    with pytest.warns(UserWarning, match="the whole model runs on the CPU through LiteRT"):
        session = InferenceSession(unknown(), any_device, fallback="litert")
    np.testing.assert_array_equal(session.run(None, {"t0": A})[0], np.zeros((1, 3)))
    assert "through LiteRT" in str(session.explain())
    with pytest.raises(ArgumentError, match="must be None or 'litert'"):
        InferenceSession(unknown(), any_device, fallback="onnxruntime")
    whole = InferenceSession(small(), any_device, fallback="litert")  # nothing to fall back for
    np.testing.assert_array_equal(whole.run(None, {"a:0": A, "b:0": B})[1], RELU)


def test_litert_is_asked_for_by_name(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ai_edge_litert", None)
    with pytest.raises(ModelError, match="pip install ai-edge-litert"):
        InferenceSession(unknown(), any_device, fallback="litert")


def test_command_line(
    software_device: vkq.Device, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch, litert: None,
) -> None:  # fmt: skip
    monkeypatch.setattr("vkq.runtime.opened._default", software_device)
    monkeypatch.setenv("VKQ_DEVICE", software_device.name)
    path = tmp_path / "network"  # the file's identifier says what it is
    path.write_bytes(network_case("mobilenet_v2")[0])
    assert main(["inspect", str(path)]) == 0
    assert "TFLite, 28 nodes" in capsys.readouterr().out
    assert main(["run", str(path), "--random", "--compare", "litert"]) == 1  # zeros
    assert "compare LiteRT with XNNPACK" in capsys.readouterr().out
    assert main(["run", str(path), "--random", "--profile"]) == 0
    assert "CONV_2D #0" in capsys.readouterr().out
    assert main(["run", str(path), "--random", "--compare", "onnxruntime"]) == 2
    assert "it must be litert" in capsys.readouterr().err
