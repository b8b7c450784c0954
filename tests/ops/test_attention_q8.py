"""Tests of 8-bit attention: one dispatch and four separate steps both equal the reference's steps bit for
bit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import vkq
from tests.conftest import share
from vkq import QParams
from vkq.kernels.attention_q8 import SHADER, AttentionQ8
from vkq.kernels.attention_steps import AttentionSteps, Three, offsets, score_scale
from vkq.layout.extent import BLOCKED, MATRIX, Spec
from vkq.numerics.elementwise import binary
from vkq.numerics.requantize import multipliers, requantize
from vkq.numerics.stored import shift
from vkq.ops import attention_q8
from vkq.problem.heads import put_together, taken_apart
from vkq.reference.softmax import softmax_litert, softmax_onnxruntime
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.select.path import Choice

Array = np.ndarray
LINE = 3 * np.arange(-128, 128, dtype=np.int16) + 150
TABLE = np.clip(LINE, -128, 127).astype(np.int8)  # TABLE holds stored int8 values


@dataclasses.dataclass(frozen=True)
class Case:
    """Sizes: q is queries x depth, k keys x depth, v keys x width. *together*: the heads are concatenated
    along the columns."""

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    mask: tuple[int, ...] | None = None
    dtype: str = "int8"
    together: bool = True
    layout: str = MATRIX
    mask_first: bool = False
    litert: bool = False
    table: bool = False  # a lookup table after the softmax
    columns: bool = False  # q, k and v are column ranges of one tensor; queries == keys

    @property
    def steps(self) -> AttentionSteps:
        moved = 128 if self.dtype == "uint8" else 0

        def q(scale: float, zero: int) -> QParams:
            return QParams(scale, zero + moved, self.dtype)

        scores, mask = q(0.0021 * self.depth**0.5, -9), q(0.0813, 127)
        sums = (scores, mask, q(0.0417, 55)) if self.mask else None
        weights = q(1 / 256, -128)
        return AttentionSteps(
            (q(0.0193, 3), q(0.0211, -5), scores),
            sums and ((sums[1], sums[0], sums[2]) if self.mask_first else sums),
            (q(0.0417, 55) if sums else scores, weights),
            (weights, q(0.0203, 7), q(0.0057, -19)),
            self.mask_first,
            self.litert,
            TABLE.tobytes() if self.table else None,
        )

    @property
    def arrays(self) -> list[Array]:
        rng, low = np.random.default_rng(self.keys), 128 if self.dtype == "uint8" else 0
        rows = ((self.queries, self.depth), (self.keys, self.depth), (self.keys, self.width))
        shapes = [(self.batch, self.heads, *two) for two in rows]
        found = [rng.integers(low - 128, low + 128, shape).astype(self.dtype) for shape in shapes]
        if self.mask is None:
            return found
        hidden = rng.integers(0, 2, self.mask).astype(bool)
        return [
            *found,
            np.where(hidden, low - 128, rng.integers(low + 90, low + 128, self.mask)).astype(self.dtype),
        ]


CASES = {
    "one matrix of odd rows": Case(1, 1, 7, 9, 8, 12, (1, 1, 1, 9), together=False),
    "no mask": Case(2, 3, 12, 16, 16, 16),
    "a mask for each batch": Case(2, 2, 8, 20, 4, 8, (2, 1, 1, 20), dtype="uint8", mask_first=True),
    "a mask for each query": Case(
        2, 2, 8, 20, 20, 4, (1, 1, 8, 20), together=False, dtype="uint8", table=True
    ),
    "a mask for each score": Case(2, 3, 4, 8, 8, 8, (2, 3, 4, 8)),
    "more keys than a tile": Case(1, 2, 20, 140, 32, 48, (140,), layout=BLOCKED),
    "wide heads, tiles of fewer keys": Case(1, 2, 16, 40, 256, 256, layout=BLOCKED, dtype="uint8"),
    "blocks, a mask for each head": Case(3, 2, 8, 12, 16, 32, (2, 8, 12), layout=BLOCKED, mask_first=True),
    "odd rows of two batches": Case(2, 3, 7, 13, 16, 16, (2, 1, 1, 13), layout=BLOCKED, table=True),
    "odd rows of heads side by side": Case(1, 3, 5, 11, 8, 8, (1, 1, 5, 11)),
    "columns of one value": Case(2, 3, 7, 7, 16, 32, (2, 1, 1, 7), layout=BLOCKED, table=True, columns=True),
    "LiteRT": Case(1, 2, 8, 36, 16, 16, dtype="int8", litert=True),
}


def wanted(case: Case) -> Array:
    """Return the result of separate reference steps."""
    steps, (q, k, v, *mask) = case.steps, case.arrays

    def product(a: Array, b: Array, of: Three) -> Array:
        acc = (a.astype(np.int64) - of[0].zero_point) @ (b.astype(np.int64) - of[1].zero_point)
        return requantize(acc, multipliers(of[0].scale, of[1].scale, of[2].scale)[0], of[2])

    scores = product(q, np.swapaxes(k, -1, -2), steps.scores)
    if steps.sums is not None:
        one, two = (mask[0], scores) if case.mask_first else (scores, mask[0])
        scores = binary("add", one, two, *steps.sums)
    softmax = softmax_litert if case.litert else softmax_onnxruntime
    weights = softmax(scores, steps.softmax[0], -1, steps.softmax[1])
    if case.table:
        moved = shift(case.dtype)
        stored = TABLE[weights.astype(np.int16) - moved + 128]
        weights = (stored.astype(np.int16) + moved).astype(case.dtype)
    return product(weights, v, steps.results)


def computed(device: vkq.Device, case: Case) -> tuple[Array, tuple[str, ...], str]:
    """Return (result, shader variants that ran, the plan's reason for them)."""
    heads = case.heads if case.together else 1
    parts, columns = [put_together(x, heads) for x in case.arrays[:3]], None
    if case.columns:
        ends = np.cumsum([0, *(x.shape[-1] for x in parts)]).tolist()
        columns = range(*ends[:2]), range(*ends[1:3]), range(*ends[2:])
        parts = [np.concatenate(parts, -1)]
    arrays = parts + case.arrays[3:]
    layouts = [*[case.layout] * len(parts), *[MATRIX] * (len(arrays) - len(parts))]
    b = Builder(device)
    values = [b.input(Spec(x.shape, case.dtype, layout)) for x, layout in zip(arrays, layouts, strict=True)]
    q, k, v = values[:1] * 3 if case.columns else values[:3]
    given = values[-1] if case.mask else None
    y, why = attention_q8.attended(b, q, k, v, given, case.steps, (heads,) * 4, columns=columns)
    plan = b.plan(y)
    tensors = [vkq.Tensor.from_numpy(x, device, layout) for x, layout in zip(arrays, layouts, strict=True)]
    return taken_apart(run(plan, tensors).numpy(), heads), plan.variants, why


def one_form(device: vkq.Device, form: str, patch: pytest.MonkeyPatch, matrices: bool = False) -> None:
    """Make products use this dot form, and make attention one dispatch where the device can run it.
    *matrices*: let attention use matrix units if the device has them."""
    choice = Choice("", form, "asked for")
    patch.setattr("vkq.ops.matmul.without_matrices", lambda device: choice)
    patch.setattr("vkq.kernels.attention_q8.without_matrices", lambda device: choice)
    if not matrices:
        patch.setattr("vkq.kernels.attention_q8.choose_path", lambda device: choice)
    in_steps(device, False, patch)


def in_steps(device: vkq.Device, steps: bool, patch: pytest.MonkeyPatch) -> None:
    """Make attention run in separate steps, or in one dispatch where the device can run it."""
    changed = dataclasses.replace(device.capabilities, choices=(("attention_in_steps", steps),))
    patch.setattr(device, "capabilities", changed)


@pytest.mark.parametrize("form", ["s8s8", "u8s8", "u8u8"])
def test_one_dispatch(device: vkq.Device, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one_form(device, form, monkeypatch)
    for name, case in share(list(CASES.items())[:: 1 if form == "s8s8" else 3], device, 4):
        y, ran, why = computed(device, case)
        kind = "16c" if case.layout == BLOCKED else "4h4w"
        assert ran == (f"{SHADER}:{form}.{kind}",), name
        assert "one dispatch" in why
        np.testing.assert_array_equal(y, wanted(case), err_msg=name)


@pytest.mark.parametrize("layout", [MATRIX, BLOCKED])
def test_other_columns_are_taken_first(
    any_device: vkq.Device, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """q, k and v that are column ranges of one tensor are copied before the attention dispatch if the
    layout has no blocks of channels, or if the ranges are not whole blocks of 16 columns."""
    one_form(any_device, "s8s8", monkeypatch)
    width = 16 if layout == MATRIX else 12
    case = Case(2, 3, 8, 8, 16, width, layout=layout, columns=True)
    y, ran, why = computed(any_device, case)
    assert any(SHADER in shader for shader in ran)
    assert len(ran) > 1
    assert "one dispatch" in why
    np.testing.assert_array_equal(y, wanted(case))


@pytest.mark.parametrize("rows4", [1, 2, 4, 8])
def test_every_tile(any_device: vkq.Device, rows4: int, monkeypatch: pytest.MonkeyPatch) -> None:
    one_form(any_device, "s8s8", monkeypatch)
    tiles, taken = AttentionQ8._tiles, []
    monkeypatch.setattr(
        AttentionQ8,
        "_tiles",
        lambda self: (taken.append(one["ROWS4"]) or one for one in tiles(self) if one["ROWS4"] == rows4),
    )
    case = CASES["more keys than a tile"]
    np.testing.assert_array_equal(computed(any_device, case)[0], wanted(case))
    assert set(taken) == {rows4}


def test_in_steps(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Attention runs as separate dispatches on a CPU device, on a device without dot products, and if a
    head's number of queries is not a multiple of four. The result equals the reference's steps. On a GPU,
    the first cases ask for steps."""
    if device.capabilities.device_type != "cpu":
        in_steps(device, True, monkeypatch)
    for name, case in share(CASES.items(), device, 4):
        y, ran, why = computed(device, case)
        assert "attention_in_steps" in why, name
        assert not any(SHADER in shader for shader in ran), name
        np.testing.assert_array_equal(y, wanted(case), err_msg=name)
    one_form(device, "float", monkeypatch)
    case = CASES["a mask for each batch"]
    y, _, why = computed(device, case)
    assert "dot product" in why
    np.testing.assert_array_equal(y, wanted(case))
    one_form(device, "s8s8", monkeypatch)
    y, _, why = computed(device, ragged := Case(2, 2, 5, 8, 4, 4))
    assert "two matrices" in why
    np.testing.assert_array_equal(y, wanted(ragged))


def test_offsets_give_every_sum() -> None:
    """score * scale + offset, with an offset from `offsets` for each mask value, rounds to the byte of the
    exact sum, even if the device's product and sum are one unit in the last place too small or too large."""
    rng, found = np.random.default_rng(3), 0
    numbers = np.arange(-128, 128, dtype=np.int8)
    for i in range(40):
        one, two, y = (
            QParams(float(np.exp(rng.uniform(-5, 3))), int(rng.integers(-128, 128))) for _ in range(3)
        )
        sums, first = (one, two, y), bool(i % 2)
        known = offsets(sums, first, True)
        if known is None:
            continue
        found += 1
        assert offsets(sums, first, False) is not None
        a, b = (numbers[:, None], numbers) if first else (numbers, numbers[:, None])
        want = binary("add", *np.broadcast_arrays(a, b), *sums)  # axes: (mask, score)
        product = numbers.astype(np.float32) * np.float32(score_scale(sums, first))
        for away in (-np.inf, np.inf):
            value = np.nextafter(np.nextafter(product, np.float32(away)) + known[:, None], np.float32(away))
            np.testing.assert_array_equal(np.rint(np.clip(value, -128, 127)), want)
    assert found > 25


def test_ties_have_no_offsets() -> None:
    # Sums are multiples of 1/28: one in 28 is a tie.
    sums = (QParams(0.025, 3), QParams(0.12, 127), QParams(0.14, 110))
    assert offsets(sums, False, False) is None
