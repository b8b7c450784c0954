"""Tests of convolutions whose weight is computed in each run."""

from typing import Any

import numpy as np
import pytest
from onnx import TensorProto

import vkq
import vkq.onnx
from tests.onnx.networks import onnxruntime_results
from vkq.graph.executable import refusals
from vkq.graph.passes import lower
from vkq.onnx.reader import read

from .test_chains import FLOAT, model, normal, op

CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    # shapes of x and of the weight, and attributes
    "one": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "padded": ((2, 3, 6, 5), (4, 3, 3, 3), {"pads": [1, 0, 2, 1]}),
    "strided": ((1, 4, 9, 11), (6, 2, 3, 2), {"group": 2, "strides": [2, 3], "dilations": [2, 1]}),
    "depthwise": ((1, 6, 8, 7), (6, 1, 4, 4), {"group": 6}),  # as trackers compare a template
    "same": ((1, 2, 7, 8), (3, 2, 2, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    "line": ((2, 3, 9), (4, 3, 2), {"pads": [1, 0]}),
}


TRANSPOSED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "transposed": ((2, 3, 5, 4), (3, 2, 3, 2), {}),
    # as StyleGAN scales up, with odd margins and a gap between taps; stride 3 leaves pixels without a tap
    "transposed-up": ((1, 4, 5, 4), (4, 3, 2, 3), {
        "group": 2, "strides": [3, 2], "dilations": [1, 2], "pads": [0, 1, 1, 0], "output_padding": [1, 0],
    }),
    "transposed-line": ((1, 4, 9), (4, 3, 4), {"strides": [2], "pads": [1, 1]}),
}  # fmt: skip


@pytest.mark.parametrize("bias", [False, True], ids=["", "bias"])
@pytest.mark.parametrize("name", [*CASES, *TRANSPOSED])
def test_weights_of_the_run(device: vkq.Device, name: str, bias: bool) -> None:
    """A convolution with a computed weight is close to ONNX Runtime's; both add at most 27 products."""
    kind = "ConvTranspose" if name in TRANSPOSED else "Conv"
    shape, weight, attributes = (CASES | TRANSPOSED)[name]
    feed = {"x": normal(0, *shape), "v": normal(1, *weight)}
    nodes = [op("Sin", "v", "w"), op(kind, f"x w{' b' if bias else ''}", "y", **attributes)]
    channels = weight[1] * attributes.get("group", 1) if name in TRANSPOSED else weight[0]
    constants = {"b": normal(2, channels)} if bias else {}
    data = model(nodes, feed, {"y": FLOAT}, **constants)
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, feed)
    (want,) = onnxruntime_results(data.SerializeToString(), feed)
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "zeros", "groups"), [(np.int8, (7, -2), 1), (np.uint8, (120, 128), 2)], ids=["int8", "uint8"]
)
def test_quantized_weights_of_the_run(
    device: vkq.Device, dtype: Any, zeros: tuple[int, int], groups: int
) -> None:
    """If x, the computed weight and the result are quantized, the convolution has ONNX Runtime's bytes. The
    margins have the value of x's zero point."""
    feed = {"x": normal(5, 2, 4, 9, 7), "v": normal(6, 6, 4 // groups, 3, 2)}
    constants = {"sx": np.float32(0.0171), "sw": np.float32(0.0133), "sy": np.float32(0.0571)}
    constants |= {"zx": dtype(zeros[0]), "zw": dtype(zeros[1]), "zy": dtype(zeros[0])}
    nodes = [op("Tanh", "v", "w")]
    for x, n in (("x", "x"), ("w", "w")):
        nodes += [
            op("QuantizeLinear", f"{x} s{n} z{n}", f"{x}q"),
            op("DequantizeLinear", f"{x}q s{n} z{n}", f"{x}d"),
        ]
    nodes.append(op("Conv", "xd wd", "c", pads=[1, 0, 1, 1], strides=[2, 1], group=groups))
    nodes += [op("QuantizeLinear", "c sy zy", "cq"), op("DequantizeLinear", "cq sy zy", "y")]
    data = model(nodes, feed, {"y": FLOAT}, **constants)
    session = vkq.onnx.InferenceSession(data, device)
    (got,) = session.run(None, feed)
    (want,) = onnxruntime_results(data.SerializeToString(), feed)
    np.testing.assert_array_equal(got, want)
    assert len(np.unique(got)) > 50
    assert "matmul" in {row.operator for row in session.explain().rows}


def test_half_weights_of_the_run(device: vkq.Device) -> None:
    x, v = (normal(i, *shape).astype(np.float16) for i, shape in enumerate(((1, 4, 5, 6), (2, 4, 3, 3))))
    data = model([op("Abs", "v", "w"), op("Conv", "x w", "y")], {"x": x, "v": v}, {"y": TensorProto.FLOAT16})
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x, "v": v})
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    want = np.einsum("nchwij,ocij->nohw", seen, np.abs(v.astype(np.float64)))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-2)


def test_what_stays_a_convolution() -> None:
    """Convolutions with computed weights are refused: the weight is an input of the model (which
    `constant_inputs` can make a constant), the indices would take more than 64 MB, or both operands are
    dequantized, and a bias or a scale for each channel would change ONNX Runtime's bytes."""
    x, w = np.zeros((1, 64, 300, 300), np.float32), np.zeros((1, 64, 3, 3), np.float32)
    codes = {"s": np.float32(0.5), "z": np.int8(0), "b": np.zeros(1, np.float32)}
    each = {
        "s64": np.full(64, 0.5, np.float32),
        "z64": np.zeros(64, np.int8),
    }
    real = [op("QuantizeLinear", "x s z", "p"), op("DequantizeLinear", "p s z", "r"),
            op("QuantizeLinear", "w s z", "q")]  # fmt: skip
    cases = [
        ([op("Conv", "x w", "y")], x[:, :, :5, :5], {}),
        ([op("Abs", "w", "v"), op("Conv", "x v", "y")], x, {}),
        ([*real, op("DequantizeLinear", "q s z", "d"), op("Conv", "r d b", "y")], x[:, :, :5, :5], codes),
        ([*real, op("DequantizeLinear", "q s64 z64", "d"), op("Conv", "r d", "y")], x[:, :, :5, :5],
         codes | each),
    ]  # fmt: skip
    for nodes, image, constants in cases:
        data = model(nodes, {"x": image, "w": w}, {"y": FLOAT}, **constants)
        refused = refusals(lower(read(data).at({"x": image.shape, "w": w.shape})))
        assert ["must be constant" in why for _, why in refused] == [True]
