"""Tests of q4gsw and q8gsw: float activations, weights of 4 and 8 bits in groups along K.

Results are compared with float64 by the bound that `vkq.reference.linear_grouped` derives: (K + 4) roundoffs
of sum |x| |scale| |q - zero_point| + |bias|, with 2**-24 for rounding to nearest (2**-23 if a device rounds
toward zero).
"""

import dataclasses
import types
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.conftest import EVERY
from tests.device.reported import as_h200, profile_says
from tests.kernels import sixteen_bits
from tests.runtime.work import replayed
from vkq import reference
from vkq.device.profiles import preferred, profile
from vkq.kernels import cast, grouped
from vkq.layout.extent import Spec
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run
from vkq.runtime.program import refusals
from vkq.shader.catalog import catalog

EPSILON = 2.0**-23
VARIANTS = catalog().shaders[grouped.STAGED].variants
# (M, N, K, bits, group, symmetric, dtype of the scales). Together, the shapes have one row; one column; M, N
# and K that are not multiples of a tile or workgroup; groups of 16, of 32 and of several times 32 elements of
# k; each number of rows that the GEMV supports; a last group that is not full or has one element; and an odd
# number of groups of 16.
SHAPES = [
    (1, 1, 32, 4, 32, True, "float32"),
    (1, 37, 416, 4, 32, False, "float16"),
    (2, 9, 1152, 4, 128, True, "float16"),
    (3, 70, 192, 4, 64, False, "float32"),
    (35, 67, 160, 4, 32, True, "float32"),
    (1, 6, 96, 8, 32, False, "float32"),
    (4, 33, 640, 8, 128, True, "float16"),
    (33, 35, 192, 8, 64, False, "float16"),
    (1, 38, 416, 4, 16, False, "float16"),
    (3, 9, 160, 4, 16, True, "float32"),
    (2, 5, 96, 8, 16, False, "float32"),
    (34, 66, 160, 4, 16, False, "float32"),
    (35, 33, 96, 8, 16, True, "float16"),
    (1, 9, 300, 4, 128, True, "float16"),
    (34, 35, 97, 8, 32, False, "float32"),
    (3, 9, 48, 4, 16, False, "float16"),
]


def weight(n: int, k: int, bits: int, group: int, symmetric: bool, scales: Any) -> vkq.GroupedWeight:
    w = np.random.default_rng([n, k, bits]).standard_normal((n, k), np.float32)
    return vkq.quantize_weight(w, bits=bits, group=group, symmetric=symmetric, scale_dtype=scales)


def numbers(*shape: int) -> npt.NDArray[np.float32]:
    return np.random.default_rng(shape).standard_normal(shape, np.float32)


def assert_close(got: Any, x: Any, w: vkq.GroupedWeight, bias: Any = None, activation: Any = None) -> None:
    want = reference.linear_grouped(x, w, bias, activation)
    assert (got.dtype, got.shape) == (np.float32, want.shape)
    size = reference.linear_grouped(x, w, bias, magnitude=True)
    wrong = ~(np.abs(got - want) <= (w.shape[1] + 4) * EPSILON * size)
    assert not wrong.any(), np.argwhere(wrong)[:5]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("method", ["auto", "staged"])
def test_every_method_is_within_the_bound(shape: tuple[Any, ...], method: str, device: vkq.Device) -> None:
    m, n, k = shape[:3]
    w, x, bias = weight(n, k, *shape[3:]), numbers(m, k), numbers(n)
    layer = vkq.Linear(w, bias=bias, method=method, device=device)
    assert layer.scheme == f"q{shape[3]}gsw"
    assert_close(layer(x), x, w, bias)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("shape", [(1, 33), (7, 20), (2, 3, 47), (0, 33), (5, 1)], ids=str)
