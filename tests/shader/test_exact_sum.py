"""shaders/common/exact_sum.glslh on the device: sums and quotients against NumPy's, plain and in integers
(SOFT_FLOAT), where the device's own inverses are up to three units of the last place off."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import vkq
from vkq import Tensor
from vkq.shader.catalog import shaders_folder
from vkq.shader.load import load_shader

GLSL = """\
// y = (a + b, a / b) as bits
#version 450
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Push { uint first_group; uint count; } p;
#include "workgroup.glslh"
float off = 1.0;  // the device's inverses are wrong by this
#define OWN_INVERSE(b) (1.0 / (b) * off)
#include "exact_sum.glslh"
void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
    float a = x[2u * i], b = x[2u * i + 1u];
    off += float(int(i % 7u) - 3) * 1.1920929e-7;
    y[2u * i] = sum(a, b);
    y[2u * i + 1u] = quotient(a, b);
  }
}
"""
YAML = """\
name: exact_sum
summary: for the test
source: exact_sum.comp
bindings:
  - {name: x, access: read, type: float}
  - {name: y, access: write, type: float}
push_constants:
  - {name: first_group, type: uint}
  - {name: count, type: uint}
specialization:
  - {name: LOCAL_X, id: 0, type: uint, default: 64}
  - {name: SOFT_FLOAT, id: 20, type: bool, default: false}
local_size: [LOCAL_X, 1, 1]
workgroups: ceil_div(count, LOCAL_X)
"""


def operands() -> np.ndarray:
    """Pairs whose exponents lie 0 to 40 apart, ties and near ties of the sum, cancellation to the last bit,
    zeros, infinity."""
    rng = np.random.default_rng(70)
    n = 40000
    a = (rng.integers(1 << 23, 1 << 24, n) * 2.0 ** rng.integers(-30, 30, n)).astype(np.float32)
    sparse = (
        rng.integers(1, 1 << 24, n) & ~((1 << rng.integers(0, 23, n)) - 1)
    ) | 1 << 23  # few bits: exact halves
    b = (sparse * 2.0 ** rng.integers(-45, 45, n)).astype(np.float32)
    near = a * (1 + rng.integers(-3, 4, n) * 2.0**-23).astype(np.float32)
    small = rng.integers(1, 256, (2, n)).astype(np.float32)
    edges = np.array(
        [
            [0, 3],
            [2.5, np.inf],
            [1e38, 3e38],
            [3.4e38, 1e-3],
            [-3.4e38, 3.3e38],
            [1, 1],
            [2.0**24, 1],
            [2.0**24 + 2, 1],
        ]
    )
    pairs = np.concatenate(
        [np.stack([a, b], 1), np.stack([a, near], 1), np.stack([b, a], 1), small.T, edges.astype(np.float32)]
    )
    pairs[:, 0] *= rng.choice([-1, 1], len(pairs))
    return np.ascontiguousarray(pairs, np.float32)


@pytest.mark.parametrize("soft", [False, True])
def test_sum_and_quotient(device: vkq.Device, soft: bool, tmp_path: Path) -> None:
    shutil.copytree(shaders_folder() / "common", tmp_path / "common")
    (tmp_path / "sum").mkdir()
    (tmp_path / "sum" / "exact_sum.comp").write_text(GLSL)
    (tmp_path / "sum" / "exact_sum.yaml").write_text(YAML)
    variant = load_shader(tmp_path / "sum" / "exact_sum.yaml").variants[0]
    pairs = operands()
    x, y = Tensor.from_numpy(pairs, device), Tensor(device, pairs.shape, "float32")
    with device.operation() as recording:
        recording.dispatch(
            device.program(variant, {"SOFT_FLOAT": soft}), [x.buffer, y.buffer], {"count": len(pairs)}
        )
    a, b = pairs.T
    with np.errstate(all="ignore"):
        sums, quotients = a + b, a / b
    tiny = np.finfo(np.float32).tiny
    finite = np.isfinite(b)
    np.testing.assert_array_equal(y.numpy()[:, 0], np.where(np.abs(sums) < tiny, 0, sums))
    np.testing.assert_array_equal(
        y.numpy()[finite, 1], np.where(np.abs(quotients) < tiny, 0, quotients)[finite]
    )
