"""Tests of values that depend on the sizes of an input (padding, constants with a size): they are computed
for each size."""

from typing import Any

import numpy as np
import onnx.parser
import pytest
from onnx import numpy_helper

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results


def quantized(name: str, of: str) -> str:
    return f"{name}q = QuantizeLinear({of}, s, z)  {name} = DequantizeLinear({name}q, s, z)"


def conv(options: str) -> str:
    return f"wf = DequantizeLinear(w, s, z0)  c = Conv<{options}>(a, wf)"


SIZE = "sh = Shape(x)  n = Gather(sh, two)  nf = Cast<to = 1>(n)  k = Div(nf, ten)"
BIAS = "m = Mul(k, step)  i = Cast<to = 6>(m)  j = Expand(i, four)  bias = DequantizeLinear(j, ss, zz)"
MODELS = {
    "padding above": [conv('auto_pad = "SAME_UPPER", strides = [2, 2]')],
    "padding below": [conv('auto_pad = "SAME_LOWER", strides = [2, 2]')],
    "a constant of the input's shape": [
        "sh = Shape(x)  k = ConstantOfShape(sh)  l = Add(k, ten)", quantized("b", "l"), "c = Add(a, b)"
    ],
    "a size": [SIZE, quantized("b", "k"), "c = Mul(a, b)"],
    "a size behind a convolution": [
        conv("pads = [1, 1, 1, 1]"), quantized("d", "c"), SIZE, quantized("b", "k"), "e = Mul(d, b)"
    ],
    "a size in a bias": [SIZE, BIAS, "wf = DequantizeLinear(w, s, z0)  c = Conv(a, wf, bias)"],
}  # fmt: skip


def model(lines: list[str]) -> bytes:
    body = "  ".join(lines)
    last = body.rsplit("  ", 1)[-1].split()[0]
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
        g (float[N,3,H,W] x) => (float[A,B,C,D] y)
        {{ {quantized("a", "x")}  {body}  {quantized("y", last)} }}"""
    proto = onnx.parser.parse_model(text)
    rng = np.random.default_rng(1)
    constants: dict[str, Any] = {
        "s": np.float32(0.02), "z": np.int8(3), "z0": np.int8(0), "two": np.int64(2), "ten": np.float32(10),
        "step": np.float32(1000), "four": np.array([4]), "ss": np.float32(0.0004), "zz": np.int32(0),
        "w": rng.integers(-99, 99, (4, 3, 3, 3), dtype=np.int8),
    }  # fmt: skip
    used = {name for node in proto.graph.node for name in node.input}
    kept = [numpy_helper.from_array(np.asarray(v), name) for name, v in constants.items() if name in used]
    proto.graph.initializer.extend(kept)
    return proto.SerializeToString()


@pytest.mark.parametrize("name", MODELS)
def test_other_sizes_in_one_session(device: vkq.Device, name: str) -> None:
    data = model(MODELS[name])
    session = vkq.onnx.InferenceSession(data, device)
    # Odd and even sizes, smaller and larger ones, then the first size again.
    for shape in ((1, 3, 5, 6), (1, 3, 8, 9), (2, 3, 20, 20), (1, 3, 5, 6)):
        x = np.random.default_rng(shape[2]).normal(0, 1, shape).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], onnxruntime_results(data, {"x": x})[0])
