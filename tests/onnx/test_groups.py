"""Tests of com.microsoft's MatMulNBits: vkq and ONNX Runtime's CPU provider are both within the error bound
of the float64 result."""

from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import helper

import vkq
import vkq.onnx
from vkq import reference
from vkq.onnx.fallback import FallbackWarning

from .test_operators import MICROSOFT, model

EPSILON = 2.0**-23
NAMES = ("x", "b", "scales", "zeros", "groups", "bias")


def node(k: int, n: int, bits: int, block: int, given: dict[str, Any]) -> Any:
    names = [name if name == "x" or name in given else "" for name in NAMES]
    while not names[-1]:
        names.pop()
    return helper.make_node(
        "MatMulNBits", names, ["y"], domain=MICROSOFT, K=k, N=n, bits=bits, block_size=block
    )


def weight(n: int, k: int, bits: int, group: int, symmetric: bool) -> vkq.GroupedWeight:
    w = np.random.default_rng([n, k]).standard_normal((n, k), np.float32)
    return vkq.quantize_weight(w, bits=bits, group=group, symmetric=symmetric)


def inputs_of(w: vkq.GroupedWeight) -> dict[str, Any]:
    given = {"b": w.packed, "scales": w.scale.reshape(-1)}
    return given if w.zero_point is None else given | {"zeros": w.zero_point.reshape(-1)}


