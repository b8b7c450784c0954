"""Matrix units. Software drivers have none: there their addressing is emulated in NumPy, and the kernels themselves run where
VKQ_TEST_DEVICE names a GPU."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from vkq import reference
from vkq.layout import layout
from vkq.ops import coopmat, implicit, select, tune
from vkq.ops.coopmat import CoopmatGemm, gemm_tiles
from vkq.ops.gemm import Scales
from vkq.ops.implicit import CONV, chunked, conv_shader, halo, turn
from vkq.ops.matrix_shapes import SHAPES, advertised, lacking
from vkq.problem import Conv2dProblem, parse
from vkq.runtime.tensor import BLOCKED, IMAGE, MATRIX
from vkq.shader.catalog import catalog

from . import matrix_units
from .matrix_units import ROW

Q, Y = vkq.QParams(0.05, 3), vkq.QParams(0.7, -5)


@pytest.fixture
def matrices(any_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    """A device with matrix units: the real ones where it has them, else emulated."""
    if lacking(any_device.capabilities) is not None:
        matrix_units.emulate(any_device, monkeypatch)
    return any_device


def with_matrices(device: vkq.Device, *rows: Any) -> vkq.Capabilities:
    return dataclasses.replace(device.capabilities, cooperative_matrices=rows)


def make(data: Any, device: vkq.Device, y: vkq.QParams | None, **changes: Any) -> Any:
    op = vkq.Linear if data.problem.name.startswith("linear") else vkq.Conv2d
    options = {"x_qparams": data.x_q, "y_qparams": y, "bias": data.bias, "device": device, "path": "coopmat", **data.options}
    return op(data.w, data.w_scale, **(options | changes))


def layer_of(device: vkq.Device, weight_shape: tuple[int, ...], **options: Any) -> Any:
    make = vkq.Linear if len(weight_shape) == 2 else vkq.Conv2d
    weight = np.random.default_rng(5).integers(-128, 128, weight_shape, dtype=np.int8)
    return make(weight, 0.01, device=device, **{"x_qparams": Q, "y_qparams": Y, "path": "coopmat", **options})


def test_only_listed_shapes_are_used(any_device: vkq.Device) -> None:
    changes = {"m": 8, "a": "u8", "d": "u32", "saturating": True, "scope": "workgroup"}
    for name, value in changes.items():
        assert advertised(with_matrices(any_device, dataclasses.replace(ROW, **{name: value}))) == ()
    both = with_matrices(any_device, ROW, dataclasses.replace(ROW, n=16))
    assert advertised(both) == ("16x16x32", "16x8x32")


def test_refusal_names_the_missing_feature_or_shape(device: vkq.Device) -> None:
    if device.capabilities.features["cooperativeMatrix"]:
        assert lacking(device.capabilities) is None
        return
    assert lacking(device.capabilities) == "cooperativeMatrix is false"
    with pytest.raises(vkq.PathError, match=r"path coopmat cannot run on .*: cooperativeMatrix is false"):
        select.choose(device, "coopmat")


@pytest.mark.parametrize("chunk", [32, 64, 128])
def test_chunks_of_channels_keep_every_weight(chunk: int) -> None:
    """The order of k is free: what counts is that x is read in the same one, (chunk, kh, kw, channel)."""
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
    words = layout("kPackedInt8_16K").pack(weight).view(np.int8).reshape(3, 16, 16)  # [k/16][n][k%16]
    np.testing.assert_array_equal(words[2, 4, :8], weight[0, 4, 32:])
    assert not words[2, :, 8:].any()
    assert not words[:, 5:].any()


def test_one_packing_serves_every_tile() -> None:
    for variant in catalog().shaders[coopmat.GEMM].variants:
        assert turn(variant) == coopmat.TURN
    for variant in catalog().shaders[CONV].variants:
        d = {name: int(value) for name, value in variant.defines.items()}
        assert turn(variant) == 2 * d["BK"]
        assert d["CH"] % d["BK"] == 0


def test_tiles_keep_the_rules_of_the_shaders() -> None:
    for shader in (coopmat.GEMM, CONV):
        for variant in catalog().shaders[shader].variants:
            d = {name: int(value) for name, value in variant.defines.items()}
            rows = d["TH"] * d["TW"] if shader == CONV else d["BM"]
            sm, sn, invocations = rows // d["WGM"], d["BN"] // d["WGN"], 32 * d["WGM"] * d["WGN"]
            assert sm % 16 == sn % 16 == 0
            assert sn % d["MM"] == sm % d["MN"] == 0
            assert d["TURNS"] % 2 == d["TURNS"] % d["DEPTH"] == d["BK"] % d["MK"] == 0
            assert d["BN"] * d["BK"] // 16 % invocations == 0
            assert variant.local_size() == (invocations, 1, 1)
            if shader == CONV:
                assert d["TW"] % d["MN"] == 0
                assert sm % d["TW"] == 0 or d["TW"] % sm == 0
                assert d["CH"] // 8 - d["CH"] // 128 >= 1
            else:
                assert d["BM"] * d["BK"] // 16 % invocations == 0


@pytest.mark.parametrize(
    ("rows", "n", "groups", "tile"),
    [
        (4096, 4096, 1, "128x256"),
        (4096, 1000, 1, "128x256"),
        (86400, 128, 1, "128x128"),  # half of a wide tile would be empty
        (2048, 128, 8, "128x128"),
        (33, 1000, 1, "64x64"),  # large tiles would leave most of the device idle
        (100352, 64, 1, "128x64"),  # ResNet-50 at batch 32, with the tiles measured to be the fastest
        (25088, 128, 1, "128x128"),
        (6272, 512, 1, "128x256"),
        (1568, 2048, 1, "128x256"),
        (1568, 512, 1, "128x64"),
        (1568, 256, 1, "64x64"),  # at batch 8
    ],
)
def test_tile_of_a_product(rows: int, n: int, groups: int, tile: str) -> None:
    assert gemm_tiles(rows, n, groups)[0] == tile


def test_a_smaller_tile_where_the_device_has_no_room(matrices: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    gemm = CoopmatGemm(
        matrices,
        np.zeros((1, 1024, 16), np.int8),
        Scales(Q, np.full(1024, 0.01, np.float32), np.zeros(1024, np.int32), None, Y, None),
        1024,
    )
    names = []
    for limit in (49152, 32768, 16384):
        properties = {**matrices.capabilities.properties, "maxComputeSharedMemorySize": limit}
        monkeypatch.setattr(matrices, "capabilities", dataclasses.replace(matrices.capabilities, properties=properties))
        names.append(gemm.variant(4096).axes["tile"])
    assert names == ["128x256", "128x128", "64x64"]


@pytest.mark.parametrize(
    ("name", "wide", "narrow"),  # with 16x16x32 alone, and with 16x8x32 beside it
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
        ("conv2d[N=1,IC=256,H=20,W=8,OC=128,KH=5,KW=5,padding=2]", "8x16x64_c64", "8x8x64_c64"),
        ("conv2d[N=40,IC=64,H=16,W=8,OC=128,KH=3,KW=3,padding=1]", "8x16x64_c64", "8x8x64_c64"),
        ("conv2d[N=1,IC=128,H=99,W=99,OC=128,KH=7,KW=7]", "8x16x64_c64", "8x8x64_c64"),
        ("conv2d[N=1,IC=40,H=19,W=37,OC=70,KH=3,KW=3,padding=1]", "8x16x64_c64", "8x8x64_c64"),
        ("conv2d[N=2,IC=64,H=14,W=14,OC=64,KH=3,KW=3,padding=1,groups=2]", "8x16x64_c32", "8x16x64_c32"),
        ("conv2d[N=1,IC=64,H=99,W=99,OC=64,KH=3,KW=3,dilation=20]", None, None),
    ],
)
def test_tile_of_a_convolution(any_device: vkq.Device, name: str, wide: str | None, narrow: str | None) -> None:
    p = parse(name)
    assert isinstance(p, Conv2dProblem)
    for shapes, tile in ((("16x16x32",), wide), (("16x16x32", "16x8x32"), narrow)):
        shader = conv_shader(p, "q8to", matrix_units.capabilities(any_device, *shapes))
        assert (shader and shader.axes["tile"]) == tile
        if shader:
            h, w = halo(p, shader)
            assert h * w * (int(shader.defines["CH"]) + 16) <= 16 * int(shader.defines["HALO"])
            assert shader.axes["shape"] == ("16x8x32" if int(shader.defines["TW"]) == 8 else "16x16x32")


@pytest.mark.parametrize(
    ("weight", "x", "options", "method", "taken"),
    [
        ((8, 16), (33, 16), {}, "", BLOCKED),
        ((8, 16), (3, 11, 16), {}, "", BLOCKED),
        ((8, 16), (32, 16), {}, "", MATRIX),  # few rows
        ((8, 16), (64, 16), {"method": "tiled"}, "", MATRIX),
        ((8, 0), (64, 0), {}, "", MATRIX),
        ((0, 16), (64, 16), {}, "", MATRIX),
        ((8, 16), (64, 16), {"w_zero_point": 1, "path": "auto"}, "", MATRIX),
        ((8, 16), (64, 16), {"x_qparams": "dynamic", "y_qparams": None, "path": "auto"}, "", MATRIX),
        ((8, 16, 1, 1), (1, 16, 6, 6), {}, "pointwise", BLOCKED),
        ((8, 16, 1, 1), (1, 16, 4, 8), {}, "pointwise", IMAGE),
        ((8, 16, 1, 1), (2, 16, 11, 9), {"stride": (2, 1)}, "pointwise", BLOCKED),
        ((8, 16, 1, 1), (1, 16, 9, 9), {"stride": 2}, "matrix", BLOCKED),  # few rows, and no other kernel strides
        ((8, 16, 1, 1), (1, 16, 9, 9), {"stride": 2, "method": "pointwise"}, "pointwise", BLOCKED),
        ((8, 16, 1, 1), (1, 16, 9, 9), {"padding": 1}, "matrix", BLOCKED),
        ((32, 16, 1, 1), (1, 32, 9, 9), {"groups": 2}, "pointwise", BLOCKED),
        ((32, 12, 1, 1), (1, 24, 9, 9), {"groups": 2}, "direct", IMAGE),
        ((32, 32, 3, 3), (1, 64, 9, 9), {"groups": 2}, "matrix", BLOCKED),
        ((24, 32, 3, 3), (1, 64, 9, 9), {"groups": 2}, "im2col", IMAGE),  # groups of 12 outputs
        ((64, 1, 3, 3), (1, 64, 9, 9), {"groups": 64}, "depthwise", IMAGE),
        ((64, 3, 7, 7), (1, 3, 30, 30), {"stride": 2}, "im2col", IMAGE),
        ((64, 64, 3, 3), (1, 64, 9, 9), {"method": "direct"}, "direct", IMAGE),
        ((64, 64, 3, 3), (1, 64, 9, 9), {"method": "im2col"}, "im2col", IMAGE),
        ((64, 0, 3, 3), (1, 0, 9, 9), {}, "im2col", IMAGE),
        ((0, 64, 3, 3), (1, 64, 9, 9), {}, "im2col", IMAGE),
        ((64, 64, 3, 3), (0, 64, 9, 9), {}, "matrix", BLOCKED),
        ((64, 64, 3, 3), (1, 64, 9, 9), {"w_zero_point": 1, "path": "auto"}, "im2col", IMAGE),
    ],
)
def test_layout_and_method(
    matrices: vkq.Device, weight: tuple[int, ...], x: tuple[int, ...], options: dict[str, Any], method: str, taken: str
) -> None:
    layer = layer_of(matrices, weight, **options)
    explained = layer.explain(x)
    assert explained.method == method or (method, explained.method) == ("im2col", "implicit")  # as the device is a GPU
    assert layer.input_layout(x) == taken
    if explained.variants:
        assert ("coopmat" in explained.variants[-1]) == (taken == BLOCKED)
    y = layer(np.zeros(x, np.int8 if layer.x_qparams else np.float32))
    assert y.shape == layer._problem(x).y_shape


def test_tuning_stays_off_matrix_units(matrices: vkq.Device) -> None:
    """A layer that has run on matrix units takes the kernels that are being tuned while it is tuned, and their layout."""
    setting = tune.Setting("4x4", 16, 4)
    for layer, shape in ((layer_of(matrices, (8, 16)), (64, 16)), (layer_of(matrices, (8, 16, 1, 1)), (1, 16, 8, 8))):
        x = np.random.default_rng(8).integers(-128, 128, shape, dtype=np.int8)
        want = layer(vkq.Tensor.from_numpy(x, matrices))
        with tune.forced(setting):
            got = layer(vkq.Tensor.from_numpy(x, matrices))
            assert "4x4" in layer.explain(shape).variants[-1]
        assert want.layout == BLOCKED
        assert got.layout in (IMAGE, MATRIX)
        np.testing.assert_array_equal(got.numpy(), want.numpy())


def test_a_chain_keeps_the_layout(matrices: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolution, 1x1 convolution, linear layer: nothing is repacked between them, nor images of one pixel as rows."""
    x = np.random.default_rng(9).integers(-128, 128, (40, 24, 3, 3), dtype=np.int8)
    layers = [
        layer_of(matrices, (40, 24, 3, 3)),
        layer_of(matrices, (33, 40, 1, 1), x_qparams=Y),
        layer_of(matrices, (10, 33), x_qparams=Y),
    ]

    def unchanged(x: vkq.Tensor, layout: str) -> vkq.Tensor:
        assert x.layout == layout
        return x

    monkeypatch.setattr("vkq.ops.layer.to_layout", unchanged)
    y, want, q = vkq.Tensor.from_numpy(x, matrices, BLOCKED), x, Q
    for layer in layers:
        if layer is layers[2]:
            buffer, want = y.buffer, want.reshape(40, 33)
            y = vkq.reshape(y, (40, 33), BLOCKED)
            assert y.buffer is buffer
        y = layer(y)
        op = reference.linear if layer is layers[2] else reference.conv2d
        want, q = op(want, layer._weight_int8, x=q, w_scale=0.01, y=Y), Y
        assert y.layout == BLOCKED
        np.testing.assert_array_equal(y.numpy(), want)


