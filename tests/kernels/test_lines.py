"""Tests of operators on rows of values: they equal NumPy's results bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from vkq.kernels.lines import LOCAL, placed_rows, reduced_along
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.runtime.tensor import Tensor

NUMPY = {"add": np.add, "mul": np.multiply, "max": np.maximum, "min": np.minimum}


def computed(device: vkq.Device, build: Any, *arrays: np.ndarray) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return (the result, the variants that ran)."""
    given = [Tensor.from_numpy(x, device) for x in arrays]
    b = Builder(device)
    plan = b.plan(build(b, *(b.input(x.spec) for x in given)))
    return run(plan, given).numpy(), plan.variants


@pytest.mark.parametrize("how", NUMPY)
@pytest.mark.parametrize("length", [1, LOCAL - 1, LOCAL, LOCAL + 1, 67 * 61])
def test_reductions_of_int32(any_device: vkq.Device, how: str, length: int) -> None:
    """Sums and products wrap. A workgroup reduces each long row, one invocation each short row."""
    x = np.random.default_rng(length).integers(-(2**31), 2**31, (5, length)).astype(np.int32)
    y, ran = computed(any_device, lambda b, x: reduced_along(b, x, 1, how), x)
    assert ran == (f"lines__{'row' if length >= LOCAL else 'element'}:reduced.{how}",)
    np.testing.assert_array_equal(y, NUMPY[how].reduce(x, axis=1, dtype=np.int32))


@pytest.mark.parametrize("inner", [8, 10])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.int32])
def test_placed_rows(any_device: vkq.Device, dtype: Any, inner: int) -> None:
    """Rows are written from a start row on, bit for bit, also infinities and NaN. The row after the last row
    is row 0. If a row is a whole number of vectors, each invocation copies one vector."""
    rng = np.random.default_rng(0)
    bits = {2: np.uint16, 4: np.uint32}[np.dtype(dtype).itemsize]
    x, u = (rng.integers(0, np.iinfo(bits).max, (3, 2, n, inner), bits).view(dtype) for n in (9, 4))
    start = np.array([0, 5, 8], np.int32)
    want = x.copy()
    for i, first in enumerate(start):
        want[i][:, (first + np.arange(4)) % 9] = u[i]
    y, ran = computed(any_device, placed_rows, x, start, u)
    fours = inner * np.dtype(dtype).itemsize % 16 == 0
    assert ran == ("lines__element:placed" + ".fours" * fours,)
    assert y.tobytes() == want.tobytes()
    given = [Tensor.from_numpy(a, any_device) for a in (x, start, u)]
    b = Builder(any_device)
    plan = b.plan(placed_rows(b, *(b.input(tensor.spec) for tensor in given)))
    buffers = [tensor.buffer for tensor in given], [given[0].buffer]
    per_row = inner * np.dtype(dtype).itemsize // (16 if fours else 4)
    for steps, rows in ((plan.steps, 9), (plan.on(*buffers).steps, 4)):
        assert steps[0].grids == ((0, -(-6 * rows * per_row // LOCAL), 1),)
    any_device.add(plan, *buffers)  # the result overwrites x: only new rows are written
    assert given[0].numpy().tobytes() == want.tobytes()
