"""Tests of products of few float16 rows (GEMV) on float16 matrix units. The subgroups of a workgroup
split the sum over k."""

import dataclasses

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import profile_says, reported
from tests.runtime.work import replayed
from vkq.kernels import half, half_gemv, half_weights
from vkq.layout.extent import Spec
from vkq.probe import selftest
from vkq.probe.matrices import BRAIN, HALF
from vkq.problem.names import parse
from vkq.select.path import half_refusal, signs_refusal

from . import emulated, sixteen_bits
from .matrix_layers import known
from .test_half import layer_of

# (rows, k, MxNxK). Rows and columns do not fill workgroups and matrices. With a short k some subgroups have
# no work, with a long k all subgroups have several iterations.
CASES = [
    (8, 264, "16x8x16"), (13, 264, "16x16x16"), (16, 1608, "16x8x16"), (2, 2056, "16x8x16"),
    (29, 328, "16x16x16"), (61, 584, "16x8x16"),
    # k is a multiple of 128, the chunk of k that a subgroup sums at a time. Some subgroups have one chunk
    # and others none, or all have several.
    (8, 128, "16x8x16"), (1, 1280, "16x8x16"), (13, 1408, "16x16x16"), (16, 2176, "16x8x16"),
    (29, 1408, "16x16x16"), (32, 2176, "16x8x16"), (17, 128, "16x8x16"), (61, 1152, "16x8x16"),
    (64, 640, "16x16x16"),
]  # fmt: skip

FEW = (half_gemv.STEPS, half_gemv.WORDS, half_gemv.RUNS, half_gemv.ROW)


def units(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, shape: str) -> vkq.Device:
    sixteen_bits.provide(device, monkeypatch)
    if half_refusal(device):
        emulated.emulate(device, monkeypatch, shape, form="f16")
    return device


