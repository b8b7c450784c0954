"""Tests of queries, keys and values computed by one product. Layers are written as exporters write them,
and quantized by onnxruntime.quantization."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

import vkq
from tests.kernels import emulated
from tests.onnx.networks import onnxruntime_results, quantized
from tests.onnx.nodes import Nodes
from tests.ops import doctored
from vkq.graph.executable import Executable
from vkq.graph.passes import lower
from vkq.onnx.reader import read
from vkq.ops.linears import JoinedLinears

HEADS, TOKENS, WIDTH = 2, 5, 48
FORMS = ["without biases", "biases apart", "gemm"]
PERMS = (0, 2, 1, 3), (0, 2, 3, 1), (0, 2, 1, 3)  # permutations of the Transposes of q, k and v


class Heads(Nodes):
    """Attention whose queries, keys and values are products of the normalized x with separate weights.
    *biases*: letters of the products that have a bias. *gemm*: products are Gemm between Reshapes
    (otherwise MatMul, with biases quantized separately). *depth*: columns of a head of queries and keys;
    *wide*: columns of a head of values."""

    def __init__(self, batch: int, biases: str = "", depth: int = 16, wide: int = 32, gemm: bool = False):
        self.shape, self.biases, self.gemm = (batch, TOKENS, WIDTH), biases, gemm
        super().__init__(3)
        ones, zeros = (self._constant(np.full(WIDTH, v, np.float32)) for v in (1, 0))
        self.x = self._op("LayerNormalization", "x", ones, zeros, axis=-1)
        q, k, v = (
            self._heads(name, columns, perm)
            for name, columns, perm in zip("qkv", (depth, depth, wide), PERMS, strict=True)
        )
        scores = self._op("Mul", self._op("MatMul", q, k), self._constant(np.float32(0.3)))
        seen = self._op("MatMul", self._op("Softmax", scores, axis=-1), v)
        seen = self._op("Transpose", seen, perm=(0, 2, 1, 3))
        shape = self._constant(np.array((batch, TOKENS, HEADS * wide)))
        self._op("Reshape", seen, shape, y="y")
        self.results = (batch, TOKENS, HEADS * wide)

    def _heads(self, name: str, columns: int, perm: tuple[int, ...]) -> str:
        n, scale = HEADS * columns, {"q": 0.2, "k": 0.5, "v": 0.1}[name]
        weight = self._constant(self.random.normal(0, scale, (WIDTH, n)).astype(np.float32))
        bias = [self._constant(self.random.normal(0, 0.5, n).astype(np.float32))][: name in self.biases]
        if self.gemm:
            batch, rows, width = self.shape
            matrix = self._op("Reshape", self.x, self._constant(np.array((batch * rows, width))))
            y = self._op("Gemm", matrix, weight, *bias)
            y = self._op("Reshape", y, self._constant(np.array((batch, rows, n))))
        else:
            y = self._op("MatMul", self.x, weight)
            y = self._op("Add", y, *bias) if bias else y
        split = self._constant(np.array((*self.shape[:2], HEADS, columns)))
        return self._op("Transpose", self._op("Reshape", y, split), perm=perm)

    def model(self) -> Any:
        x = helper.make_tensor_value_info("x", TensorProto.FLOAT, self.shape)
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, self.results)
        graph = helper.make_graph(self.nodes, "heads", [x], [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def run(
    device: vkq.Device, heads: Heads, folder: Path, monkeypatch: pytest.MonkeyPatch, form: str = "qdq_int8",
    **choices: bool,
) -> Executable:  # fmt: skip
    """Run the quantized model, check that its bytes are ONNX Runtime's, and return the executable.
    *choices*: overridden fields of the device's profile."""
    model = quantized(heads.model(), form, folder, heads.shape)
    feed = {"x": np.random.default_rng(4).normal(0, 1, heads.shape).astype(np.float32)}
    says = tuple(({"attention_in_steps": False} | choices).items())
    monkeypatch.setattr(device, "capabilities", dataclasses.replace(device.capabilities, choices=says))
    found = Executable(lower(read(model).at({"x": heads.shape})), device, {})
    np.testing.assert_array_equal(found.run(feed)["y"], onnxruntime_results(model, feed)[0])
    return found


@pytest.fixture
def matrices(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    return strict_device


def products(executable: Executable) -> list[str]:
    return [name for name in executable.plan.variants if name.startswith("gem")]


def why(executable: Executable) -> str:
    """Return the executable's reasons for or against one joined product."""
    return " ".join(one for one in executable.reasons.values() if "one product with" in one)


@pytest.mark.parametrize("form", ["qdq_int8", "qdq_uint8"])
@pytest.mark.parametrize("heads", [Heads(16), Heads(16, "qv"), Heads(16, "qv", gemm=True)], ids=FORMS)
def test_one_product(
    matrices: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heads: Heads, form: str
) -> None:
    """On matrix units one product computes queries, keys and values. Attention reads the columns of this
    product in place, also for several texts with an odd number of tokens. Three separate products need two
    dispatches more."""
    one = run(matrices, heads, tmp_path, monkeypatch, form)
    (product,) = products(one)
    assert "coopmat" in product
    assert why(one).startswith("in one product with")
    assert not any(name.startswith(("move", "repack", "lookup")) for name in one.plan.variants)
    monkeypatch.setattr(JoinedLinears, "refusal", staticmethod(lambda layers, x: "apart in this test"))
    apart = run(matrices, heads, tmp_path, monkeypatch, form)
    assert len(products(apart)) == 3
    assert "apart in this test" in why(apart)
    assert len(apart.plan.variants) == len(one.plan.variants) + 2


@pytest.mark.parametrize(
    ("heads", "expected"),
    [
        (Heads(16, depth=8, wide=24), 1),
        (Heads(16, depth=4), 3),  # queries have 8 columns, half a block
        (Heads(3), 3),  # too few rows for matrix units
    ],
    ids=["narrow", "8 columns", "few rows"],
)
@pytest.mark.parametrize("steps", [False, True])
def test_other_sizes(
    matrices: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heads: Heads, expected: int,
    steps: bool,
) -> None:  # fmt: skip
    """Layers with too few rows, or whose columns do not fill blocks, remain separate products. Attention in
    separate dispatches reads the columns of a joined product, too."""
    found = run(matrices, heads, tmp_path, monkeypatch, attention_in_steps=steps)
    assert len(products(found)) == expected
    assert ("not in one product" in why(found)) == (expected > 1)


@pytest.mark.parametrize("biases", ["", "qv"])
def test_without_matrix_units(
    device: vkq.Device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, biases: str
) -> None:
    """Without matrix units the layers remain separate, because columns of kPackedInt8_4H4W are not
    contiguous."""
    monkeypatch.setattr(device, "capabilities", doctored.capabilities(device))  # removes matrix units
    found = run(device, Heads(16, biases), tmp_path, monkeypatch)
    assert len(products(found)) == 3
    assert "not in one product" in why(found)
