"""Models of the largest elements of rows, of indices within batches, of averages over large windows, of
RELU_0_TO_1 and of L2_NORMALIZATION."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operators import ACTIVATIONS, Case, One, Random, unary, window


def largest(rng: Random, dtype: str) -> Case:
    """Return a model of a TOPK_V2. Rows of 40 elements of 40 numbers have equal elements."""
    one = One(rng, dtype)
    shape, scale, zero, k = (int(rng.integers(1, 4)), 40), one.scale(), one.zero(), int(rng.integers(1, 41))
    x = one.input(shape, scale, zero, (rng.integers(-20, 20, shape) + one.numbers(())).astype(dtype))
    y, places = one.output((shape[0], k), scale, zero), one.w.tensor((shape[0], k), "int32")
    one.w.operator("TOPK_V2", [x, one.w.constant(np.array(k, np.int32))], [y, places], "", 2)
    return one.case(y, places)


def in_batches(rng: Random, dtype: str) -> Case:
    """Return a model of a GATHER along an axis after one or two batch axes, and perhaps another axis."""
    one = One(rng, dtype)
    shape, scale, zero, batches = one.shape(2, 6), one.scale(), one.zero(), int(rng.integers(1, 3))
    axis, count = int(rng.integers(batches, 4)), int(rng.integers(1, 5))
    at = rng.integers(0, shape[axis], (*shape[:batches], count)).astype(np.int32)
    x = one.input(shape, scale, zero)
    y = one.output((*shape[:axis], count, *shape[axis + 1 :]), scale, zero)
    more = {"axis": axis, "batch_dims": batches}
    one.w.operator("GATHER", [x, one.w.constant(at)], [y], "GatherOptions", 5, **more)
    return one.case(y)


def average(rng: Random, dtype: str) -> Case:
    """Return a model of an AVERAGE_POOL_2D of 25 elements or more, which does not cover the whole image."""
    one = One(rng, dtype)
    shape, padding = one.shape(9, 14), int(rng.integers(0, 2))
    kernel, stride = ([int(v) for v in rng.integers(*ends, 2)] for ends in ((5, 9), (1, 4)))
    scale, zero = one.scale(), one.zero()
    sizes = [window(shape[1 + i], kernel[i], stride[i], 1, padding) for i in (0, 1)]
    x, y = one.input(shape, scale, zero), one.output((shape[0], *sizes, shape[3]), scale, zero)
    one.w.operator(
        "AVERAGE_POOL_2D", [x], [y], "Pool2DOptions", 2, padding=padding, stride_h=stride[0],
        stride_w=stride[1], filter_height=kernel[0], filter_width=kernel[1],
        fused_activation_function=int(rng.choice(ACTIVATIONS)),
    )  # fmt: skip
    return one.case(y)


def unit(rng: Random, dtype: str) -> Case:
    """Return a model of an L2_NORMALIZATION. One row has only the zero point, and two have few other
    numbers."""
    one = One(rng, dtype)
    shape, zero = (6, int(rng.integers(1, 300))), one.zero()
    array = one.numbers(shape)
    array[0] = zero
    array[1:3] = np.where(rng.random((2, shape[1])) < 0.05, zero + (1 if zero < 100 else -1), zero)
    x, y = one.input(shape, one.scale(), zero, array), one.output(shape, 1 / 128, 0)
    one.w.operator("L2_NORMALIZATION", [x], [y], "L2NormOptions", 2)
    return one.case(y)


LARGEST: dict[str, Callable[[Random, str], Case]] = {
    "RELU_0_TO_1": unary("RELU_0_TO_1"), "TOPK_V2": largest, "GATHER-batches": in_batches,
    "AVERAGE_POOL_2D-large": average, "L2_NORMALIZATION": unit,
}  # fmt: skip
