"""Tests of products of few float32 rows on bfloat16 matrix units: registers hold each value's three parts
(bf16x3), and subgroups split the sum over k."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import profile_says, reported
from tests.runtime.work import replayed
from vkq.kernels import half_gemv
from vkq.layout.extent import Spec
from vkq.probe import selftest
from vkq.probe.matrices import BRAIN, HALF
from vkq.problem.names import parse
from vkq.select.path import half_refusal

from . import emulated

SHAPES = ("16x8x16 f16", "16x16x16 bf16")


@pytest.fixture
def units(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    for module in (half_gemv, selftest):
        profile_says(monkeypatch, module, multiprocessors=2, matrix_pairs=True)
    if half_refusal(strict_device, BRAIN):
        emulated.emulate(strict_device, monkeypatch, *SHAPES)
    return strict_device


def refuse(monkeypatch: pytest.MonkeyPatch, device: vkq.Device, test: str, said: str = "something") -> None:
    """Make the report of the self-test say that *test* failed."""
    found = dataclasses.replace(selftest.report(device), failures={test: said})
    monkeypatch.setattr(selftest, "report", lambda _: found)


# Some numbers of rows do not fill half a matrix, a matrix or a tile; columns do not fill a workgroup.
# There are fewer chunks of k than subgroups, one chunk for some subgroups, or several for all.
@pytest.mark.parametrize(("rows", "tall", "k"), [
    (8, 8, 128), (5, 8, 1280), (13, 16, 1408), (16, 16, 2176), (17, 32, 256), (29, 32, 1408), (33, 48, 256),
    (64, 64, 640),
])  # fmt: skip
@pytest.mark.parametrize("signed", [True, False])
def test_rows_as_they_are(
    rows: int, tall: int, k: int, signed: bool, units: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(half_gemv, "worth_parts", lambda *_: True)
    rng = np.random.default_rng(rows + k)
    data = random_data(parse(f"linear[M={rows},K={k},N=44]"), rng, "int8", "int8", w_zero_points="channel")
    points = np.asarray(data.w_zero_point)[:, None]
    if signed:
        data = dataclasses.replace(data, w=np.clip(data.w, points - 127, points + 127).astype(np.int8))
    x = rng.normal(size=(rows, k)).astype(np.float32)
    options: dict[str, Any] = {"w_zero_point": data.w_zero_point, "bias": data.float_bias}
    layer = vkq.Linear(data.w, data.w_scale, device=units, activation="relu", **options)
    assert layer._gemm.matrices.signed == signed
    assert layer.plan(Spec(x.shape, "float32")).variants == (f"{half_gemv.PARTS}:{tall}",)
    want = data.expected_sum(x, None, "float32")
    want = dataclasses.replace(want, y=np.maximum(want.y, 0))
    assert want.mismatch(replayed(layer, x, units, emulated.REPLAYS) if rows == 5 else layer(x)) is None


def test_rows_of_both_types(units: vkq.Device) -> None:
    """One copy of the weights, stored as sign and 7 bits, serves float16 and float32 rows; both results are
    within the bound."""
    rng = np.random.default_rng(7)
    w, x = rng.integers(-127, 128, (36, 256), np.int8), rng.normal(size=(6, 256)).astype(np.float16)
    layer = vkq.Linear(w, 1e-3, device=units)
    assert layer._gemm.matrices.signed
    found = [layer.plan(Spec(x.shape, dtype)).variants for dtype in ("float16", "float32")]
    assert found == [(f"{half_gemv.WORDS}:8",), (f"{half_gemv.PARTS}:8",)]
    terms = x[:, None].astype(np.float64) * w * float(np.float32(1e-3))
    want, bound = terms.sum(-1), (256 + 4) * 2.0**-24 * np.abs(terms).sum(-1)
    assert (np.abs(layer(x.astype(np.float32)) - want) <= bound).all()
    assert (np.abs(layer(x) - want) <= bound + 2.0**-11 * np.abs(want) + 2.0**-25).all()


@pytest.mark.parametrize(("rows", "point", "least"), [
    (8, 0, -128), (8, -128, -128), (16, 127, -128), (32, 0, -128), (8, 0, -127), (16, 0, -127),
])  # fmt: skip
def test_extremes(rows: int, point: int, least: int, units: vkq.Device) -> None:
    """Infinities and NaN equal those of a float64 sum, and affect only their own rows. Finite results are
    within the bound."""
    k, rng = 256, np.random.default_rng(rows)
    w = rng.integers(least, 128, (36, k)).astype(np.int8)
    w[0], w[1], w[2, 9] = least, 127, point  # w[2, 9] - point is 0, and infinity times 0 is NaN
    x = rng.normal(size=(rows, k)).astype(np.float32)
    layer = vkq.Linear(w, 1e-3, w_zero_point=np.full(36, point, np.int8), device=units)
    assert layer._gemm.matrices.signed == (least == -127)
    clean = layer(x)[0]
    x[1, 5], x[2, 9], x[3, 9], x[4] = np.nan, np.inf, -np.inf, 3e38 / 256 / k
    x[5, ::2], x[6, ::3], x[7], x[7, 1] = 1e30, 1e-30, 1e-36, 1e-44
    x[-1, 3] = np.uint32(0x7F800001).view(np.float32)  # a signaling NaN with only the lowest bit set
    got = layer(x).astype(np.float64)
    np.testing.assert_array_equal(got[0], clean)
    with np.errstate(invalid="ignore"):
        terms = x[:, None].astype(np.float64) * (w.astype(np.float64) - point) * float(np.float32(1e-3))
        want = terms.sum(-1)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[np.isinf(want)], want[np.isinf(want)])
    # A device may flush parts below 2^-126. Signed weights are stored times 2^-24.
    bound = (k + 4) * 2.0**-24 * np.abs(terms).sum(-1) + (2.0**-98 if least == -127 else 2.0**-122)
    assert (np.abs(got[finite] - want[finite]) <= bound[finite]).all()


def test_others_go_the_other_way(units: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel half_gemv.PARTS is not used in these cases; other kernels run instead:

    - too few or too many rows, or float16 rows
    - a k that is not a whole number of chunks, or that has too many chunks
    - few outputs, or outputs that do not fill blocks of four
    - compute='float16' with more rows or few outputs
    - a layer with a requested tile
    - a profile without matrix_pairs"""
    few, more = Spec((8, 256), "float32"), Spec((16, 256), "float32")
    taken = (few, 36, "float32"), (few, 100, "float16"), (more, 36, "float32")
    for x, n, compute in (
        *taken, (Spec((2, 256), "float32"), 36, "float32"), (Spec((65, 256), "float32"), 36, "float32"),
        (few, 38, "float32"), (few, 16, "float32"), (Spec((8, 264), "float32"), 36, "float32"),
        (Spec((16, 384), "float32"), 36, "float32"), (few, 36, "float16"),
        (more, 100, "float16"), (Spec((8, 256), "float16"), 36, "float32"),
    ):  # fmt: skip
        layer = vkq.Linear(np.ones((n, x.shape[1]), np.int8), 1.0, compute=compute, device=units)
        assert (half_gemv.PARTS in layer.plan(x).variants[0]) == ((x, n, compute) in taken)
    layer = vkq.Linear(np.ones((36, 256), np.int8), 1.0, device=units)
    layer._gemm.matrices.tile = "32x64"
    assert half_gemv.PARTS not in layer.plan(few).variants[0]
    profile_says(monkeypatch, half_gemv, matrix_pairs=False)
    layer = vkq.Linear(np.ones((36, 256), np.int8), 1.0, device=units)
    assert half_gemv.PARTS not in layer.plan(few).variants[0]


