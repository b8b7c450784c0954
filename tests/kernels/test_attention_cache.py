"""Tests of the kernel that appends tokens to an int8 cache: it writes the same bits as the NumPy code."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from vkq.kernels.attention_cache import appended
from vkq.numerics.attention_cache import packed, words_of
from vkq.numerics.rows import lanes_of
from vkq.ops import operand
from vkq.runtime.builder import Builder


def vectors(*shape: int, seed: int = 0) -> np.ndarray:
    """Return random vectors whose magnitudes differ by many powers of ten."""
    r = np.random.default_rng(seed)
    return (r.normal(0, 1, shape) * np.exp(r.normal(0, 10, (*shape[:-1], 1)))).astype(np.float32)


def special(width: int) -> np.ndarray:
    """Return vectors (1, 12, 1, *width*) with ties, zeros, subnormal numbers, infinities and NaN."""
    x = vectors(12, width, seed=1)
    values = [-0.0, 1e-40, 2.0**-126, 2.0**-119, 3.4e38, np.inf, -np.inf, np.nan]
    for i, value in enumerate(values):
        x[i, (5 * i) % width] = value
    x[8] = np.resize(np.arange(-254, 255, 2) / 4, width)  # the scale is 1/2: half of the quotients are ties
    x[8, 0] = 127 / 2
    x[9], x[10] = np.resize([1e-40, -1e-41], width), 0
    x[11] = np.resize([2.0**-119, -(2.0**-126), 3 * 2.0**-121], width)  # scales near the smallest normal
    return x[None, :, None]


def append(device: vkq.Device, x: np.ndarray, start: Any, past: Any, total: int) -> np.ndarray:
    given = {"x": x} | {n: a for n, a in (("start", start), ("past", past)) if a is not None}

    def build(b: Any, x: Any, *more: Any) -> Any:
        rest = list(more)
        first = rest.pop(0) if start is not None else None
        return appended(b, x, first, rest.pop(0) if past is not None else None, total)

    y: np.ndarray = operand.apply("append", build, given, (total,), device, None, ("float32", "int32"))
    return y


CASES = {
    "a prompt": (1, 5, 2, 64, None, 0, 5),
    "odd widths": (2, 3, 3, 5, None, 0, 3),
    "one number": (1, 9, 2, 1, None, 0, 9),
    "a token in a buffer": (1, 1, 2, 64, [3], 12, 12),
    "the last place": (1, 1, 3, 20, [11], 12, 12),
    "growing, wide": (2, 3, 2, 128, [7, 4], 7, 10),
    "three words of each lane": (1, 4, 1, 96, [2], 4, 6),
    "tokens beyond the end": (1, 4, 2, 16, [3], 5, 5),
    "widest": (1, 3, 2, 512, [1], 2, 4),
}


@pytest.mark.parametrize("name", CASES)
def test_words(device: vkq.Device, name: str) -> None:
    """The words of new tokens equal those of the NumPy code. All other words keep the values of the past
    cache, or are 0 if there is none."""
    batch, tokens, groups, width, start, held, total = CASES[name]
    x = vectors(batch, tokens, groups, width)
    r, shape = np.random.default_rng(5), (batch, groups, held, words_of(width))
    past = r.integers(-(2**31), 2**31, shape, dtype=np.int32) if held else None
    got = append(device, x, None if start is None else np.int32(start), past, total)
    want = np.zeros((batch, groups, total, words_of(width)), np.int32)
    if past is not None:
        want[:, :, :held] = past
    for i in range(batch):
        first = 0 if start is None else start[i]
        end = min(first + tokens, total)
        want[i, :, first:end] = packed(x[i, : end - first]).swapaxes(0, 1)
    np.testing.assert_array_equal(got, want)


def test_in_place(any_device: vkq.Device) -> None:
    """If the new cache overwrites the past cache, only the words of new tokens are written."""
    x = vectors(2, 3, 2, 20)
    past = np.random.default_rng(5).integers(-(2**31), 2**31, (2, 2, 50, words_of(20)), dtype=np.int32)
    start = np.array([7, 48], np.int32)  # the last token of the second batch element is dropped
    given = [vkq.Tensor.from_numpy(a, any_device) for a in (x, start, past)]
    b = Builder(any_device)
    plan = b.plan(appended(b, *(b.input(tensor.spec) for tensor in given), 50))
    buffers = [tensor.buffer for tensor in given], [given[2].buffer]
    lanes = lanes_of(20)
    for steps, tokens in ((plan.steps, 50), (plan.on(*buffers).steps, 3)):
        assert steps[0].grids == ((0, -(-4 * tokens * lanes // 128), 1),)
    any_device.add(plan, *buffers)
    for i, first in enumerate(start):
        end = min(first + 3, 50)
        past[i, :, first:end] = packed(x[i, : end - first]).swapaxes(0, 1)
    np.testing.assert_array_equal(given[2].numpy(), past)


@pytest.mark.parametrize("width", [5, 64])
def test_special_vectors(device: vkq.Device, width: int) -> None:
    """Vectors with ties, zeros, subnormal numbers, infinities and NaN have the words of the NumPy code."""
    x = special(width)
    np.testing.assert_array_equal(append(device, x, None, None, 12)[:, 0], packed(x)[:, :, 0])


def test_words_in_software(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With software float arithmetic, for devices that round wrongly, the words are the same."""
    monkeypatch.setattr(any_device, "_soft_float", True)
    x = special(12)
    np.testing.assert_array_equal(append(any_device, x, None, None, 12)[:, 0], packed(x)[:, :, 0])