EXACT = [
    "linear[M=33,K=16,N=4]",
    "linear[M=40,K=1,N=1]",
    "linear[M=257,K=200,N=129]",
    "linear[M=1000,K=130,N=260]",
    "linear[M=4096,K=256,N=1024]",  # the widest tile
    "linear[M=4099,K=144,N=516]",
    "linear[M=16640,K=64,N=72]",  # the tile of 128x128
    "conv2d[N=2,IC=64,H=13,W=11,OC=96,KH=1,KW=1]",
    "conv2d[N=2,IC=64,H=13,W=11,OC=96,KH=1,KW=1,stride=2]",
    "conv2d[N=3,IC=40,H=14,W=15,OC=70,KH=1,KW=1,stride=2x3]",
    "conv2d[N=2,IC=64,H=13,W=11,OC=96,KH=1,KW=1,groups=2]",
    "conv2d[N=2,IC=96,H=13,W=11,OC=48,KH=1,KW=1,stride=1x2,groups=3]",
    "conv2d[N=2,IC=64,H=16,W=32,OC=64,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=128,H=20,W=33,OC=130,KH=3,KW=3,padding=1]",
    "conv2d[N=2,IC=128,H=28,W=29,OC=128,KH=3,KW=3,stride=2,padding=1]",
    "conv2d[N=2,IC=40,H=19,W=37,OC=70,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=5,H=9,W=9,OC=3,KH=3,KW=3,padding=2x0x1x3]",
    "conv2d[N=1,IC=160,H=19,W=17,OC=33,KH=5,KW=5,padding=2]",
    "conv2d[N=1,IC=32,H=21,W=23,OC=40,KH=3,KW=3,padding=2,dilation=2]",
    "conv2d[N=1,IC=48,H=23,W=40,OC=40,KH=2,KW=4,stride=1x2,padding=1,dilation=2x1]",
    "conv2d[N=3,IC=144,H=7,W=7,OC=136,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=64,H=16,W=8,OC=64,KH=3,KW=3,padding=1]",  # a tall tile
    "conv2d[N=1,IC=16,H=18,W=19,OC=64,KH=7,KW=7,padding=3]",
    "conv2d[N=2,IC=64,H=14,W=14,OC=64,KH=3,KW=3,padding=1,groups=2]",
    "conv2d[N=1,IC=144,H=9,W=17,OC=96,KH=3,KW=3,stride=2,groups=3]",
    "conv2d[N=2,IC=16,H=4,W=4,OC=16,KH=1,KW=1,padding=1]",  # a border of the zero point alone
]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("name", EXACT)
def test_exact(matrices: vkq.Device, name: str, dtype: Any) -> None:
    problem = parse(name)
    data = random_data(problem, np.random.default_rng(len(name)), dtype)
    for y in (data.y_q, None):
        layer = make(data, matrices, y)
        assert "coopmat" in layer.explain(problem.x_shape).variants[-1]
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize("name", [EXACT[2], EXACT[9], EXACT[15]])
def test_activation_and_float_bias(matrices: vkq.Device, name: str) -> None:
    data = random_data(parse(name), np.random.default_rng(12))
    for y, bias in ((data.y_q, data.bias), (None, (data.bias / 7).astype(np.float32))):
        got = make(data, matrices, y, bias=bias, activation="relu")(data.x)
        np.testing.assert_array_equal(got, data.expected(y, bias=bias, activation="relu"), strict=True)


