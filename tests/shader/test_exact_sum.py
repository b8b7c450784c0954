"""Tests of shaders/common/exact_sum.glslh on the device. Sums and quotients equal NumPy's, computed with
the device's floats or with integers (SOFT_FLOAT), even if the device's inverses and quotients are off by up
to three ulp."""

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
#extension GL_EXT_control_flow_attributes : require
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 64;
layout(set = 0, binding = 0) readonly buffer X { float x[]; };
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
layout(push_constant) uniform Push { uint first_group; uint count; float steps; } p;
const bool NORMAL = true, LITERT = LITERT_STEPS;
#include "workgroup.glslh"
float off = 1.0;  // the device's inverses are wrong by this
#define OWN_INVERSE(b) (1.0 / (b) * off)
#define OWN_QUOTIENT(a, b) ((a) / (b) * off)
#include "softmax_sum.glslh"
void main() {
  uint i = workgroup_index() * LOCAL_X + gl_LocalInvocationID.x;
  if (i < p.count) {
    float a = x[2u * i], b = x[2u * i + 1u];
    off += float(int(i % 7u) - 3) * 1.1920929e-7;
    RESULTS
  }
}
"""
# loop iterations of results_of: four quotients with ten iterations each, and the loop over the quotients
LOOP = "iterations: 45\n"
FLOATS = "y[2u * i] = sum(a, b); y[2u * i + 1u] = quotient(a, b);"
SOFTMAX = (
    "uint t = floatBitsToUint(b); uvec4 e = uvec4(0u, floatBitsToUint(a), uvec2(0u));"
    " y[i] = float(results_of(e, divisor_of(t), factor_of(t)).y);"
)
WHOLE = "y[i] = float(quick_quotient(floatBitsToUint(a), floatBitsToUint(b)));"
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
  - {name: steps, type: float}
specialization:
  - {name: LOCAL_X, id: 0, type: uint, default: 64}
  - {name: SOFT_FLOAT, id: 20, type: bool, default: false}
local_size: [LOCAL_X, 1, 1]
workgroups: ceil_div(count, LOCAL_X)
"""


def operands() -> np.ndarray:
    """Return pairs of operands. Among them are exponents 0 to 40 apart, sums that are ties or near ties, sums
    that cancel to the last bit, zeros and infinities."""
    rng = np.random.default_rng(70)
    n = 40000
    a = (rng.integers(1 << 23, 1 << 24, n) * 2.0 ** rng.integers(-30, 30, n)).astype(np.float32)
    sparse = (
        rng.integers(1, 1 << 24, n) & ~((1 << rng.integers(0, 23, n)) - 1)
    ) | 1 << 23  # few significant bits, so that sums can be exact ties
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


def results(
    pairs: np.ndarray, glsl: str, shape: tuple[int, ...], device: vkq.Device, folder: Path,
    soft: bool = False, steps: float = 1.0, litert: bool = False,
) -> np.ndarray:  # fmt: skip
    """Return the results that the GLSL lines *glsl* write for each pair."""
    shutil.copytree(shaders_folder() / "common", folder / "common")
    (folder / "sum").mkdir()
    (folder / "sum" / "exact_sum.comp").write_text(
        GLSL.replace("RESULTS", glsl).replace("LITERT_STEPS", str(litert).lower())
    )
    (folder / "sum" / "exact_sum.yaml").write_text(YAML + LOOP * (glsl != FLOATS))
    variant = load_shader(folder / "sum" / "exact_sum.yaml").variants[0]
    x, y = Tensor.from_numpy(pairs, device), Tensor(device, shape, "float32")
    with device.operation() as recording:
        recording.dispatch(
            device.program(variant, {"SOFT_FLOAT": soft}),
            [x.buffer, y.buffer],
            {"count": len(pairs), "steps": steps},
        )
    return y.numpy()


@pytest.mark.parametrize("soft", [False, True])
def test_sum_and_quotient(device: vkq.Device, soft: bool, tmp_path: Path) -> None:
    pairs = operands()
    found = results(pairs, FLOATS, pairs.shape, device, tmp_path, soft)
    a, b = pairs.T
    with np.errstate(all="ignore"):
        sums, quotients = a + b, a / b
    tiny = np.finfo(np.float32).tiny
    finite = np.isfinite(b)
    np.testing.assert_array_equal(found[:, 0], np.where(np.abs(sums) < tiny, 0, sums))
    np.testing.assert_array_equal(found[finite, 1], np.where(np.abs(quotients) < tiny, 0, quotients)[finite])


def test_whole_quotient(device: vkq.Device, tmp_path: Path) -> None:
    """Quotients rounded to integers are correct, although the device's quotient may be off by up to three
    ulp. Tested are quotients halfway between two integers and their neighbours, scales of every normal
    exponent, quotients beyond the range, zero and subnormal values."""
    rng = np.random.default_rng(71)
    halves = np.repeat(np.arange(-1030, 1031) / 2, 7)
    scales = (rng.integers(1 << 23, 1 << 24, halves.size) * 2.0 ** rng.integers(-40, 40, halves.size)).astype(
        np.float32
    )
    ties = (halves * scales).astype(np.float32)
    ties += np.tile(np.arange(-3, 4), halves.size // 7).astype(np.float32) * np.spacing(ties)
    # these scales have every normal exponent
    any_scale = rng.integers(1 << 23, 255 << 23, 20000, np.uint32).view(np.float32)
    quotients = rng.normal(0, 200, any_scale.size)
    with np.errstate(over="ignore", under="ignore"):
        near = np.nan_to_num((any_scale * quotients).astype(np.float32), posinf=3e38, neginf=-3e38)
    edges = np.float32([[0, 1], [1e-45, 1e-38], [-1e-40, 2e-38], [3e38, 1e-38], [3e38, 3e38], [-1e38, 3e38]])
    pairs = np.concatenate([np.stack([ties, scales], 1), np.stack([near, any_scale], 1), edges])
    found = results(pairs, WHOLE, (len(pairs),), device, tmp_path)
    with np.errstate(all="ignore"):
        expected = np.clip(np.rint(pairs[:, 0] / pairs[:, 1]), -512, 512)
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("litert", [False, True])
def test_results_of_softmax(device: vkq.Device, litert: bool, soft: bool, tmp_path: Path) -> None:
    """Softmax results are correct for pairs of (element, sum of the row). Half of the pairs give a quotient
    near a tie."""
    rng = np.random.default_rng(71)
    n, steps = 40000, np.float32(1 / 256 if litert else 255)
    total = (rng.integers(1 << 23, 1 << 24, n) * 2.0 ** rng.integers(-23, 9, n)).astype(np.float32)
    scale = float(1 / steps if litert else steps)
    tie = total.astype(np.float64) * (rng.integers(0, 256, n) + 0.5) / scale
    tie *= 1 + rng.integers(-3, 4, n) * 2.0**-24
    e = np.minimum(np.where(rng.integers(0, 2, n) == 1, tie, total * rng.random(n)), total).astype(np.float32)
    want = np.rint(e * (np.float32(1) / (total * steps)) if litert else e * steps / total)
    pairs = np.stack([e, total], 1)
    found = results(pairs, SOFTMAX, (n,), device, tmp_path, soft, float(steps), litert)
    np.testing.assert_array_equal(found, want)
