"""Tests of `InferenceSession.map`. If axis 0 of an output is not the batch, `map` refuses the model
before it runs it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx

node = helper.make_node
CONSTANTS: dict[str, Any] = {
    "s": np.float32(0.1), "z": np.int8(0), "four": [-1, 4], "rows": [0, -1], "grid": [0, 3, -1], "zero": [0],
    "one": [1], "minus": [-1], "least": [-99], "shift": [1, 0, 0, 0, -1, 0, 0, 0], "back": [-1, 3, 2, 2],
    "row": [1, -1], "all": [0, 1, 2, 3],
}  # fmt: skip
MIXED: dict[str, list[Any]] = {
    "transposed": [node("Transpose", ["q"], ["y"], perm=[1, 0, 2, 3])],
    "reshaped": [node("Reshape", ["q", "four"], ["y"])],
    "one of the batch": [node("Slice", ["q", "zero", "one", "zero"], ["y"])],
    "from the second on": [node("Slice", ["q", "one", "least", "zero"], ["y"])],
    "backwards": [node("Slice", ["q", "minus", "least", "zero", "minus"], ["y"])],
    "moved by one": [node("Pad", ["q", "shift"], ["y"])],
    "two of each": [node("Concat", ["q", "q"], ["y"], axis=0)],
    "through columns": [  # y has the shape that a batch would give
        node("Reshape", ["q", "rows"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[1, 0]),
        node("Reshape", ["t", "back"], ["y"]),
    ],
    "the whole": [
        node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        node("ReduceMax", ["f"], ["m"], keepdims=0),
        node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ],
    "softmax over the batch": [
        node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        node("Softmax", ["f"], ["m"], axis=0),
        node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ],
    "products of images": [
        node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        node("Reshape", ["f", "rows"], ["r"]),
        node("Transpose", ["r"], ["t"], perm=[1, 0]),
        node("MatMul", ["r", "t"], ["m"]),
        node("QuantizeLinear", ["m", "s", "z"], ["y"]),
    ],
}
APART: dict[str, list[Any]] = {
    "there and back": [
        node("Transpose", ["q"], ["t"], perm=[1, 0, 3, 2]),
        node("Slice", ["t", "zero", "one", "zero"], ["c"]),
        node("Transpose", ["c"], ["y"], perm=[1, 0, 2, 3]),
    ],
    "rows": [
        node("Reshape", ["q", "grid"], ["r"]),
        node("Slice", ["r", "minus", "least", "one", "minus"], ["y"]),
    ],
    "joined": [node("Concat", ["q", "q"], ["y"], axis=1)],
    "means": [
        node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        node("GlobalAveragePool", ["f"], ["g"]),
        node("QuantizeLinear", ["g", "s", "z"], ["h"]),
        node("Reshape", ["h", "rows"], ["y"]),
    ],
}  # fmt: skip


def session(device: vkq.Device, nodes: list[Any], first: int | str = "n") -> vkq.onnx.InferenceSession:
    info, first_dims = helper.make_tensor_value_info, [first, 3, 2, 2]
    used = {name for one in nodes for name in one.input} | {"s", "z"}
    stored = [
        numpy_helper.from_array(np.array(value), name) for name, value in CONSTANTS.items() if name in used
    ]
    graph = helper.make_graph(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"]), *nodes], "g",
        [info("x", TensorProto.FLOAT, first_dims)], [info("y", TensorProto.INT8, None)], stored,
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return vkq.onnx.InferenceSession(model, device)


@pytest.fixture
def images() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((5, 3, 2, 2)).astype(np.float32)


@pytest.mark.parametrize("batch", [1, 2, 3])
@pytest.mark.parametrize("kind", MIXED)
def test_what_mixes_a_batch_is_refused_first(
    any_device: vkq.Device, images: np.ndarray, kind: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`map` refuses models that mix the images of a batch, before it runs them. Some batch sizes hide the
    mixing: a result may have the shape that a batch would give."""
    opened = session(any_device, MIXED[kind])
    monkeypatch.setattr(opened, "_executable", lambda arrays: pytest.fail("it ran"))
    with pytest.raises(vkq.ArgumentError, match=r"map: output 'y' has shape \[.*for a batch of"):
        next(iter(opened.map(images, batch)))


@pytest.mark.parametrize("batch", [1, 2, 3, 5])
@pytest.mark.parametrize("kind", APART)
def test_what_keeps_images_apart_is_mapped(
    any_device: vkq.Device, images: np.ndarray, kind: str, batch: int
) -> None:
    opened = session(any_device, APART[kind])
    got = list(opened.map(images, batch))
    for one, image in zip(got, images, strict=True):
        np.testing.assert_array_equal(one, opened.run(None, {"x": image[None]})[0][0])


def test_a_model_of_one_batch(any_device: vkq.Device, images: np.ndarray) -> None:
    """`map` runs a model whose shapes fix the batch size with batches of this size."""
    opened = session(any_device, [node("Reshape", ["q", "row"], ["y"])], 1)
    assert [y.shape for y in opened.map(images, 1)] == [(12,)] * 5
