"""Exported files of small models, and functions that load and check them."""

from __future__ import annotations

import ctypes
import dataclasses
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.onnx.networks import KINDS, Net, quantized
from vkq._version import __version__
from vkq.errors import DeviceError, ModelError
from vkq.onnx.prepared import known
from vkq.onnx.reader import read
from vkq.player.export import exported
from vkq.player.file import HEAD_AT, FilePlan, Shaped, checksum, written
from vkq.player.load import PlayedModel, library, load
from vkq.player.reader import contents
from vkq.tflite.either import read_model, session_of

EMBEDDED = 50
OWN = {
    "llvm": "lavapipe",
    "Swif": "swiftshader",
}  # first letters of a device's name -> its shipped kind
SAME = ("=vendorID", "=deviceID", "=subgroupSize")


def network(kind: str, form: str, folder: Path) -> bytes:
    """Return a quantized network for images of 16 x 16."""
    net = Net(seed=len(kind))
    return quantized(net.model(*KINDS[kind](net)), form, folder, net.shape)


def product(k: int = 16, n: int = 8, most: int = 9, rows: int = 3) -> bytes:
    """Return a model of an int8 product with weights from -*most* to *most* - 1."""
    random = np.random.default_rng(0)
    given = {
        "a_scale": np.float32(0.1), "a_zero": np.int8(1), "w": random.integers(-most, most, (k, n), np.int8),
        "w_scale": np.float32(0.1), "w_zero": np.int8(0), "y_scale": np.float32(0.2), "y_zero": np.int8(2),
    }  # fmt: skip
    node = helper.make_node("QLinearMatMul", ["x", *given], ["y"])
    values = [helper.make_tensor_value_info(x, TensorProto.INT8, [rows, c]) for x, c in (("x", k), ("y", n))]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in given.items()]
    return made(helper.make_graph([node], "product", values[:1], values[1:], constants))


def made(graph: onnx.GraphProto) -> bytes:
    """Return the bytes of a model of the graph."""
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    return bytes(model.SerializeToString())


def texts() -> bytes:
    """Return a model that gathers rows of a float table by token ids, multiplies them by a matrix, and
    computes a Softmax."""
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


def tflite(name: str) -> bytes:
    """Return the file of a network in tests/tflite/models."""
    return (Path(__file__).parents[1] / "tflite/models" / f"{name}.tflite").read_bytes()


def given(model: Any, seed: int) -> dict[str, Any]:
    """Return random inputs of the model's shapes, with 1 for a variable size."""
    random, feed = np.random.default_rng(seed), dict[str, Any]()
    for one in model.inputs:
        dtype, shape = np.dtype(one.dtype), [size if isinstance(size, int) else 1 for size in one.shape]
        if dtype.kind == "f":
            feed[one.name] = random.normal(0, 1.2, shape).astype(dtype)
        else:
            least, most = (0, 9) if dtype.itemsize > 1 else (np.iinfo(dtype).min, np.iinfo(dtype).max)
            feed[one.name] = random.integers(least, most, shape, dtype, endpoint=True)
    return feed


def of_any_vendor(plan: FilePlan) -> FilePlan:
    """Return the plan without its requirement of a vendor. A plan that does not require a vendor, or also
    requires a device id or a subgroup size, is returned unchanged."""
    if dict(plan.needs).keys() & set(SAME) != {"=vendorID"}:
        return plan
    return dataclasses.replace(plan, needs=tuple(need for need in plan.needs if need[0] not in SAME))


def lacks(
    found: Shaped,
    plan: FilePlan,
    device: Any,
    folder: Path,
    then: Callable[[PlayedModel], None] | None = None,
) -> str | None:
    """Write a file with only this plan, and check that the device loads it and reproduces its known answer.
    Return None, or the name of the requirement that the device does not meet."""
    path = folder / "alone.vkq"
    path.write_bytes(rewritten(found, plans=[plan]))
    try:
        with load(path, device.name) as played:
            assert played.explain().startswith(f"{plan.kind}: ")
            if then:
                then(played)
            return None
    except DeviceError as error:
        if why := re.search(rf"{plan.kind}: not taken, it needs (\w+)", str(error)):
            return why[1]
        raise


def check_bytes(
    data: bytes, device: Any, folder: Path, others: Sequence[str] = ()
) -> tuple[list[str], dict[str, str]]:
    """Export a model (ONNX or TFLite) for the device, its shipped kind, *others*, and any device. Run each
    plan once, and check that it gives the session's bytes. Return the kinds whose plans ran, and a dict from
    each other kind to the requirement of its plan that the device does not meet."""
    model = read_model(data)
    feed = given(model, 8)
    with session_of(data)(data, device) as session:
        wanted = dict(zip([one.name for one in model.outputs], session.run(None, feed), strict=True))
    graph = known(model, {name: x.shape for name, x in feed.items()}, fallback=False)[0]
    own = ("this", OWN[device.name[:4]])
    (found,) = exported([graph], device, (*own, *others))[1]
    bodies, played, refused = dict[object, str | None](), list[str](), dict[str, str]()

    def compare(playing: PlayedModel) -> None:
        for name, got in zip(playing.outputs, playing.run(None, feed), strict=True):
            np.testing.assert_array_equal(got, wanted[name].astype(got.dtype), f"{plan.kind}: {name}")

    for plan in found.plans:
        body = plan.programs, plan.steps  # several kinds may share one plan
        if body not in bodies:
            one = plan if plan.kind in own else of_any_vendor(plan)
            bodies[body] = lacks(found, one, device, folder, compare)
        if why := bodies[body]:
            refused[plan.kind] = why
        else:
            played.append(plan.kind)
    return played, refused


def graph_of(model: bytes, shapes: dict[str, tuple[int, ...]]) -> Any:
    """Return the lowered graph of a model."""
    return known(read(model), shapes, fallback=False)[0]


def load_bytes(device: Any, data: bytes) -> int:
    """Load bytes on an open device with vkq_load_memory, unload the model, and return the status."""
    model = ctypes.c_void_p()
    status = library().vkq_load_memory(device, data, ctypes.c_uint64(len(data)), None, ctypes.byref(model))
    library().vkq_unload(model)
    return int(status)


def only(data: bytes) -> Shaped:
    """Return the content of a file that has one set of shapes."""
    (found,) = contents(data).sets
    return found


def rewritten(found: Shaped, **changes: Any) -> bytes:
    """Return the bytes of a file with one set of shapes: *found* with the fields *changes*."""
    return written(f"vkq {__version__}", [dataclasses.replace(found, **changes)])


def refused(device: ctypes.c_void_p, data: bytes, message: str) -> None:
    """Check that libvkq and the Python reader refuse the bytes with this message, although their checksum
    is valid."""
    bad = bytearray(data)
    bad[24:32] = struct.pack("<Q", checksum(np.frombuffer(data, np.uint8)[HEAD_AT:]))
    assert load_bytes(device, bytes(bad)) == 2
    assert message in library().vkq_error().decode()
    with pytest.raises(ModelError, match=message):
        contents(bytes(bad))
