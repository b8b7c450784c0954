"""Tests of concat, pad and transpose in every layout and along every axis, compared with NumPy; concat is
also compared with ONNX Runtime."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

import vkq
from vkq import QParams, Tensor, reference
from vkq.layout.extent import BLOCKED
from vkq.layout.pack import activation_layouts
from vkq.numerics.tables import table_of

from ..referees import ort_ops

LAYOUTS = [one.name for one in activation_layouts()]
MATRICES = [(5,), (3, 6), (4, 8), (2, 5, 7), (1, 1, 9)]
IMAGES = [(2, 5, 3, 7), (1, 8, 4, 4)]  # in the first image no axis fills blocks, in the second all do


def random_bytes(shape: tuple[int, ...], seed: int = 40) -> np.ndarray:
    return np.random.default_rng(seed).integers(-128, 128, shape).astype(np.int8)


def value(y: Any) -> np.ndarray:
    return y.numpy() if isinstance(y, Tensor) else y


@pytest.mark.parametrize("shape", MATRICES)
def test_transpose_of_matrices(device: vkq.Device, shape: tuple[int, ...]) -> None:
    x = random_bytes(shape)
    for order in itertools.permutations(range(len(shape))):
        np.testing.assert_array_equal(
            vkq.transpose(x, order, device=device), x.transpose(order), err_msg=str(order)
        )
    np.testing.assert_array_equal(vkq.transpose(x, device=device), x.T)


@pytest.mark.parametrize("name", LAYOUTS)
def test_transpose_of_images(device: vkq.Device, name: str) -> None:
    for shape in IMAGES:
        x = random_bytes(shape)
        tensor = Tensor.from_numpy(x, device, name, QParams(0.5, 3))
        for order in itertools.permutations(range(4)):
            y = vkq.transpose(tensor, order)
            assert (y.layout, y.qparams) == (name, tensor.qparams)
            np.testing.assert_array_equal(y.numpy(), x.transpose(order), err_msg=f"{shape} {order}")


def test_channel_shuffle(device: vkq.Device) -> None:
    """ShuffleNet's channel shuffle (reshape, transpose, reshape) equals NumPy's. The transpose has five
    axes, of which the last two stay adjacent."""
    x = random_bytes((1, 12, 5, 7))
    split = vkq.reshape(Tensor.from_numpy(x, device), (1, 3, 4, 5, 7))
    got = vkq.reshape(vkq.transpose(split, (0, 2, 1, 3, 4)), (1, 12, 5, 7))
    np.testing.assert_array_equal(
        got.numpy(), x.reshape(1, 3, 4, 5, 7).transpose(0, 2, 1, 3, 4).reshape(x.shape)
    )


@pytest.mark.parametrize("name", [None, *LAYOUTS])
def test_pad(device: vkq.Device, name: str | None) -> None:
    rng = np.random.default_rng(41)
    for shape in IMAGES if name else MATRICES:
        x = random_bytes(shape)
        operand = Tensor.from_numpy(x, device, name) if name else x
        cases = [tuple((int(a), int(b)) for a, b in rng.integers(0, 6, (len(shape), 2))) for _ in range(3)]
        for pads in (*cases, ((0, 0),) * len(shape), (*((0, 0),) * (len(shape) - 1), (4, 1))):
            got = value(vkq.pad(operand, pads, -3, device=device))
            np.testing.assert_array_equal(got, np.pad(x, pads, constant_values=-3), err_msg=f"{shape} {pads}")


def test_pad_is_the_real_zero_by_default(device: vkq.Device) -> None:
    x, q = np.full((1, 2, 2, 2), 9, np.uint8), QParams(0.5, 200, "uint8")
    pads = ((0, 0), (0, 0), (1, 1), (2, 0))
    want = np.pad(x, pads, constant_values=200)
    np.testing.assert_array_equal(vkq.pad(x, pads, x_qparams=q, device=device), want)
    np.testing.assert_array_equal(vkq.pad(Tensor.from_numpy(x, device, qparams=q), pads).numpy(), want)


@pytest.mark.parametrize("name", [None, *LAYOUTS])
def test_concat(device: vkq.Device, name: str | None) -> None:
    """concat equals NumPy's if the sizes along the axis are whole words, partial words or 0, and for a
    single input."""
    for shape in [*(IMAGES if name else MATRICES), *([] if name else [(2, 3, 4, 5, 6)])]:
        for axis in range(-1, len(shape)):
            for sizes in ((1,), (4, 8), (3, 5, 1), (4, 0, 6)):
                at = axis % len(shape)
                arrays = [
                    random_bytes((*shape[:at], s, *shape[at + 1 :]), 40 + i) for i, s in enumerate(sizes)
                ]
                inputs = [Tensor.from_numpy(x, device, name) if name else x for x in arrays]
                got = value(vkq.concat(inputs, axis, device=device))
                np.testing.assert_array_equal(
                    got, np.concatenate(arrays, axis), err_msg=f"{shape} {axis} {sizes}"
                )


def test_concat_of_rows_of_channels(device: vkq.Device) -> None:
    """concat of rows in kPackedInt8_16C gives this layout along every axis, also if the rows do not fill
    blocks of channels."""
    for shape in ((5, 48), (2, 7, 32), (3, 4, 21)):
        for axis, sizes in itertools.product(range(len(shape)), ((16, 32), (3, 5, 1), (4, 0, 6))):
            shapes = [(*shape[:axis], size, *shape[axis + 1 :]) for size in sizes]
            arrays = [random_bytes(one, 50 + i) for i, one in enumerate(shapes)]
            got = vkq.concat([Tensor.from_numpy(x, device, BLOCKED) for x in arrays], axis, device=device)
            assert got.layout == BLOCKED
            np.testing.assert_array_equal(
                got.numpy(), np.concatenate(arrays, axis), err_msg=f"{shape} {axis}"
            )


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_concat_of_other_qparams_equals_onnxruntime(device: vkq.Device, dtype: Any) -> None:
    rng = np.random.default_rng(42)
    for axis in (1, 2, 3):
        shapes = [[2, 6, 5, 7] for _ in range(3)]
        for shape, size in zip(shapes, (3, 8, 2), strict=True):
            shape[axis] = size
        arrays = [rng.integers(0, 256, shape).astype(np.uint8).view(dtype) for shape in shapes]
        low = 0 if dtype == "uint8" else -128
        own = [QParams(s, low + int(rng.integers(256)), dtype) for s in (0.1, 0.037, 0.5)]
        y = QParams(0.1, low + 100, dtype)
        inputs = [*ort_ops.parameters(y)]
        for x, q in zip(arrays, own, strict=True):
            inputs += [x, *ort_ops.parameters(q)]
        want = ort_ops.run("QLinearConcat", inputs, dtype, axis=axis)
        np.testing.assert_array_equal(vkq.concat(arrays, axis, y, x_qparams=own, device=device), want)
        tensors = [
            Tensor.from_numpy(x, device, LAYOUTS[i], q)
            for i, (x, q) in enumerate(zip(arrays, own, strict=True))
        ]
        got = vkq.concat(tensors, axis, y)
        assert (got.layout, got.qparams) == (LAYOUTS[0], y)
        np.testing.assert_array_equal(got.numpy(), want)


def test_the_input_may_be_used_twice(device: vkq.Device) -> None:
    x = random_bytes((1, 3, 2, 5))
    tensor = Tensor.from_numpy(x, device)
    np.testing.assert_array_equal(vkq.concat([tensor, tensor], 1).numpy(), np.concatenate([x, x], 1))


def test_refusals(device: vkq.Device) -> None:
    x, q = random_bytes((2, 3)), QParams(1.0)
    with pytest.raises(vkq.ArgumentError, match="there are no inputs"):
        vkq.concat([], 0)
    with pytest.raises(vkq.ArgumentError, match=r"x\[0\] has shape \(2, 3\) and x\[1\] \(3, 2\)"):
        vkq.concat([x, x.T], 0, device=device)
    with pytest.raises(vkq.ArgumentError, match=r"axis is 2 and x has 2 axes; it must be in \[-2, 1\]"):
        vkq.concat([x, x], 2, device=device)
    with pytest.raises(vkq.ArgumentError, match="different qparams"):
        vkq.concat([x, x], 0, x_qparams=[q, QParams(2.0)], device=device)
    with pytest.raises(vkq.DTypeError, match="int8, uint8"):
        vkq.concat([x, x.view(np.uint8)], 0, device=device)
    with pytest.raises(vkq.ArgumentError, match="x has 2 axes; give"):
        vkq.pad(x, [(1, 1)], 0, device=device)
    with pytest.raises(vkq.ArgumentError, match="0 or more"):
        vkq.pad(x, [(1, 1), (0, -1)], 0, device=device)
    with pytest.raises(vkq.ArgumentError, match="value is 128; int8 holds -128 to 127"):
        vkq.pad(x, [(1, 1), (0, 1)], 128, device=device)
    with pytest.raises(vkq.ArgumentError, match="carries no qparams"):
        vkq.pad(x, [(1, 1), (0, 1)], device=device)
    with pytest.raises(vkq.ArgumentError, match="they must list each axis once"):
        vkq.transpose(x, (0, 0), device=device)
    with pytest.raises(vkq.ArgumentError, match="5 axes move independently"):
        vkq.transpose(random_bytes((2, 3, 2, 3, 2)), device=device)


def test_requantized_inputs_of_concat_are_those_of_the_reference(device: vkq.Device) -> None:
    x, a, y = np.arange(-128, 128).astype(np.int8).reshape(4, 64), QParams(0.3, 5), QParams(0.7, -2)
    got = vkq.concat([x, x], 0, y, x_qparams=[a, y], device=device)
    np.testing.assert_array_equal(got, np.concatenate([reference.lookup(x, table_of("identity", a, y)), x]))
