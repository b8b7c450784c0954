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


def parsed(inputs: str, body: str, result: str = "float") -> bytes:
    text = f"""<ir_version: 9, opset_import: ["" : 17]> g ({inputs}) => ({result} y)
        <float[3] c = {{1, -2, 3}}, int64[1] one = {{1}}, int64[1] zero = {{0}}> {{ {body} }}"""
    return onnx.parser.parse_model(text).SerializeToString()


def check(device: vkq.Device, data: bytes, feed: dict[str, Any], fallback: str | None = None) -> None:
    (got,) = vkq.onnx.InferenceSession(data, device, fallback=fallback).run(None, feed)
    (want,) = onnxruntime_results(data, feed)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-6)


EMPTY = {
    "element-wise": "r = Relu(x)  a = Add(r, c)  y = Sigmoid(a)",
    "rows": "y = Softmax(x)",
    "a normalization": "y = LayerNormalization(x, c)",
    "a sum of each row": "y = ReduceSum(x, one)",
    "a maximum": "y = ReduceMax<axes = [1]>(x)",
    "added to another batch": "r = Tanh(x)  c1 = Unsqueeze(c, zero)  y = Concat<axis = 0>(c1, r)",
    "rows that are chosen": "none = Slice(one, zero, zero)  y = Gather(x, none)",
}


@pytest.mark.parametrize("fallback", [None, "onnxruntime"])
@pytest.mark.parametrize("name", EMPTY)
def test_a_batch_of_nothing(any_device: vkq.Device, name: str, fallback: str | None) -> None:
    data = parsed("float[N,3] x", EMPTY[name])
    check(any_device, data, {"x": np.zeros((0, 3), np.float32)}, fallback)


def test_results_without_elements_of_an_input_with_elements(any_device: vkq.Device) -> None:
    data = parsed("float[N,3] x", "r = Relu(x)  s = Slice(r, one, one)  y = Sigmoid(s)")
    check(any_device, data, {"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("inputs", ["float[N,3] a, float[N,3] b", "float[] a, float[] b"])
def test_sizes_of_one_name_may_differ(any_device: vkq.Device, inputs: str) -> None:
    """As in ONNX Runtime, a name of a dimension is a hint only, and an input without a shape has any."""
    data = parsed(inputs, "y = Sub(a, b)")
    for shapes in (((4, 3), (1, 3)), ((2, 3), (2, 3))):
        check(
            any_device, data, {name: np.full(s, 2, np.float32) for name, s in zip("ab", shapes, strict=True)}
        )


def test_the_model_declares_no_rank(any_device: vkq.Device) -> None:
    data = parsed(
        "float[] x",
        "y = Conv<kernel_shape = [1, 1]>(x, w)  w = Reshape(c, s)  s = Constant<value_ints = [1, 3, 1, 1]>()",
    )
    check(any_device, data, {"x": np.ones((2, 3, 4, 5), np.float32)})


@pytest.mark.parametrize("body", ["y = Greater(x, c)", "y = Shape(x)", "y = ArgMax(x)", "y = Relu(x)"])
def test_the_model_declares_no_type_of_its_result(any_device: vkq.Device, body: str) -> None:
    proto = onnx.load_from_string(parsed("float[N,3] x", body))
    proto.graph.output[0].ClearField("type")
    check(any_device, proto.SerializeToString(), {"x": np.ones((2, 3), np.float32)})
