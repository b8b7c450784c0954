"""Tests of linear layers that add a residual, with or without a table lookup before the sum, in every
kernel. Results equal those of the separate operators bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from vkq import QParams, Tensor
from vkq.device.profiles import preferred
from vkq.kernels.after import through_table
from vkq.kernels.binary import sum_after
from vkq.kernels.matrix_tiles import WIDE_GEMM, Tiling
from vkq.kernels.matrix_units import SPLIT
from vkq.numerics.elementwise import binary
from vkq.numerics.stored import signed
from vkq.numerics.tables import table_of
from vkq.ops import table
from vkq.problem.names import parse
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.shader.catalog import catalog

from . import emulated


def added(
    device: vkq.Device, name: str, dtype: Any = "int8", path: str = "auto", method: str = "auto",
    ratio: float = 1.37, tiling: Tiling | None = None, zero_points: Any = "channel", tables: int = 0,
) -> str:  # fmt: skip
    """Check a linear layer whose epilogue computes residual - result, in the layout of its kernel. Return
    the kernel's variant. *tables*: the lookup tables that the epilogue applies to the result before the
    sum: 0: none; 1: one for all outputs; 2: one for each output."""
    p, rng = parse(name), np.random.default_rng(len(name))
    data = random_data(p, rng, dtype, "int8", w_zero_points=zero_points)
    own = data.y_q
    other, yq = QParams(1.1 * own.scale, 7, dtype), QParams(ratio * own.scale, 4, dtype)
    layer: Any = vkq.Linear(
        data.w, data.w_scale, x_qparams=data.x_q, y_qparams=own, bias=data.bias, path=path, method=method,
        w_zero_point=data.w_zero_point, device=device,
    )  # fmt: skip
    last = sum_after("sub", own, other, yq, (0.0, 9e9), False, p.y_shape)
    entries, before = rng.integers(0, 256, (p.n, 256), np.uint8).view(dtype), data.expected(own)
    if tables:
        places = before.astype(int) - own.qmin
        before = entries[np.arange(p.n), places] if tables == 2 else entries[0][places]
        last = through_table(signed(entries if tables == 2 else entries[0]), own).then(last)
    layer.finish(last)
    if tiling is not None:
        layer._matrix.tiling = tiling
    given = rng.integers(0, 256, p.y_shape, np.uint8).view(dtype)
    tensors = [Tensor.from_numpy(array, device, layer.input_layout(p.x_shape)) for array in (data.x, given)]
    b = Builder(device)
    x, residual = (b.input(tensor.spec) for tensor in tensors)
    # Copy the residual, because the sum overwrites its operand.
    copied = table.looked_up(b, residual, table_of("identity", other, other), None)
    y = layer.build(b, x, copied)
    assert y.slot == copied.slot
    plan, want = b.plan(y), binary("sub", given, before, other, own, yq, (0.0, 9e9))
    assert len(plan.variants) == 2
    for _ in range(3):  # three runs, because a run must not change the inputs
        np.testing.assert_array_equal(run(plan, tensors).numpy(), want, strict=True)
    return plan.variants[-1]


@pytest.mark.parametrize(("dtype", "tables"), [("int8", 0), ("uint8", 0), ("int8", 1), ("uint8", 2)])
@pytest.mark.parametrize("texels", [False, True])
@pytest.mark.parametrize(("rows", "method"), [(1, "gemv"), (3, "gemv"), (7, "tiled"), (33, "staged")])
def test_rows(device: vkq.Device, rows: int, method: str, texels: bool, dtype: str, tables: int) -> None:
    with preferred({"texels": texels, "lane_loads": texels}):
        name = added(device, f"linear[M={rows},K=70,N=37]", dtype, method=method, tables=tables)
    assert ("texels" if texels and method != "staged" else "split" if method == "gemv" else method) in name


@pytest.mark.parametrize("path", ["dot_s8s8", "dot_u8s8", "dot_u8u8", "portable"])
@pytest.mark.parametrize("rows", [2, 11])
def test_paths(device: vkq.Device, rows: int, path: str) -> None:
    added(device, f"linear[M={rows},K=41,N=22]", path=path, ratio=2.0)  # many results are ties


def test_a_long_sum(any_device: vkq.Device) -> None:
    """A GEMV whose invocations split a long k adds the residual once."""
    assert "gemv" in added(any_device, "linear[M=1,K=5000,N=9]")


WIDE_TILE = next(iter(catalog().shaders[WIDE_GEMM].axes["tile"]))
TILINGS = [None, Tiling("64x64"), Tiling("128x64", 3), Tiling(WIDE_TILE)]


@pytest.mark.parametrize("tables", [0, 1, 2])
@pytest.mark.parametrize("tiling", TILINGS, ids=str)
def test_matrix_units(
    strict_device: vkq.Device, tiling: Tiling | None, tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels for matrix units add the residual once, also if workgroups or subgroups split k."""
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    wide = tiling is not None and tiling.wide
    name = "linear[M=70,K=700,N=69]"
    points = "none" if wide else "channel"
    found = added(strict_device, name, path="coopmat", tiling=tiling, zero_points=points, tables=tables)
    assert "coopmat" in found
    if tiling is not None:
        assert found.endswith(f".{tiling.tile}")
        assert found.startswith(
            SPLIT if tiling.parts > 1 else WIDE_GEMM if wide else "gemm_q8ta_q8csw__coopmat"
        )
