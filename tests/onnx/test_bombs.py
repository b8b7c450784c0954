"""Tests of small models that ask for much memory: vkq refuses them by their sizes, before it allocates
memory."""

import tracemalloc
from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import vkq
import vkq.onnx
from vkq.graph.passes import sweep
from vkq.ops import take

MOST_BYTES = 128 << 20  # limit of the host memory while a model is refused
HUGE = 2**62


def model(lines: str, shape: str = "1,3,8,8", **constants: Any) -> bytes:
    text = f"""<ir_version: 8, opset_import: ["" : 17]> g (float[{shape}] x) => (int8[A,B,C,D] y)
        {{ q = QuantizeLinear(x, s, z)  f = DequantizeLinear(q, s, z)  {lines} }}"""
    proto = onnx.parser.parse_model(text)
    known = {"s": np.float32(0.1), "z": np.int8(0), "w": np.ones((3, 3, 3, 3), np.int8), **constants}
    used = {name for node in proto.graph.node for name in node.input}
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(value), name) for name, value in known.items() if name in used
    )
    return proto.SerializeToString()


ENDS = "y = QuantizeLinear(g, s, z)"
CONV = "wf = DequantizeLinear(w, s, z)  g = "
BOMBS = {
    "Tile": model("y = Tile(q, r)", r=[64, 64, 512, 64]),
    "Tile of floats": model(f"g = Tile(f, r)  {ENDS}", r=[64, 64, 512, 64]),
    "Expand": model("y = Expand(q, r)", "1,1,8,1", r=[8192, 64, 8, 64]),
    "Gather": model("e = ConstantOfShape(n)  y = Gather<axis = 2>(q, e)", n=[1 << 21]),
    "Pad, reflecting": model('y = Pad<mode = "reflect">(q, p)', p=[0, 0, 0, 0, 0, 0, 0, 1 << 24]),
    "Pad, edge": model('y = Pad<mode = "edge">(q, p)', p=[0, 0, 0, 0, 0, 0, 0, 1 << 24]),
    "Pad that cuts": model("y = Pad(q, p)", p=[0, 0, -1, 0, 0, 0, 0, 1 << 24]),
    "Resize": model(f"g = Resize(f, , c)  {ENDS}", c=np.float32([1, 1, 1 << 12, 1 << 12])),
    "Where": model(
        f"t = Expand(f, r)  g = Where(b, t, t)  {ENDS}", "1,3,8,1", r=[1, 3, 8, 1 << 24], b=np.ones(1, bool)
    ),
    "Concat": model("e = Tile(q, r)  y = Concat<axis = 0>(e, e, e)", r=[1 << 16, 1, 8, 8]),
    "MaxPool in floats": model(
        f"t = Tile(f, r)  u = Sin(t)  g = MaxPool<kernel_shape = [2, 2]>(u)  {ENDS}", r=[1, 1, 4096, 4096]
    ),
    "strides": model(f"{CONV}Conv<strides = [{HUGE}, {HUGE}]>(f, wf)  {ENDS}", "1,3,2,2"),
    "dilations": model(f"{CONV}Conv<dilations = [{HUGE}, {HUGE}]>(f, wf)  {ENDS}"),
    "pads": model(f"{CONV}Conv<pads = [{HUGE}, {HUGE}, {HUGE}, {HUGE}]>(f, wf)  {ENDS}"),
    "transposed strides": model(f"{CONV}ConvTranspose<strides = [{HUGE}, {HUGE}]>(f, wf)  {ENDS}"),
    "a list of numbers": model("n = ConstantOfShape(m)  y = Reshape(q, n)", m=[1 << 20]),
}  # fmt: skip


def shape_of(name: str) -> tuple[int, ...]:
    return {"Expand": (1, 1, 8, 1), "Where": (1, 3, 8, 1), "strides": (1, 3, 2, 2)}.get(name, (1, 3, 8, 8))


def run(data: bytes, x: Any, device: vkq.Device) -> None:
    vkq.onnx.InferenceSession(data, device).run(None, {"x": x})


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_model_that_asks_for_much_is_refused(software_device: vkq.Device, name: str) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(vkq.VkqError):
            run(BOMBS[name], np.zeros(shape_of(name), np.float32), software_device)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_what_is_computed_ahead_is_bounded_in_all(
    software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Constant folding has a limit for all constants together: each of many constants is small, but their
    total is not."""
    monkeypatch.setattr(sweep, "LEAST_ROOM_BYTES", 1 << 22)
    nodes, last = [], "f"
    for i in range(64):
        nodes.append(f"c{i} = ConstantOfShape(n)  d{i} = Cos(c{i})  a{i} = Add({last}, d{i})")
        last = f"a{i}"
    data = model("  ".join([*nodes, f"y = QuantizeLinear({last}, s, z)"]), n=[1, 3 << 15, 1, 8])
    tracemalloc.start()
    try:
        with pytest.raises(vkq.VkqError):
            vkq.onnx.InferenceSession(data, software_device)
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def test_operators_that_move_are_bounded_too(
    software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(take, "MOST_PLACES", 100)
    x = np.zeros((10, 10), np.int8)
    assert vkq.slice(x, [slice(None, None, 2)], device=software_device).shape == (5, 10)
    with pytest.raises(vkq.ArgumentError, match=r"101 elements to 51 places.* at most 100"):
        vkq.slice(np.zeros(101, np.int8), [slice(None, None, 2)], device=software_device)


def test_a_device_that_is_closed_while_map_runs(software_device: vkq.Device) -> None:
    with vkq.Device(software_device.name) as device:
        session = vkq.onnx.InferenceSession("examples/models/digits.onnx", device)
        results = session.map([np.zeros((1, 8, 8), np.float32)] * 5, 1)
        next(results)
        device.close()
        with pytest.raises(vkq.DeviceError, match="is closed"):
            list(results)