@pytest.mark.parametrize("tile", catalog().shaders[coopmat.GEMM].axes["tile"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_tile_and_shape_of_a_product(
    any_device: vkq.Device, shape: str, tile: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if lacking(any_device.capabilities) is not None:
        matrix_units.emulate(any_device, monkeypatch, shape)
    elif shape not in advertised(any_device.capabilities):
        pytest.skip(f"the device does not list {shape}")
    data = random_data(parse("linear[M=389,K=217,N=301]"), np.random.default_rng(13))
    for y in (data.y_q, None):
        layer = make(data, any_device, y)
        layer._matrix.shape, layer._matrix.tile = shape, tile
        assert layer.explain(data.x.shape).variants[-1].endswith(f"{shape}.{tile}")
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize(
    "variant", [v for v in catalog().shaders[CONV].variants if v.axes["out"] == "q8to"], ids=lambda v: v.name
)
def test_every_tile_and_shape_of_a_convolution(any_device: vkq.Device, variant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking(any_device.capabilities) is not None:
        matrix_units.emulate(any_device, monkeypatch, variant.axes["shape"])
    elif variant.axes["shape"] not in advertised(any_device.capabilities):
        pytest.skip(f"the device does not list {variant.axes['shape']}")
    monkeypatch.setattr(implicit, "conv_shader", lambda p, out, capabilities: variant)
    data = random_data(parse("conv2d[N=2,IC=150,H=19,W=21,OC=140,KH=3,KW=3,padding=1]"), np.random.default_rng(14))
    layer = make(data, any_device, data.y_q)
    assert layer.explain(data.x.shape).variants == (variant.name,)
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)


def test_one_layer_with_images_of_many_sizes(matrices: vkq.Device) -> None:
    """The tile may change with the size, and the packing of the weights with it."""
    w = np.random.default_rng(15).integers(-128, 128, (130, 150, 3, 3), dtype=np.int8)
    layer = vkq.Conv2d(w, 0.01, stride=2, padding=1, x_qparams=Q, y_qparams=Y, path="coopmat", device=matrices)
    for size in ((7, 7), (16, 32), (1, 1), (40, 17), (7, 7)):
        x = np.random.default_rng(16).integers(-128, 128, (1, 150, *size), dtype=np.int8)
        want = reference.conv2d(x, w, x=Q, w_scale=0.01, y=Y, stride=2, padding=1)
        np.testing.assert_array_equal(layer(x), want)


def test_weight_zero_points_take_another_path(matrices: vkq.Device) -> None:
    data = random_data(parse("linear[M=40,K=8,N=8]"), np.random.default_rng(6), w_zero_points="channel")
    assert select.choose(matrices).path == "coopmat"
    layer = vkq.Linear(data.w, data.w_scale, x_qparams=data.x_q, w_zero_point=data.w_zero_point, device=matrices)
    choice = layer.choice()
    assert choice.path != "coopmat"
    assert choice.reason == "coopmat takes no weight zero points, which need the sums of x"
    np.testing.assert_array_equal(layer(data.x), data.expected(None, bias=None), strict=True)
