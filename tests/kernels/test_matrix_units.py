"""Tests of int8 matrix units. If VKQ_TEST_DEVICE names a GPU with matrix units, the shaders run unchanged;
software drivers run emulated matrices (emulated.glsl)."""

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.conftest import EVERY
from tests.device.reported import picked, reported, with_h200_costs
from vkq import reference
from vkq.device.profiles import profile
from vkq.kernels import matrix_conv, matrix_tiles
from vkq.kernels import matrix_units as coopmat
from vkq.kernels.matrix_conv import CONV, chunked, conv_shader, turn
from vkq.kernels.matrix_tiles import Tiling, tilings
from vkq.kernels.matrix_units import MatrixGemm
from vkq.layout.extent import BLOCKED, IMAGE, MATRIX
from vkq.layout.pack import layout
from vkq.probe import selftest
from vkq.probe.matrices import LEAST_SHARED, Matrices, advertised, lacking
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.names import parse
from vkq.runtime.builder import Value
from vkq.schemes.base import Operands
from vkq.schemes.q8ta_q8csw import Q8taQ8csw
from vkq.select import path as select
from vkq.select import registers
from vkq.shader.catalog import catalog
from vkq.shader.spec import Variant

from . import emulated as matrix_units
from .emulated import ROW
from .matrix_layers import SHAPES, Q, Y, layer_of, make, name_of, tiled, units, with_matrices


def test_only_listed_shapes_are_used(any_device: vkq.Device) -> None:
    changes = {"m": 2, "n": 32, "k": 8, "a": "u8", "d": "u32", "saturating": True, "scope": "workgroup"}
    for name, value in changes.items():
        assert advertised(with_matrices(any_device, dataclasses.replace(ROW, **{name: value}))) == ()


def test_order_of_preference(any_device: vkq.Device) -> None:
    """`advertised` lists signed shapes before unsigned ones, otherwise in the device's order, without
    duplicates."""
    unsigned = dataclasses.replace(ROW, a="u8", b="u8", c="u32", d="u32")
    listed = with_matrices(any_device, unsigned, ROW, dataclasses.replace(ROW, n=16), ROW)
    assert [str(matrices) for matrices in advertised(listed)] == ["16x8x32", "16x16x32", "16x8x32 u8u8"]


@pytest.mark.parametrize(
    ("least", "most", "vendor", "size"),
    [
        (32, 32, 0x10DE, 32),
        (32, 64, 0x1002, 32),
        (64, 128, 0x5143, 64),
        (16, 16, 0x13B5, 16),
        (8, 32, 0x8086, 8),  # Intel: as many invocations as a matrix has rows
        (16, 32, 0x8086, 16),
        (4, 4, 0x1AE0, None),
    ],
)
def test_size_of_subgroups(
    any_device: vkq.Device, least: int, most: int, vendor: int, size: int | None
) -> None:
    properties = {**any_device.capabilities.properties, "minSubgroupSize": least, "maxSubgroupSize": most}
    device = dataclasses.replace(with_matrices(any_device, ROW), properties=properties, vendor_id=vendor)
    assert [matrices.subgroup for matrices in advertised(device)] == ([size] if size else [])


def test_refusal_names_the_missing_feature_or_shape(device: vkq.Device) -> None:
    if device.capabilities.features["cooperativeMatrix"]:
        assert lacking(device.capabilities) is None
        return
    assert lacking(device.capabilities) == "cooperativeMatrix is false"
    little = matrix_units.capabilities(device, maxComputeSharedMemorySize=16384)
    assert lacking(little) == "maxComputeSharedMemorySize is 16384, needs 32768"
    none = dataclasses.replace(matrix_units.capabilities(device), cooperative_matrices=())
    assert "it lists no s8 x s8 + s32 or u8 x u8 + u32 cooperative matrix" in str(lacking(none))
    with pytest.raises(vkq.PathError, match=r"path coopmat cannot run on .*: cooperativeMatrix is false"):
        select.choose_path(device, "coopmat")


