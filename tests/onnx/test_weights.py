"""Tests of float Conv, ConvTranspose, MatMul and Gemm with constant weights. The weights are floats, or
constants that DequantizeLinear dequantizes (weight-only).

The results of the device and of ONNX Runtime each differ from the float64 result by at most (K + 4) 2^-24
of the sum of magnitudes, the bound of float32 sums (`vkq.reference.floats`).
"""

from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

import vkq
import vkq.onnx
from vkq.check.graph import run
from vkq.graph.executable import refusals
from vkq.onnx.reader import read

RANGES = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}
UNIT, HALF_UNIT = 2.0**-24, 2.0**-11


def codes(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    kind = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}.get(dtype, dtype)
    return np.random.default_rng([seed, *shape]).integers(*RANGES[dtype], shape).astype(kind)


class Weighted:
    """A model of one layer with the input x and a constant weight, and the layer's result in float64."""

    def __init__(
        self, op: str, x: tuple[int, ...], w: tuple[int, ...], dtype: str = "int8", axis: int | None = None,
        floats: str = "float32", bias: tuple[int, ...] | None = None, left: bool = False,
        points: bool = False, then: tuple[Any, ...] = (), turned: bool = False, **attributes: Any,
    ):  # fmt: skip
        random = np.random.default_rng([*x, *w])
        self.x = random.standard_normal(x).astype(floats)
        scales, quantized = () if axis is None else (w[axis],), dtype in RANGES
        if quantized:
            data = {"w": codes(dtype, w), "s": random.uniform(0.01, 0.05, scales).astype(floats)}
        else:
            data = {"w": random.standard_normal(w).astype(floats)}
        if points:
            data["z"] = codes(dtype, scales, 1)
        names = ["d", "x"] if left else ["x", "d"]
        if bias is not None:
            data["b"] = random.standard_normal(bias).astype(floats)
            names.append("b")
        more = {} if axis is None else {"axis": axis}
        nodes = [helper.make_node("DequantizeLinear", [n for n in "wsz" if n in data], ["d0"], **more)]
        if not quantized:
            nodes = [helper.make_node("Identity", ["w"], ["d0"])]
        if turned:
            nodes.append(helper.make_node("Transpose", ["d0"], ["d"]))
        else:
            nodes[0].output[0] = "d"
        nodes.append(helper.make_node(op, names, ["y0" if then else "y"], **attributes))
        if then:
            nodes.append(helper.make_node(then[0], ["y0", *then[1:]], ["y"]))
            data |= {name: np.array(i + 1, floats) for i, name in enumerate(then[1:])}
        self.nodes, self.data, self.k = nodes, data, 0
        self.proto = self._model(self.x.dtype, data)

    def _model(self, floats: Any, data: dict[str, np.ndarray]) -> onnx.ModelProto:
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(floats))
        graph = helper.make_graph(
            self.nodes, "weights", [helper.make_tensor_value_info("x", kind, self.x.shape)],
            [helper.make_tensor_value_info("y", kind, None)],
            [numpy_helper.from_array(array, name) for name, array in data.items()],
        )  # fmt: skip
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)

    def real(self, magnitude: bool = False) -> np.ndarray:
        """Return the layer's float64 result, without the operators after the layer. *magnitude*: return the
        sum of the magnitudes of its terms."""
        size = np.abs if magnitude else np.asarray
        wide = {"s": np.ones(()), **{n: a.astype(np.float64) for n, a in self.data.items() if n in "swz"}}
        axis = next((a.i for a in self.nodes[0].attribute if a.name == "axis"), 0)
        shape = [1] * wide["w"].ndim
        if wide["s"].size > 1:
            shape[axis] = -1
        weight = size((wide["w"] - wide.get("z", np.zeros(1)).reshape(shape)) * wide["s"].reshape(shape))
        data = {"d0" if self.nodes[1].op_type == "Transpose" else "d": weight}
        if "b" in self.data:
            data["b"] = size(self.data["b"].astype(np.float64))
        layer = next(n for n in self.nodes if n.op_type in ("Conv", "ConvTranspose", "MatMul", "Gemm"))
        nodes = self.nodes[1 : self.nodes.index(layer) + 1]
        self.nodes, kept = nodes, self.nodes
        model = self._model(np.float64, data)
        self.nodes = kept
        model.graph.output[0].name = layer.output[0]
        graph = read(model).at({"x": self.x.shape})
        y = run(graph, {"x": size(self.x.astype(np.float64))})[layer.output[0]]
        if magnitude or layer is kept[-1]:
            return np.asarray(y)
        low, high = (0.0, np.inf) if kept[-1].op_type == "Relu" else (1.0, 2.0)
        return np.clip(y, low, high)


def terms(model: Weighted) -> int:
    w = model.data["w"].shape
    return int(np.prod(w[1:])) if len(w) == 4 else max(w)


