"""Files of small models, and loading bytes without a file."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.networks import KINDS, Net, quantized
from vkq.onnx.prepared import known
from vkq.onnx.reader import read
from vkq.player.load import library
from vkq.player.reader import contents

EMBEDDED = 50


def network(kind: str, form: str, folder: Path) -> bytes:
    """A quantized network of images of 16 x 16."""
    net = Net(seed=len(kind))
    return quantized(net.model(*KINDS[kind](net)), form, folder, net.shape)


def texts() -> bytes:
    """Token ids through a float table: Gather, a product, Softmax."""
    random = np.random.default_rng(4)
    weights = {
        "table": random.normal(size=(EMBEDDED, 12)).astype(np.float32),
        "w": random.normal(size=(12, 7)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Gather", ["table", "ids"], ["rows"]),
        helper.make_node("MatMul", ["rows", "w"], ["z"]),
        helper.make_node("Softmax", ["z"], ["y"], axis=-1),
    ]
    graph = helper.make_graph(
        nodes,
        "texts",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, [1, 5])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 5, 7])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def graph_of(model: bytes, shapes: dict[str, tuple[int, ...]]) -> Any:
    """The lowered graph."""
    return known(read(model), shapes, fallback=False)[0]


def load_bytes(device: Any, data: bytes) -> int:
    """The status of vkq_load_memory on an open device; a model that was loaded is unloaded."""
    model = ctypes.c_void_p()
    status = library().vkq_load_memory(device, data, ctypes.c_uint64(len(data)), None, ctypes.byref(model))
    library().vkq_unload(model)
    return int(status)


def plans_of(data: bytes) -> Any:
    """What the file holds."""
    return contents(data)
