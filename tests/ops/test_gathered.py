"""Tests of table rows chosen by ids (embeddings) and combined with other rows in one dispatch: results
equal those of separate steps bit for bit."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq import QParams, Tensor
from vkq.layout.extent import BLOCKED
from vkq.numerics.elementwise import BinaryOp, binary
from vkq.numerics.qparams import QDType
from vkq.ops.gathered import combined_rows
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

OPS: list[BinaryOp] = ["add", "sub", "mul"]
ROWS = 9
PARAMETERS = (
    (0.07, 9),
    (0.05, 2),
    (0.06, 13),
)  # (scale, zero point) of the table, the other rows and the result


def bytes_of(random: np.random.Generator, shape: tuple[int, ...], dtype: QDType) -> np.ndarray:
    return random.integers(0, 256, shape).astype(np.uint8).view(dtype)


@pytest.mark.parametrize("second", [False, True])
@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize(
    ("ids_shape", "z_shape", "width"),
    [((6,), (6, 20), 20), ((3, 8), (8, 20), 20), ((2, 4), (1, 4, 7), 7)],
    ids=str,
)
def test_combined_rows(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch, op: BinaryOp, dtype: QDType,
    ids_shape: tuple[int, ...], z_shape: tuple[int, ...], width: int, second: bool,
) -> None:  # fmt: skip
    """Results equal the reference's for negative ids, which count from the end, for ids beyond the table,
    which read the nearest row, and for sums near ties."""
    random, (q, other, y) = np.random.default_rng(1), (QParams(s, z, dtype) for s, z in PARAMETERS)
    table, z = bytes_of(random, (ROWS, width), dtype), bytes_of(random, z_shape, dtype)
    ids = random.integers(-ROWS - 2, ROWS + 2, ids_shape).astype(np.int32)
    tensors = [Tensor.from_numpy(x, device) for x in (table, ids, z)]
    rows = table[np.clip(np.where(ids < 0, ids + ROWS, ids), 0, ROWS - 1)]
    one, two, qs = (z, rows, (other, q)) if second else (rows, z, (q, other))
    for soft in (device.soft_float, True):
        monkeypatch.setattr(device, "_soft_float", soft)
        b = Builder(device)
        made = combined_rows(b, *(b.input(x.spec) for x in tensors), op, q, other, y, "relu", second)
        assert made is not None
        plan = b.plan(made)
        assert len(plan.steps) == 1
        np.testing.assert_array_equal(run(plan, tensors).numpy(), binary(op, one, two, *qs, y, "relu"))


@pytest.mark.parametrize(
    ("table", "ids", "z", "layout"),
    [
        ((9, 20), (3, 6), (6, 20), None),  # six rows do not fill blocks of four
        ((9, 20), (3, 8), (3, 1, 20), None),  # z broadcasts along another axis
        ((9, 20), (8,), (3, 8, 20), None),  # z has more axes than the chosen rows
        ((9, 2, 10), (8,), (8, 2, 10), None),  # the table has three axes
        ((9, 20), (3, 2, 4), (4, 20), None),  # a result of four axes is an image
        ((9, 20), (0,), (20,), None),
        ((9, 20), (8,), (8, 20), BLOCKED),
    ],
    ids=str,
)
def test_other_rows_are_combined_in_steps(
    any_device: vkq.Device,
    table: tuple[int, ...],
    ids: tuple[int, ...],
    z: tuple[int, ...],
    layout: str | None,
) -> None:
    b, q = Builder(any_device), QParams(0.1, 3)
    tensors = [
        Tensor.from_numpy(np.zeros(table, np.int8), any_device, layout),
        Tensor.from_numpy(np.zeros(ids, np.int32), any_device),
        Tensor.from_numpy(np.zeros(z, np.int8), any_device),
    ]
    assert combined_rows(b, *(b.input(one.spec) for one in tensors), "add", q, q, q) is None
    assert b.dispatches == 0
