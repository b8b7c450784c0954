"""Tests of several linear layers of one x that are joined into one product. Each layer's part of the
joined result equals the layer's own result bit for bit, on every path and in every kernel."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels import emulated
from tests.kernels.matrix_layers import name_of, units
from vkq import QParams
from vkq.device.profiles import profile
from vkq.kernels.after import PARTS, TABLES, through_table
from vkq.kernels.matrix_tiles import WIDE_GEMM, Tiling
from vkq.kernels.matrix_units import SPLIT
from vkq.kernels.repack import repacked
from vkq.layout.extent import BLOCKED, MATRIX, Spec
from vkq.ops.linears import JoinedLinears
from vkq.probe.matrices import Matrices
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

K = 70
WIDTHS = 48, 16, 32
SCALES = 0.031, 0.27, 0.004  # scales of results: layer 2 uses few of the int8 codes, layer 3 mostly saturates
FORMS = "dot_s8s8", "dot_u8s8", "dot_u8u8", "portable"


def layers(device: vkq.Device, dtype: Any = "int8", points: bool = False, **options: Any) -> list[vkq.Linear]:
    """Return three layers, each with its own quantization parameters of the result; the second has no bias.
    *points*: the weights have zero points."""
    rng, moved, found = np.random.default_rng(7), 128 if dtype == "uint8" else 0, []
    for i, (n, scale, zero) in enumerate(zip(WIDTHS, SCALES, (-128, 101, -17), strict=True)):
        weight = rng.integers(-128, 128, (n, K)).astype(np.int8)
        layer = vkq.Linear(
            weight, rng.uniform(1e-3, 2e-3, n).astype(np.float32), x_qparams=QParams(0.02, 3 + moved, dtype),
            y_qparams=QParams(scale, zero + moved, dtype), device=device,
            bias=None if i == 1 else rng.integers(-5000, 5000, n, np.int32),
            w_zero_point=rng.integers(-9, 9, n) if points else None, **options,
        )  # fmt: skip
        found.append(layer)
    return found


def with_tables(device: vkq.Device, dtype: Any, **options: Any) -> list[vkq.Linear]:
    """Return three layers with lookup tables: one table per channel, no table, and one table for all
    channels."""
    found, rng = layers(device, dtype, **options), np.random.default_rng(2)
    for layer, shape in ((found[0], (WIDTHS[0], 256)), (found[2], (256,))):
        layer.finish(through_table(rng.integers(-128, 128, shape).astype(np.int8), QParams(0.5, 4, dtype)))
    return found


def inputs(rows: int, dtype: Any = "int8") -> np.ndarray:
    return np.random.default_rng(rows).integers(0, 256, (rows, K), np.uint8).view(dtype)


def same(joined: JoinedLinears, x: np.ndarray) -> str:
    """Check that the joined product equals the concatenated results of the layers. Return the kernel's
    variant."""
    want = np.concatenate([layer(x) for layer in joined.layers], axis=1)
    np.testing.assert_array_equal(joined.whole(x), want, strict=True)
    return joined.whole.explain(x.shape).variants[-1]


@pytest.mark.parametrize("make", [layers, with_tables])
@pytest.mark.parametrize("path", FORMS)
@pytest.mark.parametrize(("rows", "method"), [(3, "gemv"), (7, "tiled"), (33, "staged")])
def test_every_kernel(device: vkq.Device, rows: int, method: str, path: str, make: Any) -> None:
    dtype = "uint8" if rows == 7 else "int8"
    joined = JoinedLinears(make(device, dtype, path=path))
    joined.whole._make(method)
    assert joined.whole._scheme.after.kind == (PARTS if make is layers else TABLES)
    reads_texels = method == "tiled" and profile(device.capabilities).texels
    assert ("texels" if reads_texels else method) in same(joined, inputs(rows, dtype))


@pytest.mark.parametrize("make", [layers, with_tables])
@pytest.mark.parametrize("points", [False, True])
@pytest.mark.parametrize("matrices", [Matrices(16, 8, 32), Matrices(16, 16, 32, "u8u8")], ids=name_of)
def test_matrix_units(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, matrices: Matrices, points: bool, make: Any
) -> None:
    units(strict_device, monkeypatch, matrices)
    joined = JoinedLinears(make(strict_device, "uint8", points=points, path="coopmat"))
    assert "coopmat" in same(joined, inputs(33, "uint8"))
    assert joined.whole._matrix is not None
    for tiling, shader in ((Tiling("64x64", 2), SPLIT), (Tiling("32x32_wide"), WIDE_GEMM)):
        if shader == SPLIT or joined.whole._matrix.wide:
            joined.whole._matrix.tiling = tiling
            joined.whole._plans.clear()
            assert same(joined, inputs(35, "uint8")).startswith(shader)


def parts_of(joined: JoinedLinears, x: vkq.Tensor) -> list[np.ndarray] | None:
    """Return the layers' results, which are views of the joined product's memory, or None if they cannot be
    views."""
    found = []
    for i in range(len(joined.layers)):
        b = Builder(x.device)
        parts = joined.build(b, b.input(x.spec))
        if parts is None:
            return None
        assert b.dispatches == 1
        found.append(run(b.plan(repacked(b, parts[i], MATRIX)), (x,)).numpy())
    return found


@pytest.mark.parametrize("shape", [(48, K), (16, 3, K)])  # parts begin at multiples of 256 bytes
def test_results_are_parts_of_one_array(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    units(strict_device, monkeypatch, Matrices(16, 8, 32))
    own = layers(strict_device, path="coopmat")
    data = inputs(48).reshape(shape)
    x = vkq.Tensor.from_numpy(data, strict_device, BLOCKED)
    assert not JoinedLinears.refusal(own, x.spec)
    joined = JoinedLinears(own)
    got = parts_of(joined, x)
    assert got is not None
    assert joined.problems == [f"linear[M=48,K={K},N={sum(WIDTHS)}]/scheme=q8ta_q8csw_q8to"]
    for part, layer in zip(got, own, strict=True):
        np.testing.assert_array_equal(part, layer(data), strict=True)


def test_parts_that_begin_where_no_buffer_can(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    units(strict_device, monkeypatch, Matrices(16, 8, 32))
    known = strict_device.capabilities
    properties = {**known.properties, "minStorageBufferOffsetAlignment": 4096}
    monkeypatch.setattr(strict_device, "capabilities", dataclasses.replace(known, properties=properties))
    x = vkq.Tensor.from_numpy(inputs(33), strict_device, BLOCKED)
    assert parts_of(JoinedLinears(layers(strict_device, path="coopmat")), x) is None


def test_refusals(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    def why(own: list[vkq.Linear], *shape: int) -> str:
        return JoinedLinears.refusal(own, Spec(shape, "int8"))

    assert "kPackedInt8_4H4W" in why(layers(strict_device, path="portable"), 33, K)
    if not strict_device.capabilities.features["cooperativeMatrix"]:
        emulated.emulate(strict_device, monkeypatch, "16x8x32")
    own = layers(strict_device, path="coopmat")
    assert not why(own, 33, K)
    assert not why(with_tables(strict_device, "int8", path="coopmat"), 33, K)
    assert "kPackedInt8_4H4W" in why(own, 28, K)  # few rows run on dot products, not on matrix units
    assert "kPackedInt8_4H4W" in why(own, 1, 3, 11, K)
    own[1].finish(through_table(np.arange(-128, 128, dtype=np.int8), QParams(0.5)))
    assert "table" in why(own, 33, K)
    narrow = vkq.Linear(
        np.ones((20, K), np.int8), 0.1, x_qparams=QParams(0.02, 3), y_qparams=QParams(0.5), path="coopmat",
        device=strict_device,
    )  # fmt: skip
    assert "16 columns" in why([own[0], narrow], 33, K)
    unsigned = vkq.Linear(
        np.ones((16, K), np.uint8), 0.1, x_qparams=QParams(0.02, 3), y_qparams=QParams(0.5), path="coopmat",
        device=strict_device,
    )  # fmt: skip
    assert "types" in why([own[0], unsigned], 33, K)
