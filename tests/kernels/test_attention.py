"""Tests of tiled attention: the device's results equal the tiled NumPy reference bit for bit. The reference
is close to attention with one softmax over all scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import vkq
from vkq.kernels.attention import AttentionSizes, Strides, attended
from vkq.kernels.attention_form import AttentionForm, Places
from vkq.layout.extent import Spec
from vkq.numerics.attention import Seen, Tile, attention
from vkq.ops import operand

SHARED_BYTES = 16384


def operands(sizes: AttentionSizes, dtype: str = "float32", seed: int = 0) -> list[np.ndarray]:
    s, r = sizes, np.random.default_rng(seed)
    shapes = (s.batch, s.heads, s.queries, s.depth), (s.batch, s.groups, s.keys, s.depth)
    shapes = (*shapes, (s.batch, s.groups, s.keys, s.width))  # type: ignore[assignment]
    return [r.normal(0, 1.5, shape).astype(dtype) for shape in shapes]


def run(
    device: vkq.Device, sizes: AttentionSizes, given: list[np.ndarray], seen: Seen, bias: np.ndarray | None,
    scale: float, tokens_first: bool = False, places: np.ndarray | None = None, to: str = "float32",
) -> Any:  # fmt: skip
    """Run attention on a device. *tokens_first*: operands and result are (batch, tokens, heads,
    elements). *places*: positions of the queries; with *places*, *bias* must be None. *to*: the type of the
    result that is asked for."""
    s = sizes
    shapes = [x.shape for x in given] + [(s.batch, s.heads, s.queries, s.width)]
    steps = [Strides.of(shape) for shape in shapes]
    if tokens_first:
        moved = [Strides.of((b, t, h, c)) for b, h, t, c in shapes]
        steps = [Strides(one.batch, one.row, one.head, one.column) for one in moved]
        given = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in given]
    result = (s.batch, s.queries, s.heads, s.width) if tokens_first else shapes[3]

    def build(b: Any, q: Any, k: Any, v: Any, more: Any = None) -> Any:
        added = (more, Strides.of(bias.shape)) if bias is not None else None
        at = more if places is not None else None
        return attended(b, (q, k, v), tuple(steps), s, Spec(result, to), scale, seen, added, False, at)  # type: ignore[arg-type]

    named = dict(zip("qkvb", [*given, *[x for x in (bias, places) if x is not None]], strict=False))
    y = operand.apply("attention", build, named, (), device, None, ("float32", "float16", "int32"))
    return y.transpose(0, 2, 1, 3) if tokens_first else y


def same(got: np.ndarray, want: np.ndarray) -> None:
    assert got.shape == want.shape
    np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint32), want.view(np.uint32))


CASES = {
    "one number": (AttentionSizes(1, 1, 1, 1, 1, 1, 1), Seen(), None),
    "odd, less than a tile": (AttentionSizes(2, 3, 3, 5, 7, 5, 3), Seen(), (2, 1, 5, 7)),
    "several tiles, ragged": (AttentionSizes(1, 2, 2, 35, 71, 33, 40), Seen(), None),
    "causal": (AttentionSizes(2, 2, 1, 37, 37, 64, 64), Seen(True), None),
    "causal, with a cache": (AttentionSizes(1, 4, 2, 9, 75, 32, 32), Seen(True, 66), (1, 4, 1, 75)),
    "a window that skips tiles": (AttentionSizes(1, 2, 1, 40, 131, 32, 64), Seen(True, 91, 17), None),
    "one query, shared keys": (AttentionSizes(2, 8, 2, 1, 150, 80, 96), Seen(), (1, 1, 1, 150)),
    "one query": (AttentionSizes(1, 2, 2, 1, 260, 128, 128), Seen(), None),
    "two rows": (AttentionSizes(1, 2, 1, 1, 130, 16, 20), Seen(), None),
    "one token, a window within one part": (
        AttentionSizes(1, 4, 2, 1, 700, 32, 40),
        Seen(True, 650, 90),
        (1, 4, 1, 700),
    ),
    "several tiles of rows, several parts": (AttentionSizes(2, 2, 1, 40, 1030, 16, 16), Seen(), None),
    "wide": (AttentionSizes(1, 1, 1, 19, 50, 96, 256), Seen(), None),
    "widest": (AttentionSizes(1, 2, 2, 9, 40, 256, 512), Seen(), (1, 2, 1, 1)),
}


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", CASES)
def test_bits(device: vkq.Device, name: str, dtype: str) -> None:
    sizes, seen, shape = CASES[name]
    bias = None if shape is None else np.random.default_rng(1).normal(0, 3, shape).astype(np.float32)
    given, scale = operands(sizes, dtype), float(np.float32(sizes.depth**-0.5))
    want = attention(*(x.astype(np.float32) for x in given), scale, seen, bias)
    same(run(device, sizes, given, seen, bias, scale, tokens_first=dtype == "float16"), want)


@pytest.mark.usefixtures("conversions")
@pytest.mark.parametrize("name", ["one query", "two rows", "one token, a window within one part", "wide"])
def test_float16_results(device: vkq.Device, name: str) -> None:
    """The dispatch that combines parts of the keys rounds results to float16, if it is asked to. A kernel of
    one dispatch returns float32 instead. NaN has the bits 0x7E00."""
    sizes, seen, _ = CASES[name]
    given, scale = operands(sizes), float(np.float32(sizes.depth**-0.5))
    given[0][0, 0, 0, 0] = np.nan
    given[2] *= 1e6  # some results are infinite in float16
    want = attention(*given, scale, seen, None)
    got = run(device, sizes, given, seen, None, scale, tokens_first=True, to="float16")
    if name == "wide":
        return same(got, want)
    with np.errstate(over="ignore"):
        rounded = np.where(np.isnan(want), np.float16(np.nan), want.astype(np.float16))
    assert (np.isinf(rounded).any(), np.isnan(rounded).any()) == (True, True)
    np.testing.assert_array_equal(np.ascontiguousarray(got).view(np.uint16), rounded.view(np.uint16))


def test_hidden_keys_infinities_and_nan(device: vkq.Device) -> None:
    """A bias of -inf or of the lowest float hides some keys of a row, or all of them. Results have NumPy's
    bits, also if q holds a NaN or v holds an infinity."""
    sizes = AttentionSizes(1, 6, 6, 3, 70, 8, 12)
    bias, given = np.zeros((1, 6, 1, 70), np.float32), operands(sizes)
    bias[0, 0, 0, :66] = -np.inf
    bias[0, 1, 0, 3:] = np.finfo(np.float32).min
    bias[0, 2] = -np.inf
    bias[0, 3] = np.finfo(np.float32).min
    given[0][0, 4, 1, 2], given[2][0, 5, 40, 3] = np.nan, np.inf
    want = attention(*given, 0.5, Seen(), bias)
    same(run(device, sizes, given, Seen(), bias, 0.5), want)
    assert np.isnan(want[0, 2]).all()
    assert np.isnan(want[0, 4, 1]).all()
    np.testing.assert_allclose(want[0, 3], np.broadcast_to(given[2][0, 3].mean(0), (3, 12)), atol=1e-5)
    assert np.isposinf(want[0, 5, :, 3]).all()
    assert np.isfinite(np.delete(want, (2, 4, 5), axis=1)).all()


PLACES = {
    "one query, a part of the keys": (AttentionSizes(2, 8, 2, 1, 700, 32, 40), 0, [[300], [1]]),
    "parts that no query sees": (AttentionSizes(1, 4, 1, 2, 600, 16, 16), 0, [[130, 131]]),
    "one line for all batches": (AttentionSizes(3, 2, 2, 5, 90, 24, 16), 0, [[40, 41, 42, 43, 44]]),
    "any order, beyond the last key": (AttentionSizes(2, 2, 1, 3, 75, 8, 8), 0, [[0, 74, 9], [99, 5, 60]]),
    "a window, rows of several heads": (AttentionSizes(1, 4, 1, 3, 260, 16, 24), 50, [[200, 120, 210]]),
    "tiles of rows": (AttentionSizes(1, 2, 1, 70, 150, 16, 16), 0, [list(range(80, 150))]),
}


@pytest.mark.parametrize("name", PLACES)
def test_positions_of_the_run(device: vkq.Device, name: str) -> None:
    """A buffer holds the position of each query, and a query sees the keys up to its position. Tiles of
    keys after the last position are not read: NaN there changes nothing."""
    sizes, window, lines = PLACES[name]
    places, seen, given = np.array(lines, np.int32), Seen(True, 0, window), operands(sizes)
    want = attention(*given, 0.25, seen, None, False, places)
    for i, line in enumerate(np.broadcast_to(places, (sizes.batch, sizes.queries))):
        tile = Tile.of(sizes.lines, sizes.width).keys
        end = (int(line.max()) // tile + 1) * tile
        given[1][i, :, end:], given[2][i, :, end:] = np.nan, np.nan
    same(run(device, sizes, given, seen, None, 0.25, places=places), want)


def test_software(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(any_device, "_soft_float", True)
    sizes = AttentionSizes(1, 2, 1, 5, 37, 8, 6)
    given = operands(sizes)
    same(run(any_device, sizes, given, Seen(True, 32), None, 0.3), attention(*given, 0.3, Seen(True, 32)))


def unfused(given: list[np.ndarray], scale: float, seen: Seen, heads: int) -> tuple[np.ndarray, ...]:
    """Return float64 attention without tiles: the result, the sum of the magnitudes of the terms weight *
    v, and the range of each row's scores."""
    q, k, v = (x.astype(np.float64) for x in given)
    k, v = (np.repeat(x, heads // x.shape[1], 1) for x in (k, v))
    scores = q @ k.swapaxes(2, 3) * scale
    scores = np.where(seen.flags(q.shape[2], k.shape[2]), scores, -np.inf)
    apart = scores.max(-1, keepdims=True) - scores
    weights = np.exp(-apart)
    weights /= weights.sum(-1, keepdims=True)
    return weights @ v, weights @ np.abs(v), np.where(np.isfinite(apart), apart, 0).max(-1, keepdims=True)


@pytest.mark.parametrize("seen", [Seen(), Seen(True, 200, 90)], ids=["all", "window"])
def test_near_the_real_value(seen: Seen) -> None:
    """The tiled NumPy reference is within a rounding bound of float64 attention. q and k are small
    integers, so that scores are exact and only the later operations round."""
    near_the_real_value(AttentionSizes(1, 4, 2, 31, 231, 16, 24), seen)


def test_parts_are_near_the_real_value() -> None:
    near_the_real_value(AttentionSizes(1, 4, 2, 1, 1290, 16, 24), Seen())


def near_the_real_value(sizes: AttentionSizes, seen: Seen) -> None:
    r = np.random.default_rng(5)
    given = operands(sizes)
    given[:2] = [r.integers(-3, 4, x.shape).astype(np.float32) for x in given[:2]]
    want, terms, apart = unfused(given, 0.5, seen, sizes.heads)
    tiles = -(-sizes.keys // Tile.of(sizes.lines, sizes.width).keys)
    bound = (sizes.keys + 4 * tiles + 2 * np.minimum(apart, 104) + 8) * 2.0**-24 * terms
    got = attention(*given, 0.5, seen)
    assert np.all(np.abs(got - want) <= bound)
    assert np.abs(got - want).max() > 0


def test_sizes_of_tiles() -> None:
    """Every tile fits 16 KiB of shared memory, which all devices have. The number of keys of a tile is a
    multiple of its number of lanes."""
    for width in (1, 40, 64, 65, 128, 129, 256, 512):
        for lines in (1, 2, 3, 5, 9, 17, 100):
            tile = Tile.of(lines, width)
            assert tile.rows * width <= 4096
            assert tile.keys % tile.lanes == 0
            types, last = ("float32", "float32", "float32"), (False, False, False, False, 0, False, False)
            for depth in (16, 64):
                part = AttentionForm(depth, width, tile, types, *last).part
                assert Places.of(tile, part).end * 4 <= SHARED_BYTES
