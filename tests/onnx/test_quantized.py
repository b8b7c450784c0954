"""Tests that vkq runs the models that `quantize` writes, also if a channel is dead, or if values are too
small or too large for a scale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from vkq.onnx.cpu import cpu_session
from vkq.onnx.quantize import quantize

RNG = np.random.default_rng(36)
X = RNG.normal(size=(1, 3, 7, 6)).astype(np.float32)
WEIGHT, BIAS = (RNG.normal(size=shape).astype(np.float32) for shape in ((4, 3, 3, 3), 4))
Change = Callable[[np.ndarray, np.ndarray], None]


def first_of(at: Any, weight: float, bias: float | None = None) -> Change:
    def change(w: np.ndarray, b: np.ndarray) -> None:
        w[at] = weight
        b[at] = b[at] if bias is None else bias

    return change


CHANGES: dict[str, Change] = {
    "a dead channel": first_of(2, 0, 0),
    "a dead channel with a large bias": first_of(2, 0, 1e6),
    "nothing but dead channels": first_of(slice(None), 0, 0),
    "biases alone": first_of(slice(None), 0),
    "a subnormal channel": first_of(2, 1e-42, 0),
    "a subnormal channel with a bias": first_of(2, 1e-42, 3),
    "a tiny channel": first_of(2, 1e-30, 1),
    "a huge bias": first_of(2, 0.5, 1e30),
}


def saved(path: Path, nodes: list[Any], constants: dict[str, Any]) -> Path:
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", kind, X.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(np.asarray(a, np.float32), n) for n, a in constants.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


def loads(source: Path, device: vkq.Device, activations: str, per_channel: bool) -> None:
    """Quantize a model, run it without the fallback, and check that the bytes equal ONNX Runtime's."""
    target = source.with_name("quantized.onnx")
    quantize(source, target, [{"x": X * k} for k in (1, 0.5, 2)], activations, per_channel)
    (got,) = vkq.onnx.InferenceSession(target, device).run(None, {"x": X})
    np.testing.assert_array_equal(got, cpu_session(target, "x").run(None, {"x": X})[0])


@pytest.mark.parametrize("per_channel", [True, False])
@pytest.mark.parametrize("change", CHANGES)
def test_channels(any_device: vkq.Device, change: str, per_channel: bool, tmp_path: Path) -> None:
    w, b = WEIGHT.copy(), BIAS.copy()
    CHANGES[change](w, b)
    nodes = [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Relu", ["c"], ["y"])]
    loads(saved(tmp_path / "model.onnx", nodes, {"w": w, "b": b}), any_device, "int8", per_channel)


@pytest.mark.parametrize("activations", ["int8", "uint8"])
@pytest.mark.parametrize("factor", [0, 1e-41, 1e-38, 1e30])
def test_activations(any_device: vkq.Device, factor: float, activations: str, tmp_path: Path) -> None:
    nodes = [helper.make_node("Mul", ["x", "z"], ["m"]), helper.make_node("Conv", ["m", "w", "b"], ["y"])]
    source = saved(tmp_path / "model.onnx", nodes, {"z": factor, "w": WEIGHT, "b": BIAS})
    loads(source, any_device, activations, True)


@pytest.mark.parametrize("op", ["Gemm", "MatMul", "ConvTranspose", "depthwise Conv"])
def test_operators(any_device: vkq.Device, op: str, tmp_path: Path) -> None:
    """Each operator with a dead output channel (all weights 0) is quantized, and gives ONNX Runtime's
    bytes."""
    x, w = "f", RNG.normal(size=(126, 5)).astype(np.float32)
    nodes = [helper.make_node("Flatten", ["x"], ["f"])]
    if "Conv" in op:
        x, w = "x", np.transpose(WEIGHT, (1, 0, 2, 3)) if op == "ConvTranspose" else WEIGHT[:3, :1]
    w, many = w.copy(), {"group": 3} if " " in op else {}
    (w if many else np.moveaxis(w, 1, 0))[1] = 0
    nodes += [
        helper.make_node(op.split()[-1], [x, "w"], ["c"], **many), helper.make_node("Relu", ["c"], ["y"]),
    ]  # fmt: skip
    loads(saved(tmp_path / "model.onnx", nodes, {"w": w}), any_device, "int8", True)


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_weights_that_are_no_numbers_are_refused(value: float, tmp_path: Path) -> None:
    w = WEIGHT.copy()
    w[2, 1, 0, 1] = value
    source = saved(tmp_path / "model.onnx", [helper.make_node("Conv", ["x", "w"], ["y"])], {"w": w})
    with pytest.raises(vkq.ModelError, match=rf"its weight 'w' is {value} at \(2, 1, 0, 1\)"):
        quantize(source, tmp_path / "quantized.onnx", [{"x": X}])
    assert not (tmp_path / "quantized.onnx").exists()
