"""Tests of results that stay on the device and become inputs, and of IOBinding as in ONNX Runtime."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

import vkq
import vkq.onnx

node, info = helper.make_node, helper.make_tensor_value_info
HEADS, WIDTH = 2, 5


def decoder() -> onnx.ModelProto:
    """Return a model of one decoding step. It appends a token's key to the past keys, and y has an
    element for each key. `same` is an alias of an input. Devices store `flags` (bool) and `next` (int64)
    in other types."""
    nodes = [
        node("Concat", ["past", "key"], ["present"], axis=2),
        node("Transpose", ["present"], ["keys"], perm=[0, 1, 3, 2]),
        node("MatMul", ["key", "keys"], ["scores"]),
        node("Where", ["mask", "scores", "low"], ["y"]),
        node("Identity", ["past"], ["same"]),
        node("Add", ["ids", "one"], ["next"]),
        node("Not", ["mask"], ["flags"]),
    ]
    f, i, b = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
    past, key = [1, HEADS, "past", WIDTH], [1, HEADS, 1, WIDTH]
    graph = helper.make_graph(
        nodes, "step",
        [info("past", f, past), info("key", f, key), info("mask", b, [1]), info("ids", i, [1])],
        [info("present", f, [1, HEADS, "all", WIDTH]), info("y", f, [1, HEADS, 1, "all"]),
         info("same", f, past), info("next", i, [1]), info("flags", b, [1])],
        [helper.make_tensor("one", i, [1], [1]), helper.make_tensor("low", f, [1], [-1.0])],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


MODEL = decoder().SerializeToString()


def feed(past: int, seed: int = 0) -> dict[str, Any]:
    r = np.random.default_rng(seed)
    return {
        "past": r.normal(size=(1, HEADS, past, WIDTH)).astype(np.float32),
        "key": r.normal(size=(1, HEADS, 1, WIDTH)).astype(np.float32),
        "mask": np.array([seed % 3 != 1]),
        "ids": np.array([seed]),
    }


@pytest.fixture
def crossings(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the bytes uploaded and downloaded through tensors."""
    count: Counter[str] = Counter()
    put, get = vkq.runtime.tensor.put, vkq.runtime.tensor.get

    def counted(way: str, function: Any) -> Any:
        def call(device: Any, buffer: Any, spec: Any, data: Any) -> None:
            count[way] += data.nbytes
            function(device, buffer, spec, data)

        return call

    monkeypatch.setattr("vkq.runtime.tensor.put", counted("up", put))
    monkeypatch.setattr("vkq.runtime.tensor.get", counted("down", get))
    return count


def test_a_cache_that_grows_never_crosses(device: vkq.Device, crossings: Counter[str]) -> None:
    session = vkq.onnx.InferenceSession(MODEL, device)
    shapes = {name: array.shape for name, array in feed(3).items()}
    assert {row.where for row in session.explain(shapes).rows} == {"device"}
    past = np.zeros((1, HEADS, 0, WIDTH), np.float32)
    cache: Any = past
    for step in range(5):
        given = feed(step, step) | {"past": past}
        past, want, *_ = (one.copy() for one in session.run(None, given))
        crossings.clear()
        cache, y = session.run(["present", "y"], given | {"past": cache}, outputs="device")
        assert isinstance(cache, vkq.Tensor)
        # uploads a key, a mask byte, and an id as int32
        assert crossings == Counter(up=given["key"].nbytes + 1 + 4)
        np.testing.assert_array_equal(y.numpy(), want)
        assert (y.shape, y.dtype) == (want.shape, "float32")
    assert crossings["down"] == y.nbytes
    np.testing.assert_array_equal(cache.numpy(), past)
    crossings.clear()
    (host,) = session.run(["y"], given | {"past": vkq.Tensor.from_numpy(given["past"], device)})
    np.testing.assert_array_equal(host, want)
    assert crossings["down"] == want.nbytes


def test_results_have_memory_of_their_own(device: vkq.Device) -> None:
    """Results on the device keep their values when later runs write new results, and when an input of which
    they are an alias changes."""
    session = vkq.onnx.InferenceSession(MODEL, device)
    first, second = feed(3, 0), feed(3, 1)
    past = vkq.Tensor.from_numpy(first["past"], device)
    kept = session.run(None, first | {"past": past}, outputs="device")
    past.write(second["past"])
    session.run(None, second, outputs="device")
    session.run(None, second)
    want = onnxruntime.InferenceSession(MODEL).run(None, first)
    for tensor, array in zip(kept, want, strict=True):
        np.testing.assert_array_equal(tensor.numpy(), array)
    with device.record() as recording:
        (y,) = session.run(["y"], first | {"past": past}, outputs="device")
    recording.run()
    np.testing.assert_array_equal(y.numpy(), session.run(["y"], first | {"past": second["past"]})[0])


