"""Tests of 4-bit constants, and of products with weights that DequantizeLinear dequantizes in blocks. vkq
and ONNX Runtime's CPU provider are both within the error bound of the float64 result."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import vkq
import vkq.onnx
from vkq.onnx.tensors import array_of

EPSILON = 2.0**-23
RANGES = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}


def codes(dtype: str, shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    kind = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4}.get(dtype, dtype)
    return np.random.default_rng([seed, *shape]).integers(*RANGES[dtype], shape).astype(kind)


def model(nodes: list[Any], x: np.ndarray, constants: dict[str, np.ndarray]) -> onnx.ModelProto:
    kind = helper.np_dtype_to_tensor_dtype(x.dtype)
    graph = helper.make_graph(
        nodes, "blocks", [helper.make_tensor_value_info("x", kind, x.shape)],
        [helper.make_tensor_value_info("y", kind, None)],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def onnxruntime(data: bytes, x: np.ndarray) -> Any:
    """Return ONNX Runtime's results without fusion, because the fused operator would round x to 8 bits."""
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(data, options, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


def product(
    op: str, x: np.ndarray, n: int, dtype: str, block: int, points: bool, axis: int, **options: Any
) -> tuple[bytes, np.ndarray, np.ndarray | None]:
    """Return (the model, its weight (N, K) in float64, its bias)."""
    k, transposed = x.shape[-1], bool(options.get("transB", 0))
    shape = (n, k) if transposed else (k, n)
    blocks = tuple(-(-d // block) if i == axis else d for i, d in enumerate(shape))
    scale = np.random.default_rng(3).uniform(0.01, 0.03, blocks).astype(x.dtype)
    constants = {"w": codes(dtype, shape), "s": scale}
    if points:
        constants["z"] = codes(dtype, blocks, 1)
    names = ["x", "d"]
    if op == "Gemm":
        constants["b"] = np.linspace(-2, 2, n).astype(x.dtype)
        names.append("b")
    nodes = [
        helper.make_node(
            "DequantizeLinear", [c for c in "wsz" if c in constants], ["d"], axis=axis, block_size=block
        ),
        helper.make_node(op, names, ["y"], **options),
    ]
    wide = {
        name: np.repeat(c.astype(np.float64), block, axis)[: shape[0], : shape[1]]
        for name, c in constants.items()
        if name in "sz"
    }
    weight = (constants["w"].astype(np.float64) - wide.get("z", 0)) * wide["s"]
    return (
        model(nodes, x, constants).SerializeToString(),
        weight if transposed else weight.T,
        constants.get("b"),
    )


def compare(
    op: str, shape: tuple[int, ...], n: int, dtype: str, block: int, points: bool, options: dict[str, int],
    x_dtype: str, device: vkq.Device,
) -> None:  # fmt: skip
    """Check that the device's product and ONNX Runtime's product are within the error bound of the
    float64 product."""
    x = np.random.default_rng(1).standard_normal(shape, np.float32).astype(x_dtype)
    data, weight, bias = product(op, x, n, dtype, block, points, options.get("transB", 0), **options)
    session = vkq.onnx.InferenceSession(data, device)
    (ours,), theirs = session.run(None, {"x": x}), onnxruntime(data, x)
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    add = 0 if bias is None else bias.astype(np.float64)
    want, size = (
        x.astype(np.float64) @ weight.T + add,
        np.abs(x.astype(np.float64)) @ np.abs(weight.T) + np.abs(add),
    )
    bound = (shape[-1] + 4) * EPSILON * size
    half = 2.0**-10 if x_dtype == "float16" else 0.0
    assert (np.abs(ours - want) <= bound + half * np.abs(want)).all()
    assert (np.abs(theirs - want) <= bound + 2 * half * size).all()  # ONNX Runtime also rounds weights
    assert "q4gsw" in str(session.explain({"x": x.shape}))  # kernels for grouped weights ran


# The cases have one, few and many rows; leading axes; each type with and without zero points; the smallest
# blocks, and blocks larger than the largest group; both orders of Gemm's matrix.
@pytest.mark.parametrize(
    ("op", "shape", "n", "dtype", "block", "points", "options"),
    [
        ("MatMul", (1, 96), 37, "int4", 32, False, {}),
        ("MatMul", (2, 5, 384), 33, "int4", 128, True, {}),
        ("MatMul", (160,), 9, "uint4", 16, True, {}),
        ("MatMul", (20, 512), 11, "uint4", 256, False, {}),
        ("MatMul", (3, 160), 9, "int8", 32, True, {}),
        ("MatMul", (3, 64), 9, "uint8", 64, False, {}),
        ("Gemm", (7, 192), 16, "int4", 64, True, {}),
        ("Gemm", (3, 96), 7, "uint4", 32, False, {"transB": 1}),
    ],
    ids=str,
)
@pytest.mark.parametrize("x_dtype", ["float32", "float16"])
def test_on_the_device(
    op: str, shape: tuple[int, ...], n: int, dtype: str, block: int, points: bool, options: dict[str, int],
    x_dtype: str, device: vkq.Device,
) -> None:  # fmt: skip
    compare(op, shape, n, dtype, block, points, options, x_dtype, device)


@pytest.mark.parametrize(
    ("op", "shape", "n", "dtype", "block", "points"),
    [
        ("MatMul", (3, 72), 8, "int4", 32, True),
        ("MatMul", (1, 300), 9, "uint4", 256, True),
        ("Gemm", (5, 100), 7, "int8", 128, False),
        ("MatMul", (2, 48), 7, "uint4", 16, True),
    ],
    ids=str,
)
@pytest.mark.parametrize("x_dtype", ["float32", "float16"])
def test_last_blocks_that_are_not_full(
    op: str, shape: tuple[int, ...], n: int, dtype: str, block: int, points: bool, x_dtype: str,
    device: vkq.Device,
) -> None:  # fmt: skip
    compare(op, shape, n, dtype, block, points, {}, x_dtype, device)


def test_a_bias_that_is_a_row(any_device: vkq.Device) -> None:
    """Gemm with a bias of shape (1, N) equals Gemm with a bias of shape (N,)."""
    x = np.random.default_rng(1).standard_normal((3, 64), np.float32)
    data, _, bias = product("Gemm", x, 8, "int4", 32, True, 1, transB=1)
    row = onnx.load_from_string(data)
    (stored,) = (c for c in row.graph.initializer if c.name == "b")
    stored.CopyFrom(numpy_helper.from_array(np.reshape(bias, (1, 8)), "b"))
    found = [
        vkq.onnx.InferenceSession(each, any_device).run(None, {"x": x})[0]
        for each in (data, row.SerializeToString())
    ]
    np.testing.assert_array_equal(*found)


# Block sizes that are no group size of a kernel: some blocks end with half a byte, one is much longer than
# K. The last case has as many blocks along N as along K.
@pytest.mark.parametrize(
    ("k", "n", "block", "axis"),
    [(40, 8, 20, 0), (33, 8, 11, 0), (72, 8, 1024, 0), (64, 8, 4, 1), (256, 256, 256, 1)],
)
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_blocks_that_no_group_has_are_float_weights(
    k: int, n: int, block: int, axis: int, dtype: str, any_device: vkq.Device
) -> None:
    x = np.random.default_rng(1).standard_normal((3, k), np.float32)
    data, weight, _ = product("MatMul", x, n, dtype, block, axis == 0, axis)
    session = vkq.onnx.InferenceSession(data, any_device)
    assert "gemm_f32__tiled" in str(session.explain())
    (ours,) = session.run(None, {"x": x})
    bound = (k + 4) * EPSILON * (np.abs(x) @ np.abs(weight.T))
    for result in (ours, onnxruntime(data, x)):
        assert (np.abs(result - x @ weight.T) <= bound).all()


@pytest.mark.parametrize("options", [{"transA": 1}, {"alpha": 2.0}, {"beta": 0.5}, {}])
def test_gemm_in_another_form(options: dict[str, Any], device: vkq.Device) -> None:
    """Gemm's transA, alpha and beta, which vkq's product lacks, become nodes before and after the product.
    A bias of one element is added to all columns."""
    x = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    constants = {
        "w": codes("int4", (64, 32)),
        "s": np.full((2, 32), 0.5, np.float32),
        "b": np.ones(1, np.float32),
    }
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s"], ["d"], axis=0, block_size=32),
        helper.make_node("Gemm", ["x", "d", "b"], ["y"], **options),
    ]
    data = model(nodes, x, constants)
    session = vkq.onnx.InferenceSession(data, device)
    assert "MatMulNBits" in [node.op for node in session.lowered({"x": x.shape}).nodes]
    (y,) = session.run(None, {"x": x})
    wanted = onnxruntime(data.SerializeToString(), x)
    np.testing.assert_allclose(y, wanted, rtol=0, atol=2 * 68 * 2.0**-24 * 2 * 4 * 64 * 4)


@pytest.mark.parametrize("block", [1 << 40, 16, -32])
def test_blocks_that_do_not_fit_are_refused(block: int, any_device: vkq.Device) -> None:
    """A block size that does not fit the weight raises an error before the scales are repeated to the
    weight's size."""
    data = onnx.load_from_string(product("MatMul", np.ones((1, 64), np.float32), 8, "int4", 32, True, 0)[0])
    data.graph.node[0].attribute[1].i = block
    with pytest.raises(vkq.ModelError, match=rf"\(2, 8\) scales for \(64, 8\) in blocks of {block}"):
        vkq.onnx.InferenceSession(data, any_device)


@pytest.mark.parametrize("stored", ["raw", "as int32", "beside"])
@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("shape", [(3, 5), (2, 4), (0, 3), ()])
def test_numbers_of_4_bits(dtype: str, shape: tuple[int, ...], stored: str, tmp_path: Path) -> None:
    """4-bit constants are read correctly from all forms of storage, also if their number is odd and half
    a byte is unused."""
    want = np.resize(np.arange(*RANGES[dtype]), shape).astype(codes(dtype, (1,)).dtype)
    tensor = numpy_helper.from_array(want, "w")
    if stored == "as int32":
        tensor = helper.make_tensor("w", tensor.data_type, shape, want.astype(np.int32).reshape(-1).tolist())
    elif stored == "beside":
        (tmp_path / "w").write_bytes(tensor.raw_data)
        onnx.external_data_helper.set_external_data(tensor, "w", 0, len(tensor.raw_data))
        tensor.ClearField("raw_data")
    got = array_of(tensor, tmp_path)
    assert got.dtype == dtype.replace("4", "8")
    np.testing.assert_array_equal(got, want.astype(np.int32))


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
@pytest.mark.parametrize("op", ["Conv", "MatMul"])
def test_quantized_activations_take_them_as_8_bits(op: str, dtype: str, device: vkq.Device) -> None:
    """Operators with quantized activations read 4-bit weights as 8-bit values, and give ONNX Runtime's
    bytes."""
    rng = np.random.default_rng(1)
    shape, axis, n = ((1, 8, 9, 9), 0, 6) if op == "Conv" else ((5, 40), 1, 12)
    w = codes(dtype, (6, 8, 3, 3) if op == "Conv" else (40, 12))
    x = rng.standard_normal(shape).astype(np.float32)
    constants = {
        "w": w, "sw": rng.uniform(0.01, 0.03, n).astype(np.float32),
        "zw": np.full(n, 8 if dtype == "uint4" else 0).astype(w.dtype),
        "sx": np.float32(0.05), "sy": np.float32(0.1), "z": np.int8(3),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "sx", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "sx", "z"], ["r"]),
        helper.make_node("DequantizeLinear", ["w", "sw", "zw"], ["d"], axis=axis),
        helper.make_node(op, ["r", "d"], ["p"]),
        helper.make_node("QuantizeLinear", ["p", "sy", "z"], ["t"]),
        helper.make_node("DequantizeLinear", ["t", "sy", "z"], ["y"]),
    ]
    data = model(nodes, x, constants).SerializeToString()
    (ours,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    np.testing.assert_array_equal(ours, onnxruntime(data, x))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "bfloat16"])
