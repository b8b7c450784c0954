"""Tests of the com.microsoft operators that ONNX Runtime's optimizer writes for transformers, compared with
ONNX Runtime."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

import vkq
import vkq.onnx
from tests.onnx.test_operators import MICROSOFT, bytes_of, model
from vkq.onnx.cpu import cpu_session

Arrays = dict[str, Any]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).normal(0.2, 1, shape).astype(np.float32)


def both(
    device: vkq.Device, op: str, fed: Arrays, constants: Arrays, names: str, results: str = "y", **a: Any
) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return pairs of vkq's and ONNX Runtime's results of one node. *names* and *results* have one letter
    per operand; "-" means that the operand is left out."""
    inputs, outputs = (["" if name == "-" else name for name in text] for text in (names, results))
    domain = "" if op.startswith("Simplified") else MICROSOFT
    proto = onnx.ModelProto.FromString(
        model([helper.make_node(op, inputs, outputs, domain=domain, **a)], fed, constants, "float32")
    )
    for name in filter(None, outputs[1:]):
        proto.graph.output.append(helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    data = proto.SerializeToString()
    session = vkq.onnx.InferenceSession(data, device)
    pairs = list(zip(session.run(None, fed), cpu_session(data, "comparing").run(None, fed), strict=True))
    assert all(got.shape == want.shape and got.dtype == want.dtype for got, want in pairs)
    return pairs


@pytest.mark.parametrize("names", ["xsgbc", "xsgb", "xsg-c", "xtg"])
@pytest.mark.parametrize("results", ["y", "y--z"])
def test_skip_layer_normalization(device: vkq.Device, names: str, results: str) -> None:
    """The results of vkq and of ONNX Runtime differ by at most the rounding errors of both: 2e-6 for
    normalized values of magnitude 1, and two roundings of the second result, x + skip + bias. In the case
    "xtg", the skip input t is broadcast over the batch."""
    fed = {"x": normal(2, 5, 37), **{k: normal(2, 5, 37, seed=1) for k in "s" if k in names}}
    fed |= {k: normal(1, 5, 37, seed=1) for k in "t" if k in names}
    constants = {name: normal(37, seed=i) for i, name in enumerate("gbc", 2)}
    (y, want), *rest = both(device, "SkipLayerNormalization", fed, constants, names, results, epsilon=1e-5)
    np.testing.assert_allclose(y, want, rtol=0, atol=8e-6)
    for total, other in rest:
        np.testing.assert_allclose(total, other, rtol=0, atol=2 * 8 * 2**-24)


@pytest.mark.parametrize("names", ["xsgc", "xsg"])
def test_skip_simplified_layer_normalization(device: vkq.Device, names: str) -> None:
    fed = {"x": normal(2, 5, 37), "s": normal(2, 5, 37, seed=1)}
    constants = {name: normal(37, seed=i) for i, name in enumerate("gc", 2)}
    (y, want), (total, other) = both(
        device, "SkipSimplifiedLayerNormalization", fed, constants, names, "y--z"
    )
    np.testing.assert_allclose(y, want, rtol=0, atol=8e-6)
    np.testing.assert_allclose(total, other, rtol=0, atol=2 * 8 * 2**-24)


@pytest.mark.parametrize("names", ["iswpegbm", "i-wp-gb", "iswpegb-l", "iswpegbml"])
def test_embed_layer_normalization(device: vkq.Device, names: str) -> None:
    """EmbedLayerNormalization gathers the rows of tokens, positions and segments by run-time ids, and adds
    them with two roundings. Without a mask it counts no tokens."""
    random = np.random.default_rng(5)
    fed = {
        name: random.integers(0, most, (2, 5)).astype(np.int32)
        for name, most in zip("isl", (11, 2, 7), strict=True)
    }
    fed = {name: array for name, array in (fed | {"m": np.int32([[1] * 5, [1, 1, 1, 0, 0]])}).items()
           if name in names}  # fmt: skip
    constants = {name: normal(n, 37, seed=n) for name, n in {"w": 11, "p": 7, "e": 2}.items()}
    constants |= {"g": normal(37, seed=1), "b": normal(37, seed=2)}
    inputs, outputs = ["" if name == "-" else name for name in names], ["y", "n", "z"]
    node = helper.make_node("EmbedLayerNormalization", inputs, outputs, domain=MICROSOFT, epsilon=1e-5)
    proto = onnx.ModelProto.FromString(model([node], fed, constants, "float32"))
    proto.graph.output.append(helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None))
    proto.graph.output.append(helper.make_tensor_value_info("n", onnx.TensorProto.INT32, None))
    data = proto.SerializeToString()
    session = vkq.onnx.InferenceSession(data, device)
    got = session.run(None, fed)
    assert not session._constant
    y, total, *count = cpu_session(data, "comparing").run(None, fed)
    np.testing.assert_allclose(got[0], y, rtol=0, atol=8e-6)
    np.testing.assert_allclose(got[1], total, rtol=0, atol=4 * 8 * 2**-24)
    np.testing.assert_array_equal(np.array(got[2:]), np.array(count))


