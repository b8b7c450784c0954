"""Tests of float32 arithmetic in integers against NumPy's, for random bit patterns, extremes and ties."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from vkq.numerics.qparams import SMALLEST_SCALE
from vkq.reference import dynamic as reference_dynamic
from vkq.shader.catalog import catalog

INFINITY = 0x7F800000
LARGEST = INFINITY - 1
Bits = npt.NDArray[np.uint32]

# Zero; the smallest and largest subnormal and normal numbers; powers of two and their neighbours.
EDGES = np.array(
    [0, 1, 2, 3, 0x400000, 0x7FFFFE, 0x7FFFFF, 0x800000, 0x800001, 0xFFFFFF, 0x1000000, LARGEST, LARGEST - 1]
    + [(e << 23) + d for e in range(1, 255, 11) for d in (0, 1, 0x400000, 0x7FFFFF)],
    np.uint32,
)


def execute(device: vkq.Device, a: Bits, b: Bits) -> npt.NDArray[np.int32]:
    """Return rows (a / b, a + b, a * b, quantized quotient) computed by the shader."""
    program = device.program(catalog().find("selftest__exact_float"))
    x = vkq.Tensor.from_numpy(np.stack([a, b], axis=1).view(np.int32), device)
    y = vkq.Tensor(device, (a.size, 4), "int32")
    with device.operation() as recording:
        recording.dispatch(program, [x.buffer, y.buffer], {"count": a.size})
    result: npt.NDArray[np.int32] = y.numpy()
    return result


def pairs(seed: int) -> tuple[Bits, Bits]:
    rng = np.random.default_rng(seed)
    grid = np.stack(np.meshgrid(EDGES, EDGES), axis=-1).reshape(-1, 2)
    anything = rng.integers(0, LARGEST + 1, (100_000, 2), dtype=np.uint32)
    near = rng.integers(0x3F000000, 0x41000000, (50_000, 2), dtype=np.uint32)  # quotients near 1
    small = rng.integers(0, 0x2000000, (50_000, 2), dtype=np.uint32)  # values near the subnormal range
    tiny_quotient = np.stack(
        [rng.integers(1, 0x6000000, 50_000), rng.integers(0x3F000000, 0x4D000000, 50_000)], axis=1
    )
    # Values of few significant bits, because their sums and products often are ties (half an ulp).
    round_ = rng.integers(0, 1 << 13, (50_000, 2), dtype=np.uint32) * np.uint32(1 << 11) + np.uint32(
        0x3F800000
    )
    both = np.concatenate([grid, anything, near, small, tiny_quotient.astype(np.uint32), round_])
    return np.ascontiguousarray(both[:, 0]), np.ascontiguousarray(both[:, 1])


def same(got: npt.NDArray[Any], want: npt.NDArray[Any], a: Bits, b: Bits) -> None:
    wrong = np.flatnonzero(got != want)
    assert not wrong.size, (
        f"{wrong.size} wrong; first {hex(a[wrong[0]])}, {hex(b[wrong[0]])}: {got[wrong[0]]} for"
        f" {want[wrong[0]]}"
    )


def test_division_is_correctly_rounded(device):
    a, b = pairs(1)
    a, b = a[b != 0], b[b != 0]
    with np.errstate(over="ignore", under="ignore"):
        want = (a.view(np.float32) / b.view(np.float32)).view(np.int32)
    assert ((want > 0) & (want < 0x800000)).sum() > 1000  # many results are subnormal
    assert (want == INFINITY).any()
    same(execute(device, a, b)[:, 0], want, a, b)


def test_division_by_255_over_every_fraction_of_two_binades(device):
    """Division by 255, which computes a row's scale, equals NumPy's for random significands, both in a
    normal binade and where the result is subnormal."""
    fractions = np.arange(1 << 20, dtype=np.uint32) << 3 | np.random.default_rng(2).integers(
        0, 8, 1 << 20, dtype=np.uint32
    )
    for exponent in (127, 4):
        a = fractions + np.uint32(exponent << 23)
        b = np.full(a.size, 0x437F0000, np.uint32)
        with np.errstate(under="ignore"):
            want = (a.view(np.float32) / np.float32(255)).view(np.int32)
        same(execute(device, a, b)[:, 0], want, a, b)


def test_sum_is_correctly_rounded_and_bounded(device):
    a, b = pairs(3)
    with np.errstate(over="ignore", under="ignore"):
        want = np.minimum((a.view(np.float32) + b.view(np.float32)).view(np.int32), LARGEST)
    same(execute(device, a, b)[:, 1], want, a, b)


def test_product_of_normals_is_correctly_rounded_and_bounded(device):
    a, b = pairs(4)
    normal = (a >= 0x800000) & (b >= 0x800000)
    a, b = a[normal], b[normal]
    exact = a.view(np.float32).astype(np.float64) * b.view(np.float32)
    want = np.minimum(exact, float(np.finfo(np.float32).max)).astype(np.float32)
    want = np.where(exact < SMALLEST_SCALE, np.float32(0), want).view(np.int32)
    assert (want == 0).any()
    same(execute(device, a, b)[:, 2], want, a, b)
    rows = reference_dynamic.row_multipliers(a.view(np.float32)[:50], b.view(np.float32)[:60])
    np.testing.assert_array_equal(rows, np.minimum(rows, LARGEST))


def test_quantized_quotient_over_ties(device):
    """The quantizing quotient, round_half_even(float32(x / scale)), equals NumPy's at ties and next to ties.
    x is scale * (k + 1/2) or a neighbouring float. No scale is a power of two."""
    rng = np.random.default_rng(5)
    scale = rng.uniform(0.001, 100, 40).astype(np.float32)
    ties = (scale[:, None] * (np.arange(0, 300) + np.float32(0.5))).astype(np.float32)
    x = np.concatenate(
        [np.nextafter(ties, np.float32(0)), ties, np.nextafter(ties, np.float32(np.inf))], axis=1
    )
    b = np.broadcast_to(scale[:, None], x.shape)
    want = np.clip(np.rint(x / b), -512, 512).astype(np.int32)
    assert (np.abs(x / b - np.floor(x / b) - 0.5) == 0).sum() > 1000
    a_bits, b_bits = x.reshape(-1).view(np.uint32), np.ascontiguousarray(b).reshape(-1).view(np.uint32)
    same(execute(device, a_bits, b_bits)[:, 3], want.reshape(-1), a_bits, b_bits)


@pytest.mark.parametrize("soft", [False, True])
def test_integers_become_the_nearest_float(device, soft):
    """Requantization with a factor of 1 converts an int32 to the nearest float32. The cases are ties above
    2^24, which round to even, the neighbours of these ties, and both extremes of int32."""
    ties = [
        sign * (2**e + k)
        for e in range(24, 31)
        for k in range(-3, 2 ** (e - 23) + 4, 1 << (e - 24))
        for sign in (1, -1)
    ]
    x = np.array([*ties, 0, 1, -1, 2**31 - 1, -(2**31)], np.int32)
    program = device.program(catalog().find("selftest__arithmetic", test="requantize"), {"SOFT_FLOAT": soft})
    operands = [vkq.Tensor.from_numpy(each, device) for each in (x, np.ones(x.size, np.float32))]
    y = vkq.Tensor(device, (x.size, 2), "int32")
    with device.operation() as recording:
        recording.dispatch(program, [*(each.buffer for each in operands), y.buffer], {"count": x.size})
    np.testing.assert_array_equal(y.numpy()[:, 1].view(np.float32), x.astype(np.float32))