def test_wrong_tensors_are_refused(device: vkq.Device) -> None:
    session = vkq.onnx.InferenceSession(MODEL, device)
    given = feed(3)

    def refused(error: type[Exception], match: str, **changed: Any) -> None:
        with pytest.raises(error, match=match):
            session.run(None, given | changed, outputs="device")

    tensor = vkq.Tensor.from_numpy
    refused(
        vkq.ArgumentError, r"'key' has shape \(1, 2, 2, 5\)", key=tensor(np.zeros((1, 2, 2, 5), "f4"), device)
    )
    refused(
        vkq.DTypeError,
        "'key' is a float16 tensor; it must be float32",
        key=tensor(np.zeros((1, 2, 1, 5), "f2"), device),
    )
    refused(
        vkq.DTypeError,
        "'ids' is a float32 .*int64, which a tensor holds as int32",
        ids=tensor(np.zeros(1, "f4"), device),
    )
    refused(
        vkq.ArgumentError, "'mask' is bool; its tensor holds 2", mask=tensor(np.array([2], np.uint8), device)
    )
    refused(vkq.ArgumentError, "'ids' holds 2147483647", ids=tensor(np.array([2**31 - 1], np.int32), device))
    with vkq.Device(device.capabilities.index) as other:
        refused(vkq.ArgumentError, "'past' is on .* opened once", past=tensor(given["past"], other))
    with pytest.raises(vkq.ArgumentError, match="outputs is 'gpu'; it must be 'host', 'device' or 'torch'"):
        session.run(None, given, outputs="gpu")
    session.close()
    with pytest.raises(vkq.DeviceError, match="closed"):
        session.run(None, given, outputs="device")


