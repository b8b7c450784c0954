"""Tests of Where (selection by flags), ArgMax and ArgMin, compared with NumPy."""

import itertools

import numpy as np
import pytest

import vkq
from vkq import Tensor
from vkq.layout.extent import BLOCKED
from vkq.ops import operand
from vkq.ops.choose import argmax_of, chosen
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

ANY = ("int8", "uint8", "float32", "int32")
# The shapes have channels that do not fill a block; rows and columns that do not fill a vector; more axes
# than a layout has; a single element. In LONG several invocations share an axis.
SHAPES = [(2, 5, 3, 7), (3, 13), (2, 3, 2, 2, 3), (1,)]
LONG = [(1, 65_546), (257, 3)]


def numbers(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8).view("int8").astype(dtype)


@pytest.mark.parametrize("dtype", ANY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_where(device: vkq.Device, shape: tuple[int, ...], dtype: str) -> None:
    """Where equals np.where, also with operands that broadcast."""
    x, z = numbers(shape, dtype, 0), numbers(shape[-1:], dtype, 1)
    flags = np.random.default_rng(2).integers(0, 2, (shape[0], *(1,) * (len(shape) - 1))).astype(np.uint8)
    for c in (flags, np.ascontiguousarray(np.broadcast_to(flags, shape))):
        got = operand.apply("where", chosen, {"c": c, "x": x, "z": z}, (), device, None, ANY)
        assert got.dtype == x.dtype
        np.testing.assert_array_equal(got, np.where(c, x, z))
    with pytest.raises(vkq.DTypeError, match="flags must be uint8"):
        operand.apply("where", chosen, {"c": x, "x": x, "z": x.astype(np.int32)}, (), device, None, ANY)


@pytest.mark.parametrize("dtype", ANY)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_where_of_numbers(device: vkq.Device, shape: tuple[int, ...], dtype: str) -> None:
    """One dispatch computes Where with operands of one element, whatever the layout of the other operands."""
    names = [None, BLOCKED] if dtype in ("int8", "uint8") and len(shape) == 4 else [None]
    flags, x, one, other = (numbers(s, d, i) for i, (s, d) in enumerate(
        ((shape, "uint8"), (shape, dtype), ((1,) * len(shape), dtype), ((), dtype))
    ))  # fmt: skip
    flags %= 2
    for name, (yes, no) in itertools.product(names, ((x, one), (other, x), (one, other))):
        tensors = [Tensor.from_numpy(a, device, name if a is x else None) for a in (flags, yes, no)]
        b = Builder(device)
        plan = b.plan(chosen(b, *(b.input(tensor.spec) for tensor in tensors)))
        assert len([variant for variant in plan.variants if not variant.startswith("repack")]) == 1
        np.testing.assert_array_equal(run(plan, tensors).numpy(), np.where(flags, yes, no))


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("least", [False, True])
@pytest.mark.parametrize("shape", SHAPES + LONG, ids=str)
def test_argmax(device: vkq.Device, shape: tuple[int, ...], least: bool, last: bool) -> None:
    """ArgMax and ArgMin are correct for data with many equal values, including the type's extremes."""
    for dtype in ("int8", "uint8"):
        info = np.iinfo(dtype)
        x = np.random.default_rng(0).choice([info.min, info.min + 1, info.max], shape).astype(dtype)
        for axis in range(len(shape)):
            got = operand.apply("argmax", argmax_of, {"x": x}, (axis, least, last), device, None)
            turned = np.flip(x, axis) if last else x
            want = (turned.argmin if least else turned.argmax)(axis)
            np.testing.assert_array_equal(got, shape[axis] - 1 - want if last else want)


def test_argmax_of_nothing(any_device: vkq.Device) -> None:
    with pytest.raises(vkq.ArgumentError, match="axis 1 of"):
        operand.apply(
            "argmax", argmax_of, {"x": np.zeros((2, 0), np.int8)}, (1, False, False), any_device, None
        )
