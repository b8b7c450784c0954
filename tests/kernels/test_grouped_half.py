"""Tests of float16 rows times weights quantized in groups along K, on float16 matrix units. Devices without
matrix units run emulated ones."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.device.reported import as_h200, profile_says
from tests.runtime.work import replayed
from vkq import reference
from vkq.device.profiles import preferred
from vkq.device.tuner import says, watched
from vkq.kernels import grouped_half
from vkq.kernels.grouped import GroupedGemm, fits_half
from vkq.layout.extent import Spec
from vkq.numerics.grouped import GroupedWeight
from vkq.probe import selftest
from vkq.select.path import half_refusal
from vkq.shader.catalog import catalog

from . import emulated, sixteen_bits

# (rows, K, N, bits, group, symmetric, dtype of scales, outputs of a workgroup, MxNxK of the matrices).
# The number of rows is one, the maximum of a workgroup, or one more than this maximum. K ends within an
# iteration; some subgroups have no work, or every subgroup has several iterations. A group covers a part
# of an iteration, one iteration, or several. N is not a multiple of a matrix's outputs.
FEW = [
    (1, 2208, 35, 4, 32, True, "float16", 32, "16x8x16"),
    (1, 1152, 33, 8, 128, False, "float32", 32, "16x8x16"),
    (5, 2240, 35, 4, 64, False, "float16", 32, "16x8x16"),
    (8, 384, 71, 4, 128, True, "float32", 64, "16x8x16"),
    (3, 1088, 67, 8, 32, False, "float16", 64, "16x8x16"),
    (16, 1536, 35, 4, 128, False, "float16", 32, "16x16x16"),
    (13, 352, 44, 4, 32, False, "float16", 32, "16x16x16"),
    (11, 320, 65, 8, 64, True, "float16", 64, "16x8x16"),
    (6, 1120, 40, 8, 32, True, "float32", 32, "16x8x16"),
    (16, 2176, 67, 4, 64, True, "float32", 64, "16x8x16"),
    (9, 640, 37, 8, 128, False, "float16", 32, "16x16x16"),
]


def units(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, shape: str) -> vkq.Device:
    sixteen_bits.provide(device, monkeypatch)
    if half_refusal(device):
        emulated.emulate(device, monkeypatch, shape, form="f16")
    return device


def weight(n: int, k: int, bits: int, group: int, symmetric: bool, scales: Any) -> vkq.GroupedWeight:
    w = np.random.default_rng([n, k, bits]).standard_normal((n, k), np.float32)
    return vkq.quantize_weight(w, bits=bits, group=group, symmetric=symmetric, scale_dtype=scales)


def rows_of(m: int, k: int) -> npt.NDArray[np.float16]:
    return np.random.default_rng([m, k]).standard_normal((m, k)).astype(np.float16)


def assert_close(got: Any, x: Any, w: vkq.GroupedWeight, bias: Any = None, activation: Any = None) -> None:
    """Check that results are float16 and within the bound of sums on matrix units, rounded once."""
    want = reference.linear_grouped(x, w, bias, activation)
    size = reference.linear_grouped(x, w, bias, magnitude=True)
    assert (got.dtype, got.shape) == (np.float16, want.shape)
    allowed = 4 * (w.shape[1] + 4) * 2.0**-24 * size + 2.0**-10 * np.abs(want) + 2.0**-24
    assert (np.abs(got - want) <= allowed).all()


@pytest.mark.parametrize("case", FEW, ids=str)
def test_few_rows(case: Any, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    m, k, n, *of_weight, outputs, shape = case
    device = units(strict_device, monkeypatch, shape)
    monkeypatch.setattr(grouped_half, "FEW_OUTPUTS", (outputs,))
    monkeypatch.setattr(grouped_half.GroupedMatrices, "pays_alone", True)
    w, x, tall = weight(n, k, *of_weight), rows_of(m, k), next(r for r in grouped_half.FEW_ROWS if m <= r)
    bias = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    layer = vkq.Linear(w, bias=bias, activation=(-3.0, 40.0), device=device)
    assert layer.plan(Spec(x.shape, "float16")).variants == (f"{grouped_half.FEW}:{w.bits}.{tall}.{outputs}",)
    assert_close(layer(x), x, w, bias, (-3.0, 40.0))


@pytest.mark.parametrize(("m", "k", "bits", "group"), [(5, 300, 4, 128), (1, 1000, 4, 32), (16, 97, 8, 64)])
def test_rows_of_a_last_group_that_is_not_full(
    m: int, k: int, bits: int, group: int, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows whose last group is not full are padded with float16 zeros, and results are within the bound."""
    device = units(strict_device, monkeypatch, "16x8x16")
    monkeypatch.setattr(grouped_half.GroupedMatrices, "pays_alone", True)
    w, x = weight(35, k, bits, group, False, "float16"), rows_of(m, k)
    layer = vkq.Linear(w, device=device)
    first, *then = layer.plan(Spec(x.shape, "float16")).variants
    assert first == "fill_rows__words:float16"
    assert all("coopmat" in name for name in then)
    assert_close(layer(x), x, w)