def test_casts_of_constants(dtype: str, any_device: vkq.Device) -> None:
    """A Cast of a constant of a type that vkq lacks gives the constant's numbers. No other operator takes
    bfloat16."""
    small = [v / 8 - 1 for v in range(6)]
    kind = {"int4": TensorProto.INT4, "uint4": TensorProto.UINT4, "bfloat16": TensorProto.BFLOAT16}[dtype]
    numbers = {"int4": [-8, 7, -1, 0, 3, 5], "uint4": [0, 15, 1, 8, 9, 2], "bfloat16": small}[dtype]
    x = np.ones((2, 3), np.float32)
    nodes = [
        helper.make_node("Cast", ["w"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "c"], ["y"]),
    ]
    data = model(nodes, x, {})
    data.graph.initializer.append(helper.make_tensor("w", kind, (2, 3), numbers))
    session = vkq.onnx.InferenceSession(data, any_device)
    np.testing.assert_array_equal(session.run(None, {"x": x})[0], np.float32(numbers).reshape(2, 3))
    assert {row.where for row in session.explain().rows} == {"device"}
    if dtype == "bfloat16":
        data.graph.node[0].op_type = "Neg"
        with pytest.raises(vkq.ModelError, match="'w' has type bfloat16; only Cast accept it"):
            vkq.onnx.InferenceSession(data, any_device)


