"""Tests of means over axes: they equal the reference's global average over the reduced axes."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq import ArgumentError, QParams, Tensor, reference

CASES = {  # (shape, axes) -> reason for the case
    ((2, 5, 4, 7), (2, 3)): "both axes of pixels: the global average",
    ((2, 5, 4, 7), (1,)): "channels",
    ((3, 9), (-1,)): "rows",
    ((3, 9), (0,)): "columns",
    ((2, 3, 4, 5), (0, 2)): "axes that are not adjacent",
    ((2, 3, 2, 3, 5), (1, 4)): "five axes",
    ((6,), None): "everything",
    ((2, 3, 5), ()): "no axes: x is only requantized",
    ((0, 3, 5), (2,)): "no rows",
}


def expected(x: np.ndarray, axes: tuple[int, ...] | None, xq: QParams, yq: QParams) -> np.ndarray:
    gone = range(x.ndim) if axes is None else [a % x.ndim for a in axes]
    order = [*(a for a in range(x.ndim) if a not in gone), *sorted(gone)]
    count = int(np.prod([x.shape[a] for a in gone], dtype=int))
    y = reference.global_avg_pool(x.transpose(order).reshape(1, -1 if x.size else 0, 1, count), xq, yq)
    return y.reshape([1 if a in gone else n for a, n in enumerate(x.shape)])


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_mean(device: vkq.Device, dtype: str) -> None:
    for number, ((shape, axes), reason) in enumerate(CASES.items()):
        rng = np.random.default_rng(number)
        x = rng.integers(0, 256, shape).astype(np.uint8).view(dtype)
        xq, yq = QParams(0.37, 3, dtype), QParams(0.21, 7, dtype)
        want = expected(x, axes, xq, yq)
        got = vkq.reduce_mean(x, axes, x_qparams=xq, y_qparams=yq, device=device)
        np.testing.assert_array_equal(got, want, err_msg=reason, strict=True)
        flat = vkq.reduce_mean(
            Tensor.from_numpy(x, device, qparams=xq), axes, keepdims=False, y_qparams=yq
        ).numpy()
        gone = range(len(shape)) if axes is None else [a % len(shape) for a in axes]
        assert flat.shape == tuple(n for a, n in enumerate(shape) if a not in gone), reason
        np.testing.assert_array_equal(flat.ravel(), want.ravel(), err_msg=reason)


def test_refusals(any_device: vkq.Device) -> None:
    x, q = np.zeros((2, 0), np.int8), QParams(1.0)
    with pytest.raises(ArgumentError, match=r"axes \[1\] of x \(2, 0\) hold 0 elements"):
        vkq.reduce_mean(x, [1], x_qparams=q, device=any_device)
    with pytest.raises(ArgumentError, match="reduce_mean: axis is 2 and x has 2 axes"):
        vkq.reduce_mean(x, [2], x_qparams=q, device=any_device)
    with pytest.raises(ArgumentError, match="carries no qparams"):
        vkq.reduce_mean(np.zeros((2, 3), np.int8), [1], device=any_device)
