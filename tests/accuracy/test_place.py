"""Tests of the constants that quantization writes: scales, zero points, codes of weights and biases follow
their formulas, channel by channel."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vkq.accuracy import quantize
from vkq.accuracy.mend import corrected
from vkq.accuracy.observe import Observed
from vkq.accuracy.place import QuantPlan, placed
from vkq.accuracy.ranges import step

SPANS = {
    "x": (-2.0, 3.0),
    "c": (-1.0, 4.0),
    "r": (0.0, 4.0),
    "d": (-1.0, 1.2),
    "f": (-1.0, 1.2),
    "y": (-2.0, 2.0),
}


def network() -> onnx.ModelProto:
    """Return a model of a convolution with bias, a Relu, a depthwise convolution, a mean, and a Gemm with
    bias."""
    random = np.random.default_rng(0)

    def weight(name: str, *shape: int) -> onnx.TensorProto:
        w = random.standard_normal(shape) * np.exp2(
            random.integers(-3, 3, (shape[0], *(1 for _ in shape[1:])))
        )
        return numpy_helper.from_array(w.astype(np.float32), name)

    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Conv", ["r", "v", "a"], ["d"], name="depthwise", group=5),
        helper.make_node("Flatten", ["d"], ["f"], name="flat"),
        helper.make_node("Gemm", ["f", "u", "e"], ["y"], name="gemm", transB=1),
    ]
    weights = [weight("w", 5, 3, 1, 1), weight("b", 5), weight("v", 5, 1, 2, 2), weight("a", 5)]
    weights += [weight("u", 4, 5), weight("e", 4)]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 2, 2])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 4])]
    graph = helper.make_graph(nodes, "g", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def arrays(model: Any) -> dict[str, np.ndarray]:
    return {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}


def quantizations(model: Any) -> dict[str, tuple[float, int]]:
    """Return scale and zero point of each QuantizeLinear, by its input."""
    data = arrays(model)
    return {
        node.input[0]: (float(data[node.input[1]]), int(data[node.input[2]]))
        for node in model.graph.node
        if node.op_type == "QuantizeLinear"
    }


@pytest.mark.parametrize("activations", ["int8", "uint8"])
@pytest.mark.parametrize("symmetric", [False, True])
def test_scales_are_those_of_the_ranges(activations: str, symmetric: bool) -> None:
    plan = QuantPlan(SPANS, frozenset(), frozenset(), symmetric, activations)
    found = quantizations(placed(network(), plan))
    assert found.keys() >= {"x", "d"}
    lowest = 0 if activations == "uint8" else -128
    for name, (scale, zero) in found.items():
        low, high = SPANS[name]
        if symmetric:
            widest = max(-low, high)
            low, high = -widest, widest
        steps = 254 if symmetric and activations == "int8" else 255
        assert scale == pytest.approx((high - low) / steps, rel=1e-6), name
        if not symmetric and activations == "int8":  # `step` computes the same parameters
            assert step((low, high)) == (pytest.approx(scale, rel=1e-6), zero)
        middle = 127 if activations == "uint8" else 0
        want = middle if symmetric else round(lowest - low / scale)
        assert abs(zero - want) <= (1 if symmetric and activations == "uint8" else 0), name


@pytest.mark.parametrize("per_channel", [True, False])
def test_codes_are_those_of_the_weights(per_channel: bool) -> None:
    """Codes are the rounded weights, with one scale for each channel. The scale of a bias is the scale of
    the activation times the scale of the weight."""
    real = arrays(network())
    made = placed(network(), QuantPlan(SPANS, per_channel=per_channel))
    data, read = arrays(made), {node.name: node for node in made.graph.node}
    maker = {name: node for node in made.graph.node for name in node.output}
    for layer, weight, bias, source in (
        ("conv", "w", "b", "x"), ("depthwise", "v", "a", "r"), ("gemm", "u", "e", "f"),
    ):  # fmt: skip
        w, b = real[weight], real[bias]
        codes, scale = (data[name] for name in maker[read[layer].input[1]].input[:2])
        axes = tuple(range(1, w.ndim)) if per_channel else None
        np.testing.assert_allclose(scale, np.abs(w).max(axes) / 127, rtol=1e-5)
        steps = scale.reshape(-1, *(1 for _ in w.shape[1:]))
        assert np.abs(codes * steps - w).max() <= 0.501 * scale.max()
        assert (np.abs(codes * steps - w) <= 0.501 * steps).all()
        rounded, step = (data[name] for name in maker[read[layer].input[2]].input[:2])
        quantized = maker[read[layer].input[0]]
        assert quantized.op_type == "DequantizeLinear"
        np.testing.assert_allclose(step, scale * data[quantized.input[1]], rtol=1e-6)
        assert (np.abs(rounded * step - b) <= 0.501 * step).all(), source


def pictures(count: int, seed: int = 1) -> list[dict[str, np.ndarray]]:
    """Return samples whose channels have different means."""
    random = np.random.default_rng(seed)
    means = np.float32([1, 5, -3]).reshape(1, 3, 1, 1)
    return [{"x": random.uniform(0, 2, (3, 3, 2, 2)).astype(np.float32) * means} for _ in range(count)]


def test_peaks_are_those_of_all_samples() -> None:
    feeds = pictures(4)
    feeds[1]["x"][0, 2, 0, 0], feeds[2]["x"][1, 0, 1, 1] = -80, 60
    peaks = Observed(network(), feeds).peaks("x")
    assert peaks is not None
    np.testing.assert_array_equal(peaks, np.abs(np.concatenate([f["x"] for f in feeds])).max((0, 2, 3)))


def test_samples_held_out_set_no_range(tmp_path: Path) -> None:
    """Every third sample sets no range: quantization uses it only to measure."""
    onnx.save(network(), tmp_path / "float.onnx")
    feeds = pictures(6)
    feeds[5]["x"][0, 1, 0, 0] = 1000
    quantize(tmp_path / "float.onnx", tmp_path / "int8.onnx", feeds, seconds=0)
    given = np.concatenate([feeds[i]["x"] for i in (0, 1, 3, 4)])
    scale, _ = quantizations(onnx.load(tmp_path / "int8.onnx"))["x"]
    assert scale == pytest.approx((given.max() - given.min()) / 255, rel=1e-5)


def test_the_search_corrects_biases(tmp_path: Path) -> None:
    """One channel of the Gemm's weight is ten times as large, and all channels share one scale. Then the
    search keeps the corrected biases, which remove the mean error that remains after equalization."""
    proto = network()
    tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == "u")
    u = numpy_helper.to_array(tensor).copy()
    u[0] *= 10
    tensor.CopyFrom(numpy_helper.from_array(u, "u"))
    onnx.save(proto, tmp_path / "float.onnx")
    target = tmp_path / "int8.onnx"
    steps = quantize(tmp_path / "float.onnx", target, pictures(9), seconds=600, per_channel=False).steps
    assert steps[-1].what == "biases of 3 layers corrected"
    before = [step.snr_db for step in steps[:-1] if step.kept]
    assert "equalized, min-max" in {step.what for step in steps if step.kept}
    assert steps[-1].snr_db > before[-1] + 4


def test_corrected_biases_are_those_of_the_formula() -> None:
    """Corrected biases equal ``b + (W - W_q) E[x]``, with the mean of each channel over all samples and
    pixels."""
    proto = network()
    feeds = pictures(3)
    seen = Observed(proto, feeds)
    made = placed(proto, QuantPlan(SPANS, per_channel=False))
    new, count = corrected(proto, made, seen)
    assert count == 3
    real, after = arrays(proto), arrays(new)
    x = np.concatenate([feed["x"] for feed in feeds]).astype(np.float64)
    c = np.einsum("oi,nihw->nohw", real["w"][:, :, 0, 0], x) + real["b"].reshape(-1, 1, 1)
    r = np.maximum(c, 0)
    f = np.einsum("ohw,nohw->no", real["v"][:, 0], r) + real["a"]
    data, read = arrays(made), {node.name: node for node in made.graph.node}
    maker = {name: node for node in made.graph.node for name in node.output}

    def lost(layer: str, weight: str) -> np.ndarray:
        codes, scale = (data[name] for name in maker[read[layer].input[1]].input[:2])
        return np.asarray(real[weight].astype(np.float64) - codes * scale.astype(np.float64))

    for bias, want in (
        ("b", lost("conv", "w")[:, :, 0, 0] @ x.mean((0, 2, 3))),
        ("a", lost("depthwise", "v").sum((1, 2, 3)) * r.mean((0, 2, 3))),
        ("e", lost("gemm", "u") @ f.mean(0)),
    ):
        assert np.abs(want).max() > 1e-3
        np.testing.assert_allclose(after[bias] - real[bias], want, rtol=1e-3, atol=1e-5, err_msg=bias)
