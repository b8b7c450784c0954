"""Tests of the kernels for float activations. Each variant runs on every device, also on devices that
prefer other variants, and is within the error bound of a float32 sum."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import Data, random_data
from tests.device.reported import picked, profile_says
from tests.runtime.work import replayed
from vkq.check.expected import Expected
from vkq.device.profiles import preferred
from vkq.kernels import float_vectors, floats
from vkq.kernels.float_direct import FloatDirect
from vkq.kernels.float_lanes import CONV_LANES
from vkq.kernels.floats import Affine, FloatGemm, FloatImplicit, staged_tile
from vkq.kernels.gemm import Rows
from vkq.layout.extent import Spec
from vkq.problem.names import parse
from vkq.runtime.builder import Builder, Value
from vkq.runtime.eager import run
from vkq.select import registers
from vkq.shader.catalog import catalog

from ..ops import doctored
from . import sixteen_bits

TILES, CONV_TILES = (
    catalog().shaders[name].axes["tile"] for name in (floats.GEMM_STAGED, floats.CONV_STAGED)
)
# M, N and K are not multiples of the tiles. The second K is a multiple of the four elements of a vector,
# the first is not.
PRODUCTS = ("linear[M=131,K=37,N=141]", "linear[M=3,K=260,N=5]")
CONVOLUTIONS = (
    "conv2d[N=2,IC=5,H=9,W=11,OC=10,KH=3,KW=3,padding=1]",
    # An iteration over k covers one tap in this convolution, and several taps in the first one.
    "conv2d[N=1,IC=64,H=7,W=9,OC=32,KH=2,KW=3,stride=2x1,padding=1x0x2x1,dilation=1x2,groups=2]",
)

# Profile fields that choose the depthwise kernels that read vectors.
VECTORS = {"lane_loads": False, "registers": "plenty"}
SHARING: dict[str, Any] = {  # profile fields for kernels in which lanes and rows share loads of x
    "lane_loads": True, "registers": "enough", "staged": None, "gemv_rows_float": 0,
}  # fmt: skip


def expected(name: str, seed: int) -> tuple[Data, Any, Expected]:
    problem, rng = parse(name), np.random.default_rng(seed)
    data = random_data(problem, rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(size=problem.x_shape).astype(np.float32)
    return data, x, data.expected_sum(x, None)


def affine(data: Data) -> Affine:
    return Affine(data.w_scale, data.float_bias, (-np.inf, np.inf))


def check(device: vkq.Device, x: Any, want: Expected, build: Callable[[Builder, Value, Value], None]) -> None:
    tensor = vkq.Tensor.from_numpy(x, device)
    b = Builder(device)
    value, y = b.input(tensor.spec), b.new(Spec(want.y.shape, "float32"))
    build(b, value, y)
    assert want.mismatch(run(b.plan(y), (tensor,)).numpy()) is None


@pytest.mark.parametrize(("tile", "name"), list(zip(TILES, PRODUCTS * 4, strict=False)))
def test_every_staged_tile(device: vkq.Device, tile: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, x, want = expected(name, len(tile))
    monkeypatch.setattr(floats, "staged_tile", lambda *_: tile)
    p = data.problem
    gemm = FloatGemm(
        device, (1, *p.weight_shape), lambda: data.w[None], data.w_zero_point[None], affine(data), p.gemm_n
    )
    gemm.kernel = "staged"
    check(device, x, want, lambda b, v, y: gemm.build(b, v, y, Rows(p.gemm_m)))


@pytest.mark.parametrize(("tile", "name"), list(zip(CONV_TILES, CONVOLUTIONS * 4, strict=False)))
def test_every_implicit_tile(device: vkq.Device, tile: str, name: str) -> None:
    data, x, want = expected(name, len(tile))
    layer = vkq.Conv2d(
        data.w, data.w_scale, bias=data.float_bias, w_zero_point=data.w_zero_point, method="implicit",
        device=device, **data.options,
    )  # fmt: skip
    kernel = FloatImplicit(layer._convolution.gemm, tile)
    check(device, x, want, lambda b, v, y: kernel.build(b, data.problem, v, y))


@pytest.mark.parametrize("tile", catalog().shaders["conv2d_q8csw__direct"].axes["tile"])
def test_every_direct_tile(device: vkq.Device, tile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FloatDirect, "tile", tile)
    data, x, want = expected(CONVOLUTIONS[1], 3)
    layer = vkq.Conv2d(
        data.w, data.w_scale, bias=data.float_bias, w_zero_point=data.w_zero_point, method="direct",
        device=device, **data.options,
    )  # fmt: skip
    assert layer.explain(x.shape).variants == (f"conv2d_q8csw__direct:{tile}.float32",)
    assert want.mismatch(layer(x)) is None
    given = vkq.Tensor.from_numpy(x.astype(np.float16), device)
    got = layer(given)
    assert got.dtype == "float16"
    np.testing.assert_array_equal(got.numpy(), layer(given.numpy().astype(np.float32)).astype(np.float16))
    halves, casts = (f"conv2d_q8csw__direct:{tile}.float16",), ["float32", "float16"]
    variants = layer.plan(given.spec).variants
    whole = device.capabilities.features["storageBuffer16BitAccess"]
    assert variants == halves if whole else [v.split(":")[1] for v in variants[::2]] == casts


@pytest.mark.parametrize("name", [  # several images; two outputs per channel; a partial tile of rows
    "conv2d[N=2,IC=3,H=9,W=20,OC=6,KH=3,KW=3,padding=1,groups=3]",
    "conv2d[N=1,IC=5,H=11,W=44,OC=5,KH=4,KW=3,padding=2x5x1x3,stride=2x2,dilation=1x2,groups=5]",
    "conv2d[N=1,IC=2,H=5,W=280,OC=2,KH=2,KW=4,padding=0x2x1x1,dilation=2x1,groups=2]",
])  # fmt: skip
def test_depthwise_lines_as_whole_vectors(device: vkq.Device, name: str) -> None:
    """Depthwise convolutions that read whole vectors are within the bound. Results that are infinite or NaN
    equal those of the direct kernel. float16 results are the float32 results rounded once."""
    activation: Any = "relu6" if "stride" in name else None
    data, x, _ = expected(name, 4)
    x[0, -1, 2, 6:9] = 6e4, np.nan, -6e4  # with +-6e4, sums exceed float16's range
    want = data.expected_sum(x, activation)
    options: dict[str, Any] = {
        "bias": data.float_bias, "w_zero_point": data.w_zero_point, "device": device, **data.options,
        "activation": activation,
    }  # fmt: skip
    with preferred(VECTORS):
        layer = vkq.Conv2d(data.w, data.w_scale, method="depthwise", **options)
        direct = vkq.Conv2d(data.w, data.w_scale, method="direct", **options)
        half = vkq.Tensor.from_numpy(x.astype(np.float16), device)
        for spec in (Spec(x.shape, "float32"), half.spec):
            assert float_vectors.SHADER in "".join(layer.plan(spec).variants)
        got, number = layer(x), np.isfinite(want.y)
        assert not (want.wrong(got) & number).any()
        np.testing.assert_array_equal(got[~number], direct(x)[~number])
        with np.errstate(over="ignore"):
            rounded = layer(half.numpy().astype(np.float32)).astype(np.float16)
        np.testing.assert_array_equal(layer(half).numpy(), rounded)


def test_lines_that_are_no_whole_vectors(device: vkq.Device) -> None:
    """The direct kernel computes images whose rows (of x or y) are not whole vectors, and windows with more
    taps than registers hold."""
    for size, kernel, padding in (((6, 18), 3, 1), ((6, 20), 3, 0), ((9, 20), 9, 4)):
        w = np.ones((2, 1, kernel, kernel), np.int8)
        with preferred(VECTORS):
            layer = vkq.Conv2d(w, 1.0, padding=padding, groups=2, device=device)
            assert layer.explain((1, 2, *size)).variants[0].startswith("conv2d_q8csw__direct:")


@pytest.mark.parametrize(("rows", "unroll"), [(1, 4), (1, 2), (2, 4), (4, 4), (8, 4)])
def test_every_number_of_rows(
    device: vkq.Device, rows: int, unroll: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile_says(monkeypatch, floats, registers="few" if unroll == 2 else "enough")
    monkeypatch.setattr(floats.gemv, "max_rows", lambda *_, **__: rows)
    sixteen_bits.provide(device, monkeypatch)
    for k in (37, 64):  # with k = 37 the last vector of a row is partial
        data, x, want = expected(f"linear[M={rows + 1},K={k},N=9]", rows)
        layer = vkq.Linear(
            data.w, data.w_scale, bias=data.float_bias, w_zero_point=data.w_zero_point, method="gemv",
            device=device,
        )  # fmt: skip
        kind = f"gemv_q8csw__split:{'any' if k % 4 else 'four'}"
        assert layer.explain(x.shape).variants == (f"{kind}.{rows}",)
        assert want.mismatch(layer(x)) is None
        sixteen_bits.check_rows(device, layer, x, f"{kind}_float16.{rows}")


@pytest.mark.parametrize(
    ("rows", "k", "n", "columns"),
    [(1, 4133, 9, 8), (1, 4160, 45, 2), (2, 2100, 13, 4), (4, 1037, 9, 2), (8, 1100, 37, 8)],
)
def test_weights_read_ahead(
    device: vkq.Device, rows: int, k: int, n: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GEMV that prefetches weights is within the error bound. The cases have whole and partial slices
    of x, subgroups without work, and columns that do not fill a workgroup."""
    profile_says(monkeypatch, floats, registers="plenty")
    monkeypatch.setattr(floats.gemv, "AHEAD_COLUMNS", ((0, columns),))
    sixteen_bits.provide(device, monkeypatch)
    monkeypatch.setattr(floats.gemv, "max_rows", lambda *_, **__: rows)
    data, x, want = expected(f"linear[M={rows + 1},K={k},N={n}]", rows)
    options: dict[str, Any] = {"bias": data.float_bias, "w_zero_point": data.w_zero_point, "method": "gemv"}
    layer = vkq.Linear(data.w, data.w_scale, device=device, **options)
    kind = f"{floats.GEMV_AHEAD}:{'any' if k % 4 else 'four'}"
    assert layer.explain(x.shape).variants == (f"{kind}.{rows}",)
    assert want.mismatch(layer(x)) is None
    sixteen_bits.check_rows(device, layer, x, f"{kind}_float16.{rows}")