def test_each_order_of_the_weight_counts(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """device_bytes counts every copy of the weight: the packed weight for float32 rows, and the weight in
    matrix order for float16 rows. Calls with other numbers of rows reuse the copies. Before the first
    call, device_bytes is 0."""
    device = units(strict_device, monkeypatch, "16x8x16")
    layer = vkq.Linear(weight(35, 640, 4, 128, True, "float16"), device=device)
    x = rows_of(5, 640)
    told = layer.explain(x.shape).weight_bytes
    assert layer.device_bytes == 0
    for rows in (5, 3, 3):
        layer(x[:rows].astype(np.float32))
        assert layer.device_bytes == told
    assert told >= 35 * 640 // 2
    plan = layer.plan(Spec(x.shape, "float16"))
    assert layer.device_bytes == told
    layer(x)
    assert layer.device_bytes == told + plan.constant_bytes
    assert f"{told} bytes of weights and tables" in str(layer.explain(x.shape))


def test_a_single_row_in_long_turns(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The variant with long iterations is within the error bound for a single row. Most subgroups have one
    iteration, and the last one has none. k ends within an iteration."""
    device = units(strict_device, monkeypatch, "16x8x16")
    monkeypatch.setattr(grouped_half.GroupedMatrices, "pays_alone", True)
    monkeypatch.setattr(grouped_half, "ALONE_SPLITS", ((0, 128),))
    for k in (640, 2176):
        w, x = weight(35, k, 4, 128, True, "float16"), rows_of(1, k)
        layer = vkq.Linear(w, device=device)
        assert layer.plan(Spec(x.shape, "float16")).variants == (f"{grouped_half.FEW}:4.1_long.32",)
        assert_close(layer(x), x, w)


@pytest.mark.parametrize(("n", "k", "zero", "late"), [
    (35, 640, 8, 4),  # k ends within a chunk; N is no multiple of a matrix
    (32, 256, 15, 0), (70, 1024, 0, 4), (20, 128, 8, 0),
])  # fmt: skip
def test_a_single_row_at_once(
    n: int, k: int, zero: int, late: int, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT_ONCE, which requests all weights of a single row at once, is within the error bound. Each subgroup
    sums one chunk of k. If there are many workgroups, each subgroup starts later than the subgroup before it.
    With an infinity in x, a result is the lower or upper bound of the activation, unless its weight is 0."""
    device = units(strict_device, monkeypatch, "16x8x16")
    profile_says(monkeypatch, grouped_half, matrix_pairs=True, multiprocessors=2 if late else 4)
    monkeypatch.setattr(grouped_half, "WORKGROUPS", 3)
    monkeypatch.setattr(grouped_half, "LEAST", n * k)
    drawn = weight(n, k, 4, 128, True, "float16")
    w = vkq.GroupedWeight(drawn.packed, drawn.scale, np.full(drawn.scale.shape, zero, np.float16))
    x, bias = rows_of(1, k), np.random.default_rng(n).standard_normal(n).astype(np.float32)
    layer = vkq.Linear(w, bias=bias, activation=(-30.0, 40.0), device=device)
    assert layer.plan(Spec(x.shape, "float16")).variants == (f"{grouped_half.AT_ONCE}:4",)
    assert_close(layer(x), x, w, bias, (-30.0, 40.0))
    x[0, -1] = np.inf
    signs = np.sign(w.dequantize()[:, -1])
    np.testing.assert_array_equal(layer(x)[0][signs != 0], np.where(signs > 0, 40, -30)[signs != 0])
    matrices = grouped_half.GroupedMatrices(GroupedGemm(device, w, None, (-np.inf, np.inf)))
    config = matrices.config(1)
    assert config is not None
    assert matrices._constants(config.variant, config.matrices)["LATE"] == late


@pytest.mark.parametrize(("n", "k", "bits", "group", "symmetric", "says"), [
    (97, 1280, 4, 128, True, {}), (35, 5376, 4, 128, True, {}), (35, 1280, 8, 128, True, {}),
    (35, 1280, 4, 64, True, {}), (35, 1280, 4, 128, False, {}), (32, 1280, 4, 128, True, {}),
    (35, 1280, 4, 128, True, {"matrix_pairs": False}),
])  # fmt: skip
def test_a_single_row_not_at_once(
    n: int, k: int, bits: int, group: int, symmetric: bool, says: dict[str, bool],
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A single row does not use AT_ONCE in these cases:

    - too many workgroups, or too many chunks of k
    - weights of 8 bits, small groups, zero points, or few weights
    - matrices in which invocations hold no pairs of elements, according to the profile or to the self-test"""
    device = units(strict_device, monkeypatch, "16x8x16")
    profile_says(monkeypatch, grouped_half, **{"matrix_pairs": True, "multiprocessors": 3, **says})
    monkeypatch.setattr(grouped_half, "LEAST", 35 * 1280)

    def at_once(*of_weight: Any) -> bool:
        gemm = GroupedGemm(device, weight(*of_weight, "float16"), None, (-np.inf, np.inf))
        return grouped_half.GroupedMatrices(gemm).at_once

    assert not at_once(n, k, bits, group, symmetric)
    assert at_once(96, 5120, 4, 128, True) == (not says)
    monkeypatch.setattr(grouped_half, "pairs_refusal", lambda _: "wrong")
    assert not at_once(96, 4096, 4, 128, True)


def test_the_tuner_reaches_every_tile_for_many_rows(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tiles and parts of k for many rows are ranked. A plan with a ranked option runs this option, and
    the programs of all options differ. Few rows have no options."""
    device = units(strict_device, monkeypatch, "16x8x16")
    cycles = {"64x128": (3, 3), "64x64": (2, 2), "32x64": (1, 1)}
    profile_says(monkeypatch, grouped_half, straight_tile_cycles=cycles)
    layer = vkq.Linear(weight(128, 3072, 4, 128, True, "float16"), device=device)
    x, few = Spec((64, 3072), "float16"), Spec((5, 3072), "float16")
    with preferred({}), watched() as rankings:
        layer.plan(x)
    names = rankings[grouped_half.KIND]
    plans = [layer.plan(x)]
    for name in names[1:]:
        with preferred(says({grouped_half.KIND: name})):
            plans.append(layer.plan(x))
    found = [(plan.variants[-1], plan.steps[-1].push) for plan in plans]
    assert len({variant for variant, _ in found}) > 3
    assert len(set(found)) == len(names)
    assert [name.split(",")[0] for name in names] == [variant for variant, _ in found]
    with preferred({}), watched() as rankings:
        layer.plan(few)
    assert grouped_half.KIND not in rankings


MANY = [
    v
    for name in (grouped_half.MANY.product, grouped_half.MANY.split)
    for v in catalog().shaders[name].variants
]
# (K, group, symmetric, dtype of scales, MxNxK). K is not a multiple of an iteration's k. A group covers a
# part of an iteration, one iteration, or more.
OPERANDS = [
    (352, 32, True, "float16", "16x16x16"),
    (576, 64, False, "float16", "16x8x16"),
    (640, 128, True, "float32", "16x8x16"),
    (416, 32, False, "float32", "16x16x16"),
    (1152, 128, False, "float16", "16x8x16"),
]


@pytest.mark.parametrize(("number", "name"), list(enumerate(v.name for v in MANY)))
def test_tiles(number: int, name: str, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile is correct for rows and columns that are not multiples of the tile."""
    axes = catalog().variants[name].axes
    split, tall = name.startswith(grouped_half.MANY.split), int(axes["tile"].partition("x")[0])
    k, group, symmetric, scales, shape = OPERANDS[number % len(OPERANDS)]
    m, n = tall + 3, 68 if axes["y"] == "four" else 67
    device = units(strict_device, monkeypatch, shape)
    profile_says(monkeypatch, grouped_half, straight_tile_cycles={axes["tile"]: (1, 1)})
    monkeypatch.setattr(grouped_half, "K_SPLITS", (2 + number % 2 if split else 1,))
    w, x = weight(n, k, int(axes["bits"]), group, symmetric, scales), rows_of(m, k)
    bias = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    layer = vkq.Linear(w, bias=bias, activation="relu", device=device)
    assert layer.plan(Spec(x.shape, "float16")).variants == (name,)
    assert_close(layer(x), x, w, bias, "relu")


@pytest.mark.parametrize("split", [1, 2])
def test_float32_rows_in_float16(
    split: int, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With compute="float16", more than 16 float32 rows are rounded to float16; results are float32. Products
    of fewer rows, and products whose number of columns is not a multiple of 4, are computed in float32."""
    device = units(strict_device, monkeypatch, "16x16x16")
    profile_says(monkeypatch, grouped_half, straight_tile_cycles={"32x64": (1, 1)})
    monkeypatch.setattr(grouped_half, "K_SPLITS", (split,))
    x = np.random.default_rng(3).standard_normal((17, 352), np.float32)
    w, bias = weight(68, 352, 4, 32, False, "float16"), np.arange(68, dtype=np.float32)
    layer = vkq.Linear(w, bias=bias, compute="float16", device=device)
    assert layer.scheme == "q4gsw_f16"
    shader = grouped_half.MANY.split if split > 1 else grouped_half.MANY.product
    names = ("cast_float16__words:float16", f"{shader}:4.four.32x64")
    assert layer.plan(Spec(x.shape, "float32")).variants == names
    got, rounded = layer(x), x.astype(np.float16)
    want = reference.linear_grouped(rounded, w, bias)
    size = reference.linear_grouped(rounded, w, bias, magnitude=True)
    assert got.dtype == np.float32
    assert (np.abs(got - want) <= 4 * (352 + 4) * 2.0**-24 * size).all()
    few = layer.plan(Spec((16, 352), "float32"))
    odd = vkq.Linear(weight(67, 352, 4, 32, False, "float16"), compute="float16", device=device)
    for plan in (few, odd.plan(Spec(x.shape, "float32"))):
        assert not any("coopmat" in name for name in plan.variants)


def test_elements_hold_codes_16_apart() -> None:
    """`packed_elements` stores each code at the index at which the shader reads it, and pads with zeros."""
    for bits, group in ((4, 32), (8, 64)):
        w = weight(19, 3 * group, bits, group, True, "float32")
        k = 256 // bits
        codes = np.pad(w.codes(), ((0, 13), (0, -w.shape[1] % k))).astype(np.uint16)
        found = grouped_half.packed_elements(w).view(np.uint16).reshape(2, -1, 16, 16)
        for n, block, c, i in itertools.product(
            range(32), range(found.shape[1]), range(16), range(16 // bits)
        ):
            code = found[n // 16, block, n % 16, c] >> bits * i & (1 << bits) - 1
            assert code == codes[n, block * k + 16 * i + c]


@pytest.mark.parametrize(("rows", "tile"), [(5, None), (21, "32x64")])
def test_replays_infinity_and_nan(
    rows: int, tile: str | None, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Repeated runs (200 on hardware) give the same bytes. Infinities and NaN affect only their own rows;
    infinity times a weight of 0 gives NaN."""
    device = units(strict_device, monkeypatch, "16x8x16")
    if tile:
        profile_says(monkeypatch, grouped_half, straight_tile_cycles={tile: (1, 1)})
        monkeypatch.setattr(grouped_half, "K_SPLITS", (2,))
    w, x = weight(36, 288, 4, 32, False, "float16"), rows_of(rows, 288)
    layer = vkq.Linear(w, device=device)
    clean = replayed(layer, x, device, emulated.REPLAYS)
    assert_close(clean, x, w)
    x[1, 3], x[3, 287], x[4, 40] = np.nan, np.inf, -np.inf
    got, steps = layer(x), w.dequantize().astype(np.float64)
    assert np.isnan(got[1]).all()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(got[[3, 4]], [np.inf * steps[:, 287], -np.inf * steps[:, 40]])
    others = [0, 2, *range(5, rows)]
    np.testing.assert_array_equal(got[others], clean[others])


def test_extremes(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are within the error bound in these cases:

    - extreme codes and zero points
    - large and small normal float16 numbers in x
    - scales of both signs, with magnitudes from about 1e-30 to 3e4"""
    device = units(strict_device, monkeypatch, "16x8x16")
    rng = np.random.default_rng(7)
    for bits, size, scale, zero in (
        (4, 65504.0, 1e-6, None), (4, 2.0**-14, -3e4, 15), (8, 65504.0, -1e-9, 255), (8, 1.0, 1e-30, 0),
    ):  # fmt: skip
        packed = rng.choice(np.array([0, 0x0F, 0xF0, 0xFF], np.uint8), (18, 3, 4 * bits))
        scales = (rng.uniform(0.5, 2, (18, 3)) * scale).astype(np.float32)
        points = None if zero is None else np.full((18, 3), zero, np.float32)
        w = vkq.GroupedWeight(packed, scales, points, bits)
        x = (rng.choice([-1.0, 1.0], (3, 96)) * size).astype(np.float16)
        assert_close(vkq.Linear(w, device=device)(x), x, w)


@pytest.mark.parametrize("wrong", [
    # The driver ignores a row stride of 0.
    (r"\* \(stride\) \+ i_ % K_RUNS", "* max(uint(stride), 1u) + i_ % K_RUNS"),
    # The driver ignores a scale stride of 0.
    (r"(element\(i_\) / MN)\) / 4u\]", r"\1 + element(i_) % 2u) / 4u]"),
], ids=["rows", "scales"])  # fmt: skip
def test_a_stride_of_0_that_is_not_kept_is_seen(
    wrong: tuple[str, str], strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test detects a driver that ignores a stride of 0. The layer then uses no matrix units."""
    sixteen_bits.provide(strict_device, monkeypatch)
    emulated.emulate(strict_device, monkeypatch, "16x8x16", form="f16", wrong=wrong)
    w, x = weight(36, 288, 4, 32, False, "float16"), rows_of(3, 288)
    said = selftest.stages(strict_device)["matrices_half"]()
    assert "matrices of 16x8x16 f16, loaded with a stride of 0: " in said
    found = dataclasses.replace(selftest.report(strict_device), failures={"matrices_half": said})
    monkeypatch.setattr(selftest, "report", lambda _: found)
    layer = vkq.Linear(w, device=strict_device)
    assert not any("coopmat" in name for name in layer.plan(Spec(x.shape, "float16")).variants)
    assert_close(layer(x), x, w)


def test_others_go_the_other_way(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels for matrix units are not used in these cases; other kernels run instead:

    - float32 rows, too many rows, or a single row with few weights
    - few outputs, or an empty product
    - zero points that are not integers, or small groups
    - a layer with a requested method or path"""
    device = units(strict_device, monkeypatch, "16x8x16")
    profile_says(monkeypatch, grouped_half, straight_tile_cycles={})
    w = weight(36, 64, 4, 32, True, "float16")
    few = Spec((3, 64), "float16")
    fractions = vkq.GroupedWeight(w.packed, w.scale, np.full(w.scale.shape, 7.5, np.float16))
    none = vkq.GroupedWeight(np.zeros((36, 0, 16), np.uint8), np.zeros((36, 0), np.float16))
    taken: list[tuple[Any, Spec, dict[str, str]]] = [
        (w, Spec((3, 64), "float32"), {}), (w, Spec((17, 64), "float16"), {}), (fractions, few, {}),
        (weight(16, 64, 4, 32, True, "float16"), few, {}), (weight(36, 64, 8, 16, True, "float16"), few, {}),
        (weight(36, 64, 4, 16, True, "float16"), Spec((1, 64), "float16"), {}),
        (none, Spec((3, 0), "float16"), {}),
        (w, Spec((1, 64), "float16"), {}), (w, few, {"method": "gemv"}), (w, few, {"path": "portable"}),
    ]  # fmt: skip
    for given, x, options in taken:
        layer = vkq.Linear(given, device=device, **options)  # type: ignore[arg-type]
        assert not any("coopmat" in name for name in layer.plan(x).variants)
    layer = vkq.Linear(w, device=device)
    assert layer.plan(few).variants == (f"{grouped_half.FEW}:4.8.32",)
    assert "matrices of float16" in layer.explain(few.shape).reason
    assert layer(np.zeros((0, 64), np.float16)).shape == (0, 36)


@pytest.mark.parametrize("lacks", ["storageBuffer16BitAccess", "shape", "subgroup"])
def test_devices_without_what_it_takes(
    lacks: str, software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel is not used on devices without 16-bit storage, without matrices of 16 outputs and 16 k, or
    without subgroups of 32 invocations."""
    device, w = software_device, weight(36, 64, 4, 32, True, "float16")
    shape = "16x8x8" if lacks == "shape" else "16x8x16"
    changes = {"subgroup": 64 if lacks == "subgroup" else 32}
    if lacks == "storageBuffer16BitAccess":
        changes[lacks] = False
    monkeypatch.setattr(device, "capabilities", emulated.capabilities(device, shape, form="f16", **changes))
    gemm = GroupedGemm(device, w, None, (-np.inf, np.inf))
    assert not grouped_half.GroupedMatrices(gemm).worth(3, 36, "float16")


@pytest.mark.parametrize(("rows", "n", "want"), [
    (1, 4096, ("4", 1)), (1, 8192, ("4.1.32", 1)), (8, 4096, ("4.8.32", 1)), (8, 8192, ("4.8.32", 1)),
    (8, 11008, ("4.8.32", 1)), (8, 16384, ("4.8.64", 1)),
    (16, 8192, ("4.16.64", 1)), (16, 16384, ("4.16.64", 1)), (17, 4096, ("4.four.32x64", 4)),
    (64, 4096, ("4.four.64x64", 4)), (512, 4096, ("4.four.64x128", 1)),
    (4096, 4098, ("4.any.64x128", 1)),
])  # fmt: skip
def test_what_an_h200_takes(
    rows: int, n: int, want: tuple[str, int], software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H200 the variant and the number of parts of k are the fastest measured ones
    (benchmarks/log.md)."""
    facts = emulated.capabilities(software_device, "16x16x16", "16x8x16", form="f16")
    monkeypatch.setattr(software_device, "capabilities", as_h200(facts))
    codes = np.zeros((n, 4096 // 128, 64), np.uint8)
    w = vkq.GroupedWeight(codes, np.ones((n, 4096 // 128), np.float16))
    gemm = GroupedGemm(software_device, w, None, (-np.inf, np.inf))
    config = grouped_half.GroupedMatrices(gemm).config(rows)
    assert config is not None
    assert (config.variant.name.partition(":")[2], config.parts) == want


def test_a_single_row_is_split_by_columns(
    software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A single row uses matrix units only if the layer has many weights. With groups of fewer than 128
    weights, the layer must have even more weights, and no zero points. The workgroup's size depends on the
    number of columns, or, if all weights are loaded at once, on k."""
    facts = emulated.capabilities(software_device, "16x8x16", form="f16", maxComputeWorkGroupSize_x=1024)
    monkeypatch.setattr(software_device, "capabilities", as_h200(facts))

    def alone(n: int, k: int, group: int, points: bool = False) -> Any:
        packed, scales = np.zeros((n, k // group, group // 2), np.uint8), np.ones((n, k // group), np.float16)
        zero = np.zeros((n, -(-k // group // 2)), np.uint8)
        zero[0, 0] = 1
        w = vkq.GroupedWeight(packed, scales, zero if points else None)
        one = grouped_half.GroupedMatrices(GroupedGemm(software_device, w, None, (-np.inf, np.inf)))
        config = one.config(1)
        assert config is not None
        worth = one.worth(1, n, "float16")
        size = one._constants(config.variant, config.matrices)["INVOCATIONS"]
        return (config.variant.axes.get("rows", "at once"), size) if worth else None

    assert [alone(n, 1024, 128) for n in (4096, 8192, 16384)] == [
        ("at once", 128), ("1", 256), ("1_long", 128),
    ]  # fmt: skip
    assert [alone(4096, 2048, group) for group in (128, 64, 32)] == [("at once", 256), None, None]
    assert [alone(4096, 4096, group) for group in (128, 64, 32)] == [("at once", 512)] + [("1", 512)] * 2
    assert [alone(5120, 4096, group) for group in (128, 64, 32)] == [("1", 256)] * 3
    assert [alone(16384, 8192, group) for group in (128, 64)] == [("1_long", 128), ("1", 128)]
    assert [alone(8192, 8192, group, points=True) for group in (128, 64, 32)] == [("1", 256), None, None]
    assert alone(16384, 4096, 128, points=True) == ("1", 128)


@pytest.mark.parametrize("at", [0, 600])
@pytest.mark.parametrize(
    ("dtype", "value", "fits"),
    [
        (np.float32, 0.3, False),
        (np.float32, 65520.0, False),
        (np.float32, 2.0**-14, True),
        (np.float32, 2.0**-15, False),
        (np.float32, 0.0, True),
        (np.float32, 2.0**-140, True),  # flushed to 0
        (np.float16, 0.3, True),
        (np.float16, 2.0**-15, False),
        (np.float16, 0.0, True),
    ],
)
def test_scales_that_float16_represents(at: int, dtype: Any, value: float, fits: bool) -> None:
    """A weight fits float16 kernels only if float16 represents all its scales and zero points. One
    unsuitable value, among the first ones or later, is enough to refuse the weight."""
    usual = np.ones((40, 25), dtype)
    other = usual.copy()
    other.flat[at] = value
    codes = np.zeros((40, 25, 16), np.uint8)
    assert fits_half(GroupedWeight(codes, other)) == fits
    assert fits_half(GroupedWeight(codes, usual, other)) == (fits and value != 2.0**-140)
    assert fits_half(GroupedWeight(codes, usual, np.zeros((40, 13), np.uint8)))
