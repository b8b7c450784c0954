"""Tests of the intervals of floats, with which a Cast to int64 runs on a device."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkq
from vkq.graph.executable import refusals
from vkq.graph.passes import lower
from vkq.onnx.reader import read

from .test_chains import model, normal, op
from .test_plain import checked

INT64 = TensorProto.INT64
X = normal(0, 3, 5) * 20
NUMBERS: dict[str, Any] = {
    "low": np.float32(-7.5), "high": np.float32(90), "zero": np.float32(0),
    "axes": np.array([1]),
}  # fmt: skip
# name -> the nodes that compute f of x. The intervals are those of a Clip, of a sum of flags, of a sigmoid,
# and of a minimum of a Relu.
KNOWN = {
    "levels": [op("Floor", "x", "a"), op("Clip", "a low high", "f")],
    "counts": [op("Greater", "x zero", "a"), op("Cast", "a", "b", to=1), op("ReduceSum", "b axes", "f")],
    "shares": [op("Sigmoid", "x", "a"), op("Mul", "a high", "b"), op("Sub", "b low", "f")],
    "least": [op("Relu", "x", "a"), op("Min", "a high", "b"), op("Reshape", "b minus", "f")],
}
OPEN = {
    "nothing": [op("Neg", "x", "f")],
    "large": [op("Sigmoid", "x", "a"), op("Mul", "a large", "f")],
    "half": [op("Clip", "x low", "f")],
    "computed": [op("Neg", "x", "a"), op("ReduceMax", "a", "b", keepdims=0), op("Clip", "x b", "f")],
}
CAST = [op("Cast", "f", "i", to=INT64), op("Sub", "i one", "j"), op("Max", "j nought", "y")]
MORE = {"one": np.array(1), "nought": np.array(0), "minus": np.array([-1]), "large": np.float32(3e9)}


@pytest.mark.parametrize("name", KNOWN)
def test_known_intervals(any_device: vkq.Device, name: str) -> None:
    """The Cast and the arithmetic after it run on the device, with ONNX Runtime's results."""
    checked(any_device, [*KNOWN[name], *CAST], {"x": X}, {"y": INT64}, **NUMBERS, **MORE)


@pytest.mark.parametrize("name", OPEN)
def test_open_intervals(name: str) -> None:
    """A Cast of floats that may exceed int32 is refused."""
    data = model([*OPEN[name], *CAST], {"x": X}, {"y": INT64}, **NUMBERS, **MORE)
    assert any(node.op == "Cast" for node, _ in refusals(lower(read(data).at({"x": X.shape}))))
