"""Tests of weight-only models made from float models: their contents, and that they run without a fallback,
within the bound of float sums."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from tests.onnx.networks import Net
from vkq.accuracy import quantize_weights
from vkq.errors import ArgumentError, ModelError

UNIT = 2.0**-24


def layer(
    op: str, x: tuple[int, ...], w: tuple[int, ...], left: bool = False, opset: int = 17, **more: Any
) -> Any:
    """Return a model of one layer with a bias. The ranges of its channels differ widely, and one channel is
    zero."""
    random = np.random.default_rng([*x, *w])
    kind = more.pop("kind", TensorProto.FLOAT)
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    weight = random.standard_normal(w) * np.exp2(random.integers(-6, 3, (*w[:-2], *(1 for _ in w[-2:]))))
    weight[..., 1] *= 8
    weight[0] *= 0
    names = ["w", "x"] if left else ["x", "w"]
    data = {"w": weight.astype(dtype)}
    if op != "MatMul":
        channels = {"Conv": w[0], "ConvTranspose": w[1] * more.get("group", 1)}.get(
            op, w[0 if "transB" in more else -1]
        )
        data["b"] = random.standard_normal(channels).astype(dtype)
        names.append("b")
    graph = helper.make_graph(
        [helper.make_node(op, names, ["y"], **more)], "layer", [helper.make_tensor_value_info("x", kind, x)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in data.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def onnxruntime(path: Path, feed: dict[str, Any], optimized: bool = False) -> list[Any]:
    """Return ONNX Runtime's results. *optimized*: with its fusions, whose products round activations to 8
    bits in blocks."""
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return list(ort.InferenceSession(path, options, providers=["CPUExecutionProvider"]).run(None, feed))


LAYERS = {
    "conv": (layer("Conv", (2, 6, 9, 7), (5, 6, 3, 3), pads=[1] * 4), 54),
    "grouped": (layer("Conv", (1, 6, 9, 7), (4, 3, 3, 2), group=2), 18),
    "depthwise": (layer("Conv", (1, 6, 9, 7), (6, 1, 3, 3), group=6), 9),
    "line": (layer("Conv", (2, 6, 11), (5, 6, 3)), 18),
    "transposed": (layer("ConvTranspose", (2, 6, 9, 7), (6, 5, 3, 3), strides=[2, 2]), 54),
    "transposed in groups": (layer("ConvTranspose", (2, 6, 9, 7), (6, 2, 3, 3), group=3), 54),
    "matmul": (layer("MatMul", (2, 3, 70), (70, 10)), 70),
    "left": (layer("MatMul", (21, 7), (10, 21), left=True), 21),
    "gemm": (layer("Gemm", (5, 33), (33, 10)), 33),
    "turned": (layer("Gemm", (5, 130), (10, 130), transB=1), 130),
    "old": (layer("Gemm", (5, 21), (10, 21), transB=1, opset=11), 21),
}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_runs_whole(device: vkq.Device, tmp_path: Path, name: str, bits: int) -> None:
    model, terms = LAYERS[name]
    onnx.save(model, tmp_path / "float.onnx")
    target = tmp_path / "weights.onnx"
    (row,) = quantize_weights(tmp_path / "float.onnx", target, bits, 16)
    onnx.checker.check_model(onnx.load(target), full_check=True)
    blocks = bits == 4 and name in ("matmul", "gemm", "turned", "old")
    assert (row.op, row.bits, row.block) == (
        model.graph.node[0].op_type,
        4 if blocks else 8,
        16 if blocks else 0,
    )
    assert row.snr_db > (15 if blocks else 35)
    session = vkq.onnx.InferenceSession(target, device)  # raises an error for nodes that would run on a CPU
    shape = tuple(d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim)
    ops = {node.op for node in session.lowered({"x": shape}).nodes}
    assert ops & {"conv2d", "conv_transpose2d", "MatMulNBits" if blocks else "linear"}
    assert not ops & {"DequantizeLinear", "MatMul", "Gemm", "Conv"}
    # the kernel reads integer weights
    assert ("q4gsw" if blocks else "q8csw") in str(session.explain({"x": shape}))
    x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    (y,), (z,) = session.run(None, {"x": x}), onnxruntime(target, {"x": x})
    magnitude = onnxruntime(_magnitudes(target), {"x": np.abs(x)})[0]
    assert (np.abs(y - z) <= 2 * (terms + 4) * UNIT * magnitude).all()


def _magnitudes(path: Path) -> Path:
    """Write a copy of the model with the magnitudes of its weights, and return its path. For inputs |x|,
    this model computes the sum of magnitudes in the error bound."""
    model = onnx.load(path)
    by_name = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type == "DequantizeLinear":
            model.graph.node.append(helper.make_node("Abs", [node.output[0]], [f"{node.output[0]}/abs"]))
    nodes = sorted(
        model.graph.node,
        key=lambda node: (
            ["DequantizeLinear", "Abs"].index(node.op_type)
            if node.op_type in ("DequantizeLinear", "Abs")
            else 2
        ),
    )
    for node in nodes:
        if node.op_type not in ("DequantizeLinear", "Abs"):
            for i, name in enumerate(node.input):
                if f"{name}/abs" in {n.output[0] for n in nodes}:
                    node.input[i] = f"{name}/abs"
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    if bias := by_name.get("b"):
        bias.CopyFrom(numpy_helper.from_array(np.abs(numpy_helper.to_array(bias)), "b"))
    onnx.save(model, path.with_suffix(".magnitude.onnx"))
    return path.with_suffix(".magnitude.onnx")


def test_codes_are_those_of_the_formula(tmp_path: Path) -> None:
    model, _ = LAYERS["conv"]
    onnx.save(model, tmp_path / "float.onnx")
    quantize_weights(tmp_path / "float.onnx", tmp_path / "w.onnx")
    arrays = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "w.onnx").graph.initializer}
    w = numpy_helper.to_array(model.graph.initializer[0])
    largest = np.abs(w).reshape(5, -1).max(1)
    np.testing.assert_array_equal(arrays["w/scale_0"][1:], largest[1:] / np.float32(127))
    assert arrays["w/scale_0"][0] == 1  # a channel of zeros has the scale 1
    np.testing.assert_array_equal(arrays["w/int8_0"], np.rint(w / arrays["w/scale_0"].reshape(5, 1, 1, 1)))
    assert "w" not in arrays
    np.testing.assert_array_equal(arrays["b"], numpy_helper.to_array(model.graph.initializer[1]))


def test_float16(device: vkq.Device, tmp_path: Path) -> None:
    model = layer("Conv", (2, 6, 9, 7), (5, 6, 3, 3), kind=TensorProto.FLOAT16)
    onnx.save(model, tmp_path / "float.onnx")
    target = tmp_path / "w.onnx"
    (row,) = quantize_weights(tmp_path / "float.onnx", target)
    assert (row.bits, row.why) == (8, "")
    x = np.random.default_rng(1).standard_normal((2, 6, 9, 7)).astype(np.float16)
    (y,), (z,) = vkq.onnx.InferenceSession(target, device).run(None, {"x": x}), onnxruntime(target, {"x": x})
    assert y.dtype == np.float16
    magnitude = np.abs(onnxruntime(_magnitudes(target), {"x": np.abs(x)})[0]).astype(np.float64)
    assert (np.abs(y.astype(np.float64) - z) <= 4 * 58 * 2.0**-11 * magnitude).all()


def test_a_network_and_what_stays_float(device: vkq.Device, tmp_path: Path) -> None:
    """In a network that is quantized to 8-bit weights, a shared weight is stored once, an excluded layer
    stays float, and BatchNormalization is folded."""
    net = Net(3, opset=13)
    a = net.relu(net.batch_norm(net.conv("x", 6)))
    shared = net.weight(6, 6, 3, 3)
    for _ in range(2):
        a = net.op("Conv", a, shared, pads=[1] * 4)
    model = net.model(net.head(a), batch="N")
    names = [node.name for node in model.graph.node]
    onnx.save(model, tmp_path / "float.onnx")
    target = tmp_path / "w.onnx"
    rows = quantize_weights(tmp_path / "float.onnx", target, exclude=[names[-1]])
    assert [(row.op, row.bits, row.why) for row in rows] == [
        ("Conv", 8, ""), ("Conv", 8, ""), ("Conv", 8, ""), ("Gemm", 32, "excluded"),
    ]  # fmt: skip
    made = onnx.load(target)
    assert sorted(n.op_type for n in made.graph.node).count("DequantizeLinear") == 2
    assert not any(n.op_type == "BatchNormalization" for n in made.graph.node)
    x = np.random.default_rng(0).standard_normal((3, 3, 16, 16)).astype(np.float32)
    (y,), (z,) = (
        vkq.onnx.InferenceSession(target, device).run(None, {"x": x}),
        onnxruntime(target, {"x": x}, True),
    )
    np.testing.assert_allclose(y, z, atol=1e-5 * np.abs(z).max())


def test_what_is_refused(tmp_path: Path) -> None:
    model, _ = LAYERS["conv"]
    onnx.save(model, tmp_path / "float.onnx")
    for options, said in (
        ({"bits": 3}, "bits is 3 and block 32; bits must be 4 or 8"),
        ({"block": 20}, "block one of 16, 32, 64, 128"),
        ({"exclude": ["z"]}, "the model has no node 'z'"),
    ):
        with pytest.raises(ArgumentError, match=said):
            quantize_weights(tmp_path / "float.onnx", tmp_path / "w.onnx", **options)  # type: ignore[arg-type]
    w = numpy_helper.to_array(model.graph.initializer[0]).copy()
    w[2, 1, 0, 0] = np.nan
    broken = onnx.ModelProto.FromString(model.SerializeToString())
    broken.graph.initializer[0].CopyFrom(numpy_helper.from_array(w, "w"))
    onnx.save(broken, tmp_path / "float.onnx")
    with pytest.raises(ModelError, match=r"Conv .*weight.* is nan"):
        quantize_weights(tmp_path / "float.onnx", tmp_path / "w.onnx")
    assert not (tmp_path / "w.onnx").exists()


def test_nothing_to_quantize(tmp_path: Path) -> None:
    """A model whose weights are quantized already has no float weight."""
    net = Net(3, opset=13)
    onnx.save(net.model(net.head(net.conv("x", 6)), batch="N"), tmp_path / "float.onnx")
    quantize_weights(tmp_path / "float.onnx", tmp_path / "w8.onnx")
    with pytest.raises(ModelError, match=r"w8\.onnx has no constant float weight of Conv"):
        quantize_weights(tmp_path / "w8.onnx", tmp_path / "again.onnx")
    assert not (tmp_path / "again.onnx").exists()
