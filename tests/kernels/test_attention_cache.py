"""Tests of the int8 cache: its words have the bits of the NumPy steps, and attention to it has the bits of
its steps, within the bound of the quantization."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels.test_attention import operands, same
from vkq.kernels.attention import AttentionSizes, Strides, attended
from vkq.kernels.attention_cache import appended
from vkq.layout.extent import Spec
from vkq.numerics.attention import Seen, attention
from vkq.numerics.attention_cache import packed, unpacked, words_of
from vkq.ops import operand

ERROR = 0.5 + 2.0**-16  # most error of a number, in scales


def vectors(*shape: int, seed: int = 0) -> np.ndarray:
    """Return vectors of very different magnitudes."""
    r = np.random.default_rng(seed)
    return (r.normal(0, 1, shape) * np.exp(r.normal(0, 10, (*shape[:-1], 1)))).astype(np.float32)


def special(width: int) -> np.ndarray:
    """Return vectors (1, 12, 1, *width*) with ties, zeros, subnormal numbers, infinities and NaN."""
    x = vectors(12, width, seed=1)
    values = [-0.0, 1e-40, 2.0**-126, 2.0**-119, 3.4e38, np.inf, -np.inf, np.nan]
    for i, value in enumerate(values):
        x[i, (5 * i) % width] = value
    x[8] = np.resize(np.arange(-254, 255, 2) / 4, width)  # by the scale 1/2, half of the quotients are ties
    x[8, 0] = 127 / 2
    x[9], x[10] = np.resize([1e-40, -1e-41], width), 0
    x[11] = np.resize([2.0**-119, -(2.0**-126), 3 * 2.0**-121], width)  # the scale is barely normal
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
    """The new tokens' words are those of the NumPy steps; other words are those of the past, or 0."""
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


@pytest.mark.parametrize("width", [5, 64])
def test_special_vectors(device: vkq.Device, width: int) -> None:
    x = special(width)
    np.testing.assert_array_equal(append(device, x, None, None, 12)[:, 0], packed(x)[:, :, 0])


def test_words_in_software(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that rounds differently computes the steps with integers, to the same words."""
    monkeypatch.setattr(any_device, "_soft_float", True)
    x = special(12)
    np.testing.assert_array_equal(append(any_device, x, None, None, 12)[:, 0], packed(x)[:, :, 0])


ATTENTION = {
    "one query, shared keys": (AttentionSizes(2, 8, 2, 1, 150, 64, 64), Seen(), (2, 1, 1, 150)),
    "a prompt": (AttentionSizes(1, 4, 2, 19, 37, 16, 16), Seen(True, 18), None),
    "whole words of columns": (AttentionSizes(1, 4, 2, 19, 37, 64, 64), Seen(True, 18), None),
    "halves of words": (AttentionSizes(1, 1, 1, 7, 40, 20, 128), Seen(), None),
    "odd widths": (AttentionSizes(2, 3, 3, 5, 7, 5, 3), Seen(), (2, 1, 5, 7)),
    "several tiles, ragged": (AttentionSizes(1, 2, 2, 35, 71, 33, 40), Seen(), None),
    "one query, wide": (AttentionSizes(1, 2, 2, 1, 260, 128, 128), Seen(True, 200, 90), None),
    "widest": (AttentionSizes(1, 2, 2, 9, 40, 256, 512), Seen(), (1, 2, 1, 1)),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_attention(device: vkq.Device, name: str) -> None:
    """Attention to words has the bits of its steps; its distance from attention to floats is within the bound
    of docs/models.md."""
    s, seen, shape = ATTENTION[name]
    bias = None if shape is None else np.random.default_rng(1).normal(0, 3, shape).astype(np.float32)
    q, k, v = operands(s)
    words, scale = [packed(k), packed(v)], float(np.float32(s.depth**-0.5))
    (k_codes, k_scale), (v_codes, v_scale) = (
        unpacked(x, n) for x, n in zip(words, (s.depth, s.width), strict=True)
    )
    steps = [Strides.of(x.shape) for x in (q, *words, np.empty((s.batch, s.heads, s.queries, s.width)))]

    def build(b: Any, q: Any, k: Any, v: Any, more: Any = None) -> Any:
        added = (more, Strides.of(bias.shape)) if bias is not None else None
        y = Spec((s.batch, s.heads, s.queries, s.width), "float32")
        return attended(b, (q, k, v), tuple(steps), s, y, scale, seen, added)  # type: ignore[arg-type]

    named = dict(zip("qkvb", [q, *words, *([bias] if bias is not None else [])], strict=False))
    got = operand.apply("attention", build, named, (), device, None, ("float32", "int32"))
    same(got, attention(q, k_codes, v_codes, scale, seen, bias, scales=(k_scale, v_scale)))
    of_head = np.repeat(k_scale, s.heads // s.groups, 1)[:, :, None]
    moved = np.abs(q.astype(np.float64)).sum(-1)[..., None] * of_head * (ERROR * scale)
    delta = moved.max(-1, keepdims=True)
    most = np.repeat(np.abs(v).max((2, 3)), s.heads // s.groups, 1)[:, :, None, None]
    bound = v_scale.max() * ERROR + np.expm1(2 * delta) * most + 1e-5 * (1 + most)
    apart = np.abs(got - attention(q, k, v, scale, seen, bias))
    assert (apart <= bound).all()
    assert apart.max() > 1e-4  # the codes were read