@pytest.mark.parametrize("wrong", [
    # Each replacement imitates a wrong driver. With the first one, the words of a matrix belong to other
    # outputs and rows than the kernel expects.
    (r"(#define word_of_matrix\(m, q\) .*)", r"\1 ^ 8u"),
    (r"(#define word_of_matrix\(m, q\) .*)", r"\1 * 65537u"),  # a word does not hold two neighbours in k
    (r"(#define set_both.*) < 8u", r"\1 < 4u"),  # words of a load are not 8 rows apart
], ids=["places", "pairs", "both"])  # fmt: skip
def test_elements_that_lie_elsewhere_are_seen(
    wrong: tuple[str, str], strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test detects a driver whose matrices hold elements at other positions than the profile says.
    Few rows then use other kernels."""
    for module in (half_gemv, selftest):
        profile_says(monkeypatch, module, multiprocessors=2, matrix_pairs=True)
    emulated.emulate(strict_device, monkeypatch, "16x16x16", form="bf16", wrong=wrong)
    stages = selftest.stages(strict_device)
    said = stages[selftest.PAIRS[BRAIN]]()
    assert "matrices of 16x16x16 bf16, assembled from words of two elements: " in said
    assert stages["matrices_brain"]() is None
    refuse(monkeypatch, strict_device, selftest.PAIRS[BRAIN], said)
    layer = vkq.Linear(np.ones((36, 256), np.int8), 1.0, device=strict_device)
    assert half_gemv.PARTS not in layer.plan(Spec((8, 256), "float32")).variants[0]


@pytest.mark.parametrize("wrong", [True, False])
def test_elements_that_lose_small_numbers_are_seen(
    wrong: bool, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test detects matrices that flush small values to 0. Few rows then use other kernels."""
    for module in (half_gemv, selftest):
        profile_says(monkeypatch, module, multiprocessors=2, matrix_pairs=True)
    flushed = (r"(#define brains_of\(two\) upper_halves\(floatBitsToUint\()\(two\).x",
               r"\1abs((two).x) < 6.1e-5 ? 0.0 : (two).x")  # fmt: skip
    emulated.emulate(strict_device, monkeypatch, *SHAPES, wrong=flushed if wrong else None)
    said = selftest.stages(strict_device)[selftest.SMALLS[BRAIN]]()
    assert ("matrices of 16x16x16 bf16, with weights of 2^-24: " in str(said)) == wrong
    if wrong:
        refuse(monkeypatch, strict_device, selftest.SMALLS[BRAIN], said)
    layer = vkq.Linear(np.ones((36, 256), np.int8), 1.0, device=strict_device)
    assert (half_gemv.PARTS in layer.plan(Spec((8, 256), "float32")).variants[0]) != wrong


@pytest.mark.parametrize("test", [selftest.PAIRS[BRAIN], selftest.SMALLS[BRAIN]])
def test_the_self_test(test: str, units: vkq.Device) -> None:
    assert selftest.stages(units)[test]() is None


def test_invocations_by_chunks_and_multiprocessors() -> None:
    """On an H200, the first size of a workgroup that `invocations` returns is the one that was measured to be
    fastest. The cases vary the number of workgroups, the number of rows (8 or 16) and K. If K is not a
    multiple of CHUNK, `invocations` returns no size."""
    facts = reported("nvidia-h200")
    for tall, want in ((8, [512, 256, 256, 128, None]), (16, [256, 128, 256, 128, None])):
        found = [half_gemv.invocations(facts, half_gemv.PARTS, tall, w, k)[:1] for w, k in (
            (128, 4096), (133, 4096), (133, 8192), (344, 8192), (128, 4160),
        )]  # fmt: skip
        assert found == [() if size is None else (size,) for size in want]
    assert half_gemv.invocations(facts, half_gemv.PARTS, 64, 256, 2048) == (128,)


def test_rows_that_are_worth_it() -> None:
    """`worth_parts` decides for which numbers of rows the kernel is used. The decision depends on:

    - the number of workgroups: below half of the number of multiprocessors, or more
    - the number of chunks of 128 k
    - the speed of the GEMV kernel"""

    def worth(workgroups: int, k: int, form: str = BRAIN) -> list[int]:
        return [m for m in range(65) if half_gemv.worth_parts(m, workgroups, 132, k, form)]

    assert [worth(65, 8320), worth(66, 8320)] == [list(range(5, 65)), list(range(3, 65))]
    assert worth(65, 8448) == list(range(5, 9))
    gemv = [*range(5, 9), *range(17, 65)]
    assert [worth(33, k) for k in (1024, 1152, 3968, 4096)] == [
        list(range(5, 65)),
        gemv,
        gemv,
        list(range(5, 65)),
    ]
    assert worth(34, 1152) == list(range(5, 65))
    assert [worth(396, 4096), worth(396, 4224)] == [list(range(3, 65)), list(range(3, 33))]
    assert [worth(792, 1024), worth(793, 1024)] == [list(range(3, 65)), list(range(3, 33))]
    assert [worth(64, 4096, HALF), worth(64, 4224, HALF)] == [list(range(5, 9)), list(range(5, 8))]
