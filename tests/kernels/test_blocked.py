"""Tests of every operator on images and matrices in blocks of 16 channels. Results equal the reference bit
for bit; operators that can keep the layout keep it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkq
from tests.conftest import share
from vkq import QParams, Tensor, reference
from vkq.layout.extent import BLOCKED, MATRIX
from vkq.layout.pack import activation_layouts
from vkq.numerics.elementwise import binary
from vkq.numerics.quantize import dequantize, quantize
from vkq.numerics.tables import table_of
from vkq.ops.repack import to_layout
from vkq.problem.resize import Resize
from vkq.problem.window import Window
from vkq.reference.resize import resize
from vkq.reference.softmax import softmax

Q, Y = QParams(0.05, 3), QParams(1 / 256, -128)
CHANNELS = (1, 5, 16, 17, 35)
IMAGES = [(2, c, 3, 7) for c in CHANNELS] + [(1, 32, 4, 4)]
MATRICES = [(5, k) for k in CHANNELS] + [(35,), (2, 3, 17), (2, 3, 2, 2, 5), (64, 48)]

Case = tuple[Callable[[Tensor], Any], Callable[[np.ndarray], np.ndarray]]


def window(x: np.ndarray) -> Window:
    return Window.of("pool", x.shape, 3, 2, 1, 1, False)


def average(x: np.ndarray) -> np.ndarray:
    return reference.avg_pool2d(x, window(x), Q, Q, True)


def table(name: str) -> np.ndarray:
    return table_of(name, Q, Y)


def twice(op: str) -> Case:
    """Return a case that applies a binary operator to one tensor as both operands."""
    return (lambda t: getattr(vkq, op)(t, t, Y), lambda x: binary(op, x, x, Q, Q, Y))  # type: ignore[arg-type]


def around(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return pads (before, after) of each axis. All four axes of an image get (1, 2). In other shapes, only
    the first and the last axis get (1, 2), because `pad` refuses five padded axes."""
    return [(1, 2) if len(shape) == 4 or i in (0, len(shape) - 1) else (0, 0) for i in range(len(shape))]


def both(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x, x, x[..., :1]], -1)


KEPT: dict[str, Case] = {  # operands of any rank; the result keeps the operand's layout
    "lookup": (lambda t: vkq.lookup(t, table("silu")), lambda x: reference.lookup(x, table("silu"))),
    "relu": (lambda t: vkq.unary("relu", t, Y), lambda x: reference.lookup(x, table("relu"))),
    "requantize": (lambda t: vkq.requantize(t, Y), lambda x: reference.lookup(x, table("identity"))),
    "add": twice("add"),
    "sub": twice("sub"),
    "mul": twice("mul"),
    "pad": (
        lambda t: vkq.pad(t, around(t.shape), -3),
        lambda x: np.pad(x, around(x.shape), constant_values=-3),
    ),
    "transpose": (
        lambda t: vkq.transpose(t, (*range(1, len(t.shape)), 0)),
        lambda x: x.transpose(*range(1, x.ndim), 0),
    ),
    "concat of the last axis": (lambda t: vkq.concat([t, t, first_column(t)], -1), both),
    "concat of the first axis": (lambda t: vkq.concat([t, t], 0), lambda x: np.concatenate([x, x])),
    "softmax to 8 bits": (lambda t: vkq.softmax(t, -1, Y), lambda x: softmax(x, Q, -1, Y)),
}
IMAGES_KEPT: dict[str, Case] = {
    "max_pool2d": (lambda t: vkq.max_pool2d(t, 3, 2, 1), lambda x: reference.max_pool2d(x, window(x))),
    "avg_pool2d": (lambda t: vkq.avg_pool2d(t, 3, 2, 1), average),
    "global_avg_pool2d": (vkq.global_avg_pool2d, lambda x: reference.global_avg_pool(x, Q, Q)),
    "nearest": (lambda t: vkq.resize(t, (5, 9)), lambda x: resize(x, Resize.of(x.shape, (5, 9)))),
    "linear": (
        lambda t: vkq.resize(t, (5, 9), mode="linear"),
        lambda x: resize(x, Resize.of(x.shape, (5, 9), mode="linear")),
    ),
    "softmax of channels": (lambda t: vkq.softmax(t, 1, Y), lambda x: softmax(x, Q, 1, Y)),
    "concat of channels": (lambda t: vkq.concat([t, t, t], 1), lambda x: np.concatenate([x, x, x], 1)),
    "a number per channel": (
        lambda t: vkq.add(t, row(t, (t.shape[1], 1, 1)), Y),
        lambda x: binary("add", x, numbers((x.shape[1], 1, 1)), Q, Q, Y),
    ),
}
OTHERS: dict[str, Case] = {  # operands of any rank; the result is float32, or in another layout
    "dequantize": (vkq.dequantize, lambda x: dequantize(x, Q)),
    "softmax": (lambda t: vkq.softmax(t), lambda x: softmax(x, Q)),
    "flatten": (vkq.flatten, lambda x: x.reshape(x.shape[0], -1)),
    "reshape": (lambda t: vkq.reshape(t, (-1,)), lambda x: x.ravel()),
    "a row": (
        lambda t: vkq.mul(t, row(t, t.shape[-1:]), Y),
        lambda x: binary("mul", x, numbers(x.shape[-1:]), Q, Q, Y),
    ),
    "a column": (
        lambda t: vkq.sub(row(t, (*t.shape[:-1], 1)), t, Y),
        lambda x: binary("sub", numbers((*x.shape[:-1], 1)), x, Q, Q, Y),
    ),
}


