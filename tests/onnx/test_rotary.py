"""Tests of com.microsoft's and ONNX's RotaryEmbedding on the device, compared with ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import helper

import vkq
from tests.onnx.test_fused import normal
from tests.onnx.test_grouped import compared
from tests.onnx.test_operators import MICROSOFT

# Each library rounds two products of magnitude 4 and their sum; ONNX Runtime may use a fused
# multiply-add.
BOUND = 6 * 4 * 2.0**-24
PLACES = {"of each token": np.int64([[4, 1, 0], [7, 8, 30]]), "of the first": np.int64([3])}


def tables(width: int, dtype: Any) -> dict[str, Any]:
    angles = np.arange(31)[:, None] / 10.0 ** (np.arange(width) / 2)
    return {"cos": np.cos(angles).astype(dtype), "sin": np.sin(angles).astype(dtype)}


def check(device: vkq.Device, node: Any, fed: dict[str, Any], constants: dict[str, Any], opset: int) -> None:
    ((y, want),) = compared(device, node, fed, constants, opset)
    bound = BOUND if y.dtype == np.float32 else 2.0**-8  # the step of float16 for values from 4 to 8
    np.testing.assert_allclose(y.astype(np.float32), want.astype(np.float32), rtol=0, atol=bound)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("interleaved", [0, 1])
@pytest.mark.parametrize("where", list(PLACES))
def test_microsofts(device: vkq.Device, where: str, interleaved: int, dtype: Any) -> None:
    """com.microsoft's RotaryEmbedding is within BOUND of ONNX Runtime for five heads of 6 elements with
    run-time positions."""
    fed = {"x": normal(2, 3, 30).astype(dtype), "p": PLACES[where]}
    node = helper.make_node(
        "RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], domain=MICROSOFT, interleaved=interleaved
    )
    check(device, node, fed, tables(3, dtype), 21)


def test_a_part_of_each_head(device: vkq.Device) -> None:
    fed = {"x": normal(2, 3, 30), "p": PLACES["of each token"]}
    node = helper.make_node(
        "RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], domain=MICROSOFT, num_heads=3,
        rotary_embedding_dim=4,
    )  # fmt: skip
    check(device, node, fed, tables(2, np.float32), 21)


def test_by_head(device: vkq.Device) -> None:
    fed = {"x": normal(2, 5, 3, 8), "p": PLACES["of each token"]}
    node = helper.make_node("RotaryEmbedding", ["x", "p", "cos", "sin"], ["y"], domain=MICROSOFT)
    check(device, node, fed, tables(4, np.float32), 21)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("given", ["places", "angles"])
@pytest.mark.parametrize("form", ["by token", "by head", "interleaved", "part"])
def test_onnxs(device: vkq.Device, form: str, given: str, dtype: Any) -> None:
    """RotaryEmbedding of opset 23 reads positions, or a cosine and a sine for each token, and is within
    BOUND of ONNX Runtime."""
    x = normal(2, 5, 3, 8) if form == "by head" else normal(2, 3, 40)
    width = 2 if form == "part" else 4
    a = {"interleaved": int(form == "interleaved"), "rotary_embedding_dim": 4 if form == "part" else 0}
    a |= {} if form == "by head" else {"num_heads": 5}
    fed, constants = {"x": x.astype(dtype)}, tables(width, dtype)
    if given == "places":
        fed["p"] = PLACES["of each token"]
    else:
        fed |= {name: table[PLACES["of each token"]] for name, table in constants.items()}
        constants = {}
    names = ["x", "cos", "sin", "p"] if given == "places" else ["x", "cos", "sin"]
    check(device, helper.make_node("RotaryEmbedding", names, ["y"], **a), fed, constants, 23)