@pytest.mark.parametrize(("rows", "k", "shape"), CASES)
def test_rows_as_they_are(
    rows: int, k: int, shape: str, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = units(strict_device, monkeypatch, shape)
    # One multiprocessor for each workgroup.
    profile_says(monkeypatch, half_gemv, multiprocessors=2, matrix_pairs=True)
    rng, tall = np.random.default_rng(rows + k), next(most for most in half_gemv.ROWS if rows <= most)
    n = 44 if rows <= 32 else 64
    data = random_data(parse(f"linear[M={rows},K={k},N={n}]"), rng, "int8", "int8", w_zero_points="channel")
    data = dataclasses.replace(data, w_scale=np.full(n, 1e-3, np.float32))
    x = rng.normal(scale=0.1, size=(rows, k)).astype(np.float16)
    layer = layer_of(device, data)
    shader = half_gemv.STEPS if k % 128 else half_gemv.WORDS if rows <= 16 else half_gemv.RUNS
    assert layer.plan(Spec(x.shape, "float16")).variants == (f"{shader}:{tall}",)
    got = replayed(layer, x, device, emulated.REPLAYS) if (rows, k) == (8, 264) else layer(x)
    want = data.expected_sum(x.astype(np.float32), None)
    assert (got.dtype, got.shape) == (np.float16, want.y.shape)
    allowed = 2 * np.asarray(want.bound) + 2.0**-10 * np.abs(want.y)  # units may truncate; y is float16
    assert (np.abs(got - want.y) <= allowed).all()


@pytest.mark.parametrize(("k", "n", "signed"), [
    (128, 36, True), (896, 44, False), (1024, 64, True), (1152, 36, False), (2048, 20, True),
    (2176, 36, True), (4096, 20, False),
])  # fmt: skip  # n need not fill a matrix; a subgroup has one, two or four chunks of k (the last: fewer)
def test_a_row_of_few_outputs(
    k: int, n: int, signed: bool, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row times few outputs, with bias and activation, is right for 7-bit weights, and for weights whose
    zero points the kernel subtracts. Repeated runs give the same bytes. An infinity in x makes the results
    infinite."""
    device = units(strict_device, monkeypatch, "16x8x16")
    profile_says(monkeypatch, half_gemv, multiprocessors=4, matrix_pairs=True)
    # Half of the real limits of k, because the device may have only 256 invocations in a workgroup.
    monkeypatch.setattr(half_gemv, "ROW_K", {1: 1024, 2: 2048, 4: 4096})
    rng = np.random.default_rng(k)
    w, x = rng.integers(-100, 101, (n, k), np.int8), rng.normal(size=(1, k)).astype(np.float16)
    w[0] = np.arange(k) % 100 + 1
    points = rng.integers(-27, 28, n).astype(np.int8) if signed else np.full(n, -128, np.int8)
    bias = rng.normal(size=n).astype(np.float32)
    layer = vkq.Linear(
        w, 0.01, bias=bias, compute="float16", w_zero_point=points, activation="relu", device=device
    )  # fmt: skip
    chunks = 1 if k <= 1024 else 2 if k <= 2048 else 4
    assert layer.plan(Spec(x.shape, "float16")).variants == (f"{half_gemv.ROW}:{chunks}",)
    assert layer._gemm.matrices.signed == (signed and not signs_refusal(device))
    terms = x.astype(np.float64), (w.astype(np.float64) - points[:, None]).T * float(np.float32(0.01))
    want, size = np.maximum(terms[0] @ terms[1] + bias, 0), np.abs(terms[0]) @ np.abs(terms[1]) + np.abs(bias)
    got = replayed(layer, x, device, emulated.REPLAYS) if k == 896 else layer(x)
    assert (np.abs(got - want) <= (k + 4) * 2.0**-22 * size + 2.0**-10 * want + 2.0**-25).all()
    x[0, -1] = np.inf
    assert np.isposinf(layer(x)[0, 0])


def test_how_many_rows_and_workgroups_are_worth_it() -> None:
    """`worth` accepts the numbers of rows and workgroups for which the kernel is faster than others,
    measured with 132 multiprocessors. 128 workgroups compute 4096 outputs."""
    assert [rows for rows in range(1, 40) if half_gemv.worth(rows, 32, 132, 4096)] == list(range(3, 17))
    assert [rows for rows in range(1, 33) if half_gemv.worth(rows, 128, 132, 4096)] == list(range(2, 33))
    assert [rows for rows in range(1, 33) if half_gemv.worth(rows, 344, 132, 4096)] == list(range(2, 17))


def test_how_many_workgroups_of_runs_are_worth_it() -> None:
    """For more than 32 rows, `worth` limits the product of workgroups and k: for k = 4096 and 132
    multiprocessors, to 528 workgroups."""

    def taken(rows: int, k: int) -> list[int]:
        some = (65, 66, 132, 133, 196, 197, 528, 529, 1056, 1057, 2112, 2113)
        return [count for count in some if half_gemv.worth(rows, count, 132, k, half_gemv.RUNS)]

    assert taken(16, 4096) == []
    assert taken(17, 4096) == taken(32, 11008) == [66, 132, 133, 196, 197, 528, 529, 1056, 1057, 2112]
    assert taken(33, 4096) == [66, 132, 133, 196, 197, 528]
    assert taken(64, 11008) == [66, 132, 133, 196]
    assert taken(64, 1024) == [66, 132, 133, 196, 197, 528, 529, 1056]
    assert taken(64, 32768) == [66, 132]


def test_long_rows_of_several_workgroups_are_words(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A layer uses the tiles of half_configs.WORDS, which assemble matrices from words, instead of RUNS if
    all of these conditions hold:

    - more than 32 rows, and more than two workgroups for each multiprocessor
    - k is at least 4096, and a whole number of iterations
    - the weights have 7 bits
    - these tiles cost less than the tiles that load matrices"""
    device, tiles = units(strict_device, monkeypatch, "16x8x16"), {"64x128": (9, 9, 1)}
    profile_says(monkeypatch, half_gemv, multiprocessors=2, matrix_pairs=True)

    def taken(rows: int, n: int, k: int, least: int = -127, straight: int = 10) -> str:
        cycles = {"straight_tile_cycles": {"64x128": (straight, straight)}, "words_tile_cycles": tiles}
        known(monkeypatch, half_tile_cycles={}, multiprocessors=2, matrix_pairs=True, **cycles)
        w = np.resize(np.arange(least, 128, dtype=np.int8), (n, k))
        layer = vkq.Linear(w, 1e-3, compute="float16", device=device)
        return layer.plan(Spec((rows, k), "float16")).variants[-1].split(":")[0]

    assert "words" in taken(33, 192, 4096)
    assert {taken(33, 192, 3840), taken(33, 192, 4224), taken(33, 128, 4096), taken(33, 192, 4096, -128),
            taken(33, 192, 4096, straight=8), taken(32, 192, 4096)} == {half_gemv.RUNS}  # fmt: skip


def test_matrices_are_as_wide_as_rows_fill(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel uses the widest matrices that the rows fill, whatever the order of the device's list."""
    profile_says(monkeypatch, half_gemv, multiprocessors=2)
    for shapes in (("16x8x16", "16x16x16"), ("16x16x16", "16x8x16")):
        emulated.emulate(strict_device, monkeypatch, *shapes, form="f16")
        layer = vkq.Linear(np.ones((44, 264), np.int8), 1.0, compute="float16", device=strict_device)
        found = [half_gemv.fitting(layer._gemm, rows, "float16") for rows in half_gemv.ROWS]
        assert [fit and fit[1]["MN"] for fit in found] == [8, 16, 16, 16, 16]


def test_one_row_where_most_multiprocessors_have_a_workgroup() -> None:
    one = [half_gemv.worth(1, workgroups, 132, 4096, half_gemv.WORDS) for workgroups in (65, 66, 344)]
    assert one == [False, True, True]
    assert not any(half_gemv.worth(1, 128, 132, 4096, shader) for shader in (half_gemv.RUNS, half_gemv.STEPS))


def test_a_row_by_subgroups_of_their_own_chunks() -> None:
    """The ROW kernel computes a single row if every multiprocessor has at most one workgroup (16 outputs).
    Its number of invocations depends on the chunks of k."""
    taken = [half_gemv.worth(1, workgroups, 132, 4096, half_gemv.ROW) for workgroups in (1, 132, 133)]
    assert taken == [True, True, False]
    facts = reported("nvidia-h200")
    sizes = [
        half_gemv.invocations(facts, half_gemv.ROW, 1, 64, k) for k in (128, 2048, 2176, 4096, 4160, 4224)
    ]
    assert sizes == [(32,), (512,), (288,), (512,), (), (288,)]


def test_invocations_by_chunks_and_multiprocessors() -> None:
    """On an H200, the preferred number of invocations is the fastest measured one. The cases vary the number
    of workgroups, K and the maximum number of rows. WORDS and RUNS are not used if K is not a multiple of 128
    (a chunk), or if invocations hold no pairs of elements of a matrix."""
    facts = reported("nvidia-h200")
    words = [half_gemv.invocations(facts, half_gemv.WORDS, tall, w, k) for tall, w, k in (
        (8, 128, 4096), (8, 256, 8192), (8, 344, 4096), (8, 32, 1024), (8, 8, 128),
        (16, 128, 4096), (16, 256, 8192), (16, 344, 4096), (8, 128, 4160),
    )]  # fmt: skip
    assert [sizes[:1] for sizes in words] == [(512,), (256,), (128,), (256,), (128,), (256,), (), (128,), ()]
    runs = [half_gemv.invocations(facts, half_gemv.RUNS, tall, w, k)[:1] for tall, w, k in (
        (64, 128, 4096), (32, 256, 8192), (64, 344, 4096), (64, 128, 1024), (64, 128, 4160),
    )]  # fmt: skip
    assert runs == [(512,), (256,), (128,), (256,), ()]
    steps = [half_gemv.invocations(facts, half_gemv.STEPS, 32, w, 4096) for w in (132, 133)]
    assert steps == [(512, 256, 128), (256, 128)]
    assert not half_gemv.invocations(reported("radv-gfx1100"), half_gemv.WORDS, 8, 128, 4096)


@pytest.mark.parametrize("k", [264, 256])
def test_infinity_and_nan_stay_in_their_rows(
    k: int, strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = units(strict_device, monkeypatch, "16x8x16")
    profile_says(monkeypatch, half_gemv, matrix_pairs=True)
    rng = np.random.default_rng(3)
    w, x = rng.integers(1, 128, (36, k), np.int8), rng.normal(size=(8, k)).astype(np.float16)
    layer = vkq.Linear(w, 0.01, compute="float16", device=device)
    clean = layer(x)
    x[2, k - 1], x[5, 0] = np.nan, -np.inf
    got = layer(x)
    assert np.isnan(got[2]).all()
    assert np.isneginf(got[5]).all()
    others = [0, 1, 3, 4, 6, 7]
    np.testing.assert_array_equal(got[others], clean[others])


@pytest.mark.parametrize("wrong", [
    # Each replacement imitates a wrong driver. With the first replacement, words belong to other outputs
    # and rows.
    (r"(#define word_of_matrix\(m, q\) .*)", r"\1 ^ 8u"),
    (r"(#define word_of_matrix\(m, q\) .*)", r"\1 * 65537u"),  # a word does not hold two neighbours in k
    (r"(#define further\(q\)) .*", r"\1 0u"),  # both words of a pair have the same k
    (r"(#define further_word\(l\) .*) 4u", r"\1 2u"),  # the words of a load are not 8 k apart
], ids=["places", "pairs", "further", "runs"])  # fmt: skip
def test_elements_that_are_no_pairs_are_seen(
    wrong: tuple[str, str], strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test fails if the profile states that an invocation holds pairs of neighbouring elements, but
    the driver does otherwise. Few rows then use the kernel that only loads matrices."""
    for module in (half_gemv, selftest):
        profile_says(monkeypatch, module, multiprocessors=2, matrix_pairs=True)
    sixteen_bits.provide(strict_device, monkeypatch)
    emulated.emulate(strict_device, monkeypatch, "16x16x16", "16x8x16", form="f16", wrong=wrong)
    stages = selftest.stages(strict_device)
    said = stages[selftest.PAIRS[HALF]]()
    shape = "16x8x16" if r"further\(" in wrong[0] else "16x16x16"
    assert f"matrices of {shape} f16, assembled from words of two elements: " in said
    assert stages["matrices_half"]() is None
    found = dataclasses.replace(selftest.report(strict_device), failures={selftest.PAIRS[HALF]: said})
    monkeypatch.setattr(selftest, "report", lambda _: found)
    w = np.random.default_rng(5).integers(-127, 128, (36, 256), np.int8)
    layer = vkq.Linear(w, 0.01, compute="float16", device=strict_device)
    assert layer.plan(Spec((8, 256), "float16")).variants == (f"{half_gemv.STEPS}:8",)


def test_weights_of_runs() -> None:
    """`in_runs` orders weights for two matrices of 16 k: k 0 to 7 become the first and the fifth pair of
    each matrix, k 8 to 15 the second and the sixth pair, and so on."""
    k = half_weights.in_runs(np.arange(64, dtype=np.int8).reshape(1, 1, 64)).reshape(2, 2, 2, 4, 2)
    assert k[0, 0].reshape(2, 8).tolist() == [[0, 1, 8, 9, 16, 17, 24, 25], [2, 3, 10, 11, 18, 19, 26, 27]]
    np.testing.assert_array_equal(k[0, 1], k[0, 0] + 4)
    np.testing.assert_array_equal(k[1], k[0] + 32)


def test_pairs_are_asked_for_where_a_profile_says_so(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    sixteen_bits.provide(strict_device, monkeypatch)
    emulated.emulate(strict_device, monkeypatch, "16x16x16", "16x8x16", form="f16")
    profile_says(monkeypatch, selftest, matrix_pairs=False)
    assert selftest.PAIRS[HALF] not in selftest.stages(strict_device)
    profile_says(monkeypatch, selftest, matrix_pairs=True)
    assert selftest.stages(strict_device)[selftest.PAIRS[HALF]]() is None


def test_float16_tensors_need_not_ask(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """For float16 rows and int8 weights, compute='float32' uses the kernel of compute='float16', because
    the products are exact in float16."""
    sixteen_bits.provide(strict_device, monkeypatch)
    if half_refusal(strict_device) or half_refusal(strict_device, BRAIN):
        emulated.emulate(strict_device, monkeypatch, "16x8x16 f16", "16x16x16 bf16")
    rng = np.random.default_rng(4)
    w, x = rng.integers(-127, 128, (36, 264), np.int8), rng.normal(size=(5, 264)).astype(np.float16)
    layers = [vkq.Linear(w, 0.01, compute=how, device=strict_device) for how in ("float32", "float16")]
    for layer in layers:
        assert layer.plan(Spec(x.shape, "float16")).variants == (f"{half_gemv.STEPS}:8",)
    np.testing.assert_array_equal(*(layer(x) for layer in layers))
    assert not any(name.startswith(FEW) for name in layers[0].plan(Spec(x.shape, "float32")).variants)


def test_others_go_the_other_way(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for few float16 rows is not used in these cases; other kernels run instead:

    - too many or too few rows, or float32 rows
    - a k or a number of outputs that is not a whole number of vectors
    - few outputs, or quantized results
    - a layer with a requested tile"""
    device = units(strict_device, monkeypatch, "16x8x16")
    few = Spec((8, 64), "float16")
    for x, n in (
        (Spec((17, 64), "float16"), 36), (Spec((2, 64), "float16"), 36), (Spec((8, 68), "float16"), 36),
        (few, 38), (Spec((8, 64), "float32"), 36), (few, 16),
    ):  # fmt: skip
        layer = vkq.Linear(np.ones((n, x.shape[1]), np.int8), 1.0, compute="float16", device=device)
        assert not any(name.startswith(FEW) for name in layer.plan(x).variants)
    for options in ({}, {"y_qparams": vkq.QParams(0.5)}):
        layer = vkq.Linear(np.ones((36, 64), np.int8), 1.0, compute="float16", device=device, **options)
        assert isinstance(layer._gemm.matrices, half.HalfMatrices)
        layer._gemm.matrices.tile = None if options else "16x64"
        assert not any(name.startswith(FEW) for name in layer.plan(few).variants)