def test_rows_are_filled_with_zeros(shape: tuple[int, ...], dtype: Any, device: vkq.Device) -> None:
    """x is copied bit for bit, also NaN and infinities. Each row is padded with zeros, even if the row begins
    in the middle of a word. All kernels that read padded rows share one copy of x."""
    x = np.random.default_rng(shape).integers(0, 256, (*shape, np.dtype(dtype).itemsize), np.uint8)
    x = x.view(dtype)[..., 0]
    b = Builder(device)
    given = b.input(Spec(shape, np.dtype(dtype).name))
    y = cast.filled_rows(b, given, 64)
    assert cast.filled_rows(b, given, 64) is y
    assert cast.filled_rows(b, y, 64) is y
    assert b.dispatches == int(bool(x.size))
    found = run(b.plan(y), (vkq.Tensor.from_numpy(x, device),), None, "test").numpy()
    assert found[..., : shape[-1]].tobytes() == x.tobytes()
    assert found.shape == (*shape[:-1], 64)
    assert not found[..., shape[-1] :].view(np.uint8).any()


@pytest.mark.parametrize("m", [1, 5, 40])
def test_what_fills_a_row_counts_for_nothing(m: int, device: vkq.Device) -> None:
    """The padding of a row of the weight does not affect results, even if its codes are arbitrary and their
    scale would make results infinite."""
    w = vkq.GroupedWeight(
        np.r_[np.full(5, 0x99), np.full(11, 0xFF)].astype(np.uint8).reshape(1, 1, 16),
        np.full((1, 1), 3e38, np.float32), np.uint8([[8]]), k=10,
    )  # fmt: skip
    x = np.zeros((m, 10), np.float32)
    x[:, 3] = 0.5
    for method in ("auto", "staged"):
        np.testing.assert_array_equal(vkq.Linear(w, method=method, device=device)(x), np.float32(1.5e38))