@pytest.mark.parametrize("dtype", ["int4", "uint4"])
def test_nothing_else_takes_them(dtype: str, any_device: vkq.Device) -> None:
    """4-bit constants raise an error if an operator other than DequantizeLinear would read them as 8-bit
    values: a Transpose, a result of the model, a zero point that defines a type."""
    x, w = np.ones((2, 3), np.float32), codes(dtype, (2, 3))
    moved = model([helper.make_node("Transpose", ["w"], ["y"], "t")], x, {"w": w})
    result = model([helper.make_node("Relu", ["x"], ["y"])], x, {"w": w})
    result.graph.output.append(onnx.ValueInfoProto(name="w"))
    stored = model([helper.make_node("QuantizeLinear", ["x", "s", "w"], ["t"], "q")], x, {"w": w, "s": x})
    for data, reader in ((moved, "Transpose 't'"), (result, "the model's results"), (stored, "Linear 'q'")):
        with pytest.raises(
            vkq.ModelError, match=f"{reader}: 'w' has type {dtype}; only DequantizeLinear and"
        ):
            vkq.onnx.InferenceSession(data, any_device)
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(w, "w"))
    data = model([constant, helper.make_node("DequantizeLinear", ["c", "s"], ["y"])], x, {"s": np.float32(1)})
    with pytest.raises(vkq.ModelError, match=f"'w' is of {dtype}; only float32"):
        vkq.onnx.InferenceSession(data, any_device)
