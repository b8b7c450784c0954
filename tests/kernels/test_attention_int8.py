"""Tests of attention to an int8 cache. The device's results equal those of the NumPy code, bit for bit.
NumPy's results are within the quantization bound of the plain formula."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels.test_attention import same
from vkq.kernels.attention import Strides
from vkq.kernels.attention_int8 import Int8Operands, attended_int8
from vkq.numerics.attention import SPAN, Tile, span_of
from vkq.numerics.attention_cache import packed, unpacked
from vkq.numerics.attention_int8 import Int8Rules, attention_int8
from vkq.ops import operand

ERROR = 0.5 + 2.0**-16  # greatest error of a cached number, in units of the scale
Arrays = dict[str, np.ndarray]


@dataclasses.dataclass(frozen=True)
class Case:
    """Attention to test. sizes: (batch, queries, heads, key heads, keys, width). lengths: the number of
    keys of each batch element. bias: the shape of the bias. sunk: whether there is an attention sink. The
    other fields are those of `Int8Rules`."""

    sizes: tuple[int, int, int, int, int, int]
    lengths: tuple[int, ...]
    follows: bool = True
    window: int = 0
    softcap: float = 0.0
    bias: tuple[int, ...] | None = None
    sunk: bool = False
    causal: bool = True
    guarded: bool = False

    @property
    def rules(self) -> Int8Rules:
        scale = float(np.float32(self.sizes[5] ** -0.5))
        more = self.window, self.softcap, self.causal, self.guarded
        return Int8Rules(self.sizes[5], scale, self.follows, *more)

    @property
    def lines(self) -> int:
        return self.sizes[2] // self.sizes[3] * self.sizes[1]

    def operands(self) -> Arrays:
        """Return q, k, v in float32, lengths and, if the case has them, bias and sink."""
        batch, queries, heads, groups, keys, width = self.sizes
        r = np.random.default_rng(0)
        shapes = {"q": (batch, queries, heads, width)} | dict.fromkeys("kv", (batch, groups, keys, width))
        found = {x: r.normal(0, 1.5, shape).astype(np.float32) for x, shape in shapes.items()}
        found["lengths"] = np.int32(self.lengths)
        if self.bias is not None:
            found["bias"] = r.normal(0, 2, self.bias).astype(np.float32)
        if self.sunk:
            found["sink"] = r.normal(0, 2, heads).astype(np.float32)
        return found


CASES = {
    "one number": Case((1, 1, 1, 1, 1, 1), (1,)),
    "a token": Case((2, 1, 8, 2, 60, 64), (60, 7)),
    "a token, parts of the keys": Case((2, 1, 8, 2, 290, 64), (290, 129)),
    "a token, wide, one head": Case((1, 1, 2, 2, 400, 128), (256,), sunk=True),
    "two tokens, a window": Case((1, 2, 4, 1, 300, 20), (290,), window=150, bias=(1, 4, 1, 300)),
    "a window that skips parts": Case((1, 1, 2, 1, 520, 16), (500,), window=40),
    "a prompt": Case((1, 19, 4, 2, 37, 64), (19,), follows=False),
    "prompts of two lengths": Case((2, 9, 2, 2, 9, 16), (9, 4), follows=False, window=3),
    "a prompt after a prompt": Case((1, 33, 4, 2, 140, 33), (100,), bias=(1, 1, 33, 140)),
    "rows and parts": Case((1, 7, 8, 2, 300, 128), (270,), sunk=True, window=200),
    "halves of words": Case((1, 7, 1, 1, 40, 128), (30,)),
    "softcap": Case((2, 3, 3, 3, 17, 5), (17, 11), softcap=1.5, bias=(2, 1, 3, 17)),
    "all keys": Case((2, 5, 4, 2, 40, 16), (40, 23), causal=False, bias=(2, 1, 1, 40)),
    "all keys, in parts": Case((2, 1, 4, 2, 300, 16), (300, 140), causal=False, sunk=True),
    "a sink, a prompt": Case((2, 40, 2, 1, 50, 24), (45, 40), sunk=True),
    "widest": Case((1, 2, 2, 2, 140, 512), (139,), sunk=True, softcap=3.0),
}


def run(device: vkq.Device, case: Case, given: Arrays) -> np.ndarray:
    """Return the device's result."""
    names = list(given)

    def build(b: Any, *values: Any) -> Any:
        x = dict(zip(names, values, strict=True))
        bias = (x["bias"], Strides.of(given["bias"].shape)) if "bias" in x else None  # type: ignore[arg-type]
        operands = Int8Operands(x["q"], x["k"], x["v"], x["lengths"], bias, x.get("sink"))
        return attended_int8(b, operands, case.rules)

    y: np.ndarray = operand.apply("attention", build, given, (), device, None, ("float32", "int32"))
    return y


def stepped(case: Case, x: Arrays) -> np.ndarray:
    """Return the result of the NumPy code."""
    operands = (x[name] for name in ("q", "k", "v", "lengths"))
    return attention_int8(*operands, case.rules, x.get("bias"), x.get("sink"))


