"""A small text transformer with inputs of any length: token ids, a mask and token types."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from .nodes import Nodes

WORDS, WIDTH, HEADS, LONGEST = 53, 24, 3, 40


class Bert(Nodes):
    """A model of embeddings and layers of attention and GELU."""

    def __init__(self, layers: int, seed: int = 0):
        super().__init__(seed)
        x = self._embedded()
        for _ in range(layers):
            x = self._layer(x)
        self._op("Identity", x, y="y")

    def _weight(self, *shape: int) -> str:
        return self._constant((self.random.standard_normal(shape) / shape[0] ** 0.5).astype(np.float32))

    def _normal(self, x: str) -> str:
        ones = [self._constant(self.random.normal(m, 0.1, WIDTH).astype(np.float32)) for m in (1, 0)]
        return self._op("LayerNormalization", x, *ones, axis=-1)

    def _linear(self, x: str, k: int, n: int) -> str:
        bias = self._constant(self.random.normal(0, 0.1, n).astype(np.float32))
        return self._op("Add", self._op("MatMul", x, self._weight(k, n)), bias)

    def _embedded(self) -> str:
        length = self._op("Gather", self._op("Shape", "input_ids"), self._constant(np.array(1)), axis=0)
        end = self._op("Unsqueeze", length, self._constant(np.array([0])))
        zero, one = self._constant(np.array([0])), self._constant(np.array([1]))
        positions = self._op("Slice", self._constant(np.arange(LONGEST)[None]), zero, end, one)
        rows = [
            self._op("Gather", self._weight(count, WIDTH), ids)
            for count, ids in ((WORDS, "input_ids"), (2, "token_type_ids"), (LONGEST, positions))
        ]
        mask = self._op("Unsqueeze", "attention_mask", self._constant(np.array([1, 2])))
        mask = self._op("Sub", self._constant(np.float32(1)), self._op("Cast", mask, to=TensorProto.FLOAT))
        self.mask = self._op("Mul", mask, self._constant(np.float32(-30)))
        return self._normal(self._op("Add", self._op("Add", rows[0], rows[1]), rows[2]))

    def _heads(self, x: str, *perm: int) -> str:
        shape = self._constant(np.array([0, 0, HEADS, WIDTH // HEADS]))
        return self._op("Transpose", self._op("Reshape", self._linear(x, WIDTH, WIDTH), shape), perm=perm)

    def _layer(self, x: str) -> str:
        q, k, v = self._heads(x, 0, 2, 1, 3), self._heads(x, 0, 2, 3, 1), self._heads(x, 0, 2, 1, 3)
        scores = self._op("Div", self._op("MatMul", q, k), self._constant(np.float32(2.8)))
        seen = self._op("MatMul", self._op("Softmax", self._op("Add", scores, self.mask), axis=-1), v)
        shape = self._constant(np.array([0, 0, WIDTH]))
        seen = self._op("Reshape", self._op("Transpose", seen, perm=[0, 2, 1, 3]), shape)
        x = self._normal(self._op("Add", x, self._linear(seen, WIDTH, WIDTH)))
        wide = self._op("Gelu", self._linear(x, WIDTH, 2 * WIDTH))
        return self._normal(self._op("Add", x, self._linear(wide, 2 * WIDTH, WIDTH)))

    def model(self) -> Any:
        sizes = ["batch", "length"]
        names = ("input_ids", "attention_mask", "token_type_ids")
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, sizes) for name in names]
        y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [*sizes, WIDTH])
        graph = helper.make_graph(self.nodes, "bert", inputs, [y], self.constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)


def text(batch: int, length: int, seed: int = 0) -> dict[str, np.ndarray]:
    """Return the model's inputs. In every text but the first, the last tokens are masked."""
    r = np.random.default_rng(seed)
    mask = np.arange(length)[None] < (length - np.minimum(np.arange(batch) * 2, length - 1))[:, None]
    shape = (batch, length)
    return {
        "input_ids": r.integers(0, WORDS, shape),
        "attention_mask": mask.astype(np.int64),
        "token_type_ids": r.integers(0, 2, shape),
    }


class _Texts(CalibrationDataReader):  # type: ignore[misc]
    def __init__(self) -> None:
        self.left = [text(2, 9, seed) for seed in range(4)]

    def get_next(self) -> Any:
        return self.left.pop() if self.left else None


def quantized(model: Any, folder: Path) -> bytes:
    """Return the model with all operators quantized to int8."""
    path = folder / "q.onnx"
    types = {"activation_type": QuantType.QInt8, "weight_type": QuantType.QInt8}
    quantize_static(model, path, _Texts(), quant_format=QuantFormat.QDQ, **types)
    return path.read_bytes()
