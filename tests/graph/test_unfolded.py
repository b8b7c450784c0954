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


def test_half_weights_of_the_run(device: vkq.Device) -> None:
    x, v = (normal(i, *shape).astype(np.float16) for i, shape in enumerate(((1, 4, 5, 6), (2, 4, 3, 3))))
    data = model([op("Abs", "v", "w"), op("Conv", "x w", "y")], {"x": x, "v": v}, {"y": TensorProto.FLOAT16})
    (got,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x, "v": v})
    seen = np.lib.stride_tricks.sliding_window_view(x.astype(np.float64), (3, 3), (2, 3))
    want = np.einsum("nchwij,ocij->nohw", seen, np.abs(v.astype(np.float64)))
    np.testing.assert_allclose(got, want, rtol=1e-3, atol=2e-2)


def test_what_stays_a_convolution() -> None:
    """Three convolutions with computed weights are refused: the weight is an input of the model (which
    `constant_inputs` can make a constant), the indices would take more than 64 MB, or the weight is
    dequantized (only ONNX Runtime gives ONNX Runtime's bytes)."""
    x, w = np.zeros((1, 64, 300, 300), np.float32), np.zeros((1, 64, 3, 3), np.float32)
    codes = {"s": np.float32(0.5), "z": np.int8(0)}
    cases = [
        ([op("Conv", "x w", "y")], x[:, :, :5, :5], {}),
        ([op("Abs", "w", "v"), op("Conv", "x v", "y")], x, {}),
        ([op("QuantizeLinear", "w s z", "q"), op("DequantizeLinear", "q s z", "d"), op("Conv", "x d", "y")],
         x[:, :, :5, :5], codes),
    ]  # fmt: skip
    for nodes, image, constants in cases:
        data = model(nodes, {"x": image, "w": w}, {"y": FLOAT}, **constants)
        refused = refusals(lower(read(data).at({"x": image.shape, "w": w.shape})))
        assert ["must be constant" in why for _, why in refused] == [True]
