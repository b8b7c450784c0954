"""Tests of attention on float16 matrix units: results are within the bound that the kernel's module states.
SwiftShader runs emulated matrix units."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels import emulated
from tests.kernels.test_attention import operands
from vkq.kernels.attention import AttentionSizes, Strides
from vkq.kernels.attention_half import TILE, HalfAttention
from vkq.layout.extent import Spec
from vkq.numerics.attention import Seen
from vkq.ops import operand
from vkq.select.path import half_refusal

HALVES, MIXED = ("float16", "float16", "float16"), ("float32", "float16", "float16")
FLOATS = ("float32", "float32", "float32")
# (dtypes of q, k and v; sizes; which keys a query sees; shape of the bias, or positions of the queries;
# MxNxK of the matrices). Each case is one compilation (a second on SwiftShader), so it combines several
# features. lavapipe, which would take 30 to 90 s for each emulated case, runs none.
CASES: dict[str, tuple[tuple[str, str, str], AttentionSizes, Seen, Any, str]] = {
    "ragged, shared keys": (HALVES, AttentionSizes(2, 4, 2, 9, 131, 16, 48), Seen(), None, "16x8x16"),
    "a wide head": (MIXED, AttentionSizes(1, 1, 1, 20, 70, 32, 80), Seen(True, 50), None, "16x16x16"),
    "a window": (FLOATS, AttentionSizes(1, 2, 1, 9, 231, 16, 16), Seen(True, 191, 17), None, "16x8x8"),
    "a bias": (MIXED, AttentionSizes(2, 2, 1, 9, 75, 16, 16), Seen(True, 57), (2, 1, 9, 75), "16x16x16"),
    "positions": (
        MIXED, AttentionSizes(2, 4, 1, 5, 150, 16, 16), Seen(True, 0, 70),
        [[0, 140, 9, 8, 3], [99, 5, 60, 7, 7]], "16x16x16",
    ),
}  # fmt: skip


@pytest.fixture
def units(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> vkq.Device:
    shape = getattr(request, "param", "16x16x16")
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, shape, form="f16")
    return strict_device


def run(
    device: vkq.Device, sizes: AttentionSizes, given: list[np.ndarray], seen: Seen, more: Any, scale: float,
    guarded: bool = False, to: str = "float32",
) -> np.ndarray:  # fmt: skip
    """Run attention on q, k and v, which become (batch, tokens, heads, elements). *more*: a float32 bias,
    int32 positions of the queries, or None. *to*: the type of the result that is asked for."""
    s = sizes
    shapes = [x.shape for x in given] + [(s.batch, s.heads, s.queries, s.width)]
    moved = [Strides.of((b, t, h, c)) for b, h, t, c in shapes]
    steps = [Strides(one.batch, one.row, one.head, one.column) for one in moved]
    q, k, v = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in given)
    units = HalfAttention.of(device, (q.dtype.name, k.dtype.name, v.dtype.name), steps, s, True)
    assert isinstance(units, HalfAttention), units

    def build(b: Any, q: Any, k: Any, v: Any, more: Any = None) -> Any:
        shape = more.spec.shape if more else ()
        whole = (1,) * (4 - len(shape)) + shape
        bias = (more, Strides.of(whole)) if more and more.spec.dtype == "float32" else None
        places = more if more and bias is None else None
        y = Spec((s.batch, s.queries, s.heads, s.width), to)
        return units.build(b, (q, k, v), steps, s, y, scale, seen, bias, guarded, places)

    named = {"q": q, "k": k, "v": v} | ({} if more is None else {"more": more})
    y = operand.apply("attention", build, named, (), device, None, ("float32", "float16", "int32"))
    return y.transpose(0, 2, 1, 3)  # type: ignore[no-any-return]


def within_the_bound(
    got: np.ndarray, given: list[np.ndarray], scale: float, shown: np.ndarray, bias: Any
) -> None:
    """Compare with attention in float64. *shown*: an array of flags, True where a query sees a key."""
    q, k, v = (x.astype(np.float64) for x in given)
    k, v = (np.repeat(x, q.shape[1] // x.shape[1], 1) for x in (k, v))
    products, depth, keys = np.abs(q) @ np.abs(k).swapaxes(2, 3), q.shape[3], k.shape[2]
    scores = q @ k.swapaxes(2, 3) * scale + (0 if bias is None else bias.astype(np.float64))
    scores = np.where(shown, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    rounded = sum(x.dtype == np.float32 for x in given[:2])
    apart = (
        ((depth + 8) * 2.0**-23 + rounded * 2.0**-11)
        * scale
        * np.where(shown, products, 0).max(-1, keepdims=True)
    )
    terms = (keys + 4 * -(-keys // TILE)) * 2.0**-23
    bound = (2.0**-10 * (1 + (given[2].dtype == np.float32)) + 2 * apart + terms) * (
        weights @ np.abs(v)
    ) + keys * 2.0**-24 * np.abs(v).max()
    assert (np.abs(got - weights @ v) <= bound).all(), (np.abs(got - weights @ v) / bound).max()


@pytest.mark.parametrize("name", CASES)
def test_near_the_real_value(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    dtypes, sizes, seen, more, shape = CASES[name]
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, shape, form="f16")
    given, scale = operands(sizes, dtypes[1]), float(np.float32(sizes.depth**-0.5))
    given[0] = operands(sizes, dtypes[0])[0]
    bias = places = None
    if isinstance(more, list):
        places = np.array(more, np.int32)
    elif more is not None:
        bias = np.random.default_rng(1).normal(0, 3, more).astype(np.float32)
    shown = seen.flags(sizes.queries, sizes.keys, places)
    shown = shown[:, None] if shown.ndim == 3 else shown
    hidden = ~shown.reshape(-1, sizes.keys).any(0)  # no query sees these keys, which may hold NaN
    marked = [given[0], *(np.where(hidden[:, None], np.array(np.nan, x.dtype), x) for x in given[1:])]
    got = run(strict_device, sizes, marked, seen, bias if places is None else places, scale)
    within_the_bound(got, given, scale, shown, bias)


def test_hidden_keys_infinities_and_nan(units: vkq.Device) -> None:
    """A bias of -inf hides a key, and a NaN in q affects only its own query. Special cases:

    - If all keys of a query are hidden, the query's result is NaN, or 0 if *guarded*.
    - If all keys have the lowest float as their bias, the result is the mean of the values that the query
      sees.
    - Keys after the last key that a query sees may hold NaN."""
    sizes = AttentionSizes(1, 5, 5, 16, 140, 16, 16)
    given = operands(sizes, "float16")
    bias = np.zeros((1, 5, 1, 140), np.float32)
    bias[0, 0, 0, 3:] = -np.inf
    bias[0, 1] = -np.inf
    bias[0, 2] = np.finfo(np.float32).min
    given[0][0, 3, 4, 2] = np.nan
    seen = Seen(True, 84)
    for x in given[1:]:
        x[:, :, 100:] = np.nan
    for guarded in (False, True):
        got = run(units, sizes, given, seen, bias, 0.25, guarded)
        assert np.isnan(got[0, 1]).all() != guarded
        assert (got[0, 1] == 0).all() == guarded
        assert np.isnan(got[0, 3, 4]).all()
        assert np.isfinite(np.delete(got, (1, 3), axis=1)).all()
        assert np.isfinite(np.delete(got[0, 3], 4, axis=0)).all()
        for query in (0, 15):
            mean = given[2][0, 2, : 85 + query].astype(np.float64).mean(0)
            np.testing.assert_allclose(got[0, 2, query], mean, atol=2e-3)
    fed = [given[0][:, :1], given[1][:, :1, :3], given[2][:, :1, :3]]
    within_the_bound(got[:, :1], fed, 0.25, np.ones((16, 3), np.bool_), None)


def test_float16_results(units: vkq.Device) -> None:
    """Float16 results are the float32 results, rounded. A device that may round wrongly returns float32."""
    sizes, seen = AttentionSizes(1, 5, 5, 16, 140, 16, 16), Seen(True, 84)
    given, bias = operands(sizes, "float16"), np.zeros((1, 5, 1, 140), np.float32)
    bias[0, 1] = -np.inf  # all keys of this head are hidden, so its results are NaN
    given[2][0, 0] *= 2.0**-12  # subnormal results
    wide, found = (run(units, sizes, given, seen, bias, 0.25, to=to) for to in ("float32", "float16"))
    assert found.dtype == ("float16" if units.converts else "float32")
    np.testing.assert_array_equal(found, wide.astype(found.dtype))
    assert np.isnan(found[0, 1]).all()


def test_replays(units: vkq.Device) -> None:
    """Repeated runs (200 on hardware) give the same bytes."""
    sizes, seen = AttentionSizes(1, 5, 5, 16, 140, 16, 16), Seen(True, 84)
    given, bias = operands(sizes, "float16"), np.zeros((1, 5, 1, 140), np.float32)
    first = run(units, sizes, given, seen, bias, 0.25)
    for _ in range(emulated.REPLAYS):
        np.testing.assert_array_equal(run(units, sizes, given, seen, bias, 0.25), first)


REFUSALS = {
    "keys and values are not float16": (("float16", "float32", "float16"), (16, 16, 16), 1),
    "15 queries share keys": (HALVES, (15, 16, 16), 1),
    "multiples of 16 up to 256": (HALVES, (16, 24, 16), 1),
    "a value 272": (HALVES, (16, 16, 272), 1),
    "multiples of 8": (HALVES, (16, 16, 16), 3),
}


@pytest.mark.parametrize("why", REFUSALS)
def test_refusals(units: vkq.Device, why: str) -> None:
    dtypes, (queries, depth, width), column = REFUSALS[why]
    sizes = AttentionSizes(1, 1, 1, queries, 8, depth, width)
    found = HalfAttention.of(units, dtypes, [Strides(0, 0, 64, column)] * 4, sizes)
    assert isinstance(found, str)
    assert why in found


def test_without_matrix_units(any_device: vkq.Device) -> None:
    if (why := half_refusal(any_device)) is None:
        pytest.skip("the device has float16 matrix units")
    sizes = AttentionSizes(1, 1, 1, 16, 8, 16, 16)
    assert HalfAttention.of(any_device, HALVES, [Strides(0, 0, 16)] * 4, sizes) == why