def test_skip_normalization_of_halves(device: vkq.Device) -> None:
    """SkipLayerNormalization of float16 is computed in float32. It differs from ONNX Runtime by at most one
    float16 step, or by 8e-6 near a tie."""
    fed = {"x": normal(2, 5, 37).astype(np.float16), "s": normal(2, 5, 37, seed=1).astype(np.float16)}
    constants = {name: normal(37, seed=i).astype(np.float16) for i, name in enumerate("gbc", 2)}
    node = helper.make_node("SkipLayerNormalization", list("xsgbc"), ["y"], domain=MICROSOFT)
    data = model([node], fed, constants, "float16")
    got = vkq.onnx.InferenceSession(data, device).run(None, fed)[0]
    want = cpu_session(data, "comparing").run(None, fed)[0]
    assert got.dtype == want.dtype == np.float16
    np.testing.assert_allclose(got.astype(np.float32), want.astype(np.float32), rtol=2**-10, atol=2e-5)


def test_what_is_left_to_the_fallback(any_device: vkq.Device) -> None:
    """The fallback runs SkipLayerNormalization with its mean as a result, and FusedMatMul with transposed
    batches."""
    fed, constants = {"x": normal(2, 5, 37), "s": normal(2, 5, 37, seed=1)}, {"g": normal(37)}
    for op, names, results, a in (
        ("SkipLayerNormalization", ["x", "s", "g"], ["y", "m"], {}),
        ("FusedMatMul", ["x", "s"], ["y"], {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
    ):
        node = helper.make_node(op, names, results, domain=MICROSOFT, **a)
        data = model([node], fed, constants, "float32")
        with pytest.raises(vkq.UnsupportedModelError, match="1 of 1 "):
            vkq.onnx.InferenceSession(data, any_device)


def test_missing_inputs_are_refused(any_device: vkq.Device) -> None:
    for op in ("SkipLayerNormalization", "MatMulIntegerToFloat", "DynamicQuantizeMatMul", "FusedMatMul"):
        node = helper.make_node(op, ["x"], ["y"], domain=MICROSOFT)
        data = model([node], {"x": normal(3, 4)}, {}, "float32")
        with pytest.raises(vkq.ModelError):
            vkq.onnx.InferenceSession(data, any_device)


def test_simplified_layer_normalization(device: vkq.Device) -> None:
    """SimplifiedLayerNormalization, ONNX Runtime's older name of RMSNormalization, is close to ONNX
    Runtime's result on the device."""
    fed, a = {"x": normal(2, 5, 37)}, {"axis": -1, "epsilon": 1e-5, "stash_type": 1}
    ((y, want),) = both(device, "SimplifiedLayerNormalization", fed, {"g": normal(37)}, "xg", **a)
    np.testing.assert_allclose(y, want, rtol=0, atol=8e-6)


@pytest.mark.parametrize(("op", "names"), [("BiasGelu", "xb"), ("FastGelu", "xb"), ("FastGelu", "x")])
def test_gelu(device: vkq.Device, op: str, names: str) -> None:
    """BiasGelu and FastGelu are within a few units in the last place of ONNX Runtime, for sums of magnitude
    4."""
    fed = {"x": 2 * normal(3, 5, 37)}
    ((y, want),) = both(device, op, fed, {"b": normal(37, seed=1)}, names)
    np.testing.assert_allclose(y, want, rtol=0, atol=4e-6)


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("second", [0, 1])
@pytest.mark.parametrize("constant", [False, True])
def test_fused_matmul(device: vkq.Device, first: int, second: int, constant: bool) -> None:
    """FusedMatMul is within the bound: in vkq and in ONNX Runtime, the error of a sum of K products is at
    most (K + 4) 2^-24 of the sum of magnitudes."""
    a, b = normal(2, 3, 5, 37), normal(37, 7, seed=1) if constant else normal(2, 3, 37, 7, seed=1)
    bound = 2 * (37 + 4) * 2**-24 * 0.3 * (np.abs(a) @ np.abs(b))
    fed = {"a": np.ascontiguousarray(np.swapaxes(a, -1, -2)) if first else a}
    other = {"b": np.ascontiguousarray(np.swapaxes(b, -1, -2)) if second else b}
    fed, constants = (fed, other) if constant else (fed | other, {})
    options = {"alpha": 0.3, "transA": first, "transB": second}
    ((y, want),) = both(device, "FusedMatMul", fed, constants, "ab", **options)
    assert (np.abs(y - want) <= bound).all()


@pytest.mark.parametrize("names", ["abstpqc", "abstp", "abst--c"])
@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_matmul_integer_to_float(device: vkq.Device, names: str, dtype: str) -> None:
    """MatMulIntegerToFloat sums exactly, and rounds three times: the product of both scales, the sum times
    this product, and the result plus bias."""
    fed = {"a": bytes_of((2, 5, 37), "uint8")}
    constants = {"b": bytes_of((37, 7), dtype, 1), "s": np.float32(0.02), "t": np.abs(normal(7)) / 50}
    constants |= {"p": np.uint8(120), "q": np.full(7, 3, dtype), "c": normal(7, seed=2)}
    ((y, want),) = both(device, "MatMulIntegerToFloat", fed, constants, names)
    np.testing.assert_allclose(y, want, rtol=4 * 2**-24, atol=4e-6)


@pytest.mark.parametrize("names", ["abtqc", "abtq", "abt-c"])
def test_dynamic_quantize_matmul(device: vkq.Device, names: str) -> None:
    fed = {"a": normal(2, 5, 37)}
    constants = {"b": bytes_of((37, 7), "int8", 1), "t": np.abs(normal(7)) / 50}
    constants |= {"q": np.zeros(7, np.int8), "c": normal(7, seed=2)}
    ((y, want),) = both(device, "DynamicQuantizeMatMul", fed, constants, names)
    np.testing.assert_allclose(y, want, rtol=4 * 2**-24, atol=4e-6)