def compared(device: vkq.Device, model: Weighted, ops: list[str]) -> None:
    session = vkq.onnx.InferenceSession(model.proto, device)
    graph = session.lowered({"x": model.x.shape})
    assert [node.op for node in graph.nodes] == ops
    assert not refusals(graph)
    (y,) = session.run(None, {"x": model.x})
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    runtime = ort.InferenceSession(model.proto.SerializeToString(), options)
    (w,) = runtime.run(None, {"x": model.x})
    assert y.dtype == w.dtype
    assert y.shape == w.shape
    wanted, magnitude = model.real(), model.real(magnitude=True)
    bound = (terms(model) + 4) * UNIT * magnitude
    if y.dtype == np.float16:
        bound = bound + HALF_UNIT * np.abs(wanted) + 2.0**-25
    assert (np.abs(y - wanted) <= bound).all(), (np.abs(y - wanted) / bound).max()
    # ONNX Runtime rounds float16 weights, and rounds float16 sums after each addition.
    loose = 4 * (terms(model) + 4) * HALF_UNIT * magnitude if y.dtype == np.float16 else bound
    assert (np.abs(w - wanted) <= loose).all()


IMAGE = (2, 6, 9, 7)
# fmt: off
CONVOLUTIONS = [
    {"w": (5, 6, 3, 3), "axis": 0, "bias": (5,), "pads": [1, 1, 1, 1]},
    {"w": (5, 6, 1, 1), "dtype": "uint8", "points": True, "bias": (5,), "then": ("Relu",)},
    {"w": (6, 1, 3, 3), "axis": 0, "group": 6, "strides": [2, 2], "then": ("Clip", "low", "high")},
    {"w": (12, 3, 3, 2), "axis": 0, "dtype": "int4", "group": 2, "dilations": [2, 1], "points": True},
    {
        "w": (12, 1, 5, 5),
        "axis": 0,
        "dtype": "uint4",
        "group": 6,
        "pads": [2, 2, 2, 2],
        "points": True,
        "bias": (12,),
    },
]
# fmt: on


@pytest.mark.parametrize("floats", ["float32", "float16"])
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=lambda o: "x".join(map(str, o["w"])))
def test_convolution(device: vkq.Device, options: dict[str, Any], floats: str) -> None:
    compared(device, Weighted("Conv", IMAGE, floats=floats, **options), ["conv2d"])


@pytest.mark.parametrize("floats", ["float32", "float16"])
@pytest.mark.parametrize("options", CONVOLUTIONS, ids=lambda o: "x".join(map(str, o["w"])))
def test_convolution_of_a_float_weight(device: vkq.Device, options: dict[str, Any], floats: str) -> None:
    options = {**options, "dtype": "float", "points": False, "axis": None}
    compared(device, Weighted("Conv", IMAGE, floats=floats, **options), ["conv2d"])


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {"w": (6, 5, 3, 3), "axis": 1, "bias": (5,), "strides": [2, 2], "output_padding": [1, 1]},
        {
            "w": (6, 4, 2, 3),
            "axis": 1,
            "group": 2,
            "points": True,
            "dtype": "uint8",
        },  # each channel of a group has a scale
        {"w": (6, 2, 3, 3), "group": 3, "dtype": "int4", "then": ("Relu",)},
    ],
    ids=["dense", "axis", "tensor"],
)
def test_transposed_convolution(device: vkq.Device, options: dict[str, Any], quantized: bool) -> None:
    if not quantized:
        options = {**options, "dtype": "float", "points": False, "axis": None}
    compared(device, Weighted("ConvTranspose", IMAGE, **options), ["conv_transpose2d"])


def test_line(device: vkq.Device) -> None:
    model = Weighted("Conv", (2, 6, 11), (5, 6, 3), axis=0, bias=(5,), pads=[1, 1])
    compared(device, model, ["Reshape", "conv2d", "Reshape"])


@pytest.mark.parametrize("floats", ["float32", "float16"])
@pytest.mark.parametrize("dtype", [*RANGES, "float"])
def test_matmul(device: vkq.Device, dtype: str, floats: str) -> None:
    model = Weighted(
        "MatMul",
        (2, 3, 21),
        (21, 10),
        dtype,
        axis=1 if dtype in RANGES else None,
        floats=floats,
        points=dtype[0] == "u",
    )
    compared(device, model, ["linear"])


@pytest.mark.parametrize(("dtype", "axis"), [("int8", 0), ("float", None)])
@pytest.mark.parametrize("shape", [(21, 7), (2, 3, 21, 7)])
def test_matmul_with_the_weight_on_the_left(
    device: vkq.Device, shape: tuple[int, ...], dtype: str, axis: int | None
) -> None:
    model = Weighted("MatMul", shape, (10, 21), dtype, axis=axis, left=True)
    compared(device, model, ["Transpose", "linear", "Transpose"])


