"""Tests of row functions (softmax, normalizations, reductions): the device's results equal NumPy's bit for
bit, and NumPy's are close to float64 results."""

import dataclasses
from typing import Any, Literal

import numpy as np
import pytest

import vkq
from tests.device.reported import reported
from vkq import QParams
from vkq.device.profiles import profile
from vkq.kernels import rows
from vkq.kernels.chain import Chain, Link
from vkq.kernels.row_form import LIKE, ONE, PLACES, RESULT
from vkq.kernels.rows import LAYOUTS, Ends, rows_of
from vkq.layout.extent import BLOCKED
from vkq.numerics.quantize import dequantize, quantize
from vkq.numerics.rows import FUNCTIONS, always_normal, computed_rows, lanes_of
from vkq.numerics.steps import Computed
from vkq.ops import operand


def run(device: vkq.Device, name: str, x: np.ndarray, axis: int, count: int = 1, **attributes: float) -> Any:
    def build(b: Any, x: Any) -> Any:
        return rows_of(b, name, x, axis, count, attributes)

    key = (name, axis, count, tuple(attributes.items()))
    return operand.apply(str(key), build, {"x": x}, (), device, None, ("float32",))


def expected(name: str, x: np.ndarray, axis: int, count: int, **attributes: float) -> np.ndarray:
    """Return NumPy's result: move the function's axes to the end and merge them, compute the function, and
    move the axes back."""
    shape, axes = x.shape, tuple(range(axis, axis + count))
    kept = [i for i in range(x.ndim) if i not in axes]
    moved = x.transpose(*kept, *axes)
    found = computed_rows(name, moved.reshape(-1, int(np.prod([shape[i] for i in axes]))), attributes)
    if FUNCTIONS[name].each is None:
        return found.reshape([shape[i] for i in kept])
    return found.reshape(moved.shape).transpose(np.argsort([*kept, *axes]))


def values(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.5, 2, shape).astype(np.float32)


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(got.view(np.uint32), np.ascontiguousarray(want).view(np.uint32))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_bits(device: vkq.Device, name: str) -> None:
    """Row functions give NumPy's bits. Some values are infinite or NaN. The shapes cover these rows:

    - rows that one, few or many lanes share, with and without a remainder
    - rows that are loaded once, or in each pass
    - strided rows, and rows of two axes"""
    for shape, axis, count in (
        ((5, 7), 1, 1), ((3, 37, 5), 1, 1), ((2, 3, 11, 13), 2, 2), ((3, 1031), 1, 1), ((5, 100), 1, 1),
        ((2, 4100), 1, 1), ((1, 4109), 1, 1),
    ):  # fmt: skip
        x = values(len(shape), *shape)
        if name == "ReduceProd":
            x = np.exp2(x / 4).astype(np.float32)
        if name == "ReduceLogSum":
            x = np.abs(x)
        same(run(device, name, x, axis, count, epsilon=1e-5), expected(name, x, axis, count, epsilon=1e-5))
    x = values(9, 6, 19)
    x[0, 3], x[1, 4], x[2, 5], x[3], x[4, :2] = np.inf, -np.inf, np.nan, -np.inf, (np.inf, -np.inf)
    same(run(device, name, x, 1, 1, epsilon=1e-5), expected(name, x, 1, 1, epsilon=1e-5))