@pytest.mark.parametrize(("bits", "tile"), [(v.axes["bits"], v.axes["tile"]) for v in VARIANTS])
def test_every_tile(bits: str, tile: str, device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every tile is correct for K = 160. The loop over k has 5 iterations, which is not a multiple of the
    number of slices. A group has as many elements of k as one iteration, or half as many."""
    monkeypatch.setattr(grouped, "staged_tile", lambda *_: tile)
    for group in (32, 16):
        w, x = weight(35, 160, int(bits), group, False, "float32"), numbers(33, 160)
        layer = vkq.Linear(w, method="staged", activation="relu", device=device)
        assert layer.explain(x.shape).variants == (f"{grouped.STAGED}:{bits}.{tile}",)
        assert_close(layer(x), x, w, None, "relu")


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("parts", [1, 2, 16])
def test_parts_of_the_sum(parts: int, rows: int, device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The GEMV whose invocations split k into parts is correct.

    - With 4 bits, K has 5 chunks of 32 elements. With 16 parts, some invocations have no chunk. Without a
      split, one invocation has all chunks.
    - A group is one chunk, two chunks or half a chunk.
    - Two parts are tested with every weight. One part and 16 parts are tested with one weight for each number
      of rows."""
    monkeypatch.setattr(grouped.GroupedGemm, "split", lambda *_: {"LOCAL_X": 2, "LOCAL_Y": parts})
    profile_says(monkeypatch, grouped, gemv_rows_shared=0)
    sixteen_bits.provide(device, monkeypatch)
    weights = ((4, 32), (8, 32), (4, 16))
    for bits, group in weights if EVERY or parts == 2 else weights[(rows + parts) % 3 :][:1]:
        w, x = weight(11, 160, bits, group, False, "float16"), numbers(rows, 160)
        layer = vkq.Linear(w, method="gemv", device=device)
        assert_close(layer(x), x, w)
        sixteen_bits.check_rows(device, layer, x, f"{grouped.GEMV}:{bits}.{rows}.float16")


@pytest.mark.parametrize(("method", "bits", "rows"), [("gemv", 4, 1), ("tiled", 8, 2)])
def test_one_word_after_the_other(
    method: str, bits: int, rows: int, device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels that multiply one word of the weight at a time are correct for three rows. A kernel computes
    one or two rows at a time. Devices with few registers use these kernels."""
    profile_says(monkeypatch, grouped, registers="some", grouped_rows=rows, gemv_rows_shared=0)
    for group in (32, 16):
        w, x = weight(9, 416, bits, group, False, "float16"), numbers(3, 416)
        layer = vkq.Linear(w, method=method, device=device)
        assert layer.explain(x.shape).variants == (f"{grouped.GEMV}:{bits}.{rows}.float32",)
        assert_close(layer(x), x, w)


SHARED, ROWS = (
    sorted({(v.axes["bits"], v.axes["numbers"]) for v in catalog().shaders[name].variants})
    for name in (grouped.SHARED, grouped.ROW)
)


def forced(monkeypatch: pytest.MonkeyPatch, shader: str, how: dict[str, Any], **axes: str) -> None:
    """Use this shader for every product until the end of the test."""

    def program(gemm: grouped.GroupedGemm, _: int, dtype: str = "float32") -> Any:
        return gemm.device.program(catalog().find(shader, x=dtype, **axes), {**how, **gemm.constants})

    monkeypatch.setattr(grouped.GroupedGemm, "program", program)


@pytest.mark.parametrize(("bits", "kind"), SHARED)
def test_x_in_shared_memory(
    bits: str, kind: str, device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel with x in shared memory is correct in these cases:

    - the number of chunks of k is not a multiple of the number of parts that share the chunks
    - groups are one chunk, or several chunks
    - the outputs do not fill a workgroup"""
    if kind == "half" and not device.capabilities.features["shaderFloat16"]:
        with pytest.raises(vkq.PathError, match="shaderFloat16"):
            device.program(catalog().find(grouped.SHARED, bits=bits, numbers=kind, x="float32"), {})
        return
    one = bits == "4"
    k, group, scales, parts = (416, 32, "float32", 8) if one else (1152, 128, "float16", 16)
    w, m = weight(11, k, int(bits), group, False, scales), 3
    x, bias = numbers(m, k), numbers(11)
    forced(monkeypatch, grouped.SHARED, {"LOCAL_Y": parts}, bits=bits, numbers=kind)
    sixteen_bits.provide(device, monkeypatch)
    layer = vkq.Linear(w, bias=bias, activation="relu", method="gemv", device=device)
    assert_close(layer(x), x, w, bias, "relu")
    sixteen_bits.check_rows(device, layer, x, f"{grouped.SHARED}:{bits}.{kind}.float16")


@pytest.mark.parametrize(("bits", "kind"), ROWS)
def test_a_single_row(bits: str, kind: str, device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for a single row is correct if the last slice of x is not full, if some parts of k are
    empty, and if the outputs do not fill a workgroup. A device with too little shared memory refuses the
    kernel."""
    variant = catalog().find(grouped.ROW, bits=bits, numbers=kind, x="float32")
    if refusals(variant, variant.constants({}), device.capabilities):
        with pytest.raises(vkq.PathError):
            device.program(variant, {})
        return
    k, group, scales = (5120, 32, "float32") if bits == "8" else (4480, 128, "float16")
    w, x, bias = weight(11, k, int(bits), group, False, scales), numbers(3, k), numbers(11)
    forced(monkeypatch, grouped.ROW, {}, bits=bits, numbers=kind)
    sixteen_bits.provide(device, monkeypatch)
    layer = vkq.Linear(w, bias=bias, activation="relu", method="gemv", device=device)
    assert_close(layer(x), x, w, bias, "relu")
    sixteen_bits.check_rows(device, layer, x, f"{grouped.ROW}:{bits}.{kind}.float16")


def test_where_a_profile_says_so_a_row_is_read_ahead(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the profile chooses the kernel for a single row, it prefetches weights. 200 runs give the same
    bytes, also with infinity in x. If k is too short for all its parts, the usual GEMV is used."""
    sixteen_bits.provide(device, monkeypatch)
    with preferred({"gemv_rows_shared": 4}):
        w, x = weight(9, 1056, 4, 32, False, "float16"), numbers(1, 1056)
        layer = vkq.Linear(w, method="gemv", device=device)
        assert layer.explain(x.shape).variants[0].startswith(f"{grouped.ROW}:4.")
        assert_close(replayed(layer, x, device), x, w)
        x[0, 1050] = np.inf
        steps = (w.codes()[:, 1050] - w.zero_points()[:, 32]) * w.scales()[:, 32]
        with np.errstate(invalid="ignore"):
            want = np.where(steps == 0, np.nan, np.inf * steps)
        np.testing.assert_array_equal(layer(x)[0], want)
        np.testing.assert_array_equal(replayed(layer, x.astype(np.float16), device)[0], want)
        short = vkq.Linear(weight(9, 992, 4, 32, False, "float16"), method="gemv", device=device)
        assert short.explain((1, 992)).variants == (f"{grouped.GEMV}:4.1.float32",)


def test_where_a_profile_says_so_x_is_in_shared_memory(device: vkq.Device) -> None:
    """If the profile chooses this kernel, the GEMV keeps x in shared memory, provided that zero points are
    integers and each group is a whole number of chunks of k. 200 runs give the same bytes. Infinity and NaN
    in a row of x affect only the results of that row."""
    with preferred({"gemv_rows_shared": 4}):
        w, x = weight(9, 416, 4, 32, False, "float16"), numbers(3, 416)
        layer = vkq.Linear(w, method="gemv", device=device)
        name = layer.explain(x.shape).variants[0]
        assert name.startswith(f"{grouped.SHARED}:4.")
        x[1, 4], x[2, 6] = np.nan, np.inf
        got = replayed(layer, x, device)
        assert_close(got[:1], x[:1], w)
        np.testing.assert_array_equal(np.isnan(got[1]), True)
        steps = (w.codes()[:, 6] - w.zero_points()[:, 0]) * w.scales()[:, 0]
        with np.errstate(invalid="ignore"):
            np.testing.assert_array_equal(got[2], np.where(steps == 0, np.nan, np.inf * steps))
        points = np.full((9, 13), 7.5, np.float32)
        half = vkq.GroupedWeight(w.packed, w.scale.astype(np.float32), points)
        for other in (half, weight(9, 416, 4, 16, False, "float16")):
            layer = vkq.Linear(other, method="gemv", device=device)
            assert layer.explain((2, 416)).variants == (f"{grouped.GEMV}:4.2.float32",)
        w, x = weight(9, 416, 8, 16, False, "float16"), numbers(3, 416)
        layer = vkq.Linear(w, method="gemv", device=device)
        assert layer.explain(x.shape).variants[0].startswith(f"{grouped.SHARED}:8.")
        assert_close(layer(x), x, w)


def test_axes_in_front_and_no_rows(device: vkq.Device) -> None:
    w = weight(5, 64, 4, 64, True, "float32")
    layer = vkq.Linear(w, device=device)
    x = numbers(2, 3, 64)
    assert_close(layer(x), x, w)
    assert_close(layer(x[0, 0]), x[0, 0], w)
    assert layer(x[:0]).shape == (0, 3, 5)
    explained = layer.explain((1, 64))
    assert (explained.scheme, explained.method, explained.variants) == (
        "q4gsw", "gemv", ("gemv_q4gsw__split:4.1.float32",)
    )  # fmt: skip
    none = vkq.GroupedWeight(np.zeros((2, 0, 16), np.uint8), np.zeros((2, 0), np.float32))
    bias = np.float32([1, 2])
    for method in ("auto", "staged"):  # with K = 0, the result is the bias
        found = vkq.Linear(none, bias=bias, method=method, device=device)(np.zeros((40, 0), np.float32))
        np.testing.assert_array_equal(found, np.tile(bias, (40, 1)))
    nothing = vkq.Linear(vkq.quantize_weight(np.zeros((0, 64)), bits=4, group=32), device=device)
    for dtype in (np.float32, np.float16):  # N = 0 gives an empty result
        found = nothing(np.ones((2, 3, 64), dtype))
        assert (found.shape, found.dtype) == ((2, 3, 0), dtype)


def test_extremes(device: vkq.Device) -> None:
    """Results are within the error bound for large and tiny activations and scales, negative scales,
    biases, and fractional zero points."""
    rng = np.random.default_rng(5)
    packed = rng.integers(0, 256, (7, 3, 16), np.uint8)
    for scale, size in ((1e-3, 1e30), (1e30, 1e-3), (1e-30, 1e-3), (3e-5, 1.0), (-0.25, 1e-37)):
        values = (rng.uniform(0.5, 2, (7, 3)) * scale).astype(np.float32)
        zero = rng.uniform(-20, 20, (7, 3)).astype(np.float32)
        for points in (None, zero, rng.integers(0, 256, (7, 2), np.uint8)):
            w = vkq.GroupedWeight(packed, values, points)
            x, bias = numbers(3, 96) * np.float32(size), numbers(7) * np.float32(size * abs(scale))
            want = reference.linear_grouped(x, w, bias)
            allowed = 100 * EPSILON * reference.linear_grouped(x, w, bias, magnitude=True)
            for method in ("gemv", "staged"):
                got = vkq.Linear(w, bias=bias, method=method, device=device)(x)
                # a device may flush subnormal numbers
                assert (np.abs(got - want) <= allowed + 96 * 2.0**-120).all()


@pytest.mark.parametrize("method", ["gemv", "staged"])
def test_nan_and_infinity_pass_through_where_they_belong(method: str, device: vkq.Device) -> None:
    """NaN and infinities of x pass through the product, and infinity times a weight of 0 gives NaN, as in the
    formula. Rows of x with only finite values keep their results."""
    packed = np.full((2, 1, 16), 0x99, np.uint8)  # code 9 means 1
    packed[1, 0, 3] = 0x98  # code 8 means 0, here at k = 6
    w = vkq.GroupedWeight(packed, np.full((2, 1), 0.5, np.float16))
    x = np.ones((4, 32), np.float32)
    x[1, 4], x[2, 6], x[3, 5] = np.nan, np.inf, -np.inf
    got = vkq.Linear(w, method=method, device=device)(x)
    np.testing.assert_array_equal(got[0], [16, 15.5])
    np.testing.assert_array_equal(got[1:], [[np.nan, np.nan], [np.inf, np.nan], [-np.inf, -np.inf]])


@pytest.mark.parametrize("method", ["gemv", "tiled", "staged"])
def test_replays_give_the_same_bytes(method: str, device: vkq.Device) -> None:
    layer = vkq.Linear(weight(35, 256, 4, 64, False, "float16"), method=method, device=device)
    replayed(layer, numbers(33, 256), device)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"x_qparams": vkq.QParams(1.0)}, "x_qparams is given with a GroupedWeight"),
        ({"x_qparams": "dynamic"}, "x_qparams is given with a GroupedWeight"),
        ({"y_qparams": vkq.QParams(1.0)}, "y_qparams is given with a GroupedWeight"),
        ({"w_zero_point": 3}, "w_zero_point is given, and weight is a GroupedWeight"),
        ({"w_scale": 0.5}, "w_scale is given, and weight is a GroupedWeight"),
        ({"bias": np.zeros(3, np.int32)}, "bias has dtype int32"),
        ({"bias": np.zeros(3)}, "bias has dtype float64; with a GroupedWeight it must be float32"),
        ({"bias": np.zeros(4, np.float32)}, r"bias has shape \(4,\)"),
        ({"path": "dot"}, "path dot needs int8 activations"),
        ({"compute": "float64"}, "compute is 'float64'; it must be one of float32, float16"),
    ],
)
def test_what_does_not_go_together(options: dict[str, Any], error: str, any_device: vkq.Device) -> None:
    with pytest.raises(vkq.VkqError, match=error):
        vkq.Linear(weight(3, 32, 4, 32, True, "float32"), device=any_device, **options)


