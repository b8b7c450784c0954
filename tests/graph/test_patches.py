"""Tests of the first operators of a vision transformer: the patches of an image become rows without
a copy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkq
from tests.kernels import emulated
from tests.onnx.networks import onnxruntime_results, quantized
from tests.onnx.nodes import Nodes
from vkq.graph.executable import Executable
from vkq.graph.passes import lower
from vkq.layout.extent import BLOCKED
from vkq.onnx.reader import read

BATCH, SIDE, PATCH, WIDTH = 4, 24, 8, 48
ROWS = (SIDE // PATCH) ** 2


class Front(Nodes):
    """A model of a convolution that makes patches, a class token before the patches, and position
    embeddings."""

    def __init__(self) -> None:
        super().__init__(5)
        weight = self.random.normal(0, 0.1, (WIDTH, 3, PATCH, PATCH)).astype(np.float32)
        x = self._op("Conv", "x", self._constant(weight), strides=(PATCH, PATCH))
        x = self._op("Reshape", x, self._constant(np.array((BATCH, WIDTH, ROWS))))
        x = self._op("Transpose", x, perm=(0, 2, 1))
        first = self.random.normal(0, 1, (BATCH, 1, WIDTH)).astype(np.float32)
        x = self._op("Concat", self._constant(first), x, axis=1)
        positions = self.random.normal(0, 1, (1, ROWS + 1, WIDTH)).astype(np.float32)
        x = self._op("Add", x, self._constant(positions))
        weight = self.random.normal(0, 0.1, (WIDTH, 32)).astype(np.float32)
        self._op("MatMul", x, self._constant(weight), y="y")

    def model(self) -> Any:
        shapes = {"x": (BATCH, 3, SIDE, SIDE), "y": (BATCH, ROWS + 1, 32)}
        x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shapes[name]) for name in "xy")
        graph = helper.make_graph(self.nodes, "front", [x], [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def test_patches_become_rows_without_a_copy(
    strict_device: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = (BATCH, 3, SIDE, SIDE)
    model = quantized(Front().model(), "qdq_int8", tmp_path, shape)
    graph = lower(read(model).at({"x": shape}))
    ops = [node.op for node in graph.nodes]
    assert "permute" in ops
    assert not {"Reshape", "Transpose"} & set(ops)
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    executable = Executable(graph, strict_device, {})
    ran = executable.plan.variants
    # Two moves write the class token and the patches to one array. Nothing else is moved or repacked.
    moves = [name for name in ran if name.startswith(("move", "repack", "transpose", "im2col"))]
    assert moves == ["move_q8__pixels:16c"] * 2
    assert sum("coopmat" in name for name in ran) == 2
    assert f"binary_q8__word:add.{BLOCKED[-3:].lower()}" in ran
    feed = {"x": np.random.default_rng(6).normal(0, 1, shape).astype(np.float32)}
    np.testing.assert_array_equal(executable.run(feed)["y"], onnxruntime_results(model, feed)[0])


def test_without_matrix_units(any_device: vkq.Device, tmp_path: Path) -> None:
    """Without matrix units images have another layout and are transposed. Results equal ONNX Runtime's."""
    shape = (BATCH, 3, SIDE, SIDE)
    model = quantized(Front().model(), "qdq_int8", tmp_path, shape)
    executable = Executable(lower(read(model).at({"x": shape})), any_device, {})
    feed = {"x": np.random.default_rng(7).normal(0, 1, shape).astype(np.float32)}
    np.testing.assert_array_equal(executable.run(feed)["y"], onnxruntime_results(model, feed)[0])
