"""Tests of residual sums in the epilogue of the preceding product: ONNX Runtime's bytes, and the number of
dispatches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from vkq.check import graph as oracle
from vkq.onnx.prepared import known
from vkq.onnx.report import NodeRow

from ..kernels import emulated
from .networks import onnxruntime_results


class Quantized:
    """A model in QDQ form under construction. Methods return the names of dequantized tensors."""

    def __init__(self, dtype: str = "int8") -> None:
        self.random, self.dtype = np.random.default_rng(8), dtype
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        name = f"{kind}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=name, **attributes))
        return name

    def constant(self, array: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = np.asarray(array)
        return name

    def stored(self, x: str, scale: float, zero_point: int = 0) -> str:
        """Quantize and dequantize a value."""
        given = self.constant(np.float32(scale)), self.constant(np.array(zero_point, self.dtype))
        return self.op("DequantizeLinear", self.op("QuantizeLinear", x, *given), *given)

    def weight(self, *shape: int) -> str:
        w = self.constant(self.random.integers(-127, 128, shape).astype(np.int8))
        return self.op("DequantizeLinear", w, self.constant(np.float32(0.01)), self.constant(np.int8(0)))

    def model(self, result: str, shape: tuple[int, ...]) -> bytes:
        kind = TensorProto.FLOAT
        graph = helper.make_graph(
            self.nodes, "sums", [helper.make_tensor_value_info("x", kind, shape)],
            [helper.make_tensor_value_info(result, kind, None)],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )  # fmt: skip
        opset = [helper.make_opsetid("", 17)]
        return bytes(helper.make_model(graph, opset_imports=opset, ir_version=8).SerializeToString())


def ran(device: vkq.Device, data: bytes, shape: tuple[int, ...]) -> Sequence[NodeRow]:
    """Check that a session has ONNX Runtime's results; return the rows of its report."""
    session = vkq.onnx.InferenceSession(data, device)
    feed = {"x": np.random.default_rng(4).normal(0, 1.5, shape).astype(np.float32)}
    for got, want in zip(session.run(None, feed), onnxruntime_results(data, feed), strict=True):
        np.testing.assert_array_equal(got, want)
    graph, _ = known(vkq.onnx.read(data), {"x": shape}, fallback=False)
    np.testing.assert_array_equal(next(iter(oracle.run(graph, feed).values())), want)
    return session.explain({"x": shape}).rows


# (scales of both operands and of the result), zero point of the result, expected operator: "conv2d+add" if a
# QLinearAdd with bounds and with these or neighbouring scales gives the bytes of the float operators. In the
# other cases the sum needs a table, because rounded operands decide many ties or the zero point is odd.
BOUNDED = [
    ((0.0361237, 0.0419871, 0.05), 0, "conv2d+add"),
    ((0.0363537, 0.0351005, 0.05), 0, "conv2d+add"),
    ((0.25, 0.25, 0.5), 2, "conv2d+add"),
    ((0.25, 0.25, 0.5), 3, "lookup2"),
    ((0.025, 0.025, 0.05), 0, "lookup2"),
]


@pytest.mark.parametrize("bounds", [(0.0, None), (-0.7, 2.4)])
@pytest.mark.parametrize(("scales", "zero_point", "operator"), BOUNDED)
def test_a_sum_and_its_bounds(
    any_device: vkq.Device, scales: tuple[float, ...], zero_point: int, operator: str, bounds: Any
) -> None:
    """If a Relu or Clip that changes values follows a sum, ONNX Runtime adds floats. The preceding
    convolution then adds and clamps in its epilogue, unless only a table gives the same bytes."""
    model, shape = Quantized(), (1, 8, 7, 6)
    x = model.stored("x", scales[0], 5)
    y = model.stored(model.op("Conv", x, model.weight(8, 8, 1, 1)), scales[1], -9)
    y = model.op("Add", x, y)
    limits = [model.constant(np.float32(bound)) for bound in bounds if bound is not None]
    y = model.op("Clip", y, *limits) if bounds[1] else model.op("Relu", y)
    data = model.model(model.stored(y, scales[2], zero_point), shape)
    assert operator in [row.operator for row in ran(any_device, data, shape)]


def block(model: Quantized, x: str, width: int, kind: str) -> str:
    """Add a LayerNormalization, a product and a residual sum. *kind* has some of these words:

    - "first", "second": the position of the residual in the sum
    - "later": a later Mul also reads the residual
    - "own": the product itself also reads the residual
    - "biased": the product has a bias, which becomes a table for each channel
    - "flat": the product is between two Reshapes"""
    ones = [model.constant(model.random.normal(1, 0.2, width).astype(np.float32)) for _ in range(2)]
    y = model.stored(model.op("LayerNormalization", x, *ones, axis=-1), 0.02, 3)
    if "flat" in kind:
        y = model.stored(model.op("Reshape", y, model.constant([30, width])), 0.02, 3)
    y = model.stored(model.op("MatMul", x if "own" in kind else y, model.weight(width, width)), 0.03, 4)
    if "flat" in kind:
        y = model.stored(model.op("Reshape", y, model.constant([2, 15, width])), 0.03, 4)
    if "biased" in kind:
        y = model.stored(model.op("Add", model.weight(width), y), 0.04, 9)
    y = model.stored(model.op("Add", *((x, y) if "first" in kind else (y, x))), 0.04, 6)
    return model.stored(model.op("Mul", y, x), 0.04, 1) if "later" in kind else y


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("kind", "dispatches"),
    [
        ("first", 1),
        ("second", 1),
        ("later", 2),
        ("own", 2),
        ("biased first", 1),
        ("biased later", 2),
        ("flat", 1),
    ],
)
@pytest.mark.parametrize("matrices", [False, True])
def test_sums_of_rows(
    strict_device: vkq.Device, kind: str, dispatches: int, matrices: bool, dtype: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A linear layer adds the residual and overwrites it, unless the layer or a later node reads the
    residual, too. The first residual is quantized in the layout of the layer's result."""
    if matrices and not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    model, shape = Quantized(dtype), (2, 15, 32)
    x = model.stored("x", 0.03, 5)
    for _ in range(2):
        x = block(model, x, shape[-1], kind)
    rows = ran(strict_device, model.model(x, shape), shape)
    name = "linear+lookup+add" if "biased" in kind else "linear+add"
    sums = [row.shaders for row in rows if row.operator == name]
    assert [len(shaders) for shaders in sums] == [dispatches] * 2
    assert all(("coopmat" in shaders[0]) == matrices for shaders in sums)
    assert not any(row.operator in ("add", "Reshape") for row in rows)