def test_other_layers_and_inputs_are_refused(any_device: vkq.Device) -> None:
    w: Any = weight(3, 32, 4, 32, True, "float32")
    with pytest.raises(vkq.DTypeError, match="weight is GroupedWeight"):
        vkq.Conv2d(w, None, device=any_device)  # type: ignore[arg-type]
    layer = vkq.Linear(w, device=any_device)
    with pytest.raises(vkq.DTypeError, match="x has dtype int8; it must be float32"):
        layer(np.zeros((1, 32), np.int8))
    with pytest.raises(vkq.ArgumentError, match="x has K=64"):
        layer(np.zeros((1, 64), np.float32))
    with pytest.raises(vkq.ArgumentError, match="w_scale is None"):
        vkq.Linear(np.zeros((3, 32), np.int8), device=any_device)


@pytest.mark.parametrize(("rows", "n", "tile"), [
    (16, 4096, "32x32x4"), (16, 16384, "32x32x2"), (64, 4096, "32x32x4"), (64, 8192, "32x32x2"),
    (64, 16384, "64x64"), (512, 4096, "128x128"), (512, 8192, "128x128"),
])  # fmt: skip
def test_an_h200_takes_the_tiles_measured_faster(
    rows: int, n: int, tile: str, software_device: vkq.Device
) -> None:
    """On an H200, the tiles with the shortest measured times are chosen (benchmarks/log.md)."""
    gpu = as_h200(software_device.capabilities)
    assert grouped.staged_tile(gpu, "4", rows, n) == tile


