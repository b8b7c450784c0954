"""Tests of transposed convolutions as one product on matrix units."""

import numpy as np
import pytest

import vkq
from vkq import reference
from vkq.kernels.matrix_phases import PHASES
from vkq.layout.extent import BLOCKED
from vkq.probe.matrices import LEAST_SHARED, Matrices

from . import emulated
from .matrix_layers import SHAPES, Q, Y, units

# (x shape, weight shape (IC, OC, KH, KW), dtype, expected tile). Only the second case has a multiple of 16
# output channels. The K of the last case (67) is too long for the tile "128x64_short".
CASES = {
    "2x2": ((2, 19, 5, 7), (19, 37, 2, 2), "int8", "128x64_short"),
    "2x3": ((1, 16, 6, 11), (16, 16, 2, 3), "uint8", "128x64_short"),
    "long": ((1, 67, 6, 11), (67, 5, 2, 1), "int8", "128x128"),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize("matrices", SHAPES[:3:2], ids=str)
def test_a_kernel_as_large_as_its_stride(
    strict_device: vkq.Device, matrices: Matrices, case: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    units(strict_device, monkeypatch, matrices)
    check(strict_device, *case)


def test_little_shared_memory(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With little shared memory a smaller tile is used: with many small subgroups, the sums of the larger
    tile need too much shared memory."""
    monkeypatch.setitem(emulated.LIMITS, "maxComputeSharedMemorySize", LEAST_SHARED)
    units(strict_device, monkeypatch, Matrices(8, 8, 32, subgroup=8))
    check(strict_device, *CASES["long"][:-1], "64x64")


def check(device: vkq.Device, shape: tuple, weight: tuple, dtype: str, tile: str) -> None:
    rng, info = np.random.default_rng(3), np.iinfo(dtype)
    x = rng.integers(-128, 128, shape, dtype=np.int8)
    w = rng.integers(info.min, info.max + 1, weight).astype(dtype)
    points = rng.integers(0, 256, weight[1]) if dtype == "uint8" else None
    options = {
        "w_scale": rng.uniform(0.001, 0.003, weight[1]).astype(np.float32), "w_zero_point": points,
        "bias": rng.integers(-9999, 9999, weight[1]).astype(np.int32), "stride": weight[2:],
    }  # fmt: skip
    layer = vkq.ConvTranspose2d(w, x_qparams=Q, y_qparams=Y, path="coopmat", device=device, **options)
    t = vkq.Tensor.from_numpy(x, device, BLOCKED, Q)
    (variant,) = layer.plan(t.spec).variants
    assert variant.startswith(PHASES)
    assert variant.endswith(f".{tile}")
    y = layer(t)
    assert y.layout == BLOCKED
    np.testing.assert_array_equal(y.numpy(), reference.conv_transpose2d(x, w, x=Q, y=Y, **options))
