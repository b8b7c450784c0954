"""Tests of the interpreter's methods, which have LiteRT's interface, and of the command line on
.tflite files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.cli import main
from vkq.errors import ArgumentError, DTypeError, ModelError, UnsupportedModelError
from vkq.onnx.fallback import FallbackWarning
from vkq.tflite import InferenceSession, Interpreter, read
from vkq.tflite.file import parse
from vkq.tflite.litert import LitertCpuModel

from .answers import network_case
from .writer import Writer


def small() -> bytes:
    """Return a model with two inputs of a variable batch, two results, and a signature."""
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
    with pytest.raises(ArgumentError, match="tensor 2 is not one of the inputs"):
        interpreter.set_tensor(2, A)
    with pytest.raises(ArgumentError, match="cannot become"):
        interpreter.resize_tensor_input(0, (3,))
    with pytest.raises(ArgumentError, match="give model_path or model_content"):
        Interpreter()
    with pytest.raises(ArgumentError, match="there is no signature 'x'"):
        interpreter.get_signature_runner("x")


def test_signature_of_another_tensor(any_device: vkq.Device) -> None:
    """A signature of a file names a tensor that is not an output. The file runs, but the signature is
    refused, as in LiteRT."""
    w = Writer()
    x, y, z = (w.tensor((1, 3), "int8", 0.5, name=name) for name in "xyz")
    w.operator("RELU", [x], [y])
    w.operator("RELU6", [y], [z])
    one, two = ({"name": name, "tensor_index": number} for name, number in (("in", x), ("out", y)))
    signature = {"signature_key": "serve", "inputs": [one], "outputs": [two]}
    interpreter = Interpreter(model_content=w.file([x], [z], signature_defs=[signature]), device=any_device)
    interpreter.set_tensor(x, A)
    interpreter.invoke()
    np.testing.assert_array_equal(interpreter.get_tensor(z), [[3, 5, 0]])
    with pytest.raises(ModelError, match=r"the output 'out' of signature 'serve' is tensor 1, .*are \(2,\)"):
        interpreter.get_signature_runner()


class Stand:
    """A fake LiteRT for tests without the package: the operator Something adds 1, and other operators
    return zeros."""

    def __init__(self, model_content: bytes, num_threads: int | None):
        self.file, self.values = parse(model_content), dict[int, np.ndarray]()
        MADE.append(self)

    def _details(self, numbers: Sequence[int]) -> list[dict[str, Any]]:
        return [{"index": n, "shape": np.array(self.file.tensors[n].shape)} for n in numbers]

    def get_input_details(self) -> list[dict[str, Any]]:
        return self._details(self.file.inputs)

    def get_output_details(self) -> list[dict[str, Any]]:
        return self._details(self.file.outputs)

    def allocate_tensors(self) -> None:
        pass

    def set_tensor(self, number: int, value: np.ndarray) -> None:
        if value.dtype.name != self.file.tensors[number].dtype:
            raise ValueError(f"Got value of type {value.dtype}")
        self.values[number] = value

    def invoke(self) -> None:
        for one in self.file.operators:
            more = self.values[one.inputs[0]] + 1 if one.op == "Something" else 0
            tensor = self.file.tensors[one.outputs[0]]
            if one.op == "Twice":
                self.values[one.outputs[0]] = np.repeat(self.values[one.inputs[0]], 2, 1)
            else:
                self.values[one.outputs[0]] = (np.zeros(tensor.shape) + np.real(more)).astype(
                    tensor.dtype or "complex64"
                )

    def get_tensor(self, number: int) -> np.ndarray:
        return self.values[number]


MADE: list[Stand] = []


@pytest.fixture
def litert(monkeypatch: pytest.MonkeyPatch) -> None:
    package, module = type(sys)("ai_edge_litert"), type(sys)("ai_edge_litert.interpreter")
    module.Interpreter = Stand  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "ai_edge_litert", package)
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", module)


def unknown() -> bytes:
    """Return a model of a RELU, two operators that vkq does not know, and a RELU6. The result between the two
    unknown operators is also an output."""
    w = Writer()
    numbers = [w.tensor((1, 3), "int8", 0.5) for _ in range(5)]
    for i, op in enumerate(("RELU", "Something", "Something", "RELU6")):
        w.operator(op, [numbers[i]], [numbers[i + 1]])
    return w.file(numbers[:1], [numbers[4], numbers[2]], signature_defs=[{"signature_key": "serve"}])


def test_fallback(any_device: vkq.Device, litert: None) -> None:
    """With the fallback, unknown operators run in LiteRT and the others on the device."""
    session = InferenceSession(unknown(), any_device, fallback="litert")
    with pytest.warns(UserWarning, match=r"2 of 4 nodes run on the CPU through LiteRT \(Something\)"):
        got = session.run(None, {"t0": A})
    np.testing.assert_array_equal(got, [[[5, 7, 2]], [[4, 6, 1]]])
    part = MADE[-1]
    assert [one.place for one in part.file.operators] == ["#0", "#1"]
    assert (part.file.inputs, part.file.outputs) == ((1,), (2, 3))
    report = session.explain()
    assert [row.where for row in report.rows] == ["device", "CPU", "CPU", "device"]
    assert "2 nodes on the CPU" in str(report)
    with pytest.raises(ArgumentError, match="must be None or 'litert'"):
        InferenceSession(unknown(), any_device, fallback="onnxruntime")
    whole = InferenceSession(small(), any_device, fallback="litert")  # this model needs no fallback
    np.testing.assert_array_equal(whole.run(None, {"a:0": A, "b:0": B})[1], RELU)


def test_fallback_of_other_types(any_device: vkq.Device, litert: None) -> None:
    """LiteRT gets bool and int64 from the device as bool and int64. Values of a type that vkq does not have
    (complex64) go from one part of LiteRT to the next."""
    w = Writer()
    x, flags, some, wide, more, out = (
        w.tensor((1, 3), dtype) for dtype in ("float32", "bool", "bool", "int64", "int64", "float32")
    )
    waves = w.tensor((1, 3), "float32", type=8)
    w.operator("GREATER", [x, w.constant(np.zeros(1, np.float32))], [flags])
    w.operator("Something", [flags], [some])
    w.operator("CAST", [flags], [wide], "CastOptions")
    w.operator("Something", [wide], [more])
    w.operator("Something", [x], [waves])
    w.operator("Something", [waves], [out])
    session = InferenceSession(w.file([x], [some, more, out]), any_device, fallback="litert")
    with pytest.warns(UserWarning, match="4 of 6 nodes run on the CPU"):
        got = session.run(None, {"t0": np.array([[-1, 2, 3]], np.float32)})
    assert [one.dtype.name for one in got] == ["bool", "int64", "float32"]
    np.testing.assert_array_equal(got[1], [[1, 2, 2]])
    np.testing.assert_array_equal(got[2], [[1, 4, 5]])


def test_shape_of_the_run(any_device: vkq.Device, litert: None) -> None:
    """If LiteRT gives a result another shape than the file, the whole model runs in LiteRT, also later."""
    w = Writer()
    x, y, z = (w.tensor((1, 3), "int8", 0.5) for _ in range(3))
    w.operator("RELU", [x], [y])
    w.operator("Twice", [y], [z])
    session = InferenceSession(w.file([x], [z]), any_device, fallback="litert")
    with pytest.warns(FallbackWarning) as told:
        (got,) = session.run(None, {"t0": A})
    whole = "the whole model runs on the CPU through LiteRT: LiteRT gives 't2' the shape (1, 6)"
    assert whole in str(told[1].message)
    np.testing.assert_array_equal(got, np.zeros((1, 6)))  # the fake LiteRT's RELU returns zeros
    (again,) = session.run(None, {"t0": A})
    np.testing.assert_array_equal(again, got)


def test_inputs_of_litert(litert: None) -> None:
    """A missing and an unknown input raise an error that names the inputs, also if LiteRT runs the model."""
    whole = LitertCpuModel(unknown(), ModelError("a reason"))
    for feed in ({}, {"t0": A, "t9": A}, {"t9": A}):
        with pytest.raises(ArgumentError, match=r"inputs are given for \[.*\]; the model takes \['t0'\]"):
            whole.run(feed)


def test_constant_result(any_device: vkq.Device) -> None:
    w = Writer()
    x, y = (w.tensor((1, 3), "int8", 0.5) for _ in range(2))
    w.operator("RELU", [x], [y])
    session = InferenceSession(w.file([x], [w.constant(B), y]), any_device)
    got = session.run(None, {"t0": A})
    np.testing.assert_array_equal(got, [B, [[3, 5, 0]]])


def several(op: str = "") -> bytes:
    """Return a file of two subgraphs, each with a signature. With *op* the first subgraph may call the
    second."""
    w = Writer()
    x, y, z = (w.tensor((1, 3), "int8", 0.5, name=name) for name in "xyz")
    w.operator("RELU", [x], [y])
    w.operator(op or "RELU6", [y], [z])
    first, second = w.operators, [w.operators[0] | {"outputs": [z]}]
    graphs = [
        {"tensors": w.tensors, "inputs": [x], "outputs": [z], "operators": some, "name": name}
        for some, name in ((first, "main"), (second, "body"))
    ]
    keys = [
        {
            "signature_key": key, "subgraph_index": i, "inputs": [{"name": "in", "tensor_index": x}],
            "outputs": [{"name": "out", "tensor_index": z}],
        }
        for i, key in enumerate(("bound", "cut"))
    ]  # fmt: skip
    return w.file([x], [z], subgraphs=graphs, signature_defs=keys)


def test_subgraphs(any_device: vkq.Device) -> None:
    """The signature or the name that is given selects the subgraph to run; by default, the first one runs."""
    interpreter = Interpreter(model_content=several(), device=any_device)
    ends = {"inputs": ["in"], "outputs": ["out"]}
    assert interpreter.get_signature_list() == {"bound": ends, "cut": ends}
    many = np.array([[-5, 5, 99]], np.int8)
    results = {key: interpreter.get_signature_runner(key)(**{"in": many})["out"] for key in ("bound", "cut")}
    np.testing.assert_array_equal(results["bound"], [[0, 5, 12]])
    np.testing.assert_array_equal(results["cut"], [[0, 5, 99]])
    by_name = InferenceSession(read(several(), signature="body"), any_device)
    np.testing.assert_array_equal(by_name.run(None, {"x": many})[0], [[0, 5, 99]])
    with pytest.raises(ModelError, match=r"no signature 'x'; there are \['bound', 'cut'\], .*'main', 'body'"):
        read(several(), signature="x")


def test_operators_that_run_subgraphs(any_device: vkq.Device) -> None:
    with pytest.raises(ModelError, match="CALL_ONCE '#1': CALL_ONCE runs another subgraph of the file"):
        InferenceSession(several("CALL_ONCE"), any_device)
    with pytest.raises(ModelError, match="WHILE #1: subgraph 0 runs itself"):
        InferenceSession(several("WHILE"), any_device)


def sixteen(op: str = "ADD", ends: str = "float32") -> bytes:
    """Return a model that quantizes to int16, applies one operator, and dequantizes."""
    w = Writer()
    x, y = (w.tensor((1, 4), ends, 2**-10 if ends == "int16" else None, name=name) for name in "xy")
    one, two = (w.tensor((1, 4), "int16", scale) for scale in (2**-10, 2**-11))
    w.operator("QUANTIZE", [x], [one])
    constant = w.constant(np.array([[1, -2, 3, 1024]], np.int16), 2**-10)
    w.operator(op, [one, constant], [two], "AddOptions" if op == "ADD" else "")
    w.operator("DEQUANTIZE", [two], [y])
    return w.file([x], [y])


def test_16_bit_activations(any_device: vkq.Device) -> None:
    """vkq computes 16-bit activations in floats, clamped to the range of int16."""
    session = InferenceSession(sixteen(), any_device)
    (got,) = session.run(None, {"x": np.array([[0.5, -15, 99, 15]], np.float32)})
    top = (2**15 - 1) / 2**11  # the largest int16, dequantized
    np.testing.assert_array_equal(got, np.float32([[0.5 + 2**-10, -15 - 2**-9, top, top]]))
    with pytest.raises(UnsupportedModelError, match=r"int16 activations .* they must be float"):
        InferenceSession(sixteen(ends="int16"), any_device)
    with pytest.raises(UnsupportedModelError, match=r"MATRIX_DIAG #1: vkq does not know .* \(16x8\)"):
        InferenceSession(sixteen("MATRIX_DIAG"), any_device)


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
    path = tmp_path / "network"  # the file's identifier, not its name, marks a .tflite file
    path.write_bytes(network_case("mobilenet_v2")[0])
    assert main(["inspect", str(path)]) == 0
    assert "TFLite, 28 nodes" in capsys.readouterr().out
    assert main(["run", str(path), "--random", "--compare", "litert"]) == 1  # the fake LiteRT returns zeros
    assert "compare LiteRT with XNNPACK" in capsys.readouterr().out
    assert main(["run", str(path), "--random", "--profile"]) == 0
    assert "CONV_2D #0" in capsys.readouterr().out
    assert main(["run", str(path), "--random", "--compare", "onnxruntime"]) == 2
    assert "it must be litert" in capsys.readouterr().err
