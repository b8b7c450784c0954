"""Tests of row functions whose kernel also computes their input, such as the sum of a residual and a layer's
result, and may store this input: the results equal NumPy's bit for bit."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels.test_rows import expected
from vkq.kernels.chain import Chain, Link
from vkq.kernels.row_form import LIKE, ONE, PLACES, RESULT
from vkq.kernels.rows import Ends, rows_after
from vkq.runtime.builder import Builder

HALF, FLOAT = "float16", "float32"


def chain_of(inputs: tuple[str, ...], links: list[tuple[Any, ...]], *results: int) -> Chain:
    """Return a chain. links: (operator, operands, type of the operands, type of the result); a Cast converts
    to the type of its result."""
    found = []
    for op, operands, dtype, result in links:
        found.append(Link(op, operands, dtype, result, (("to", result),) if op == "Cast" else ()))
    return Chain(inputs, (), tuple(found), results)


def casts(dtype: str) -> Chain:
    return chain_of((dtype,), [("Cast", (0,), dtype, FLOAT)], 1)


def residual(dtype: str) -> Chain:
    """Return a chain with two results: the sum of two arrays in float32, and this sum in *dtype*."""
    wide = [("Cast", (i,), dtype, FLOAT) for i in range(2)]
    links = [*wide, ("Add", (2, 3), FLOAT, FLOAT), ("Cast", (4,), FLOAT, dtype)]
    return chain_of((dtype, dtype), links, 4, 5)


def scaled(dtype: str) -> Chain:
    """Return a chain that multiplies a float32 result by a factor and converts the product to *dtype*."""
    return chain_of((FLOAT, FLOAT), [("Mul", (0, 1), FLOAT, FLOAT), ("Cast", (2,), FLOAT, dtype)], 3)


def edges(dtype: str, *shape: int) -> np.ndarray:
    """Return random numbers, and among them zeros, infinities, NaN, and the smallest and largest numbers."""
    x = np.random.default_rng(len(shape)).normal(0.5, 2, shape).astype(dtype)
    info = np.finfo(dtype)
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, info.tiny, -info.max, info.smallest_subnormal]
    x.reshape(-1, shape[-1])[0, : len(special)] = np.array(special, dtype)
    return x


def check(
    device: vkq.Device, name: str, ends: Ends, arrays: list[np.ndarray], shape: tuple[int, ...]
) -> None:
    """Check a row function along the last axis of an array of *shape*. *arrays*: the inputs of the
    prologue, then the inputs of the chain without the function's result."""
    axis = len(shape) - 1

    tensors = [vkq.Tensor.from_numpy(a, device) for a in arrays]
    b = Builder(device)
    inputs = [b.input(x.spec) for x in tensors]
    plan = b.plan(*rows_after(b, name, inputs, shape, axis, 1, {"epsilon": 1e-5}, ends))
    assert len(plan.variants) == 1
    found = [vkq.Tensor.of(device, spec) for spec in plan.results]
    device.add(plan, [x.buffer for x in tensors], [y.buffer for y in found])
    assert ends.prologue is not None
    given, *second = ends.prologue.computed(*arrays[: len(ends.reads)])
    want, others = expected(name, given, axis, 1, epsilon=1e-5), iter(arrays[len(ends.reads) :])
    if ends.chain:
        (want,) = ends.chain.computed(*(want if way == RESULT else next(others) for way in ends.operands))
    for tensor, array in zip(found, [want, *second], strict=True):
        y, width = tensor.numpy(), f"u{array.dtype.itemsize}"
        assert (y.dtype, y.shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(y.view(width), np.ascontiguousarray(array).view(width))


@pytest.mark.usefixtures("conversions")
@pytest.mark.parametrize("length", [12, 48, 784, 2052])
@pytest.mark.parametrize("dtype", [HALF, FLOAT])
def test_residuals(device: vkq.Device, dtype: str, length: int) -> None:
    """One dispatch adds a residual, stores the sum, normalizes it, and multiplies it by a scale. Short
    rows are loaded once, long ones in each pass."""
    shape = (2, 3, length)
    ends = Ends(prologue=residual(dtype), reads=(LIKE, LIKE), chain=scaled(dtype), operands=(RESULT, PLACES))
    arrays = [edges(dtype, *shape), edges(dtype, *shape)[:, ::-1].copy(), edges(FLOAT, length)]
    check(device, "normalize_root", ends, arrays, shape)


@pytest.mark.parametrize("length", [5, 37, 36, 1031])
def test_other_lengths(device: vkq.Device, length: int) -> None:
    """Rows of any length may be read from float16, and the sum may be stored as float32."""
    shape = (3, length + 8)
    check(device, "softmax", Ends(prologue=casts(HALF), reads=(LIKE,)), [edges(HALF, *shape)], shape)
    ends = Ends(prologue=residual(FLOAT), reads=(LIKE, LIKE))
    check(device, "normalize", ends, [edges(FLOAT, *shape), edges(FLOAT, *shape)[::-1].copy()], shape)


def test_broadcast_operands(device: vkq.Device) -> None:
    """Inputs of the prologue may be a single element or a row. The second result may be a value that is
    not the function's input."""
    links: list[tuple[Any, ...]] = [("Add", (0, 1), FLOAT, FLOAT), ("Cast", (2,), HALF, FLOAT)]
    chain = chain_of((FLOAT, FLOAT, HALF), [*links, ("Mul", (3, 4), FLOAT, FLOAT)], 5, 3)
    ends = Ends(prologue=chain, reads=(LIKE, PLACES, ONE), chain=scaled(HALF), operands=(RESULT, LIKE))
    arrays = [edges(FLOAT, 4, 40), edges(FLOAT, 40), np.float16([0.37]), edges(FLOAT, 4, 40)]
    check(device, "normalize", ends, arrays, (4, 40))


@pytest.mark.usefixtures("conversions")
def test_in_turn(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device with few registers computes the input again in each pass, and stores it once."""
    changed = dataclasses.replace(device.capabilities, choices=(("registers", "few"),))
    monkeypatch.setattr(device, "capabilities", changed)
    ends = Ends(prologue=residual(HALF), reads=(LIKE, LIKE), chain=scaled(HALF), operands=(RESULT, PLACES))
    check(device, "normalize", ends, [edges(HALF, 5, 96), edges(HALF, 5, 96), edges(FLOAT, 96)], (5, 96))


def test_software(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_device, "_soft_float", True)
    ends = Ends(prologue=residual(HALF), reads=(LIKE, LIKE), chain=scaled(HALF), operands=(RESULT, PLACES))
    arrays = [edges(HALF, 3, 36), edges(HALF, 3, 36), edges(FLOAT, 36)]
    check(any_device, "normalize_root", ends, arrays, (3, 36))
