"""Tests of refusals: each error states its cause and the remedy in whole sentences."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from vkq.cli import main

FALLBACK = "fallback='onnxruntime' (vkq run --fallback onnxruntime) runs these on the CPU"
FLOAT, DOUBLE = TensorProto.FLOAT, TensorProto.DOUBLE
Of = tuple[str, int, Sequence[Any]]


def node(op: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(op, inputs.split(), outputs.split(), name=f"/{op}", **attributes)


def model(nodes: Sequence[Any], inputs: Sequence[Of], outputs: Sequence[Of], **constants: Any) -> Any:
    infos = [[helper.make_tensor_value_info(*one) for one in each] for each in (inputs, outputs)]
    graph = helper.make_graph(
        list(nodes), "g", *infos, [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=9)


def weight(*shape: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(3).normal(size=shape).astype(dtype)


def int16() -> Any:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "y"),
    ]
    return model(nodes, [("x", FLOAT, (1, 5))], [("y", FLOAT, (1, 5))], s=np.float32(0.1), z=np.int16(0))


def float64() -> Any:
    nodes = [node("Cast", "x", "d", to=DOUBLE), node("MatMul", "d w", "y")]
    x, y = ("x", FLOAT, (2, 5)), ("y", DOUBLE, (2, 3))
    return model(nodes, [x], [y], w=weight(5, 3, dtype=np.float64))


def runtime_weight() -> Any:
    inputs = ("x", FLOAT, (1, 3, 7, 5)), ("w", FLOAT, (4, 3, 3, 3))
    return model([node("Conv", "x w", "y")], inputs, [("y", FLOAT, (1, 4, 5, 3))])


def detector() -> Any:
    """Return a model that computes boxes and scores from x, selects them by NonMaxSuppression, and casts
    the result."""
    nodes = [
        node("MatMul", "x w", "boxes"),
        node("MatMul", "x ones", "sums"),
        node("Transpose", "sums", "scores", perm=[0, 2, 1]),
        node("NonMaxSuppression", "boxes scores most", "found"),
        node("Cast", "found", "y", to=FLOAT),
    ]
    constants = {"w": weight(3, 4), "ones": np.ones((3, 1), np.float32), "most": np.array([2])}
    return model(nodes, [("x", FLOAT, (1, 5, 3))], [("y", FLOAT, ("n", 3))], **constants)


def only_refused() -> Any:
    return model([node("Det", "x", "y")], [("x", FLOAT, (1, 5, 5))], [("y", FLOAT, (1,))])


def samples_of_a_volume() -> Any:
    inputs = [("x", FLOAT, (1, 2, 5, 5, 5)), ("grid", FLOAT, (1, 3, 3, 2, 3))]
    return model([node("GridSample", "x grid", "y")], inputs, [("y", FLOAT, (1, 2, 3, 3, 2))])


SAID = {
    "int16": (
        int16,
        "2 of 2 nodes cannot run on a device:\n"
        "  QuantizeLinear '/QuantizeLinear': works on int16; on a device it must be one of int8, uint8,"
        " float32, int32, float16\n"
        "  DequantizeLinear '/DequantizeLinear': works on int16; on a device it must be one of int8, uint8,"
        " float32, int32, float16\n"
        "int16, uint16: vkq has 8-bit activations: quantize the float model again, by `vkq quantize"
        " FLOAT.onnx -c PICTURES` or with activation_type=QuantType.QUInt8 in onnxruntime.quantization\n"
        + FALLBACK,
    ),
    "float64": (
        float64,
        "2 of 2 nodes cannot run on a device:\n"
        "  Cast '/Cast': works on float64; on a device it must be one of int8, uint8, float32, int32,"
        " float16, int64, bool\n"
        "  MatMul '/MatMul': works on float64; on a device it must be one of float32, float16\n"
        "float64: export the model in float32 (PyTorch: model.float() before the export)\n" + FALLBACK,
    ),
    "weight": (
        runtime_weight,
        "1 of 1 nodes cannot run on a device:\n"
        "  Conv '/Conv': its weight 'w' is float32[4, 3, 3, 3] and computed; it must be constant\n"
        "weights that are inputs: constant_inputs=['w'] makes them constants, prepared once\n" + FALLBACK,
    ),
    "operator": (
        only_refused,
        "1 of 1 nodes cannot run on a device:\n"
        "  Det '/Det': vkq does not know the operator ai.onnx.Det\n" + FALLBACK,
    ),
    "form": (
        samples_of_a_volume,
        "1 of 1 nodes cannot run on a device:\n"
        "  GridSample '/GridSample': vkq does not support this form of ai.onnx.GridSample\n" + FALLBACK,
    ),
    "detector": (
        detector,
        "1 of 5 nodes cannot run on a device:\n"
        "  NonMaxSuppression '/NonMaxSuppression': vkq does not know the operator ai.onnx.NonMaxSuppression,"
        " and its result is tensor(int64) of shape [None, 3], known only at run time\n"
        "to cut the model before NonMaxSuppression: onnx.utils.extract_model('MODEL.onnx', 'CUT.onnx',"
        " ['x'], ['boxes', 'scores']) keeps 3 of 5 nodes; compute the others from its results\n" + FALLBACK,
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", SAID)
def test_whole_sentences(kind: str, software_device: vkq.Device) -> None:
    made, said = SAID[kind]
    with pytest.raises(vkq.UnsupportedModelError) as caught:
        vkq.onnx.InferenceSession(made().SerializeToString(), software_device)
    assert str(caught.value) == said


@pytest.mark.parametrize("kind", SAID)
def test_inspect_says_the_same(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made, said = SAID[kind]
    onnx.save(made(), tmp_path / "m.onnx")
    assert main(["inspect", str(tmp_path / "m.onnx")]) == 1
    out = capsys.readouterr().out.splitlines()
    remedies = [line for line in said.splitlines()[1:] if not line.startswith("  ")]
    assert out[-len(remedies) :] == remedies
    reasons = [line.partition("': ")[2] for line in said.splitlines() if line.startswith("  ")]
    assert [line.strip() for line in out if line.startswith(" " * 10)] == reasons
    assert sum(line.startswith("cannot run ") for line in out) == len(reasons)


def test_the_cut_is_as_told(software_device: vkq.Device, tmp_path: Path) -> None:
    onnx.save(detector(), tmp_path / "m.onnx")
    onnx.utils.extract_model(tmp_path / "m.onnx", tmp_path / "cut.onnx", ["x"], ["boxes", "scores"])
    x = np.arange(15, dtype=np.float32).reshape(1, 5, 3)
    boxes, scores = vkq.onnx.InferenceSession(tmp_path / "cut.onnx", software_device).run(None, {"x": x})
    assert boxes.shape == (1, 5, 4)
    assert scores.tolist() == [[[3, 12, 21, 30, 39]]]


def test_the_constant_input_is_as_told(software_device: vkq.Device) -> None:
    session = vkq.onnx.InferenceSession(
        runtime_weight().SerializeToString(), software_device, constant_inputs=["w"]
    )
    (y,) = session.run(None, {"x": np.ones((1, 3, 7, 5), np.float32), "w": np.ones((4, 3, 3, 3), np.float32)})
    assert y.tolist() == np.full((1, 4, 5, 3), 27.0).tolist()


def test_why_a_layer_between_8_bit_values_computes_in_floats(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes = [
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "a"),
        node("Conv", "a w", "y"),
    ]
    scale, zero = np.float32(0.1), np.int8(0)
    x, y = ("x", FLOAT, (1, 3, 7, 5)), ("y", FLOAT, (1, 4, 5, 3))
    onnx.save(model(nodes, [x], [y], s=scale, z=zero, w=weight(4, 3, 3, 3)), tmp_path / "m.onnx")
    assert main(["inspect", str(tmp_path / "m.onnx")]) == 0
    why = "computes in floats: its weight is float32; with an 8-bit weight it is int8"
    assert [line.strip() for line in capsys.readouterr().out.splitlines()].count(why) == 1
