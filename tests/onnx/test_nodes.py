"""ONNX's own tests of single nodes, run by the backend on a device, and in NumPy.

The listed tests of quantized operators, and of movement of 8-bit values, must pass. Of the other tests,
those that vkq accepts must pass, and their number must not fall (docs/models.md states the number on a
device).
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import vkq
import vkq.onnx
from vkq.check import graph as oracle
from vkq.graph.executable import Executable
from vkq.onnx import ModelError, backend
from vkq.onnx.reader import fixed

FOLDER = Path(onnx.__file__).parent / "backend" / "test" / "data" / "node"
QUANTIZED = [
    "convinteger_with_padding",
    "convinteger_without_padding",
    "matmulinteger",
    "qlinearconv",
    "quantizelinear",
    "quantizelinear_axis",
    "quantizelinear_blocked_asymmetric",
    "dequantizelinear",
    "dequantizelinear_axis",
    "dequantizelinear_blocked",
    "dynamicquantizelinear",
    "dynamicquantizelinear_max_adjusted",
    "dynamicquantizelinear_min_adjusted",
    "qlinearmatmul_2D_int8_float16",
    "qlinearmatmul_2D_int8_float32",
    "qlinearmatmul_2D_uint8_float16",
    "qlinearmatmul_2D_uint8_float32",
    "qlinearmatmul_3D_int8_float16",
    "qlinearmatmul_3D_int8_float32",
    "qlinearmatmul_3D_uint8_float16",
    "qlinearmatmul_3D_uint8_float32",
    "maxpool_2d_uint8",
    "add_int8",
    "add_uint8",
    "sub_int8",
    "sub_uint8",
    "mul_int8",
    "mul_uint8",
    "div_int8",
    "div_uint8",
    "max_int8",
    "max_uint8",
    "min_int8",
    "min_uint8",
    "clip_default_int8_min",
    "clip_default_int8_max",
    "clip_default_int8_inbounds",
]
TAKEN = 1180  # minimum number of ONNX 1.22.0's tests that run on a device (COMPUTED: in NumPy)
COMPUTED = 590


def arrays(folder: Path, kind: str, count: int) -> list[Any]:
    found = []
    for i in range(count):
        tensor = onnx.TensorProto()
        tensor.ParseFromString((folder / f"{kind}_{i}.pb").read_bytes())
        found.append(numpy_helper.to_array(tensor))
    return found


def cases(name: str) -> Iterator[tuple[Any, list[Any], list[Any]]]:
    """Yield (model, inputs, expected outputs) of each data set of a test. Yield nothing if a value is not a
    tensor."""
    model = onnx.load(FOLDER / f"test_{name}" / "model.onnx")
    values = [*model.graph.input, *model.graph.output]
    if not all(value.type.HasField("tensor_type") for value in values):
        return
    for data in sorted((FOLDER / f"test_{name}").glob("test_data_set_*")):
        yield (
            model,
            arrays(data, "input", len(model.graph.input)),
            arrays(data, "output", len(model.graph.output)),
        )


def same(got: Any, want: Any) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if want.dtype.kind == "f":
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-6)  # as in ONNX's own test runner
    else:
        np.testing.assert_array_equal(got, want)


NAMES = sorted(path.name.removeprefix("test_") for path in FOLDER.iterdir())


@pytest.mark.parametrize("name", QUANTIZED)
def test_quantized(device: vkq.Device, name: str) -> None:
    for model, inputs, outputs in cases(name):
        for got, want in zip(backend.prepare(model, device, fallback=None).run(inputs), outputs, strict=True):
            same(got, want)


@pytest.mark.filterwarnings("ignore::vkq.onnx.constant.ConstantInputWarning")
def test_every_node_that_is_taken(any_device: vkq.Device) -> None:
    """Every node that vkq accepts gives ONNX's result. The other nodes raise a ModelError, or an
    ArgumentError if int64 inputs exceed int32. Nodes whose inputs all count as constants are computed at
    load, and are not counted."""
    count: Counter[str] = Counter()
    for name in NAMES:
        for model, inputs, outputs in cases(name):
            try:
                prepared = backend.prepare(model, any_device, fallback=None)
                results = prepared.run(inputs)
            except (ModelError, vkq.ArgumentError):  # ArgumentError: int64 inputs beyond int32
                count["refused"] += 1
                continue
            for got, want in zip(results, outputs, strict=True):
                same(got, want)
            (made,) = prepared.session._executables.kept.values()
            ahead = isinstance(made, Executable) and not made.results
            count["ahead" if ahead else "taken"] += 1
    assert count["taken"] >= TAKEN, count


def test_every_node_in_numpy() -> None:
    """The lowered graph in NumPy gives ONNX's results, also for float operators."""
    count: Counter[str] = Counter()
    for name in NAMES:
        for model, inputs, outputs in cases(name):
            try:
                read = vkq.onnx.read(model)
                feed = {value.name: array for value, array in zip(model.graph.input, inputs, strict=True)}
                kinds = ("int8", "uint8", "float32")
                read = fixed(read, {n: v for n, v in feed.items() if v.dtype.name not in kinds})
                graph = read.at({a.name: feed[a.name].shape for a in read.inputs})
                results = oracle.run(graph, {a.name: feed[a.name] for a in read.inputs})
            except ModelError:
                count["refused"] += 1
                continue
            for value, want in zip(model.graph.output, outputs, strict=True):
                same(results[value.name], want)
            count["computed"] += 1
    assert count["computed"] >= COMPUTED, count


def test_run_node(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vkq.runtime.opened._default", any_device)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    (y,) = backend.run_node(onnx.helper.make_node("Transpose", ["x"], ["y"]), [x])
    np.testing.assert_array_equal(y, x.T)
    (y,) = backend.run_model(_identity(), [x])
    np.testing.assert_array_equal(y, x)
    assert backend.supports_device("CPU")
    assert not backend.supports_device("no such device")
    for d in vkq.devices():  # a device is named by its index or by its name
        for name in (f"VULKAN:{d.index}", d.name):
            assert backend.supports_device(name)
            assert backend.prepare(_identity(), name).session.device.capabilities.index == d.index
    assert not backend.supports_device("VULKAN:99")
    assert not backend.supports_device("VULKAN:x")
    with pytest.raises(vkq.ArgumentError, match=r"2 inputs are given; the model takes \['x'\]"):
        backend.prepare(_identity()).run([x, x])


def _identity() -> Any:
    info = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, (2, 3))
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 3))
    node = onnx.helper.make_node("Identity", ["x"], ["y"])
    return onnx.helper.make_model(onnx.helper.make_graph([node], "g", [info], [result]))