def test_matmul_of_a_transposed_weight(device: vkq.Device) -> None:
    compared(device, Weighted("MatMul", (5, 21), (10, 21), axis=0, points=True, turned=True), ["linear"])


@pytest.mark.parametrize(
    ("options", "ops"),
    [
        ({"w": (21, 10), "axis": 1, "bias": (10,), "then": ("Relu",)}, ["linear"]),
        ({"w": (10, 21), "axis": 0, "bias": (1,), "transB": 1}, ["linear"]),
        ({"w": (10, 21), "x": (21, 5), "axis": 0, "bias": (1, 10), "transA": 1, "transB": 1},
         ["Transpose", "linear"]),
        ({"w": (10, 21), "axis": 0, "bias": (5, 1), "transB": 1}, ["linear", "chain"]),
        # x has as many rows as the layer has outputs (5). The bias (5, 1) has one element per row.
        ({"w": (5, 21), "axis": 0, "bias": (5, 1), "transB": 1}, ["linear", "chain"]),
        ({"w": (21, 10), "axis": 1, "bias": (10,), "alpha": 2.0, "beta": 0.5}, ["linear", "chain"]),
        ({"w": (10, 21), "x": (21, 5), "axis": 0, "left": True, "bias": (5,)},
         ["Transpose", "linear", "Transpose", "chain"]),
        ({"w": (21, 10), "x": (5, 21), "axis": 1, "left": True, "transA": 1, "transB": 1},
         ["linear", "Transpose"]),
    ],
)  # fmt: skip
def test_gemm(device: vkq.Device, options: dict[str, Any], ops: list[str]) -> None:
    floats = {**options, "dtype": "float", "axis": None}
    compared(device, Weighted("Gemm", **{"x": (5, 21), **floats}), ops)
    compared(device, Weighted("Gemm", **{"x": (5, 21), **options}), ops)


def test_what_else_reads_the_result_of_a_layer_keeps_it(device: vkq.Device) -> None:
    model = Weighted("MatMul", (5, 21), (21, 10), axis=1, then=("Relu",))
    model.proto.graph.output.append(helper.make_tensor_value_info("y0", 1, None))
    session = vkq.onnx.InferenceSession(model.proto, device)
    assert [node.op for node in session.lowered({"x": (5, 21)}).nodes] == ["linear", "chain"]
    y, before = session.run(None, {"x": model.x})
    np.testing.assert_array_equal(y, np.maximum(before, 0))


@pytest.mark.parametrize("floats", ["float32", "float16"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((5, 21), (21, 10)),
        ((2, 3, 5, 21), (2, 3, 21, 8)),
        ((2, 3, 1, 300), (3, 300, 7)),  # a and b have the same K; leading axes broadcast
        ((1, 5, 6), (4, 6, 3)),
        ((4, 5, 6), (6, 3)),
        ((2, 1, 5, 6), (1, 3, 6, 4)),
        ((21,), (2, 21, 4)),
        ((2, 4, 21), (21,)),
        ((7,), (7,)),
        ((0, 5, 6), (6, 3)),
        ((3, 0), (0, 2)),
    ],
)
def test_product_of_two_activations(
    device: vkq.Device, a: tuple[int, ...], b: tuple[int, ...], floats: str
) -> None:
    random, kind = np.random.default_rng(len(a)), helper.np_dtype_to_tensor_dtype(np.dtype(floats))
    feed = {"a": random.standard_normal(a).astype(floats), "b": random.standard_normal(b).astype(floats)}
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["a", "b"], ["y"])], "product",
        [helper.make_tensor_value_info(name, kind, x.shape) for name, x in feed.items()],
        [helper.make_tensor_value_info("y", kind, None)],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    (y,) = vkq.onnx.InferenceSession(proto, device).run(None, feed)
    wide = [x.astype(np.float64) for x in feed.values()]
    wanted, magnitude = np.matmul(*wide), np.matmul(*map(np.abs, wide))
    bound = (a[-1] + 4) * UNIT * magnitude
    if floats == "float16":
        bound = bound + HALF_UNIT * np.abs(wanted) + 2.0**-25
    assert (y.dtype, y.shape) == (np.dtype(floats), wanted.shape)
    assert (np.abs(y - wanted) <= bound).all()


@pytest.mark.parametrize("number", [-0.02, 0.0])  # 1e-40 is left out: a device may flush a product with it
def test_a_scale_that_layers_do_not_take_makes_a_float_weight(device: vkq.Device, number: float) -> None:
    model = Weighted("MatMul", (5, 21), (21, 10), axis=1)
    model.data["s"][1] = number
    model.proto = model._model(np.float32, model.data)
    compared(device, model, ["linear"])