def test_bound_memory(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bound memory works as in a typical ONNX Runtime loop: one bound tensor is read and overwritten,
    another result is newly allocated in each run."""
    monkeypatch.setattr("vkq.runtime.opened._default", device)
    session, referee = vkq.onnx.InferenceSession(MODEL), onnxruntime.InferenceSession(MODEL)
    given = feed(3, 4)
    ids = vkq.onnx.OrtValue.ortvalue_from_numpy(given["ids"], "cuda", 0)
    cache = vkq.onnx.OrtValue.ortvalue_from_shape_and_type((1, HEADS, 3, WIDTH), np.float32, "vulkan")
    cache.update_inplace(given["past"])
    assert (ids.device_name(), ids.data_type(), ids.shape()) == ("vulkan", "tensor(int64)", [1])
    binding = session.io_binding()
    for name in ("key", "mask"):
        binding.bind_cpu_input(name, given[name])
    binding.bind_ortvalue_input("past", cache)
    binding.bind_input("ids", "cuda", 0, np.int64, [1], ids.data_ptr())
    binding.bind_output("present", "cuda")
    binding.bind_output("y")
    binding.bind_ortvalue_output("next", ids)
    binding.bind_ortvalue_output("same", cache)
    binding.bind_output("flags", "cuda")
    for count in range(3):
        session.run_with_iobinding(binding)
        want = referee.run(["present", "y", "next", "same", "flags"], given | {"ids": given["ids"] + count})
        names = [value.device_name() for value in binding.get_outputs()]
        assert names == ["vulkan", "cpu", "vulkan", "vulkan", "vulkan"]
        for got, array in zip(binding.copy_outputs_to_cpu(), want, strict=True):
            np.testing.assert_array_equal(got, array)
            assert got.dtype == array.dtype
    assert binding.get_outputs()[2] is ids
    assert ids.numpy().tolist() == [given["ids"][0] + 3]


def test_wrong_bindings_are_refused(device: vkq.Device) -> None:
    session = vkq.onnx.InferenceSession(MODEL, device)
    binding, value = session.io_binding(), vkq.onnx.OrtValue.ortvalue_from_numpy(np.zeros(1, np.float32))
    refused = pytest.raises(vkq.ArgumentError, match="there is no input 'nobody'")
    with refused:
        binding.bind_cpu_input("nobody", np.zeros(1))
    with pytest.raises(vkq.ArgumentError, match="there is no output 'key'"):
        binding.bind_output("key")
    with pytest.raises(vkq.DTypeError, match=r"'ids' is tensor\(float\); it must be tensor\(int64\)"):
        binding.bind_ortvalue_input("ids", value)
    with pytest.raises(vkq.ArgumentError, match="not the data_ptr"):
        binding.bind_input("ids", "cpu", 0, np.int64, [1], np.zeros(1).ctypes.data)
    with pytest.raises(vkq.ArgumentError, match="element_type and shape are"):
        binding.bind_input("ids", "cpu", 0, np.int64, [1], value.data_ptr())
    with pytest.raises(vkq.DTypeError, match=r"it must be a vkq\.onnx\.OrtValue"):
        binding.bind_ortvalue_output("y", np.zeros(3))
    with pytest.raises(vkq.DTypeError, match="one of TensorProto's numbers"):
        vkq.onnx.OrtValue.ortvalue_from_shape_and_type([1], 99)
    for name, array in feed(2).items():
        binding.bind_cpu_input(name, array)
    with pytest.raises(vkq.ArgumentError, match="no output is bound"):
        session.run_with_iobinding(binding)
    for kind, shape, error, match in (
        (np.float16, (1, HEADS, 3, WIDTH), vkq.DTypeError, "float16 tensor; it must be float32"),
        (np.float32, (1, HEADS, 2, WIDTH), vkq.ArgumentError, r"it must be \(1, 2, 3, 5\)"),
    ):
        binding.bind_ortvalue_output("present", vkq.Tensor.from_numpy(np.zeros(shape, kind), device))
        with pytest.raises(error, match=match):
            session.run_with_iobinding(binding)
        assert binding.get_outputs() == []
    other = vkq.Tensor(device, (1, HEADS, 2, WIDTH), "float32")
    binding.bind_ortvalue_output("present", other)
    binding.bind_ortvalue_output("same", other)
    with pytest.raises(vkq.ArgumentError, match="'present' and 'same' are bound to the same memory"):
        session.run_with_iobinding(binding)
    with pytest.raises(vkq.ArgumentError, match="must come from this session's io_binding"):
        vkq.onnx.InferenceSession(MODEL, device).run_with_iobinding(binding)
    session.close()
    with pytest.raises(vkq.DeviceError, match="closed"):
        session.io_binding()


@pytest.mark.filterwarnings("ignore::vkq.onnx.fallback.FallbackWarning")
def test_parts_on_the_cpu_give_tensors_too(any_device: vkq.Device) -> None:
    f = TensorProto.FLOAT
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Det", ["a"], ["y"]),
        node("Cast", ["y"], ["wide"], to=TensorProto.DOUBLE),
    ]
    outputs = [info("y", f, [2]), info("wide", TensorProto.DOUBLE, [2])]
    graph = helper.make_graph(nodes, "mixed", [info("x", f, [2, 3, 3])], outputs)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    model = made.SerializeToString()
    session = vkq.onnx.InferenceSession(model, any_device, fallback="onnxruntime")
    x = np.random.default_rng(0).normal(size=(2, 3, 3)).astype(np.float32)
    want = onnxruntime.InferenceSession(model).run(["y"], {"x": x})[0]
    (y,) = session.run(["y"], {"x": vkq.Tensor.from_numpy(x, any_device)}, outputs="device")
    assert isinstance(y, vkq.Tensor)
    np.testing.assert_array_equal(y.numpy(), want)
    with pytest.raises(vkq.DTypeError, match="'wide' is float64, which tensors on a device cannot hold"):
        session.run(None, {"x": x}, outputs="device")


def test_quantized_results_are_repacked_where_they_go_back(device: vkq.Device) -> None:
    """Inputs and bound outputs accept 8-bit tensors in any layout. Results are the same for all layouts."""
    u = TensorProto.UINT8
    graph = helper.make_graph(
        [node("MaxPool", ["x"], ["y"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])],
        "pool", [info("x", u, [1, 5, 4, 7])], [info("y", u, [1, 5, 4, 7])],
    )  # fmt: skip
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    session = vkq.onnx.InferenceSession(model, device)
    x = np.random.default_rng(1).integers(0, 256, (1, 5, 4, 7)).astype(np.uint8)
    (once,) = session.run(None, {"x": x})
    (twice,) = session.run(None, {"x": once})
    for layout in ("kPackedInt8_4W4C", "kPackedInt8_16C", "kPackedInt8_4H4W"):
        tensor = vkq.Tensor.from_numpy(once, device, layout)
        (y,) = session.run(None, {"x": tensor}, outputs="device")
        np.testing.assert_array_equal(y.numpy(), twice)
        binding = session.io_binding()
        binding.bind_ortvalue_input("x", tensor)
        binding.bind_ortvalue_output("y", tensor)
        session.run_with_iobinding(binding)
        np.testing.assert_array_equal(tensor.numpy(), twice)