@pytest.mark.parametrize("chunk", [32, 64, 128])
def test_chunks_of_channels_keep_every_weight(chunk: int) -> None:
    """`chunked` orders the weights (chunk, kh, kw, channel), keeps every weight and pads with zeros."""
    weight = np.random.default_rng(3).integers(-128, 128, (5, 170, 3, 3), dtype=np.int8)
    chunks, k = -(-170 // chunk), 9 * chunk
    got = chunked(weight, chunk, 64).reshape(5, chunks, -1)
    assert got.shape[2] == -(-k // 64) * 64
    assert not got[:, :, k:].any()
    taps = got[:, :, :k].reshape(5, chunks, 3, 3, chunk)
    for channel in range(170):
        np.testing.assert_array_equal(taps[:, channel // chunk, :, :, channel % chunk], weight[:, channel])
    assert not taps[:, -1, :, :, 170 % chunk :].any()


def test_sixteen_k_of_an_output_are_one_run() -> None:
    weight = np.arange(-100, 100, dtype=np.int8).reshape(1, 5, 40)
    # Indices: [k/16][n][k%16]
    words = layout("kPackedInt8_16K").pack(weight).view(np.int8).reshape(3, 16, 16)
    np.testing.assert_array_equal(words[2, 4, :8], weight[0, 4, 32:])
    assert not words[2, :, 8:].any()
    assert not words[:, 5:].any()


def test_one_packing_serves_every_tile() -> None:
    whole = matrix_tiles.TURN
    turns = {"deep": matrix_tiles.DEEP_TURN, "short": matrix_tiles.SHORT_MOST, "long": whole, "": whole}
    for variant in (*catalog().shaders[coopmat.GEMM].variants, *catalog().shaders[coopmat.DYNAMIC].variants):
        assert turn(variant) == turns[variant.axes["tile"].partition("_")[2]]
    for variant in catalog().shaders[CONV].variants:
        d = {name: int(value) for name, value in variant.sizes.items()}
        assert d["CH"] % d["BK"] == 0
        if d["CH"] > 32:
            assert 9 * d["CH"] % turn(variant) == 0  # 3x3 filters need no padding of k


def rows_of(variant: Variant) -> int:
    d = {name: int(value) for name, value in variant.sizes.items()}
    return d["TH"] * d["TW"] if "TH" in d else d["BM"]


def test_tiles_keep_the_rules_of_the_shaders() -> None:
    for shader in (coopmat.GEMM, coopmat.SPLIT, coopmat.DYNAMIC, CONV):
        for variant in catalog().shaders[shader].variants:
            d = {name: int(value) for name, value in variant.sizes.items()}
            assert d["TURNS"] % 2 == d["TURNS"] % d["DEPTH"] == d["BK"] % 32 == 0
            assert not d.get("BURST") or d["TURNS"] == d["DEPTH"]
            assert d["BN"] * d["BK"] // 16 % d["INVOCATIONS"] == 0
            assert Matrices(16, 8, 32).fit(variant, rows_of(variant))
            if shader != CONV:
                assert d["BM"] * d["BK"] // 16 % d["INVOCATIONS"] == 0


@pytest.mark.parametrize("subgroup", [8, 16, 32, 64])
def test_every_shape_that_is_taken_finds_tiles(any_device: vkq.Device, subgroup: int) -> None:
    """Every supported shape has tiles that fit the least shared memory of Vulkan devices. A subgroup
    computes whole rows of a convolution's tile, or part of one row."""
    p = parse("conv2d[N=1,IC=32,H=30,W=30,OC=100,KH=3,KW=3]")
    assert isinstance(p, Conv2dProblem)
    for m, n, k in itertools.product((4, 8, 16, 32, 64), (8, 16), (16, 32)):
        device = matrix_units.capabilities(
            any_device, f"{m}x{n}x{k}", subgroup=subgroup, maxComputeSharedMemorySize=LEAST_SHARED
        )
        if m > 2 * subgroup:
            assert not advertised(device)
            continue
        (matrices,) = advertised(device)
        fitting = [
            v
            for v in catalog().shaders[coopmat.GEMM].variants
            if matrices.fit(v, rows_of(v)) and matrices.runs(v, device)
        ]
        assert fitting
        chosen = conv_shader(p, "q8to", device)
        assert chosen
        for variant in (*fitting, chosen[0]):
            constants = {name: int(value) for name, value in matrices.constants(variant).items()}
            assert constants["WGM"] * constants["WGN"] * subgroup == variant.sizes["INVOCATIONS"]
        sm, tw = rows_of(chosen[0]) // constants["WGM"], int(chosen[0].sizes["TW"])
        assert sm % tw == 0 or tw % sm == 0


@pytest.mark.parametrize(
    ("rows", "n", "k", "groups", "tile"),
    [
        (4096, 4096, 4096, 1, "128x256_long"),
        (4096, 1000, 4096, 1, "128x256_long"),
        (4096, 4096, 1920, 1, "128x256"),
        (86400, 128, 1152, 1, "128x128"),  # a tile of 256 outputs would be half empty
        (2048, 128, 128, 8, "128x128"),
        (33, 1000, 128, 1, "64x64"),  # larger tiles would leave multiprocessors idle
        (33, 1000, 64, 1, "64x32_short"),  # k has only two iterations
        (100352, 64, 128, 1, "128x64"),  # layers of ResNet-50 at batch 32: the fastest measured tiles
        (25088, 128, 512, 1, "128x128"),
        (6272, 256, 1024, 1, "64x64_deep"),
        (6272, 512, 1024, 1, "128x128"),  # 128x256, which other layers use, is as fast
        (1568, 2048, 512, 1, "128x128"),
        (25088, 512, 256, 1, "128x128"),
        (1568, 512, 2048, 1, "64x64_deep"),
        (196, 256, 1024, 1, "32x32_wide"),  # layers of ResNet-50 at batch 1
        (784, 1024, 512, 1, "64x64_deep"),  # 32x32_wide tiles would outnumber the multiprocessors
        (49, 160, 960, 1, "32x32_wide"),  # layers of MobileNetV2
        (196, 576, 96, 1, "64x64"),
        (1568, 512, 256, 1, "64x64"),
        (1568, 512, 640, 1, "64x64"),  # k is no multiple of the deep tile's 256
    ],
)
def test_tile_of_a_product(rows: int, n: int, k: int, groups: int, tile: str) -> None:
    assert tilings(profile(reported("nvidia-h200")), rows, n, k, groups, split=False)[0] == Tiling(tile)


@pytest.mark.parametrize(
    ("rows", "n", "k", "tile"),
    [
        (6272, 1024, 256, "128x128"),  # layers of ResNet-50 at batch 32
        (1568, 1024, 256, "128x64"),  # batch 8; a product without a sum uses 128x128
        (6272, 512, 128, "128x128"),
        (392, 2048, 512, "64x64_deep"),
        (25088, 256, 64, "64x32_short"),  # batch 8; a product without a sum uses 128x128_short
    ],
)
def test_tile_of_a_product_with_a_sum(rows: int, n: int, k: int, tile: str) -> None:
    """A product that adds a residual uses smaller tiles on an H200, because its epilogue takes longer."""
    known = profile(reported("nvidia-h200"))
    assert tilings(known, rows, n, k, split=False, summed=True)[0] == Tiling(tile)


def test_a_tile_has_room_for_weight_zero_points(matrices: vkq.Device) -> None:
    """A convolution with weight zero points uses a tile that has shared memory for them. With the
    preferred tile, the input pixels would leave no room for zero points."""
    p = parse("conv2d[N=1,IC=5,H=9,W=10,OC=1,KH=2,KW=5,stride=3x2,padding=1x3x0x0,dilation=1x2]")
    for zero_points in ("none", "channel"):
        data = random_data(p, np.random.default_rng(20), w_zero_points=zero_points)
        np.testing.assert_array_equal(
            make(data, matrices, data.y_q)(data.x), data.expected(data.y_q), strict=True
        )


def test_a_smaller_tile_where_the_device_has_no_room(
    matrices: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, zeros = np.zeros((1024, 640), np.int8), np.zeros(1024, np.int32)
    scales = np.full(1024, 0.01, np.float32)
    scheme = Q8taQ8csw(Operands("linear", weight, scales, zeros, None, Q, Y, None, "coopmat"))
    gemm = MatrixGemm(matrices, weight.shape, lambda: weight, scheme)
    names = []
    for limit in (49152, 32768, 20480, 16384):
        properties = {**matrices.capabilities.properties, "maxComputeSharedMemorySize": limit}
        monkeypatch.setattr(
            matrices, "capabilities", dataclasses.replace(matrices.capabilities, properties=properties)
        )
        names.append(gemm.chosen(4096)[1].axes["tile"])
    assert names == ["128x256", "128x128", "128x64", "64x64"]


@pytest.mark.parametrize(
    ("name", "wide", "narrow"),  # expected tiles; wide: only 16x16x32 is listed; narrow: 16x8x32, too
    [
        ("conv2d[N=10,IC=128,H=72,W=120,OC=128,KH=3,KW=3,padding=1]", "8x16x128_c128", "8x16x128_c128"),
        ("conv2d[N=32,IC=64,H=56,W=56,OC=64,KH=3,KW=3,padding=1]", "8x16x64_c64", "8x16x64_c64"),
        ("conv2d[N=32,IC=128,H=56,W=56,OC=128,KH=3,KW=3,stride=2,padding=1]", "8x16x128_c32", "8x16x128_c32"),
        ("conv2d[N=32,IC=128,H=28,W=28,OC=128,KH=3,KW=3,padding=1]", "8x16x128_c128", "8x16x128_c128"),
        ("conv2d[N=32,IC=256,H=14,W=14,OC=256,KH=3,KW=3,padding=1]", "8x16x64_c128", "8x16x64_c128"),
        ("conv2d[N=32,IC=512,H=14,W=14,OC=512,KH=3,KW=3,stride=2,padding=1]", "8x16x64_c32", "8x8x64_c64"),
        ("conv2d[N=32,IC=512,H=7,W=7,OC=512,KH=3,KW=3,padding=1]", "8x16x64_c128", "8x8x64_c128"),
        ("conv2d[N=8,IC=256,H=14,W=14,OC=256,KH=3,KW=3,padding=1]", "8x16x64_c128", "8x8x64_c128"),
        ("conv2d[N=1,IC=128,H=28,W=28,OC=128,KH=3,KW=3,padding=1]", "8x16x64_c128", "8x8x64_c128"),
        ("conv2d[N=1,IC=256,H=20,W=8,OC=128,KH=5,KW=5,padding=2]", "8x16x64_c128", "8x8x64_c128"),
        ("conv2d[N=40,IC=64,H=16,W=8,OC=128,KH=3,KW=3,padding=1]", "8x16x64_c64", "8x8x64_c64"),
        ("conv2d[N=1,IC=128,H=99,W=99,OC=128,KH=7,KW=7]", "8x16x64_c64", "8x8x64_c128"),
        ("conv2d[N=1,IC=40,H=19,W=37,OC=70,KH=3,KW=3,padding=1]", "8x16x64_c64", "8x8x64_c64"),
        ("conv2d[N=2,IC=64,H=14,W=14,OC=64,KH=3,KW=3,padding=1,groups=2]", "8x16x64_c32", "8x16x64_c32"),
        ("conv2d[N=1,IC=64,H=99,W=99,OC=64,KH=3,KW=3,dilation=20]", None, None),
    ],
)
def test_tile_of_a_convolution(
    any_device: vkq.Device, name: str, wide: str | None, narrow: str | None
) -> None:
    p = parse(name)
    assert isinstance(p, Conv2dProblem)
    for shapes, tile in ((("16x16x32",), wide), (("16x16x32", "16x8x32"), narrow)):
        chosen = conv_shader(p, "q8to", with_h200_costs(matrix_units.capabilities(any_device, *shapes)))
        assert (chosen and chosen[0].axes["tile"]) == tile
        if chosen:
            shader, matrices = chosen
            assert str(matrices) == ("16x8x32" if int(shader.sizes["TW"]) == 8 else "16x16x32")


@pytest.mark.parametrize(
    ("weight", "x", "options", "method", "taken"),
    [
        ((8, 16), (33, 16), {}, "", BLOCKED),
        ((8, 16), (3, 11, 16), {}, "", BLOCKED),
        ((8, 16), (28, 16), {}, "", MATRIX),  # 28 rows are too few for matrix units
        ((8, 16), (64, 16), {"method": "tiled"}, "", MATRIX),
        ((8, 0), (64, 0), {}, "", MATRIX),
        ((0, 16), (64, 16), {}, "", MATRIX),
        ((8, 16), (64, 16), {"w_zero_point": 1}, "", BLOCKED),
        ((8, 16), (64, 16), {"x_qparams": "dynamic", "y_qparams": None}, "", BLOCKED),
        ((8, 16), (28, 16), {"x_qparams": "dynamic", "y_qparams": None}, "", MATRIX),
        ((8, 16, 1, 1), (1, 16, 6, 6), {}, "pointwise", BLOCKED),
        ((8, 16, 1, 1), (1, 16, 4, 7), {}, "pointwise", IMAGE),  # 28 pixels are too few for matrix units
        ((8, 16, 1, 1), (2, 16, 11, 9), {"stride": (2, 1)}, "pointwise", BLOCKED),
        (
            (8, 16, 1, 1),
            (1, 16, 9, 9),
            {"stride": 2},
            "matrix",
            BLOCKED,
        ),  # 25 pixels are few, but no other kernel has strides
        ((8, 16, 1, 1), (1, 16, 9, 9), {"stride": 2, "method": "pointwise"}, "pointwise", BLOCKED),
        ((8, 16, 1, 1), (1, 16, 9, 9), {"padding": 1}, "implicit", BLOCKED),
        ((32, 16, 1, 1), (1, 32, 9, 9), {"groups": 2}, "pointwise", BLOCKED),
        ((32, 12, 1, 1), (1, 24, 9, 9), {"groups": 2}, "direct", IMAGE),
        ((32, 32, 3, 3), (1, 64, 9, 9), {"groups": 2}, "implicit", BLOCKED),
        ((24, 32, 3, 3), (1, 64, 9, 9), {"groups": 2}, "im2col", IMAGE),  # 12 outputs do not fill a block
        ((64, 1, 3, 3), (1, 64, 9, 9), {"groups": 64}, "depthwise", BLOCKED),
        ((64, 3, 7, 7), (1, 3, 30, 30), {"stride": 2}, "stem", IMAGE),
        ((64, 64, 3, 3), (1, 64, 9, 9), {"method": "direct"}, "direct", IMAGE),
        ((64, 64, 3, 3), (1, 64, 9, 9), {"method": "im2col"}, "im2col", IMAGE),
        ((64, 0, 3, 3), (1, 0, 9, 9), {}, "im2col", IMAGE),
        ((0, 64, 3, 3), (1, 64, 9, 9), {}, "im2col", IMAGE),
        ((64, 64, 3, 3), (0, 64, 9, 9), {}, "matrix", BLOCKED),
        ((64, 64, 3, 3), (1, 64, 9, 9), {"w_zero_point": 1}, "matrix", BLOCKED),
    ],
)
def test_layout_and_method(
    costed_matrices: vkq.Device,
    weight: tuple[int, ...],
    x: tuple[int, ...],
    options: dict[str, Any],
    method: str,
    taken: str,
) -> None:
    layer = layer_of(costed_matrices, weight, **options)
    explained = layer.explain(x)
    # The table names the method of CPUs; a GPU computes im2col cases with the implicit kernel.
    assert explained.method == method or (method, explained.method) == ("im2col", "implicit")
    assert layer.input_layout(x) == taken
    if explained.variants:
        on_units = (taken == BLOCKED and method != "depthwise") or method == "stem"
        assert ("coopmat" in explained.variants[-1]) == on_units
    y = layer(np.zeros(x, np.int8 if layer.x_qparams else np.float32))
    assert y.shape == layer._problem(x).y_shape


def test_strided_convolutions_gather_their_pixels(costed_matrices: vkq.Device) -> None:
    """A convolution gathers its pixels (method "implicit") where this was measured to be faster: with a
    stride for 1 or 32 images, and with a long k for a single small image. The other convolutions, also one
    with a stride for 4 images, use tiles of input pixels (method "matrix")."""
    for n, channels, size, stride, method in (
        (32, 64, 56, 1, "matrix"), (32, 128, 56, 2, "implicit"), (32, 512, 7, 1, "matrix"),
        (1, 64, 56, 1, "matrix"), (1, 128, 28, 1, "matrix"), (1, 512, 7, 1, "implicit"),
        (1, 128, 56, 2, "implicit"), (4, 128, 56, 2, "matrix"), (16, 512, 7, 1, "matrix"),
    ):  # fmt: skip
        layer = layer_of(costed_matrices, (channels, channels, 3, 3), padding=1, stride=stride)
        assert layer.explain((n, channels, size, size)).method == method


def test_tuning_stays_off_matrix_units(matrices: vkq.Device) -> None:
    """If a setting of a register tile is picked, as tuning does, the layer does not use matrix units: it
    runs the picked kernel in this kernel's layout."""
    setting = registers.Setting("4x4", 16, 4)
    for layer, shape in (
        (layer_of(matrices, (8, 16)), (64, 16)),
        (layer_of(matrices, (8, 16, 1, 1)), (1, 16, 8, 8)),
    ):
        x = np.random.default_rng(8).integers(-128, 128, shape, dtype=np.int8)
        want = layer(vkq.Tensor.from_numpy(x, matrices))
        with picked(setting):
            got = layer(vkq.Tensor.from_numpy(x, matrices))
            assert "4x4" in layer.explain(shape).variants[-1]
        assert want.layout == BLOCKED
        assert got.layout in (IMAGE, MATRIX)
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_chain_keeps_the_layout(matrices: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """A convolution, a 1x1 convolution and a linear layer in sequence repack nothing, not even one-pixel
    images to rows."""
    x = np.random.default_rng(9).integers(-128, 128, (40, 24, 3, 3), dtype=np.int8)
    layers = [
        layer_of(matrices, (40, 24, 3, 3)),
        layer_of(matrices, (33, 40, 1, 1), x_qparams=Y),
        layer_of(matrices, (10, 33), x_qparams=Y),
    ]

    def unchanged(builder: object, x: Value, layout: str) -> Value:
        assert x.spec.layout == layout
        return x

    monkeypatch.setattr("vkq.schemes.q8ta_q8csw.repacked", unchanged)
    y, want, q = vkq.Tensor.from_numpy(x, matrices, BLOCKED), x, Q
    for layer in layers:
        if layer is layers[2]:
            buffer, want = y.buffer, want.reshape(40, 33)
            y = vkq.reshape(y, (40, 33), BLOCKED)
            assert y.buffer is buffer
        y = layer(y)
        op = reference.linear if layer is layers[2] else reference.conv2d
        want, q = op(want, layer._scheme.operands.stored_weight, x=q, w_scale=0.01, y=Y), Y
        assert y.layout == BLOCKED
        np.testing.assert_array_equal(y.numpy(), want)


EXACT = [
    "linear[M=33,K=16,N=4]",
    "linear[M=40,K=1,N=1]",
    "linear[M=257,K=200,N=129]",
    "linear[M=300,K=130,N=260]",
    "conv2d[N=2,IC=64,H=13,W=11,OC=96,KH=1,KW=1]",
    "conv2d[N=2,IC=64,H=13,W=11,OC=96,KH=1,KW=1,stride=2]",
    "conv2d[N=3,IC=40,H=14,W=15,OC=70,KH=1,KW=1,stride=2x3]",
    "conv2d[N=2,IC=64,H=13,W=11,OC=96,KH=1,KW=1,groups=2]",
    "conv2d[N=2,IC=96,H=13,W=11,OC=48,KH=1,KW=1,stride=1x2,groups=3]",
    "conv2d[N=2,IC=64,H=8,W=16,OC=64,KH=3,KW=3,padding=1]",  # images and channels fill the tiles
    "conv2d[N=1,IC=128,H=9,W=17,OC=66,KH=3,KW=3,padding=1]",
    "conv2d[N=2,IC=128,H=17,W=9,OC=70,KH=3,KW=3,stride=2,padding=1]",
    "conv2d[N=2,IC=40,H=9,W=17,OC=70,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=5,H=9,W=9,OC=3,KH=3,KW=3,padding=2x0x1x3]",
    "conv2d[N=1,IC=160,H=9,W=9,OC=33,KH=5,KW=5,padding=2]",
    "conv2d[N=1,IC=32,H=9,W=17,OC=40,KH=3,KW=3,padding=2,dilation=2]",
    "conv2d[N=1,IC=48,H=9,W=34,OC=40,KH=2,KW=4,stride=1x2,padding=1,dilation=2x1]",
    "conv2d[N=2,IC=144,H=7,W=7,OC=72,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=64,H=16,W=8,OC=64,KH=3,KW=3,padding=1]",  # the tile is taller than wide
    "conv2d[N=1,IC=16,H=9,W=17,OC=64,KH=7,KW=7,padding=3]",
    "conv2d[N=2,IC=64,H=9,W=9,OC=64,KH=3,KW=3,padding=1,groups=2]",
    "conv2d[N=1,IC=144,H=9,W=17,OC=96,KH=3,KW=3,stride=2,groups=3]",
    "conv2d[N=2,IC=16,H=4,W=4,OC=16,KH=1,KW=1,padding=1]",  # some windows read only padding
]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", EXACT)
def test_exact(matrices: vkq.Device, name: str, dtype: Any) -> None:
    """Layers on matrix units are exact. In each case, one dtype of x (int8 or uint8) is tested with int8
    results, the other dtype with float32 results."""
    problem = parse(name)
    data = random_data(problem, np.random.default_rng(len(name)), dtype)
    y = (data.y_q, None)[(EXACT.index(name) + (dtype == "uint8")) % 2]
    layer = tiled(data, matrices, y)
    assert "coopmat" in layer.explain(problem.x_shape).variants[-1]
    np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize("name", ["linear[M=70,K=37,N=10]", "conv2d[N=1,IC=40,H=9,W=9,OC=20,KH=3,KW=3]"])
def test_sums_that_wrap(matrices: vkq.Device, name: str) -> None:
    problem = parse(name)
    data = random_data(problem, np.random.default_rng(3), extreme=True)
    assert data.overflow == "wrap"
    for y in (data.y_q, None):
        layer = tiled(data, matrices, y)
        assert "coopmat" in layer.explain(problem.x_shape).variants[-1]
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize("name", [EXACT[2], EXACT[9], EXACT[15]])
def test_activation_and_float_bias(matrices: vkq.Device, name: str) -> None:
    data = random_data(parse(name), np.random.default_rng(12))
    for y, bias in ((data.y_q, data.bias), (None, (data.bias / 7).astype(np.float32))):
        got = tiled(data, matrices, y, bias=bias, activation="relu")(data.x)
        np.testing.assert_array_equal(got, data.expected(y, bias=bias, activation="relu"), strict=True)


def tiles(shader: str) -> list[tuple[Matrices, str]]:
    """Return a fifth of the pairs of `legal_tiles`, and further pairs so that each tile occurs with both
    forms (types of the operands, "s8s8" and "u8u8"). Under VKQ_EVERY_DRIVER=1, return all pairs."""
    found = legal_tiles(shader)
    if EVERY:
        return found
    names = catalog().shaders[shader].axes["tile"]
    some = [(m, tile) for m, tile in found if (SHAPES.index(m) + names.index(tile)) % 5 == 0]
    there = {(m.form, tile) for m, tile in some}
    first = {(m.form, tile): (m, tile) for m, tile in reversed(found)}
    return some + [pair for form, pair in first.items() if form not in there]


def legal_tiles(shader: str) -> list[tuple[Matrices, str]]:
    """Return every pair (shape of matrices, tile) in which matrices fill the tile and the tile fits shared
    memory."""
    found = []
    for matrices, tile in itertools.product(SHAPES, catalog().shaders[shader].axes["tile"]):
        axes = {"tile": tile, "dot": matrices.form, **({} if shader == coopmat.DYNAMIC else {"out": "q8to"})}
        variant = catalog().find(shader, **axes)
        if variant.sizes.get("SHORT") and matrices not in SHAPES[1:3]:
            continue
        whole = int(variant.sizes.get("TW", 16)) % matrices.n == 0 and matrices.fit(variant, rows_of(variant))
        if (
            whole
            and variant.shared_bytes(matrices.constants(variant))
            <= matrix_units.LIMITS["maxComputeSharedMemorySize"]
        ):
            found.append((matrices, tile))
    return found


@pytest.mark.parametrize("matrices", SHAPES, ids=name_of)
def test_what_matrices_compute(
    strict_device: vkq.Device, matrices: Matrices, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The self-test passes for every shape."""
    units(strict_device, monkeypatch, matrices)
    assert selftest.stages(strict_device)["matrices"]() is None


def test_matrices_that_compute_nothing_are_found(
    software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    matrix_units.emulate(software_device, monkeypatch, "16x8x32", wrong=matrix_units.NOTHING)
    assert "matrices of 16x8x32: " in selftest.stages(software_device)["matrices"]()


def sizes_of(shader: str, tile: str) -> tuple[int, int, int]:
    """Return (rows, k, outputs) of a product. Rows and outputs exceed the tile by five, but outputs are at
    most 69. k is 217, or 37 for tiles without a loop over k."""
    sizes = catalog().shaders[shader].variants
    d = next(variant.sizes for variant in sizes if variant.axes["tile"] == tile)
    return int(d["BM"]) + 5, 37 if Tiling(tile).short else 217, min(int(d["BN"]), 64) + 5


@pytest.mark.parametrize(("matrices", "tile"), tiles(coopmat.GEMM), ids=name_of)
def test_every_tile_and_shape_of_a_product(
    strict_device: vkq.Device, matrices: Matrices, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Products are exact with every tile and shape. The first shape of each form and tile is tested with int8
    and float32 results, each other shape with int8 results."""
    units(strict_device, monkeypatch, matrices)
    m, k, n = sizes_of(coopmat.GEMM, tile)
    data = random_data(parse(f"linear[M={m},K={k},N={n}]"), np.random.default_rng(13))
    first = next(each for each, name in tiles(coopmat.GEMM) if (each.form, name) == (matrices.form, tile))
    for y in (data.y_q, None) if EVERY or matrices == first else (data.y_q,):
        layer = make(data, strict_device, y)
        layer._matrix.tiling = Tiling(tile)
        assert layer.explain(data.x.shape).variants[-1].endswith(f".{tile}")
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize(("matrices", "tile"), tiles(coopmat.DYNAMIC), ids=name_of)
def test_every_tile_and_shape_of_rows_quantized_on_the_device(
    strict_device: vkq.Device, matrices: Matrices, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    units(strict_device, monkeypatch, matrices)
    rng, (m, k, n) = np.random.default_rng(17), sizes_of(coopmat.DYNAMIC, tile)
    x = (
        rng.standard_normal((m, k)) * 10.0 ** rng.integers(-5, 5, (m, 1)) + rng.integers(-1, 2, (m, 1))
    ).astype(np.float32)
    w, scale = (
        rng.integers(-128, 128, (n, k), dtype=np.int8),
        (10.0 ** rng.uniform(-8, 3, n)).astype(np.float32),
    )
    points = rng.integers(-128, 128, n) if matrices.k == 32 else None
    options = {
        "bias": rng.standard_normal(n).astype(np.float32),
        "w_zero_point": points,
        "activation": (-50.0, 1e6),
    }
    layer = vkq.Linear(w, scale, x_qparams="dynamic", path="coopmat", device=strict_device, **options)
    layer._matrix.tiling = Tiling(tile)
    assert layer.explain(x.shape).variants == (
        "quantize_dq8ca__row",
        f"{coopmat.DYNAMIC}:{matrices.form}.{tile}",
    )
    want = reference.linear_dynamic(x, w, scale, **options)
    np.testing.assert_array_equal(layer(x).view(np.int32), want.view(np.int32))


@pytest.mark.parametrize(
    ("shape", "n", "tile"), [((4096, 2176), 4096, "128x256"), ((196, 1024), 256, "64x64_deep")]
)
def test_rows_quantized_on_the_device_take_tiles_of_their_shader(
    costed_matrices: vkq.Device, shape: tuple[int, int], n: int, tile: str
) -> None:
    """Rows that the device quantizes use only the tiles of their own shader: no tile for long k, no
    slice-K."""
    layer = vkq.Linear(np.ones((n, shape[1]), np.int8), 0.01, x_qparams="dynamic", device=costed_matrices)
    assert layer.explain(shape).variants[-1] == f"{coopmat.DYNAMIC}:s8s8.{tile}"


@pytest.mark.parametrize("shape", [(2, 40, 37), (33, 16), (1, 5, 7, 130)])
def test_rows_quantized_on_the_device(matrices: vkq.Device, shape: tuple[int, ...]) -> None:
    """Rows that the device quantizes give the reference's result, also with batch axes and with four axes."""
    rng = np.random.default_rng(18)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.integers(-127, 128, (11, shape[-1]), dtype=np.int8)
    layer = vkq.Linear(w, 0.01, x_qparams="dynamic", device=matrices)
    explained = layer.explain(shape)
    assert explained.variants[-1].startswith(coopmat.DYNAMIC)
    assert explained.scratch_bytes == x.size // shape[-1] * (16 * -(-shape[-1] // 16) + 8)
    np.testing.assert_array_equal(layer(x), reference.linear_dynamic(x, w, 0.01), strict=True)


@pytest.mark.parametrize(("matrices", "tile"), tiles(CONV), ids=name_of)
def test_every_tile_and_shape_of_a_convolution(
    strict_device: vkq.Device, tile: str, matrices: Matrices, monkeypatch: pytest.MonkeyPatch
) -> None:
    units(strict_device, monkeypatch, matrices)
    variant = catalog().find(CONV, out="q8to", dot=matrices.form, tile=tile)
    monkeypatch.setattr(matrix_conv, "conv_shader", lambda p, out, capabilities: (variant, matrices))
    d = {name: int(value) for name, value in variant.sizes.items()}
    # One row, one column and six channels more than a tile, and six outputs more than the smallest tile.
    sizes = f"IC={d['CH'] + 6},H={d['TH'] + 1},W={d['TW']},OC=70,KH=3,KW=2"
    data = random_data(parse(f"conv2d[N=1,{sizes},padding=1]"), np.random.default_rng(14))
    layer = tiled(data, strict_device, data.y_q)
    assert layer.explain(data.x.shape).variants == (variant.name,)
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)


@pytest.mark.parametrize(
    "name", ["linear[M=70,K=37,N=10]", "conv2d[N=1,IC=40,H=9,W=17,OC=20,KH=3,KW=3,padding=1]"]
)
def test_on_a_second_driver(any_device: vkq.Device, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers are exact on both software drivers. The convolution has the smallest tile, because lavapipe
    compiles unrolled loops slowly."""
    units(any_device, monkeypatch, matrices := Matrices(16, 8, 32))
    variant = catalog().find(CONV, out="q8to", dot="s8s8", tile="8x16x64_c32")
    monkeypatch.setattr(matrix_conv, "conv_shader", lambda p, out, capabilities: (variant, matrices))
    data = random_data(parse(name), np.random.default_rng(19))
    np.testing.assert_array_equal(
        tiled(data, any_device, data.y_q)(data.x), data.expected(data.y_q), strict=True
    )


def test_one_layer_with_images_of_many_sizes(matrices: vkq.Device) -> None:
    """One layer is exact for images of many sizes. The tile, and with it the packing of the weights, may
    change with the size."""
    w = np.random.default_rng(15).integers(-128, 128, (130, 150, 3, 3), dtype=np.int8)
    layer = vkq.Conv2d(
        w,
        0.01,
        stride=2,
        padding=1,
        x_qparams=Q,
        y_qparams=Y,
        path="coopmat",
        method="matrix",
        device=matrices,
    )
    for size in ((7, 7), (16, 32), (1, 1), (40, 17), (7, 7)):
        x = np.random.default_rng(16).integers(-128, 128, (1, 150, *size), dtype=np.int8)
        want = reference.conv2d(x, w, x=Q, w_scale=0.01, y=Y, stride=2, padding=1)
        np.testing.assert_array_equal(layer(x), want)


@pytest.mark.parametrize(
    "name",
    [
        "linear[M=70,K=37,N=10]",
        "conv2d[N=2,IC=96,H=7,W=9,OC=48,KH=1,KW=1,stride=1x2,groups=3]",
        "conv2d[N=1,IC=96,H=9,W=17,OC=96,KH=3,KW=3,stride=2,padding=1,groups=3]",
        "conv2d[N=1,IC=5,H=9,W=9,OC=3,KH=3,KW=3,padding=2x0x1x3]",
    ],
)
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("form", ["s8s8", "u8u8"])
def test_weight_zero_points(
    strict_device: vkq.Device, name: str, dtype: Any, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    units(strict_device, monkeypatch, Matrices(16, 8, 32, form))
    """Zero points of the tensor have int8 results and those of channels float results, or the reverse."""
    for zero_points in ("tensor", "channel"):
        data = random_data(parse(name), np.random.default_rng(6), dtype, w_zero_points=zero_points)
        y = data.y_q if (zero_points == "tensor") == (dtype == "int8") else None
        layer = tiled(data, strict_device, y)
        assert f".{form}." in layer.explain(data.x.shape).variants[-1]
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)
