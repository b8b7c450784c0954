"""Tests of fused chains of element-wise operators: the device's results equal NumPy's bit for bit."""

from typing import Any

import numpy as np
import pytest

import vkq
from vkq.kernels.chain import Chain, Link, chained, collapsed, fits, packs
from vkq.layout.extent import Spec
from vkq.numerics.described import LOGIC, REAL, TESTS, WHOLE, WHOLE_TESTS, takes
from vkq.numerics.fixed import coded
from vkq.runtime.builder import Builder
from vkq.runtime.tensor import Tensor

CLIP = (("bounds", ("min", "max")),)
TWO = {
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "PRelu", "Sum", "Max", "Min", "Mean", "Equal", "Less",
    "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "BitwiseAnd", "BitwiseOr",
    "BitwiseXor",
}  # fmt: skip
ARCS = ["Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh"]
EDGES = np.float32([0, -0.0, 1, -1, 0.5, 1.5, 2.5, -2.5, 8388607.5, 65504, 65520, 2.0**-126, 2.0**-149,
                    88.72, -87.4, 3.4e38, np.inf, -np.inf, np.nan])  # fmt: skip


def run(device: vkq.Device, chain: Chain, *arrays: np.ndarray, held: Any = ()) -> list[np.ndarray]:
    b = Builder(device)
    stored = [array.astype(np.int32) if array.dtype == bool else array for array in arrays]
    shape = np.broadcast_shapes(*(array.shape for array in arrays))
    results = chained(b, chain, [b.input(Spec(a.shape, a.dtype.name)) for a in stored], shape, held)
    plan = b.plan(*results)
    assert len(plan.steps) == 1
    outputs = [Tensor.of(device, spec) for spec in plan.results]
    inputs = [Tensor.from_numpy(a, device=device) for a in stored]
    device.add(plan, [x.buffer for x in inputs], [y.buffer for y in outputs])
    types = [own or chain.types[i] for own, i in zip(held or ("",) * 4, chain.results, strict=False)]
    return [y.numpy().astype(bool if t == "bool" else t) for y, t in zip(outputs, types, strict=True)]


def one(op: str, dtype: str, result: str, attributes: Any = ()) -> Chain:
    """Return a chain of one operator."""
    count = 3 if op in ("Clip", "fixed_point") else 2 if op in TWO else 1
    return Chain((dtype,) * count, (), (Link(op, tuple(range(count)), dtype, result, attributes),), (count,))


def reals(seed: int, count: int) -> np.ndarray:
    """Return edge cases, floats of random bits (every exponent), and floats of common size."""
    r = np.random.default_rng(seed)
    every = r.integers(0, 2**32, count, dtype=np.uint64).astype(np.uint32).view(np.float32)
    return np.concatenate([r.permutation(EDGES), every, r.normal(0, 5, count).astype(np.float32)])


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    width = f"u{got.dtype.itemsize}"
    np.testing.assert_array_equal(got.view(width), want.view(width))


def compared(device: vkq.Device, chain: Chain, *arrays: np.ndarray) -> None:
    for got, want in zip(run(device, chain, *arrays), chain.computed(*arrays), strict=True):
        same(got, want)


@pytest.mark.parametrize("op", [*REAL, *TESTS])
def test_real(device: vkq.Device, op: str) -> None:
    """Each operator, with its default attributes, gives NumPy's bits for float32 values of all exponents."""
    result = "bool" if op in TESTS else "float32"
    chain = one(op, "float32", result, CLIP if op == "Clip" else ())
    compared(device, chain, *(reals(i, 1501) for i in range(len(chain.inputs))))


@pytest.mark.usefixtures("conversions")
@pytest.mark.parametrize("op", ["Add", "Div", "Gelu", "Less", "Round", "Sigmoid", *ARCS])
def test_half(device: vkq.Device, op: str) -> None:
    """Operators give NumPy's bits for every float16 except the last. The number of elements is odd, so
    half of the last word is unused."""
    chain = one(op, "float16", "bool" if op in TESTS else "float16")
    every = np.arange(65536, dtype=np.uint16).view(np.float16)[:65535]
    compared(device, chain, *[every, np.random.default_rng(1).permutation(every)][: len(chain.inputs)])


@pytest.mark.parametrize("op", ["Add", "Mul", "Div", "Exp", "Cos", "Floor"])
def test_software(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, op: str) -> None:
    """Where float arithmetic of the device may round wrongly, operators compute in integers. They give
    NumPy's bits, also for infinities and NaN."""
    monkeypatch.setattr(device, "_soft_float", True)
    chain = one(op, "float32", "float32")
    compared(device, chain, *(reals(i, 501) for i in range(len(chain.inputs))))


