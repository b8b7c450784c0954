"""Tests of rotary embeddings: devices give the bits of the NumPy steps."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq.kernels.rotary import rotated
from vkq.numerics import rotary
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.runtime.tensor import Tensor

# (shape of x, width, True if all batch elements have the same angles)
CASES = {
    "whole heads": ((2, 5, 3, 8), 4, False),
    "a part of each head": ((3, 4, 2, 11), 3, True),
    "one pair of one token": ((1, 1, 1, 2), 1, True),
    "no pair": ((1, 2, 1, 3), 0, True),
}


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_bits(any_device: vkq.Device, name: str, interleaved: bool) -> None:
    shape, width, shared = CASES[name]
    rng = np.random.default_rng(0)
    x = (rng.normal(0, 1, shape) * np.exp(rng.normal(0, 30, shape))).astype(np.float32)
    x.flat[: 4 if x.size > 8 else 0] = [np.inf, np.nan, 1e-41, -0.0]
    angles = rng.normal(0, 2, (1 if shared else shape[0], shape[1], 1, width))
    cos, sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)
    given = [Tensor.from_numpy(one, any_device) for one in (x, cos, sin)]
    b = Builder(any_device)
    plan = b.plan(rotated(b, *(b.input(one.spec) for one in given), interleaved))
    y, want = run(plan, given).numpy(), rotary.rotated(x, cos, sin, interleaved)
    assert plan.variants == ("lines__element:rotated" + ".interleaved" * interleaved,)
    np.testing.assert_array_equal(y, want)
    there = ~np.isnan(want)
    assert y[there].tobytes() == want[there].tobytes()
    pairs = slice(0, 2 * width, 2) if interleaved else slice(0, width)
    turned = x[..., 0 : 2 * width : 2] if interleaved else x[..., :width]
    others = x[..., 1 : 2 * width : 2] if interleaved else x[..., width : 2 * width]
    with np.errstate(all="ignore"):
        near = turned * cos.astype(np.float64) - others * sin.astype(np.float64)
        bound = 3 * 2.0**-24 * (np.abs(turned) + np.abs(others)) + 2.0**-125
        wrong = np.abs(want[..., pairs] - near) > bound
    assert not (wrong & np.isfinite(near) & np.isfinite(bound)).any()