def test_rows_that_read_the_weight_often_share_it(
    software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products of many rows use the kernel whose invocations share the weight, because the GEMV reads the
    weight again for every four rows. With integer zero points, codes unpack faster, so the GEMV is used for
    up to 16 rows; with fractional ones, for up to 12."""
    # drop the choices that were measured on this CPU
    c = dataclasses.replace(software_device.capabilities, choices=())
    facts = dataclasses.replace(c, device_type="discrete", vendor_id=0x10DE)
    whole = weight(5, 64, 4, 64, True, "float32")
    half = vkq.GroupedWeight(whole.packed, whole.scale, np.full((5, 1), 7.5, np.float32))
    for w, most in ((whole, 16), (half, 12)):
        gemm = grouped.GroupedGemm(software_device, w, None, (-1, 1))
        monkeypatch.setattr(gemm, "device", types.SimpleNamespace(capabilities=facts))
        assert [gemm.method(rows)[0] for rows in (1, most, most + 1)] == ["gemv", "gemv", "staged"]


def test_tiles_by_shape_and_device(software_device: vkq.Device) -> None:
    """Tiles depend on shape and device. A CPU uses no shared memory; a device with little shared memory
    gets a smaller tile."""
    facts = software_device.capabilities
    assert grouped.staged_tile(facts, "4", 4096, 4096) is None
    gpu = as_h200(facts)
    tiles = {*dict(profile(gpu).grouped_tiles), grouped.SMALLEST}
    assert tiles == set(catalog().shaders[grouped.STAGED].axes["tile"])
    assert grouped.staged_tile(gpu, "4", 4096, 4096) == "128x128"
    assert grouped.staged_tile(gpu, "8", 4096, 4096) == "64x64"
    assert grouped.staged_tile(gpu, "4", 64, 4096) == "32x32x4"
    little = dataclasses.replace(gpu, properties={**gpu.properties, "maxComputeSharedMemorySize": 16384})
    assert grouped.staged_tile(little, "4", 4096, 4096) == "64x64"
    assert grouped.staged_tile(little, "4", 64, 4096) == "32x32"