@pytest.mark.parametrize("op", [*WHOLE, *WHOLE_TESTS])
def test_whole(device: vkq.Device, op: str) -> None:
    """Operators on int32 give NumPy's bits: results wrap, and a quotient by zero is 0."""
    chain = one(op, "int32", "bool" if op in WHOLE_TESTS else "int32", CLIP if op == "Clip" else ())
    r, ends = np.random.default_rng(2), np.array([0, 1, -1, 7, -7, 2**31 - 1, -(2**31)], np.int32)
    given = [np.concatenate([r.permutation(ends), r.integers(-50, 50, 500), r.integers(-(2**31), 2**31, 500)])
             for _ in chain.inputs]  # fmt: skip
    if op == "fixed_point":  # multipliers of 31 bits, every shift; ties round away from zero, or up
        given[1:] = [r.integers(2**30, 2**31, len(given[0])), r.integers(coded(-31), coded(0), len(given[0]))]
    compared(device, chain, *(x.astype(np.int32) for x in given))


def test_logic(device: vkq.Device) -> None:
    x, y = np.array([0, 0, 1, 1, 1], bool), np.array([0, 1, 0, 1, 1], bool)
    for op in LOGIC:
        chain = one(op, "bool", "bool")
        compared(device, chain, *[x, y][: len(chain.inputs)])


@pytest.mark.parametrize("to", ["float32", "float16", "int32", "bool"])
def test_cast(device: vkq.Device, to: str) -> None:
    """Casts truncate toward zero, and saturate at the limits of the type. NaN becomes true as a bool and 0
    as an integer."""
    chain = Chain(("float32",), (), (Link("Cast", (0,), "float32", to, (("to", to),)),), (1,))
    compared(device, chain, np.append(reals(3, 1001), np.float32([2147483648, -2147483648, 2147483520])))
    whole = np.array([0, 1, -1, 16777217, 2049, -2051, 2**31 - 1, -(2**31), 70000], np.int32)
    compared(device, Chain(("int32",), (), (Link("Cast", (0,), "int32", to, (("to", to),)),), (1,)), whole)
    flags = np.array([True, False, True])
    compared(device, Chain(("bool",), (), (Link("Cast", (0,), "bool", to, (("to", to),)),), (1,)), flags)


def gelu_by_hand() -> Chain:
    """Return a chain with the result flag ? x * 0.5 * (1 + erf(x / 1.4142)) + bias : 1."""
    f = "float32"
    return Chain(
        (f, f, "bool"), ((f, 1.4142135), (f, 1.0), (f, 0.5)),
        (Link("Div", (0, 3), f, f), Link("Erf", (6,), f, f), Link("Add", (7, 4), f, f),
         Link("Mul", (0, 8), f, f), Link("Mul", (9, 5), f, f), Link("Add", (10, 1), f, f),
         Link("Where", (2, 11, 4), f, f)),
        (12,),
    )  # fmt: skip


@pytest.mark.parametrize(
    "shapes",
    [
        [(3, 5, 7), (7,), (3, 5, 7)],
        [(3, 5, 7), (5, 1), (1, 1, 1)],
        [(2, 3, 5, 7), (3, 1, 7), (2, 1, 5, 1)],
        [(1, 4, 3, 1), (5, 1, 1, 2), (1, 1)],
        [(), (6,), (1,)],
        [(3, 1, 5, 1, 7), (2, 1, 6, 1), (7,)],
    ],
)
def test_broadcast(device: vkq.Device, shapes: list[tuple[int, ...]]) -> None:
    """A chain broadcasts its operands to a common shape in one dispatch, and gives NumPy's bits."""
    r = np.random.default_rng(4)
    x, z = (r.normal(0, 2, shape).astype(np.float32) for shape in shapes[:2])
    compared(device, gelu_by_hand(), x, z, r.random(shapes[2]) < 0.5)


@pytest.mark.usefixtures("conversions")
def test_many(device: vkq.Device) -> None:
    """Each invocation computes several elements; the first shape has an odd number of elements. A chain
    with a float32 and a float16 result gives NumPy's bits."""
    f, h = "float32", "float16"
    steps = (Link("Mul", (0, 1), f, f), Link("Cast", (2,), f, h, (("to", h),)))
    chain = Chain((f, f), (), steps, (2, 3))
    r = np.random.default_rng(5)
    for shape in ((5, 131071), (1 << 19,)):
        compared(device, chain, r.normal(0, 1, shape).astype(f), r.normal(0, 1, shape[-1:]).astype(f))