def in_words(x: Arrays) -> Arrays:
    return x | {name: packed(x[name]) for name in "kv"}


def plain(case: Case, x: Arrays) -> np.ndarray:
    """Return attention for float keys and values, by the plain formula in float64."""
    _, queries, heads, groups, keys, width = case.sizes
    q, k, v = (x[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(one, heads // groups, 1) for one in (k, v))
    scores = np.einsum("bshd,bhtd->bhst", q, k) * width**-0.5
    if case.softcap:
        scores = case.softcap * np.tanh(scores / case.softcap)
    scores = scores + x.get("bias", 0.0)
    ends = x["lengths"][:, None]
    place = np.minimum(np.arange(queries)[None] + (ends - queries if case.follows else 0), ends - 1)
    place = place if case.causal else np.broadcast_to(ends - 1, place.shape)
    place, key = place[:, None, :, None], np.arange(keys)
    shown = (key <= place) & (key > place - (case.window or keys + 1))
    grown = np.where(shown, np.exp(scores), 0.0)
    total = grown.sum(-1, keepdims=True)
    if "sink" in x:
        total = total + np.exp(x["sink"].astype(np.float64))[None, :, None, None]
    found: np.ndarray = np.einsum("bhst,bhtd->bshd", grown / total, v)
    return found


@pytest.mark.parametrize("name", CASES)
def test_bits(device: vkq.Device, name: str) -> None:
    """The device's results equal those of the NumPy code, bit for bit. The NumPy results are close to the
    plain formula for dequantized keys and values. Their difference from the plain formula for the float
    keys and values is within the bound of docs/models.md."""
    case = CASES[name]
    x, width = case.operands(), case.sizes[5]
    words, most = in_words(x), float(np.abs(x["v"]).max())
    y = stepped(case, words)
    same(run(device, case, words), y)
    (k, k_scale), (v, v_scale) = (unpacked(words[name], width) for name in "kv")
    back = x | {"k": k * k_scale[..., None], "v": v * v_scale[..., None]}
    np.testing.assert_allclose(y, plain(case, back), rtol=0, atol=2e-5)
    delta = case.rules.scale * np.abs(x["q"].astype(np.float64)).sum(-1).max() * k_scale.max() * ERROR
    bound = v_scale.max() * ERROR + np.expm1(2 * delta) * most + 2e-5
    assert np.abs(y - plain(case, x)).max() <= bound


def test_cases_have_parts() -> None:
    """The cases cover one to five parts of the keys, three lengths of parts (128, 256 and 512 keys), and
    tiles of 1, 2, 4, 8 and 32 rows."""
    spans = {name: span_of(one.lines, one.sizes[5]) for name, one in CASES.items()}
    parts = {-(-one.sizes[4] // spans[name]) for name, one in CASES.items()}
    assert parts >= {1, 2, 3, 4, 5}
    assert {spans["a token"], spans["rows and parts"], spans["a prompt after a prompt"]} == {128, 256, 512}
    assert {Tile.of(one.lines, one.sizes[5]).rows for one in CASES.values()} >= {1, 2, 4, 8, 32}
    assert all(SPAN % Tile.of(lines, width).keys == 0 for lines in range(1, 64) for width in (64, 128, 512))


def test_hidden_words(device: vkq.Device) -> None:
    """Cached words beyond the length of a batch element may have any content: they change no bit of the
    result, even if their scales are NaN. A query that attends to a value with a NaN scale has NaN
    results."""
    case = CASES["a token, parts of the keys"]
    words = in_words(case.operands())
    want = run(device, case, words)
    for name in "kv":
        words[name][1, :, 129:] = -1  # a scale of NaN
    same(run(device, case, words), want)
    words["v"][0, 0, 200, -1] = np.float32(np.nan).view(np.int32)
    got = run(device, case, words)
    assert np.isnan(got[0, :, :4]).all()
    same(got[0, :, 4:].copy(), want[0, :, 4:].copy())
    same(got[1].copy(), want[1].copy())


@pytest.mark.parametrize("keys", [40, 300])
def test_guarded(device: vkq.Device, keys: int) -> None:
    """A query whose keys all have the bias -inf has NaN results; with *guarded* it has zeros. This holds for
    keys in one part (40) and in several parts (300)."""
    case = Case((1, 2, 2, 1, keys, 16), (keys,), causal=False, bias=(1, 1, 2, keys))
    words = in_words(case.operands())
    words["bias"][:, :, 1] = -np.inf
    assert np.isnan(run(device, case, words)[:, 1]).all()
    guarded = dataclasses.replace(case, guarded=True)
    y = run(device, guarded, words)
    same(y, stepped(guarded, words))
    assert (y[:, 1] == 0).all()
    same(y[:, :1].copy(), run(device, case, words)[:, :1].copy())


def test_software(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """With software float arithmetic, for devices that round wrongly, the results have the same bits."""
    monkeypatch.setattr(any_device, "_soft_float", True)
    case = Case((1, 1, 2, 1, 140, 8), (135,), sunk=True, softcap=2.0)
    words = in_words(case.operands())
    same(run(any_device, case, words), stepped(case, words))
