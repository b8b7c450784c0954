"""Transposed convolutions as one product on matrix units."""

import numpy as np
import pytest

import vkq
from vkq import reference
from vkq.kernels.matrix_phases import PHASES
from vkq.layout.extent import BLOCKED
from vkq.probe.matrices import Matrices

from .matrix_layers import SHAPES, Q, Y, units

# phases that fill blocks of 16 channels and that do not, strides that differ, zero points
CASES = [
    ((2, 19, 5, 7), (19, 37, 2, 2), "int8"),
    ((1, 16, 6, 11), (16, 16, 2, 3), "uint8"),
]


@pytest.mark.parametrize("case", CASES, ids=("2x2", "2x3"))
@pytest.mark.parametrize("matrices", SHAPES[:3:2], ids=str)
def test_a_kernel_as_large_as_its_stride(
    strict_device: vkq.Device, matrices: Matrices, case: tuple, monkeypatch: pytest.MonkeyPatch
) -> None:
    units(strict_device, monkeypatch, matrices)
    shape, weight, dtype = case
    rng, info = np.random.default_rng(3), np.iinfo(dtype)
    x = rng.integers(-128, 128, shape, dtype=np.int8)
    w = rng.integers(info.min, info.max + 1, weight).astype(dtype)
    points = rng.integers(0, 256, weight[1]) if dtype == "uint8" else None
    options = {
        "w_scale": rng.uniform(0.001, 0.003, weight[1]).astype(np.float32), "w_zero_point": points,
        "bias": rng.integers(-9999, 9999, weight[1]).astype(np.int32), "stride": weight[2:],
    }  # fmt: skip
    layer = vkq.ConvTranspose2d(w, x_qparams=Q, y_qparams=Y, path="coopmat", device=strict_device, **options)
    t = vkq.Tensor.from_numpy(x, strict_device, BLOCKED, Q)
    variants = layer.plan(t.spec).variants
    assert len(variants) == 1
    assert variants[0].startswith(PHASES)
    y = layer(t)
    assert y.layout == BLOCKED
    np.testing.assert_array_equal(y.numpy(), reference.conv_transpose2d(x, w, x=Q, y=Y, **options))