@pytest.mark.parametrize("shape", [(4,), (3, 8), (1, 6, 20), (2, 3, 5, 12), (130, 9000)], ids=str)
def test_bytes(device: vkq.Device, shape: tuple[int, ...]) -> None:
    """A chain stores one result twice, as saturated int8 and as saturated uint8, and another result as
    float32. Byte rows are padded to a multiple of four. One operand is broadcast."""
    f = "float32"
    whole = Link("Cast", (2,), f, "int32", (("to", "int32"),))
    steps = (Link("Add", (0, 1), f, f), whole, Link("Cast", (3,), "int32", f, (("to", f),)))
    chain, r = Chain((f, f), (), steps, (4, 2, 4)), np.random.default_rng(7)
    arrays = [r.normal(60, 150, shape).astype(f), r.normal(0, 20, shape[-1:]).astype(f)]
    arrays[0].reshape(-1)[:2] = 3e9, -3e9
    assert packs(chain, [a.shape for a in arrays], shape)
    signed, real, unsigned = run(device, chain, *arrays, held=("int8", "", "uint8"))
    want, sums, _ = chain.computed(*arrays)
    same(real, sums)
    same(signed, np.clip(want, -128, 127).astype(np.int8))
    same(unsigned, np.clip(want, 0, 255).astype(np.uint8))


def test_chains_that_store_no_bytes() -> None:
    to = (Link("Cast", (0,), "float32", "float16", (("to", "float16"),)),)
    half, real = Chain(("float32",), (), to, (1,)), one("Exp", "float32", "float32")
    assert packs(real, [(3, 8)], (3, 8))
    assert not packs(half, [(3, 8)], (3, 8))
    assert not packs(real, [(3, 6)], (3, 6))
    assert not packs(real, [()], ())


def test_empty(any_device: vkq.Device) -> None:
    b = Builder(any_device)
    x = b.input(Spec((0, 3), "float32"))
    (y,) = chained(b, one("Exp", "float32", "float32"), [x], (0, 3))
    assert y.spec.shape == (0, 3)
    assert b.dispatches == 0


def test_axes_are_joined() -> None:
    assert collapsed((2, 3, 4), ((2, 3, 4), (4,))) == ((6, 4), ((4, 1), (0, 1)))
    assert collapsed((2, 3, 4), ((2, 3, 4), ())) == ((24,), ((1,), (0,)))
    assert collapsed((1, 1), ((1, 1), (1,))) == ((1,), ((0,), (0,)))
    assert fits([(2, 3), (3,), ()], (2, 3))
    odd = [(1, 2) * 5, (2, 1) * 5, (2, 2) * 5]
    assert not fits(odd, (2,) * 10)


def test_what_is_described() -> None:
    for op, dtype in (("Exp", "float16"), ("And", "bool"), ("Mod", "int32")):
        assert takes(op, dtype)
    for op, dtype in (("Exp", "int32"), ("Add", "bool"), ("Add", "int64")):
        assert not takes(op, dtype)


@pytest.mark.usefixtures("conversions")
def test_whole_vectors_of_every_type(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long arrays are read and written in vectors of four: arrays of one type, arrays of several types, and
    arrays with a scalar operand. Results have NumPy's bits."""
    monkeypatch.setattr("vkq.kernels.chain.MANY", 64)
    r = np.random.default_rng(4)
    x, one_number = np.resize(reals(3, 1502), (29, 104)), np.float32([0.75])
    half = r.integers(0, 65536, x.shape, dtype=np.uint16).view(np.float16)
    add = Link("Add", (0, 1), "float32", "float32")
    compared(device, Chain(("float32",) * 2, (), (add,), (2,)), x, one_number)
    compared(device, Chain(("float32",) * 2, (), (add,), (2,)), x, r.permutation(x))
    casts = (
        Link("Cast", (0,), "float16", "float32", (("to", "float32"),)),
        Link("Mul", (1, 2), "float32", "float32"),
        Link("Cast", (3,), "float32", "float16", (("to", "float16"),)),
        Link("Less", (2, 1), "float32", "bool"),
    )  # fmt: skip
    compared(device, Chain(("float16", "float32"), (), casts, (3, 4, 5)), half, x)
    compared(device, Chain(("int32",) * 2, (), (Link("Mul", (0, 1), "int32", "int32"),), (2,)),
             *r.integers(-9999, 9999, (2, 5, 40), dtype=np.int32))  # fmt: skip
    ragged = x.reshape(-1)[:999]  # 999 elements leave a partial vector
    compared(device, Chain(("float32",) * 2, (), (add,), (2,)), ragged, ragged)
