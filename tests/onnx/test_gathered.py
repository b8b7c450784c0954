"""Tests of com.microsoft's GatherBlockQuantized with run-time ids on the device: results equal ONNX
Runtime's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx.test_operators import MICROSOFT
from vkq.onnx.cpu import cpu_session

IDS = np.int64([[3, 0, 10], [7, 7, 2]])
NUMBERS = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4}


def check(device: vkq.Device, constants: list[Any], dtype: Any, ids: np.ndarray = IDS, **a: Any) -> None:
    names = [constant.name for constant in constants]
    inputs = ["w", "ids", "s", "z"] if "z" in names else ["w", "ids", "s"]
    node = helper.make_node("GatherBlockQuantized", inputs, ["y"], domain=MICROSOFT, quantize_axis=1, **a)
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(x)) for x in (ids.dtype, dtype)]
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("ids", kinds[0], ids.shape)],
        [helper.make_tensor_value_info("y", kinds[1], None)], constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    session = vkq.onnx.InferenceSession(data, device)
    for fed in (ids, ids[::-1].copy()):  # two runs of one plan, with different ids
        (want,) = cpu_session(data, "comparing").run(None, {"ids": fed})
        (got,) = session.run(None, {"ids": fed})
        assert (got.shape, got.dtype) == (want.shape, want.dtype)
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("bits", [2, 4, 8])
def test_bytes(device: vkq.Device, bits: int, dtype: Any, points: bool) -> None:
    """Codes of 2, 4 and 8 bits packed in bytes are dequantized exactly, with three blocks of 16 and a
    partial block. The product of a code and a float16 scale has at most 19 bits, so that only the result is
    rounded."""
    random, width, blocks = np.random.default_rng(bits), 56, 4
    constants = {
        "w": random.integers(0, 256, (11, width * bits // 8), np.uint8),
        "s": random.uniform(0.1, 1, (11, blocks)).astype(dtype),
    }
    if points:
        constants["z"] = random.integers(0, 256, (11, -(-blocks * bits // 8)), np.uint8)
    check(
        device, [numpy_helper.from_array(x, name) for name, x in constants.items()], dtype, bits=bits,
        block_size=16,
    )  # fmt: skip


@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("kind", list(NUMBERS))
def test_numbers_of_four_bits(device: vkq.Device, kind: str, points: bool) -> None:
    random, low = np.random.default_rng(1), -8 if kind == "int4" else 0
    sizes = {"w": (11, 48), "z": (11, 3)} if points else {"w": (11, 48)}
    constants = [
        helper.make_tensor(name, NUMBERS[kind], shape, random.integers(low, low + 16, shape).reshape(-1))
        for name, shape in sizes.items()
    ]
    scales = numpy_helper.from_array(random.uniform(0.1, 1, (11, 3)).astype(np.float32), "s")
    check(device, [*constants, scales], np.float32, block_size=16)


def test_constant_ids(any_device: vkq.Device) -> None:
    """A table whose rows the model itself chooses (BERT's token types) is dequantized when the model is
    prepared. ONNX Runtime cannot compute the node alone, because vkq reads its 4-bit constants as bytes."""
    random = np.random.default_rng(2)
    constants = [
        helper.make_tensor("w", TensorProto.UINT4, (11, 48), random.integers(0, 16, 11 * 48)),
        numpy_helper.from_array(random.uniform(0.1, 1, (11, 3)).astype(np.float32), "s"),
        numpy_helper.from_array(IDS, "ids"),
    ]
    x = random.standard_normal((*IDS.shape, 48)).astype(np.float32)
    graph = helper.make_graph(
        [
            helper.make_node(
                "GatherBlockQuantized", ["w", "ids", "s"], ["r"], domain=MICROSOFT, quantize_axis=1,
                block_size=16,
            ),
            helper.make_node("Add", ["r", "x"], ["y"]),
        ],
        "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, x.shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)], constants,
    )  # fmt: skip
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(MICROSOFT, 1)]
    data = helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()
    (want,) = cpu_session(data, "comparing").run(None, {"x": x})
    np.testing.assert_array_equal(vkq.onnx.InferenceSession(data, any_device).run(None, {"x": x})[0], want)