@pytest.mark.parametrize(("dtype", "kind"), [(np.float32, "any"), (np.float16, "any_float16")])
def test_rows_read_ahead_replay_the_same_bytes(
    dtype: Any, kind: str, device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A GEMV that prefetches weights gives the same bytes in 200 runs, whatever its buffers held before.
    An infinity or NaN in a row of x affects only this row of y."""
    profile_says(monkeypatch, floats, registers="plenty")
    sixteen_bits.provide(device, monkeypatch)
    data, x, _ = expected("linear[M=3,K=1030,N=9]", 5)
    x[1, 1029], x[2, 3] = np.nan, np.inf
    w = np.where(data.w == 0, 1, data.w)
    layer = vkq.Linear(w, data.w_scale, method="gemv", device=device)
    given = x.astype(dtype)
    y = replayed(layer, given, device)
    assert layer.plan(Spec(x.shape, given.dtype.name)).variants == (f"{floats.GEMV_AHEAD}:{kind}.4",)
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()
    np.testing.assert_array_equal(y[2], np.inf * np.sign(w[:, 3].astype(np.float32)))


@preferred({"lane_loads": False})
def test_without_16_bit_storage_float16_rows_are_converted(software_device: vkq.Device) -> None:
    """Without 16-bit storage, layers convert float16 rows to float32 first. Quantized results are computed
    from float32, without a conversion to float16."""
    facts, w = software_device.capabilities, np.ones((9, 64), np.int8)
    few, many = Spec((1, 64), "float16"), Spec((33, 64), "float16")
    casts = ["float32", "float16"]
    layer = vkq.Linear(w, 1.0, device=software_device)
    assert [name.split(":")[1] for name in layer.plan(many).variants[::2]] == casts
    quantized = vkq.Linear(w, 1.0, y_qparams=vkq.QParams(0.5), device=software_device)
    assert quantized.plan(few).variants[:2] == ("cast_float16__words:float32", "gemv_q8csw__split:four.1")
    taken = layer.plan(few).variants
    if facts.features[sixteen_bits.FEATURE]:
        assert taken == ("gemv_q8csw__split:four_float16.1",)
    else:
        assert [name.split(":")[1] for name in taken[::2]] == casts


@pytest.mark.parametrize("tile", catalog().shaders["gemm_q8csw__tiled"].axes["tile"])
def test_every_tile_in_registers(device: vkq.Device, tile: str) -> None:
    for name in ("linear[M=37,K=37,N=45]", "linear[M=9,K=64,N=7]"):
        data, x, want = expected(name, 1)
        layer = vkq.Linear(
            data.w, data.w_scale, bias=data.float_bias, w_zero_point=data.w_zero_point, method="tiled",
            device=device,
        )  # fmt: skip
        with picked(registers.Setting(tile, 4, 16)):
            assert layer.explain(x.shape).variants[0].endswith(tile)
            assert want.mismatch(layer(x)) is None


def shared(device: vkq.Device, name: str, variant: str) -> None:
    """Check a layer whose lanes or rows share loads of x, for float32 and float16. NaN and infinity must
    affect only the results that sum them."""
    data, x, want = expected(name, 7)
    made: Any = vkq.Conv2d if name.startswith("conv2d") else vkq.Linear
    with preferred(SHARING):
        layer = made(
            data.w, data.w_scale, bias=data.float_bias, w_zero_point=data.w_zero_point, device=device,
            **getattr(data, "options", {}),
        )  # fmt: skip
        assert layer.explain(x.shape).variants == (variant,)
        y = layer(x)
        assert want.mismatch(y) is None
        given = vkq.Tensor.from_numpy(x.astype(np.float16), device)
        with np.errstate(over="ignore"):
            rounded = layer(given.numpy().astype(np.float32)).astype(np.float16)
        np.testing.assert_array_equal(layer(given).numpy(), rounded)
        x.reshape(-1)[[5, -1]] = np.nan, np.inf
        with np.errstate(invalid="ignore"):
            special = data.expected_sum(x, None).y
        special = np.where(np.isfinite(special), y, special.astype(np.float32))
        np.testing.assert_array_equal(replayed(layer, x, device), special)


@pytest.mark.parametrize(
    ("m", "k", "x"), [(11, 37, "any"), (3, 76, "four"), (2, 5, "any"), (11, 64, "four"), (1, 132, "four")]
)
def test_rows_that_lanes_share(device: vkq.Device, m: int, k: int, x: str) -> None:
    """Lanes that share loads of x give results within the error bound. The number of k-blocks is below,
    equal to, or a little above the number of lanes."""
    shared(device, f"linear[M={m},K={k},N=45]", f"{floats.GEMM_LANES}:{x}")


@pytest.mark.parametrize(
    ("name", "x"),
    [
        # The last iteration over channels has fewer channels than the earlier ones.
        ("N=2,IC=12,H=5,W=11,OC=173,KH=3,KW=3,padding=1", "float32"),
        ("N=1,IC=16,H=6,W=20,OC=176,KH=2,KW=3,padding=1x2x0x1,groups=2", "texels"),
        ("N=1,IC=8,H=9,W=8,OC=128,KH=3,KW=3,stride=2x1,padding=1,dilation=1x2", "float32"),
        # KW is large: the taps run in a loop.
        ("N=1,IC=4,H=5,W=12,OC=128,KH=1,KW=8,padding=0x3x0x4", "float32"),
        ("N=2,IC=8,H=6,W=10,OC=88,KH=1,KW=1", "texels"),  # an image row is one vector
        ("N=2,IC=8,H=5,W=8,OC=88,KH=1,KW=1,stride=2", "float32"),
    ],
)
def test_pixels_that_lanes_share(device: vkq.Device, name: str, x: str) -> None:
    """Lanes that share loads of pixels give results within the error bound. The numbers of channels suit
    subgroups of 32 lanes; some lanes have no channel."""
    shared(device, f"conv2d[{name}]", f"{CONV_LANES}:{x}")


@pytest.mark.parametrize(
    ("name", "x"),
    [  # rows and pixels that do not fill a tile; two outputs per channel; taps that fill two texels
        ("N=2,IC=5,H=7,W=12,OC=5,KH=3,KW=3,padding=1,groups=5", "texels"),
        ("N=1,IC=6,H=9,W=11,OC=12,KH=5,KW=5,stride=2x1,padding=2x1x0x3,groups=6", "float32"),
        ("N=1,IC=3,H=5,W=16,OC=3,KH=2,KW=7,stride=1x2,padding=0x2x1x3,groups=3", "texels"),
    ],
)
def test_lines_that_results_share(device: vkq.Device, name: str, x: str) -> None:
    shared(device, f"conv2d[{name}]", f"conv2d_q8csw__depthwise:{x}")


@pytest.mark.parametrize(
    ("name", "texels", "read", "instead"),
    [  # *texels*: number of texels of the weights, or of x
        ("linear[M=11,K=64,N=45]", 192, f"{floats.GEMM_LANES}:four", "gemm_q8csw__tiled"),
        ("conv2d[N=1,IC=8,H=6,W=40,OC=88,KH=1,KW=1]", 480, f"{CONV_LANES}:texels", f"{CONV_LANES}:float32"),
        (
            "conv2d[N=1,IC=5,H=7,W=12,OC=5,KH=3,KW=3,padding=1,groups=5]",
            105,
            "conv2d_q8csw__depthwise:texels",
            "conv2d_q8csw__depthwise:float32",
        ),
    ],
)
def test_what_is_too_long_to_view(
    device: vkq.Device, name: str, texels: int, read: str, instead: str
) -> None:
    data, x, want = expected(name, 3)
    made: Any = vkq.Conv2d if name.startswith("conv2d") else vkq.Linear
    for most, variant in ((texels, read), (texels - 1, instead)):
        limited = doctored.capabilities(device, maxTexelBufferElements=most)
        with (
            preferred(SHARING),
            vkq.Device(capabilities=limited) as small,
        ):
            layer = made(
                data.w, data.w_scale, bias=data.float_bias, w_zero_point=data.w_zero_point, device=small,
                **getattr(data, "options", {}),
            )  # fmt: skip
            assert layer.explain(x.shape).variants[0].startswith(variant)
            assert want.mismatch(layer(x)) is None


def test_large_depthwise_kernels_share_no_lines(device: vkq.Device) -> None:
    with preferred(SHARING):
        for size, options in ((6, {}), (3, {"stride": 3}), (3, {"dilation": 2})):
            layer = vkq.Conv2d(np.ones((2, 1, size, size), np.int8), 1.0, groups=2, device=device, **options)
            assert "direct" in layer.explain((1, 2, 7, 8)).variants[0]


def test_few_lanes_share_nothing(device: vkq.Device) -> None:
    """The kernel whose lanes share loads of pixels is not chosen in two cases: fewer than two thirds of the
    lanes would have channels, or the number of channels of a group is not a multiple of 4."""
    with preferred(SHARING):
        for ic, oc, groups in ((8, 1 + 4 * device.capabilities.properties["subgroupSize"], 1), (12, 48, 6)):
            layer = vkq.Conv2d(np.ones((oc, ic // groups, 3, 3), np.int8), 1.0, groups=groups, device=device)
            assert "direct" in layer.explain((1, ic, 5, 8)).variants[0]


def test_a_large_gpu_takes_tiles_through_shared_memory(any_device: vkq.Device) -> None:
    """A large GPU uses tiles in shared memory, whose size depends on the rows and columns; 8 rows use no such
    tile. With little shared memory the tile is small. A phone uses no tile in shared memory."""
    large = doctored.capabilities(
        any_device, device_type="discrete", maxComputeSharedMemorySize=49152,
        maxComputeWorkGroupInvocations=1024,
    )  # fmt: skip
    gemm = floats.GEMM_STAGED
    for shader, tiles in floats.STAGED_TILES.items():
        assert {tile for tile, _ in tiles} == set(catalog().shaders[shader].axes["tile"])
    assert staged_tile(large, gemm, 4096, 4096, 1) == "128x256"
    assert staged_tile(large, gemm, 512, 4096, 1) == "128x128"
    assert staged_tile(large, gemm, 64, 4096, 1) == "32x32x8"
    assert staged_tile(large, floats.CONV_STAGED, 86400, 128, 1) == "256x128"
    assert staged_tile(large, gemm, 8, 4096, 1) is None
    small = doctored.capabilities(any_device, device_type="discrete", **doctored.SMALLEST_LIMITS)
    assert staged_tile(small, gemm, 4096, 4096, 1) in ("64x64", "32x32")
    assert staged_tile(small, floats.CONV_STAGED, 64, 64, 1) == "32x32"
    phone = doctored.capabilities(any_device, device_type="integrated", vendor_id=0x13B5)
    assert staged_tile(phone, gemm, 4096, 4096, 1) is None