def numbers(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng(71).integers(-128, 128, shape).astype(np.int8)


def row(t: Tensor, shape: tuple[int, ...]) -> Tensor:
    return Tensor.from_numpy(numbers(shape), t.device, BLOCKED, Q)


def first_column(t: Tensor) -> Tensor:
    return Tensor.from_numpy(t.numpy()[..., :1], t.device, BLOCKED, Q)


def check(device: vkq.Device, shape: tuple[int, ...], case: Case) -> Tensor:
    x = np.random.default_rng(70).integers(-128, 128, shape).astype(np.int8)
    y: Tensor = case[0](Tensor.from_numpy(x, device, BLOCKED, Q))
    np.testing.assert_array_equal(y.numpy(), case[1](x), err_msg=str(shape))
    return y


@pytest.mark.parametrize("name", KEPT | IMAGES_KEPT)
def test_images_stay(device: vkq.Device, name: str) -> None:
    for shape in share(IMAGES, device, 3):
        assert check(device, shape, (KEPT | IMAGES_KEPT)[name]).layout == BLOCKED


@pytest.mark.parametrize("name", KEPT)
def test_matrices_stay(device: vkq.Device, name: str) -> None:
    for shape in share(MATRICES, device, 3):
        assert check(device, shape, KEPT[name]).layout == BLOCKED


@pytest.mark.parametrize("name", OTHERS)
def test_others(device: vkq.Device, name: str) -> None:
    for shape in IMAGES + MATRICES:
        check(device, shape, OTHERS[name])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_quantize_and_every_other_layout(device: vkq.Device, dtype: Any) -> None:
    q = QParams(0.02, 7, dtype)
    for shape in IMAGES + MATRICES:
        x = np.random.default_rng(72).normal(size=shape).astype(np.float32)
        want = quantize(x, q)
        y = vkq.quantize(Tensor.from_numpy(x, device), q, layout=BLOCKED)
        assert y.layout == BLOCKED
        np.testing.assert_array_equal(y.numpy(), want)
        for other in activation_layouts() if len(shape) == 4 else ():
            moved = to_layout(y, other.name)
            np.testing.assert_array_equal(moved.numpy(), want, err_msg=f"to {other.name}")
            np.testing.assert_array_equal(
                to_layout(moved, BLOCKED).numpy(), want, err_msg=f"from {other.name}"
            )
        np.testing.assert_array_equal(to_layout(to_layout(y, MATRIX), BLOCKED).numpy(), want)


def test_a_matrix_and_images_of_one_pixel_share_the_memory(any_device: vkq.Device) -> None:
    x = numbers((3, 35, 1, 1))
    image = Tensor.from_numpy(x, any_device, BLOCKED)
    rows = vkq.reshape(image, (3, 35), BLOCKED)
    assert rows.buffer is image.buffer
    np.testing.assert_array_equal(rows.numpy(), x[..., 0, 0])
