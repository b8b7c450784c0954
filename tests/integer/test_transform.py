"""Tests of exact correlations by number-theoretic transforms: every radix, one and two primes, blocks and
parts."""

from __future__ import annotations

import numpy as np
import pytest

import vkq
from vkq.integer import conv2d, explain, transform, work
from vkq.integer import correlation as op
from vkq.integer.transform import PRIMES, RADICES, ROOTS, primes_for, roots
from vkq.problem.conv2d import Conv2dProblem
from vkq.reference import integer as reference

CASES = {  # purpose of the case -> (shape of x, shape of w, dtype, padding, type of the sums)
    "one block of 64": ((1, 1, 20, 30), (2, 1, 5, 9), "int8", 3, "int32"),
    "64 x 128, channels, images": ((2, 3, 25, 90), (3, 3, 7, 20), "uint8", (1, 0, 2, 4), "int32"),
    "512, a window beyond the image": ((1, 1, 3, 2), (2, 1, 2, 300), "int16", 150, "int64"),
    "1024 x 256, two primes": ((1, 1, 700, 200), (1, 1, 600, 40), "int16", 0, "int64"),
}


def extremes(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).choice(np.array([info.min, info.max, 1], dtype), shape)


def expected(x: np.ndarray, w: np.ndarray, bias: np.ndarray | None, padding: object) -> np.ndarray:
    p = Conv2dProblem.of(x.shape, w.shape, padding=padding)  # type: ignore[arg-type]
    return reference.conv2d(x, w, bias, p)


@pytest.mark.parametrize("name", CASES)
def test_conv2d(device: vkq.Device, name: str) -> None:
    x_shape, w_shape, dtype, padding, sums = CASES[name]
    x, w = extremes(1, dtype, x_shape), extremes(2, dtype, w_shape)
    bias = np.arange(len(w)) * 1000 - 500
    got = conv2d(x, w, bias, padding=padding, accumulate=sums, path="transform", device=device)  # type: ignore[arg-type]
    if name.startswith("1024"):  # compare only some rows, because NumPy's int64 would take a minute
        for row in (0, 57, 100):
            want = expected(x[:, :, row : row + 600], w, bias, padding)
            np.testing.assert_array_equal(got[:, :, row : row + 1], want)
    else:
        np.testing.assert_array_equal(got, expected(x, w, bias, padding))


def test_cases_take_every_radix(any_device: vkq.Device) -> None:
    found = set()
    for x_shape, w_shape, dtype, padding, sums in CASES.values():
        x, w = extremes(1, dtype, x_shape), extremes(2, dtype, w_shape)
        said = explain(x, w, padding=padding, accumulate=sums, path="transform", device=any_device)  # type: ignore[arg-type]
        assert "requested by name" in said
        found |= {radix for radix in ("r8", "r16", "r32") if f"forward.{radix}" in said}
    assert found == {"r8", "r16", "r32"}


def test_blocks_and_parts(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are exact if an image has several blocks along each axis, and if templates are transformed in
    parts because they do not fit in memory at once."""
    monkeypatch.setattr(work, "BAND_BYTES", 1_000_000)
    monkeypatch.setattr(transform, "RADICES", {64: RADICES[64]})
    x, w = extremes(3, "uint8", (1, 1, 150, 130)), extremes(4, "int8", (9, 1, 20, 30))
    got = conv2d(x, w, padding=5, path="transform", device=device)
    np.testing.assert_array_equal(got, expected(x, w, None, 5))


@pytest.mark.parametrize("prime", PRIMES)
def test_roots(prime: int) -> None:
    """Each of PRIMES is prime, and the order of its root of unity is exactly ROOTS."""
    assert all(prime % n for n in range(2, 50_000))  # 50,000 is larger than the prime's square root
    found = [int(value) * pow(2**32, -1, prime) % prime for value in roots(prime)]
    assert len(set(found)) == ROOTS
    assert found[1] * found[-1] % prime == 1
    assert prime < 2**31


def test_primes() -> None:
    """One prime is used if all possible sums are distinct modulo this prime. Two primes are used if the sums
    are distinct modulo their product. Otherwise `primes_for` returns no prime."""
    second, first = PRIMES
    assert primes_for((-5, second - 6)) == (second,)
    assert primes_for((-5, second - 5)) == (first, second)
    assert primes_for((0, first * second - 1)) == (first, second)
    assert primes_for((0, first * second)) == ()
    assert first < second  # needed because residues of the first prime are used as residues of the second


@pytest.mark.parametrize("options", [{"stride": 2}, {"dilation": 2}, {"groups": 2}])
def test_left_to_others(any_device: vkq.Device, options: dict[str, int]) -> None:
    x, w = extremes(5, "int8", (1, 2, 9, 9)), extremes(6, "int8", (2, 2 // options.get("groups", 1), 3, 3))
    assert "transform" not in explain(x, w, **options, path="transform", device=any_device)
    p = Conv2dProblem.of(x.shape, w.shape, **options)
    got = conv2d(x, w, **options, path="transform", device=any_device)
    np.testing.assert_array_equal(got, reference.conv2d(x, w, None, p))


def test_taken_for_large_windows(software_device: vkq.Device) -> None:
    """The estimated cost selects the transform for windows of 100 x 100, and the dot product for windows of
    5 x 5."""
    x = np.broadcast_to(np.uint8(255), (1, 1, 1000, 1000))
    large, small = (np.broadcast_to(np.uint8(1), (1, 1, size, size)) for size in (100, 5))
    assert "number-theoretic transforms of" in explain(x, large, device=software_device)
    assert "kernel: the dot product" in explain(x, small, device=software_device)
    assert op.TRANSFORM == "transform"
