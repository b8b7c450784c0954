"""Tests of quantizing models in the forms that exporters write: nodes without names, several inputs of
variable sizes, a weight that two layers share."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from vkq.accuracy import Agreement, compare_layers, quantize
from vkq.cli import main
from vkq.onnx.cpu import cpu_session


def model() -> onnx.ModelProto:
    """Return a model of unnamed nodes with three outputs. Its inputs are the pictures a and b, of any size,
    and token ids."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        w = random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))
        return numpy_helper.from_array(w.astype(np.float32), name)

    def value(name: str, *shape: str | int, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    nodes = [
        helper.make_node("Conv", ["a", "w0", "b0"], ["c0"], pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"]),
        helper.make_node("Conv", ["b", "w1"], ["c1"], pads=[1] * 4),
        helper.make_node("Sigmoid", ["c1"], ["s1"]),
        helper.make_node("Mul", ["r0", "s1"], ["m"]),
        helper.make_node("Conv", ["m", "w2"], ["y"]),
        helper.make_node("GlobalMaxPool", ["m"], ["g"]),
        helper.make_node("Flatten", ["g"], ["f"]),
        helper.make_node("Gemm", ["f", "w3"], ["z"], transB=1),
        helper.make_node("Gather", ["rows", "ids"], ["e"]),
        helper.make_node("MatMul", ["e", "w4"], ["q"]),
        helper.make_node("Tanh", ["q"], ["t"]),
        helper.make_node("MatMul", ["t", "w4"], ["u"]),
    ]
    weights = [
        weight("w0", 8, 3, 3, 3), weight("b0", 8), weight("w1", 8, 2, 3, 3), weight("w2", 4, 8, 1, 1),
        weight("w3", 5, 8), weight("w4", 16, 16), weight("rows", 50, 16),
    ]  # fmt: skip
    inputs = [
        value("a", "N", 3, "H", "W"), value("b", "N", 2, "H", "W"),
        value("ids", "N", "L", kind=TensorProto.INT64),
    ]  # fmt: skip
    outputs = [value("y", "N", 4, "H", "W"), value("z", "N", 5), value("u", "N", "L", 16)]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def feeds(count: int) -> list[dict[str, Any]]:
    """Return samples of several sizes."""
    random = np.random.default_rng(1)
    return [
        {
            "a": random.standard_normal((1, 3, 12 + 4 * (i % 3), 20)).astype(np.float32),
            "b": random.standard_normal((1, 2, 12 + 4 * (i % 3), 20)).astype(np.float32),
            "ids": random.integers(0, 50, (1, 5 + i % 2)),
        }
        for i in range(count)
    ]


def test_it_is_quantized_and_runs_whole(
    tmp_path: Path, device: vkq.Device, capfd: pytest.CaptureFixture[str]
) -> None:
    path, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(model(), path)
    (tmp_path / "samples").mkdir()
    for i, feed in enumerate(feeds(6)):
        np.savez(tmp_path / "samples" / f"{i}.npz", **feed)
    words = ["quantize", str(path), "-c", str(tmp_path / "samples"), "--device", device.name]
    capfd.readouterr()
    assert main([*words, "--seconds", "3", "-o", str(target)]) == 0
    out, err = capfd.readouterr()
    assert all(f"  {name}: " in out for name in "yzu")  # the report has a line for each output
    assert "Exception" not in err  # ONNX Runtime prints no message
    session = vkq.onnx.InferenceSession(target, device)  # raises an error if a node cannot run on the device
    names, real, beside = ["y", "z", "u"], cpu_session(path, "test"), cpu_session(target, "test")
    agreement = Agreement(names)
    for feed in feeds(3):
        got = session.run(names, feed)
        agreement.add(real.run(names, feed), got)
        for a, b in zip(got, beside.run(names, feed), strict=True):
            np.testing.assert_allclose(a, b, atol=1e-5)
    assert min(row.snr_db for row in agreement.rows()) > 25
    ops = [node.op_type for node in onnx.load(target).graph.node]
    assert ops.count("QuantizeLinear") >= 6
    rows = compare_layers(path, target, feeds(2)).rows
    assert {"c1", "m", "q", "z"} <= {row.output for row in rows}
    # a layer without a name gets one, so that readers can find it
    assert {row.layer for row in rows if row.op == "MatMul"}


def test_layers_without_names_leave_int8(tmp_path: Path) -> None:
    """The report and *exclude* call a layer without a name by the name of its result."""
    path, target = tmp_path / "float.onnx", tmp_path / "int8.onnx"
    onnx.save(model(), path)
    report = quantize(path, target, feeds(6), seconds=0, target_db=40, exclude=["c1"])
    assert report.reached
    assert {row.layer for row in report.kept} <= {"c0", "y", "z", "q", "u"} | {
        row.layer for row in report.kept if row.layer.endswith("operators")
    }
    assert min(min(row.snr_db, row.even_db) for row in report.outputs) >= 40
    made = onnx.load(target)
    constants = {t.name: t for t in made.graph.initializer}
    conv = next(node for node in made.graph.node if node.name == "c1")
    assert constants[conv.input[1]].data_type == TensorProto.FLOAT
