"""Tests of com.microsoft's QAttention on the device, compared with ONNX Runtime."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import helper

import vkq
import vkq.onnx
from tests.onnx.test_attention import BOUND, MASK
from tests.onnx.test_fused import normal
from tests.onnx.test_operators import MICROSOFT, bytes_of, model
from vkq.onnx.cpu import cpu_session


@pytest.mark.parametrize("types", ["uint8 int8", "uint8 uint8"])
@pytest.mark.parametrize("form", ["plain", "mask", "past", "channels"])
def test_q_attention(device: vkq.Device, form: str, types: str) -> None:
    """QAttention is within Attention's bounds for scores of magnitude 8 and values of magnitude 4: its
    integer product is exact."""
    x_type, w_type = types.split()
    fed = {"x": bytes_of((2, 5, 19), x_type)}
    constants = {
        "w": bytes_of((19, 78), w_type, seed=1), "b": normal(78, seed=2), "xs": np.float32(0.01),
        "ws": np.float32(0.01), "xz": np.array(3 + np.iinfo(x_type).min + 120, x_type),
        "wz": np.array(0 if w_type == "int8" else 128, w_type),
    }  # fmt: skip
    if form == "channels":
        constants |= {"ws": np.linspace(0.005, 0.01, 78, dtype=np.float32)}
        constants |= {"wz": np.full(78, constants["wz"], w_type)}
    if form == "mask":
        fed["m"] = MASK
    if form == "past":
        fed["c"] = normal(2, 2, 2, 3, 13, seed=3)
    inputs = ["x", "w", "b", "xs", "ws", "m" if form == "mask" else "", "xz", "wz"]
    outputs = ["y", "p"] if form == "past" else ["y"]
    inputs += ["c"] if form == "past" else []
    node = helper.make_node(
        "QAttention", inputs, outputs, domain=MICROSOFT, num_heads=2, unidirectional=int(form == "past")
    )
    data = model([node], fed, constants, "float32")
    (got,) = vkq.onnx.InferenceSession(data, device).run(["y"], fed)
    (want,) = cpu_session(data, "comparing").run(["y"], fed)
    np.testing.assert_allclose(got, want, rtol=0, atol=BOUND)