# The cases have one, few and many rows; leading axes; the smallest groups; a bias; group indices of
# consecutive groups (g_idx); an odd number of groups (the last byte of zero points is half empty); and a
# partial last group, whose codes beyond k are arbitrary. With float16, x, scales, bias and results are
# float16, and sums are float32, rounded once.
@pytest.mark.parametrize(
    ("dtype", "shape", "n", "bits", "group", "symmetric"),
    [
        ("float32", (1, 96), 37, 4, 32, False),
        ("float32", (2, 5, 384), 33, 4, 128, True),
        ("float32", (7, 192), 16, 4, 64, False),
        ("float32", (3, 160), 9, 8, 32, False),
        ("float32", (1, 256), 12, 8, 128, True),
        ("float32", (5, 160), 11, 4, 16, False),
        ("float32", (1, 96), 7, 8, 16, True),
        ("float16", (1, 96), 37, 4, 32, False),
        ("float16", (2, 5, 384), 33, 4, 128, True),
        ("float16", (3, 160), 9, 8, 16, False),
        ("float16", (20, 512), 64, 4, 64, False),
        ("float32", (3, 40), 9, 4, 32, False),
        ("float32", (2, 5, 300), 33, 4, 128, True),
        ("float32", (1, 100), 12, 8, 128, False),
        ("float32", (5, 88), 11, 8, 16, False),
        ("float32", (2, 48), 9, 4, 16, False),
        ("float16", (3, 40), 9, 4, 32, False),
        ("float16", (1, 300), 33, 4, 128, True),
        ("float16", (20, 99), 12, 8, 128, False),
        ("float16", (5, 88), 11, 8, 16, True),
    ],
    ids=str,
)
def test_as_onnx_runtime_within_the_bound(
    dtype: str, shape: tuple[int, ...], n: int, bits: int, group: int, symmetric: bool, device: vkq.Device
) -> None:
    k, half = shape[-1], 2.0**-10 if dtype == "float16" else 0.0  # devices round float16 in different ways
    x = np.random.default_rng(1).standard_normal(shape, np.float32).astype(dtype)
    w = weight(n, k, bits, group, symmetric)
    w = vkq.GroupedWeight(w.packed, w.scale.astype(dtype), w.zero_point, bits, k)
    bias = np.linspace(-2, 2, n).astype(dtype)
    given = inputs_of(w) | {"bias": bias}
    if bits == 4 and symmetric:
        given["groups"] = np.arange(k, dtype=np.int32) // group
    data = model([node(k, n, bits, group, given)], {"x": x}, given, dtype)
    (theirs,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    session = vkq.onnx.InferenceSession(data, device)
    (ours,) = session.run(None, {"x": x})
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    want, size = (
        reference.linear_grouped(x, w, bias.astype(np.float32), magnitude=magnitude)
        for magnitude in (False, True)
    )
    bound = (k + 4) * EPSILON * size + half * np.abs(want)
    assert (np.abs(ours - want) <= bound).all()
    assert (np.abs(theirs - want) <= bound + half * size).all()
    assert "q4gsw" in str(session.explain({"x": x.shape}))  # kernels for grouped weights ran


def test_float16_beside_others(any_device: vkq.Device) -> None:
    """A Cast and a float32 Add after a float16 MatMulNBits run on the device."""
    k, n = 64, 12
    w, x = weight(n, k, 4, 32, True), np.random.default_rng(2).standard_normal((5, k), np.float32)
    x = x.astype(np.float16)
    given = inputs_of(w) | {"scales": w.scale.reshape(-1).astype(np.float16), "more": np.ones(n, np.float32)}
    product = node(k, n, 4, 32, given)
    product.output[0] = "t"
    others = [helper.make_node("Cast", ["t"], ["c"], to=1), helper.make_node("Add", ["c", "more"], ["y"])]
    session = vkq.onnx.InferenceSession(model([product, *others], {"x": x}, given, "float32"), any_device)
    (ours,) = session.run(None, {"x": x})
    alone = vkq.onnx.InferenceSession(
        model([node(k, n, 4, 32, given)], {"x": x}, given, "float16"), any_device
    )
    np.testing.assert_array_equal(ours, alone.run(None, {"x": x})[0].astype(np.float32) + 1)


def test_float16_that_the_device_does_not_take(any_device: vkq.Device) -> None:
    """If the device does not support an operator on a float16 input, the host computes it in each run.
    Here the host quantizes the input, and the device gets 8-bit values."""
    x, constants = np.linspace(-6, 6, 64).astype(np.float16), {"s": np.float16(0.05), "z": np.int8(3)}
    nodes = [helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"])]
    nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "z"], ["y"]))
    data = model(nodes, {"x": x}, constants, "float16", 19)
    (theirs,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(vkq.onnx.InferenceSession(data, any_device).run(None, {"x": x})[0], theirs)


@pytest.mark.parametrize("points", ["none", "packed", "float32"])
@pytest.mark.parametrize(
    ("bits", "block", "blocks", "k"),
    [(4, 256, 3, 768), (8, 512, 2, 1024), (4, 512, 1, 300), (8, 256, 2, 260)],
)
def test_blocks_beyond_the_largest_group(
    bits: int, block: int, blocks: int, k: int, points: str, device: vkq.Device
) -> None:
    """A block larger than the largest group is split into groups of 128, which all get the block's scale
    and zero point; groups beyond K are removed. With an odd number of blocks, half of the last byte of
    4-bit zero points is unused."""
    rng, n = np.random.default_rng(block), 9
    w = weight(n, 32 * blocks, bits, 32, points == "none")  # several groups of 32 become one block
    packed = rng.integers(0, 256, (n, blocks, block * bits // 8), np.uint8)
    given = inputs_of(w) | {"b": packed}
    zeros = w.zero_points()
    if points == "float32":
        given["zeros"] = zeros
    parts = block // 128
    scale, zero = (np.repeat(x, parts, 1) for x in (w.scales(), zeros))
    first = -(-k // 128)
    codes = packed.reshape(n, blocks * parts, -1)[:, :first]
    same = vkq.GroupedWeight(codes, scale[:, :first], zero[:, :first], bits, k)
    x = rng.standard_normal((3, k), np.float32)
    data = model([node(k, n, bits, block, given)], {"x": x}, given, "float32")
    (ours,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    want, size = (reference.linear_grouped(x, same, magnitude=magnitude) for magnitude in (False, True))
    assert (np.abs(ours - want) <= (k + 4) * EPSILON * size).all()
    if (bits, points) != (8, "float32"):  # ONNX Runtime refuses 8 bits with float32 zero points
        (theirs,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        assert (np.abs(theirs - want) <= (k + 4) * EPSILON * size).all()


@pytest.mark.parametrize("points", ["none", "packed", "floats"])
@pytest.mark.parametrize(("k", "block"), [(160, 32), (200, 128), (300, 256), (48, 16)])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_two_bits(k: int, block: int, points: str, dtype: str, device: vkq.Device) -> None:
    """Weights of two bits are stored as four bits on the device, and results are within the float bound."""
    rng, n, blocks = np.random.default_rng(k), 9, -(-k // block)
    b = rng.integers(0, 256, (n, blocks, block // 4), np.uint8)
    scales = rng.uniform(0.5, 1, (n, blocks)).astype(dtype)
    given = {"b": b, "scales": scales.reshape(-1)}
    zeros = np.full((n, blocks), 2.0, np.float32)
    if points == "packed":
        given["zeros"] = rng.integers(0, 256, (n, -(-blocks // 4)), np.uint8)
        zeros = np.stack([given["zeros"] >> s & 3 for s in (0, 2, 4, 6)], -1).reshape(n, -1)[:, :blocks]
    elif points == "floats":
        zeros = given["zeros"] = rng.uniform(0, 3, (n, blocks)).astype(dtype)
    codes = np.stack([b >> s & 3 for s in (0, 2, 4, 6)], -1).reshape(n, -1)[:, :k]
    wide = [np.repeat(x.astype(np.float64), block, 1)[:, :k] for x in (zeros, scales)]
    w = (codes - wide[0]) * wide[1]
    x = rng.standard_normal((3, k), np.float32).astype(dtype)
    data = model([node(k, n, 2, block, given)], {"x": x}, given, dtype)
    (ours,) = vkq.onnx.InferenceSession(data, device).run(None, {"x": x})
    want, size = x.astype(np.float64) @ w.T, np.abs(x.astype(np.float64)) @ np.abs(w).T
    half = 2.0**-10 if dtype == "float16" else 0.0
    assert (np.abs(ours - want) <= (k + 4) * EPSILON * size + half * np.abs(want)).all()
    if points != "floats" and block <= 128:
        (theirs,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
        assert (np.abs(theirs - want) <= (k + 4) * EPSILON * size + 4 * half * size).all()


def test_zero_points_count_beside_the_numbers_of_groups(any_device: vkq.Device) -> None:
    """Zero points are used, too, if g_idx is given. (ONNX Runtime 1.32's CPU provider uses 8 instead.)"""
    w, x = weight(5, 160, 4, 32, False), np.random.default_rng(1).standard_normal((3, 160), np.float32)
    found = []
    for more in ({}, {"groups": np.arange(160, dtype=np.int32) // 32}):
        given = inputs_of(w) | more
        data = model([node(160, 5, 4, 32, given)], {"x": x}, given, "float32")
        found += vkq.onnx.InferenceSession(data, any_device).run(None, {"x": x})
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    ("k", "block", "changes", "error"),
    [
        (96, 96, {}, "quantize again with such a group"),
        (
            40,
            32,
            {"b": np.zeros((3, 3, 16), np.uint8), "scales": np.ones(9, np.float32)},
            r"B has shape \(3, 3, 16\); .* it must be \(3, 2, 16\)",
        ),
        (512, 256, {"scales": np.ones(5, np.float32)}, r"scales has shape \(5,\); .* each of 2 blocks"),
        (512, 256, {"zeros": np.ones(5, np.uint8)}, r"zero_points has shape \(5,\); .* each of 2 blocks"),
        (64, 0, {"b": np.zeros((3, 2, 16), np.uint8)}, "block_size=0; it must be at least 1"),
        (64, 32, {"groups": np.arange(64, dtype=np.int32) % 2}, "its groups are permuted"),
        (
            64,
            32,
            {"scales": np.ones(5, np.float32)},
            r"scale has shape \(5,\); by packed it must be \(3, 2\)",
        ),
        (64, 32, {"bias": np.ones(2, np.float32)}, r"bias has shape \(2,\) and N is 3"),
        (64, 32, {"b": np.zeros((3, 4, 8), np.uint8), "scales": np.ones(12, np.float32)}, "block_size=32"),
    ],
)
def test_what_cannot_run_is_listed(
    k: int, block: int, changes: dict[str, Any], error: str, any_device: vkq.Device
) -> None:
    blocks = -(-k // max(block, 1))
    given = {"b": np.zeros((3, blocks, block // 2), np.uint8), "scales": np.ones(3 * blocks, np.float32)}
    given |= changes
    x = np.ones((2, k), np.float32)
    data = model([node(k, 3, 4, block, given)], {"x": x}, given, "float32")
    with pytest.raises(vkq.UnsupportedModelError, match=error) as caught:
        vkq.onnx.InferenceSession(data, any_device)
    assert str(caught.value).count("MatMulNBits '") == 1


@pytest.mark.parametrize("name", ["K", "N", "block_size", "bits"])
@pytest.mark.parametrize("value", [None, 4.0, "4", [4]])
def test_sizes_are_whole_numbers(name: str, value: Any, any_device: vkq.Device) -> None:
    """K, N, block_size and bits must be integers, otherwise an error names them; bits may be omitted."""
    given = inputs_of(weight(3, 64, 4, 32, True))
    product = node(64, 3, 4, 32, given)
    product.attribute.remove(next(a for a in product.attribute if a.name == name))
    if value is not None:
        product.attribute.append(helper.make_attribute(name, value))
    data = model([product], {"x": np.ones((2, 64), np.float32)}, given, "float32")
    said = "is missing" if value is None else "is .*; it must be a whole number"
    if (name, value) == ("bits", None):
        vkq.onnx.InferenceSession(data, any_device)
    else:
        with pytest.raises(vkq.ModelError, match=f"attribute {name} {said}"):
            vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_what_cannot_run_the_fallback_runs(dtype: str, any_device: vkq.Device) -> None:
    """The fallback runs MatMulNBits with permuted groups (g_idx), which vkq refuses."""
    rng, k, block, blocks = np.random.default_rng(1), 64, 32, 2
    given = {
        "b": rng.integers(0, 256, (3, blocks, block // 2), np.uint8),
        "scales": rng.uniform(0.5, 1, 3 * blocks).astype(dtype),
        "groups": np.arange(k, dtype=np.int32) % blocks,
    }
    x = rng.standard_normal((2, k), np.float32).astype(dtype)
    data = model([node(k, 3, 4, block, given)], {"x": x}, given, dtype)
    session = vkq.onnx.InferenceSession(data, any_device, fallback="onnxruntime")
    with pytest.warns(FallbackWarning, match="MatMulNBits"):
        (ours,) = session.run(None, {"x": x})
    (theirs,) = ort.InferenceSession(data, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    np.testing.assert_array_equal(ours, theirs)


def test_other_numbers_are_listed(any_device: vkq.Device) -> None:
    w, x = weight(3, 64, 4, 32, True), np.ones((2, 64))
    given = inputs_of(w) | {"scales": w.scale.reshape(-1).astype(np.float64)}
    session = vkq.onnx.InferenceSession(
        model([node(64, 3, 4, 32, given)], {"x": x}, given, "float64"), any_device
    )
    with pytest.raises(
        vkq.UnsupportedModelError, match=r"works on float64; .* must be one of float32, float16"
    ):
        session.run(None, {"x": x})


def test_weights_that_are_no_constants_are_listed(any_device: vkq.Device) -> None:
    w = weight(3, 64, 4, 32, True)
    x, given = np.ones((2, 64), np.float32), inputs_of(w)
    inputs = {"x": x, "b": given.pop("b")}
    data = model([node(64, 3, 4, 32, {**given, "b": 0})], inputs, given, "float32")
    with pytest.raises(vkq.UnsupportedModelError, match="must be constants"):
        vkq.onnx.InferenceSession(data, any_device)