@pytest.mark.parametrize("name", ["softmax", "normalize"])
def test_software(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(any_device, "_soft_float", True)
    x = values(10, 3, 37)
    same(run(any_device, name, x, 1, epsilon=1e-3), expected(name, x, 1, 1, epsilon=1e-3))


def test_near_the_real_value() -> None:
    """Sums with cancellation, of few and of many elements, are within (2 + log2(lanes)) 2^-24 of the sum of
    magnitudes. Softmax and normalizations are within a few units in the last place."""
    for length in (1, 7, 8, 9, 100, 10_007):
        x = values(length, 4, length) * np.float32(1e6)
        x[:, ::2] *= -1
        wide = x.astype(np.float64)
        bound = (2 + np.log2(lanes_of(length))) * 2.0**-24 * np.abs(wide).sum(1)
        assert np.all(np.abs(computed_rows("ReduceSum", x, {}) - wide.sum(1)) <= bound)
    x = values(3, 8, 1000)
    wide = x.astype(np.float64)
    e = np.exp(wide - wide.max(1, keepdims=True))
    np.testing.assert_allclose(computed_rows("softmax", x, {}), e / e.sum(1, keepdims=True), rtol=2e-6)
    apart = wide - wide.mean(1, keepdims=True)
    want = apart / np.sqrt((apart**2).mean(1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(computed_rows("normalize", x, {"epsilon": 1e-5}), want, rtol=0, atol=1e-6)
    np.testing.assert_allclose(
        computed_rows("ReduceLogSumExp", x, {}), np.log(np.exp(wide).sum(1)), rtol=1e-6
    )


def test_lanes() -> None:
    lengths = (1, 24, 25, 48, 49, 768, 1000, 3072, 1 << 20)
    assert [lanes_of(n) for n in lengths] == [1, 2, 4, 4, 8, 64, 128, 128, 128]


def scaled() -> tuple[Chain, tuple[int, ...]]:
    """Return the epilogue chain (result * a + b) * c, and how its operands broadcast: a is a scalar, b a
    row, and c has the shape of the result."""
    steps = (("Mul", 0, 1), ("Add", 4, 2), ("Mul", 5, 3))
    links = tuple(Link(op, (one, two), "float32", "float32") for op, one, two in steps)
    return Chain(("float32",) * 4, (), links, (6,)), (RESULT, ONE, PLACES, LIKE)


def check_bytes(
    device: vkq.Device, xq: QParams, yq: QParams, layouts: tuple[int, int] = (0, 0), length: int = 0,
    real: bool = False,
) -> None:  # fmt: skip
    """Check that normalizing quantized rows and applying a chain gives NumPy's results. *real*: the
    result is stored dequantized."""
    read, write = (LAYOUTS[i] for i in layouts)
    rng, shape = np.random.default_rng(5), (3, 5, length or (48 if BLOCKED in (read, write) else 36))
    chain, ways = scaled()
    x = rng.integers(0, 256, shape, np.uint8).view(xq.dtype)
    others = [np.float32([1.3]), values(1, shape[-1]), values(2, *shape)]

    def build(b: Any, x: Any, *others: Any) -> Any:
        ends = Ends(xq, chain, ways, yq, real)
        return rows_of(b, "normalize", x, 2, 1, {"epsilon": 1e-5}, ends, others, write)

    tensor = vkq.Tensor.from_numpy(x, device, read)
    named = {"x": tensor, **{f"x{i}": vkq.Tensor.from_numpy(a, device) for i, a in enumerate(others)}}
    got = operand.apply(
        f"{layouts}{xq}{yq}{length}{real}", build, named, (), device, None, (xq.dtype, *("float32",) * 3)
    )
    assert got.layout == ("contiguous" if real else write)
    normal = expected("normalize", dequantize(x, xq), 2, 1, epsilon=1e-5)
    want = quantize(chain.computed(normal, *others)[0], yq)
    np.testing.assert_array_equal(got.numpy(), dequantize(want, yq) if real else want, strict=True)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("layouts", [(0, 0), (0, 1), (1, 0)], ids=str)
def test_bytes(device: vkq.Device, layouts: tuple[int, int], dtype: Literal["int8", "uint8"]) -> None:
    """Quantized rows are dequantized, normalized, passed through a chain and quantized again in one
    dispatch. Results equal NumPy's for each layout of x and y."""
    check_bytes(device, QParams(0.05, 3, dtype), QParams(0.031, 9, dtype), layouts)


@pytest.mark.parametrize("length", [784, 4112])
@pytest.mark.parametrize("layouts", [(0, 0), (0, 1), (1, 0), (1, 1)], ids=str)
def test_many_bytes(device: vkq.Device, layouts: tuple[int, int], length: int) -> None:
    """Results for quantized rows equal NumPy's also if many lanes share a row. The lanes load the
    elements once or in each pass."""
    check_bytes(device, QParams(0.05, 3), QParams(0.031, 9), layouts, length)


@pytest.mark.parametrize("length", [36, 784, 4112])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_bytes_that_are_dequantized(
    device: vkq.Device, dtype: Literal["int8", "uint8"], length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results that are quantized and dequantized again are stored as float32. They are exact both with
    the device's float arithmetic and with float arithmetic computed in integers."""
    for soft in (False, True):
        monkeypatch.setattr(device, "_soft_float", soft)
        check_bytes(device, QParams(0.05, 3, dtype), QParams(0.031, 9, dtype), (0, 0), length, True)


@pytest.mark.parametrize("layouts", [(0, 0), (1, 1)], ids=str)
def test_in_turn(device: vkq.Device, layouts: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with few registers loads the elements again in each pass, and gives NumPy's bytes."""
    used, program = [], vkq.Device.program
    monkeypatch.setattr(vkq.Device, "program", lambda *a: used.append(program(*a)) or used[-1])
    changed = dataclasses.replace(device.capabilities, choices=(("registers", "few"),))
    monkeypatch.setattr(device, "capabilities", changed)
    check_bytes(device, QParams(0.0511, 3), QParams(0.0317, 9), layouts, 784)
    # 128 lanes; the default variant is 128x2.
    assert [each.variant.name.rpartition(".")[2] for each in used] == ["128"]


def test_few_registers() -> None:
    assert profile(reported("videocore-7.1")).registers == "few"
    assert profile(reported("mali-g610")).registers == "some"


def test_scales_share_a_kernel(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel of 8-bit rows does not depend on their scales, zero points and types, unless the
    reciprocal of a scale is beyond float32's range."""
    used, program = [], vkq.Device.program

    def seen(*args: Any) -> Any:
        used.append(program(*args))
        return used[-1]

    monkeypatch.setattr(vkq.Device, "program", seen)
    check_bytes(device, QParams(0.05, 3), QParams(0.031, -9))
    check_bytes(device, QParams(1.5, 130, "uint8"), QParams(2.0**-9, 0))
    check_bytes(device, QParams(0.01), QParams(40.0, 255, "uint8"))
    assert [each.variant.name for each in used] == ["rows__group:q8.normalize.mul.add.mul.q8.4x3"] * 3
    assert len({id(each) for each in used}) == 1
    check_bytes(device, QParams(2.0**98, 3), QParams(2.0**101, 9))
    assert used[-1] is not used[0]


def edges(length: int, scale: float) -> np.ndarray:
    """Return ties of a scale, their neighbours, very large and small values, and NaN."""
    ties = ((np.arange(length) % 300 - 150 + 0.5) * scale).astype(np.float32)
    beta = np.concatenate([ties[0::3], np.nextafter(ties, np.float32(9))[1::3], np.nextafter(ties, -9)[2::3]])
    beta[:9] = np.float32([np.nan, np.inf, -np.inf, 3e38, -3e38, 1e-40, -1e-40, 1e-37, 1e6])
    return beta.astype(np.float32)


@pytest.mark.parametrize("ops", [("Mul", "Add"), ("Add", "Mul"), ("Mul",), ("Add",)], ids="".join)
def test_edges(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, ops: tuple[str, ...]) -> None:
    """Ties, very large and very small results, NaN and small operands are quantized correctly. The chain
    (result + b) * a flushes subnormal numbers; the chain result * a + b, and chains of one operator, do
    not."""
    forms, written = [], rows.written
    monkeypatch.setattr(rows, "written", lambda form: forms.append(form) or written(form))
    rng, xq, yq = np.random.default_rng(6), QParams(0.05, 3), QParams(0.031, 9)
    x = rng.integers(-128, 128, (7, 784), np.int64).astype(np.int8)
    scale = np.where(np.arange(784) % 2, np.float32(0), rng.normal(0, 2, 784).astype(np.float32))
    scale[20:26] = 1e-40, -1e-40, 1e38, np.inf, np.nan, 1e-38
    others = [{"Mul": scale, "Add": edges(784, yq.scale)}[op] for op in ops]
    links = tuple(Link(op, ((0, 3)[i], 1 + i), "float32", "float32") for i, op in enumerate(ops))
    if len(ops) == 1:
        links = (Link(ops[0], (1, 0), "float32", "float32"),)
    chain = Chain(("float32",) * (1 + len(ops)), (), links, (2 * len(ops),))

    def build(b: Any, x: Any, *others: Any) -> Any:
        ends = Ends(xq, chain, (RESULT, *(PLACES,) * len(ops)), yq)
        return rows_of(b, "normalize", x, 1, 1, {"epsilon": 1e-6}, ends, others)

    named = {"x": vkq.Tensor.from_numpy(x, device)}
    named |= {f"x{i}": vkq.Tensor.from_numpy(a, device) for i, a in enumerate(others)}
    types = ("int8", *("float32",) * len(ops))
    got = operand.apply(f"edges{ops}", build, named, (), device, None, types)
    want = quantize(
        chain.computed(expected("normalize", dequantize(x, xq), 1, 1, epsilon=1e-6), *others)[0], yq
    )
    np.testing.assert_array_equal(got.numpy(), want, strict=True)
    assert [(form.normal, form.chain_flushes) for form in forms] == [(True, ops == ("Add", "Mul"))]


@pytest.mark.parametrize("name", ["normalize", "normalize_root"])
def test_always_normal(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """For the scales that `always_normal` accepts, results with and without flushing of subnormal numbers
    are equal. For smaller scales they differ."""

    def both(length: int, scale: float, epsilon: float) -> list[np.ndarray]:
        rng, rows = np.random.default_rng(7), np.zeros((12, length), np.int64)
        rows[1:4, 0], rows[4], rows[5:8, ::2] = (1, -255, 3), 7, np.array([[1], [-1], [255]])
        rows[8:] = rng.integers(-255, 256, (4, length)) * (rng.random((4, length)) < 0.3)
        x = rows.astype(np.float32) * np.float32(scale)
        found = []
        for flushes in (True, False):
            monkeypatch.setattr(Computed, "flushes", flushes)
            found.append(computed_rows(name, x, {"epsilon": epsilon}))
        return found

    for length in (4, 100, 768, 5000):
        for scale in (length * 2.0**-24, np.float32(length * 2.0**-24) * np.float32(1.37), 0.037, 2.0**30):
            for epsilon in (0.0, 1e-12, 1e-5, 2.0**60):
                assert always_normal(name, length, epsilon, float(scale))
                same(*both(length, scale, epsilon))
    assert not always_normal(name, 768, 1e-5, 1.37 * 2.0**-64)
    assert not always_normal(name, 768, 1e-5, 2.0**31)
    got, want = both(768, 1.37 * 2.0**-64, 0.0)
    assert not np.array_equal(got, want, equal_nan=True)
    assert not always_normal("softmax", 768, 0.0, 0.05)
    assert not always_normal(name, 768, -1.0, 0.05)
