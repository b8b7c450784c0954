"""Tests of 8-bit attention on matrix units, real or emulated: results equal the reference's bit for bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import pytest

import vkq
from tests.kernels import emulated
from tests.kernels.matrix_layers import units
from vkq import QParams
from vkq.kernels.attention import AttentionSizes
from vkq.kernels.attention_q8 import SHADER, UNITS, AttentionQ8
from vkq.kernels.attention_q8_tiles import Tile, best, matrix_tiles
from vkq.layout.extent import BLOCKED
from vkq.probe.matrices import Matrices, lacking

from .test_attention_q8 import Case, computed, one_form, wanted

SHAPES = ("16x16x32", "16x8x32", "16x16x16")


def blocked(*sizes: int, **rest: object) -> Case:
    return Case(*sizes, layout=BLOCKED, **rest)  # type: ignore[arg-type]


CASES = {
    "whole matrices": blocked(1, 2, 16, 64, 32, 64),
    "a mask for each image, odd rows": blocked(2, 3, 21, 19, 64, 32, (2, 1, 1, 19), table=True),
    "a mask for each query": blocked(1, 2, 37, 70, 32, 16, (1, 1, 37, 70), dtype="uint8", mask_first=True),
    "a mask for each head, wide heads": blocked(1, 2, 17, 130, 96, 128, (2, 1, 130)),
    "columns of one value": blocked(2, 2, 35, 35, 64, 64, columns=True),
    "LiteRT": blocked(1, 2, 66, 33, 64, 48, litert=True),
}


def with_units(
    device: vkq.Device, patch: pytest.MonkeyPatch, shape: str = SHAPES[0], subgroup: int = 32
) -> None:
    """Give the device matrix units of this shape, and let attention be one dispatch on them. Skip the test if
    the device's matrix units have other shapes."""
    one_form(device, "s8s8", patch, matrices=True)
    if lacking(device.capabilities) is not None:
        emulated.emulate(device, patch, shape, subgroup=subgroup, choices=(("attention_in_steps", False),))
    else:
        m, n, k = map(int, shape.split("x"))
        units(device, patch, Matrices(m, n, k, subgroup=subgroup))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CASES)
def test_matrix_units(
    strict_device: vkq.Device, name: str, shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_units(strict_device, monkeypatch, shape)
    y, ran, why = computed(strict_device, CASES[name])
    assert ran == (UNITS,)
    assert f"on matrix units ({shape})" in why
    np.testing.assert_array_equal(y, wanted(CASES[name]))


@pytest.mark.parametrize("keys", [18, 19, 61])
def test_keys_beyond_the_last(strict_device: vkq.Device, keys: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding after the last key does not affect results, although here its mask (0) exceeds all mask
    values (-100)."""
    with_units(strict_device, monkeypatch)
    case = blocked(2, 2, 17, keys, 32, 32, (2, 1, 1, keys))
    steps, (q, k, v, mask) = case.steps, case.arrays
    sums = steps.scores[2], QParams(1.5, 0), QParams(1.2, 0)
    k[..., -1, :] = 127  # the last key has the largest or the smallest score of many rows
    monkeypatch.setattr(Case, "arrays", [q, k, v, np.full_like(mask, -100)])
    changed = dataclasses.replace(steps, sums=sums, softmax=(sums[2], steps.softmax[1]))
    monkeypatch.setattr(Case, "steps", changed)
    y, ran, _ = computed(strict_device, case)
    assert ran == (UNITS,)
    np.testing.assert_array_equal(y, wanted(case))


def test_large_sums(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of weights and v may use another zero point for the weights than the softmax stored.
    Results equal the reference's, also with large sums."""
    with_units(strict_device, monkeypatch)
    case = blocked(1, 2, 17, 200, 32, 32)
    steps, (q, k, v) = case.steps, case.arrays
    weights, of_v, _ = steps.results
    results = dataclasses.replace(weights, zero_point=127), of_v, QParams(16.0, -19)
    monkeypatch.setattr(Case, "arrays", [q, k, np.maximum(v, 120)])
    monkeypatch.setattr(Case, "steps", dataclasses.replace(steps, results=results))
    y, ran, _ = computed(strict_device, case)
    assert ran == (UNITS,)
    np.testing.assert_array_equal(y, wanted(case))


@pytest.mark.parametrize("subgroup", [16, 64])
def test_other_subgroups(strict_device: vkq.Device, subgroup: int, monkeypatch: pytest.MonkeyPatch) -> None:
    with_units(strict_device, monkeypatch, "16x16x16", subgroup)
    case = CASES["a mask for each image, odd rows"]
    y, ran, _ = computed(strict_device, case)
    assert ran == (UNITS,)
    np.testing.assert_array_equal(y, wanted(case))


@pytest.mark.parametrize("rows", [16, 32])
@pytest.mark.parametrize("twice", [False, True])
def test_every_tile(
    strict_device: vkq.Device, rows: int, twice: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_units(strict_device, monkeypatch)
    tiles, ran_tiles = AttentionQ8._tiles, []

    def one(self: AttentionQ8) -> Iterator[Tile]:
        found = [t for t in tiles(self) if t.get("ROWS") == rows and (t["TILE"] == 128) == twice]
        ran_tiles.extend(found)
        return iter(found or tiles(self))

    monkeypatch.setattr(AttentionQ8, "_tiles", one)
    case = blocked(1, 2, 70, 150, 32, 48, (1, 1, 1, 150))
    y, ran, _ = computed(strict_device, case)
    assert ran == (UNITS,)
    assert ran_tiles
    np.testing.assert_array_equal(y, wanted(case))


def test_few_queries_and_other_matrices_use_dot_products(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_units(strict_device, monkeypatch)
    for case in (blocked(1, 2, 15, 64, 32, 32), blocked(1, 2, 16, 64, 48, 32)):
        y, ran, _ = computed(strict_device, case)
        assert ran == (f"{SHADER}:s8s8.16c",)
        np.testing.assert_array_equal(y, wanted(case))
    emulated.emulate(
        strict_device, monkeypatch, "16x16x32", form="u8u8", choices=(("attention_in_steps", False),)
    )
    assert computed(strict_device, CASES["whole matrices"])[1] == (f"{SHADER}:s8s8.16c",)


SIZES = {  # (images x heads, tokens): (rows, keys) of the fastest tile measured on an H200
    (12, 197): (16, 128),
    (384, 197): (32, 64),
    (384, 128): (32, 64),
    (12, 128): (16, 128),
}


@pytest.mark.parametrize("size", SIZES)
def test_chosen_tile(size: tuple[int, int]) -> None:
    heads, tokens = size
    sizes = AttentionSizes(heads // 12, 12, 12, tokens, tokens, 64, 64)
    tile = best(list(matrix_tiles(sizes, Matrices(16, 16, 32))), sizes, 132)
    assert (tile["ROWS"], tile["TILE"]) == SIZES[size]
