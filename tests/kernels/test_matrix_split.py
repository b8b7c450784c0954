"""Tests of split-K among workgroups or subgroups, and of convolutions with gathered pixels, on matrix
units."""

from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import reported
from vkq.device.profiles import profile
from vkq.kernels.matrix_implicit import IMPLICIT, MatrixPatches, by_taps
from vkq.kernels.matrix_tiles import SPLIT_TILES, WIDE_GEMM, Tiling, tilings
from vkq.kernels.matrix_units import SPLIT
from vkq.kernels.split import MOST_TILES
from vkq.layout.extent import BLOCKED, IMAGE
from vkq.probe.matrices import Matrices
from vkq.problem.names import parse
from vkq.shader.catalog import catalog

from .matrix_layers import SHAPES, make, name_of, units

GATHERED = "conv2d[N=2,IC=40,H=9,W=7,OC=70,KH=3,KW=2,stride=2x1,padding=1x0x2x1]"


def with_tiling(layer: Any, shape: tuple[int, ...], tiling: Tiling) -> Any:
    """Force the layer's tiling for inputs of this shape; return the layer."""
    problem = layer._problem(shape)
    gemm = layer._matrix if len(shape) == 2 else layer._kernel(layer._method(problem)[0], problem).gemm
    gemm.tiling = tiling
    return layer


@pytest.mark.parametrize(
    ("name", "zero_points", "parts"),
    [
        ("linear[M=70,K=700,N=69]", "none", 3),
        ("linear[M=70,K=300,N=69]", "channel", 16),  # 16 parts are more than the iterations along k
        (GATHERED, "none", 1),
        (GATHERED, "channel", 4),
        ("conv2d[N=1,IC=96,H=9,W=17,OC=96,KH=3,KW=3,stride=2,groups=3,dilation=2x1]", "tensor", 2),
        ("conv2d[N=1,IC=16,H=5,W=5,OC=4,KH=5,KW=5,padding=2]", "none", 2),
    ],
)
def test_exact(
    matrices: vkq.Device, name: str, zero_points: Any, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Split-K products are exact in the first and the second run: the first run must reset the counters."""
    # A GPU may compute such a convolution faster with dot products than on matrix units.
    monkeypatch.setattr("vkq.kernels.methods.Implicit.fits", lambda *_: False)
    problem = parse(name)
    data = random_data(problem, np.random.default_rng(parts), w_zero_points=zero_points)
    options = {} if name.startswith("linear") else {"method": "implicit"}
    for y in (data.y_q, None):
        layer = with_tiling(make(data, matrices, y, **options), problem.x_shape, Tiling("64x64", parts))
        assert layer.explain(problem.x_shape).variants[-1].startswith((SPLIT, IMPLICIT))
        for _ in range(2):
            np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize(
    ("name", "dtype", "zero_points"),
    [
        # A tap (one step along a window's row) is two vectors of four pixels; the last vector of an image
        # row has one pixel.
        ("conv2d[N=2,IC=3,H=37,W=45,OC=24,KH=16,KW=16,stride=16]", "int8", "none"),
        # A tap is one vector; windows overlap; padding above and below.
        (
            "conv2d[N=2,IC=4,H=13,W=28,OC=70,KH=3,KW=12,stride=2x4,padding=1x0x2x0,dilation=2x1]",
            "uint8",
            "channel",
        ),
        ("conv2d[N=3,IC=1,H=12,W=32,OC=5,KH=4,KW=8,stride=4x8]", "uint8", "tensor"),
    ],
)
def test_vectors_of_pixels(matrices: vkq.Device, name: str, dtype: Any, zero_points: Any) -> None:
    """A convolution of few channels reads vectors of four pixels as 16 channels of one pixel. Results are
    exact."""
    problem = parse(name)
    assert MatrixPatches.refusal(problem) is None
    data = random_data(problem, np.random.default_rng(8), dtype, w_zero_points=zero_points)
    for y in (data.y_q, None):
        layer = make(data, matrices, y, method="implicit")
        assert layer.explain(problem.x_shape).variants[-1].startswith(f"{IMPLICIT}:")
        assert layer.input_layouts(problem.x_shape)[0] == IMAGE
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("conv2d[N=1,IC=5,H=32,W=32,OC=8,KH=16,KW=16,stride=16]", "IC=5"),
        ("conv2d[N=1,IC=3,H=32,W=32,OC=8,KH=14,KW=14,stride=14]", "KW=14"),
        ("conv2d[N=1,IC=3,H=32,W=32,OC=8,KH=8,KW=8,stride=8x2]", "stride=2"),
        ("conv2d[N=1,IC=3,H=32,W=32,OC=8,KH=8,KW=8,stride=8,padding=0x4x0x0]", "padding="),
    ],
)
def test_windows_that_are_no_vectors(name: str, why: str) -> None:
    assert why in str(MatrixPatches.refusal(parse(name)))


@pytest.mark.parametrize(
    "shape", [Matrices(16, 16, 32, "u8u8"), Matrices(4, 16, 16, subgroup=16)], ids=name_of
)
def test_other_shapes(strict_device: vkq.Device, shape: Matrices, monkeypatch: pytest.MonkeyPatch) -> None:
    units(strict_device, monkeypatch, shape)
    data = random_data(parse(GATHERED), np.random.default_rng(3))
    layer = make(data, strict_device, data.y_q, method="implicit")
    with_tiling(layer, data.x.shape, Tiling("64x64", 2))
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)


@pytest.mark.parametrize("tile", SPLIT_TILES)
def test_every_tile(matrices: vkq.Device, tile: str) -> None:
    # The layer pads k to 768, because the deep tile needs whole iterations of 256.
    data = random_data(parse("linear[M=133,K=700,N=69]"), np.random.default_rng(13))
    layer = with_tiling(make(data, matrices, data.y_q), data.x.shape, Tiling(tile, 2))
    assert layer.explain(data.x.shape).variants == (f"{SPLIT}:q8to.s8s8.{tile}",)
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)


@pytest.mark.parametrize("matrices", [SHAPES[i] for i in (0, 1, 4, 6, 8, 9)], ids=name_of)
@pytest.mark.parametrize(
    "name",
    ["linear[M=70,K=1300,N=37]", "conv2d[N=2,IC=96,H=9,W=7,OC=96,KH=1,KW=1,stride=2x1,groups=2]"],
)
def test_subgroups_that_share_k(
    strict_device: vkq.Device, matrices: Matrices, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tile whose subgroups split k among them (slice-K) is exact for three full iterations over k and a
    partial one: it ignores elements beyond the end of k."""
    units(strict_device, monkeypatch, matrices)
    data = random_data(parse(name), np.random.default_rng(21))
    for y in (data.y_q, None):
        layer = with_tiling(make(data, strict_device, y), data.x.shape, Tiling("32x32_wide"))
        assert layer.explain(data.x.shape).variants[-1].startswith(WIDE_GEMM)
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


def test_weight_zero_points_are_summed_by_other_tiles(matrices: vkq.Device) -> None:
    """Products with weight zero points do not use slice-K tiles, which compute no sums of rows."""
    for zero_points, wide in (("none", True), ("channel", False)):
        problem = parse("linear[M=49,K=960,N=40]")
        data = random_data(problem, np.random.default_rng(22), w_zero_points=zero_points)
        variant = make(data, matrices, data.y_q).explain(data.x.shape).variants[-1]
        assert variant.startswith(WIDE_GEMM) == wide


def test_one_layer_twice_in_a_recording(matrices: vkq.Device) -> None:
    """Two calls of a split-K layer in one recording give exact results. Their dispatches share counters,
    so the second dispatch waits for the first."""
    data = random_data(parse("linear[M=70,K=300,N=10]"), np.random.default_rng(5))
    layer = with_tiling(make(data, matrices, data.y_q), data.x.shape, Tiling("64x64", 2))
    xs = [vkq.Tensor.from_numpy(x, matrices, BLOCKED) for x in (data.x, data.x[::-1].copy())]
    with matrices.record() as recording:
        ys = [layer(x) for x in xs]
    for _ in range(3):
        recording.run()
        np.testing.assert_array_equal(ys[0].numpy(), data.expected(data.y_q))
        np.testing.assert_array_equal(ys[1].numpy(), data.expected(data.y_q)[::-1])


def test_tilings_keep_their_rules() -> None:
    known = profile(reported("nvidia-h200"))
    for rows, n, k in ((49, 512, 4608), (1568, 512, 2048), (33, 1000, 128), (100352, 64, 640)):
        for one in tilings(known, rows, n, k):
            assert one.parts == 1 or one.tiles(rows, n) <= MOST_TILES
            assert k % one.turn == one.part(k) % one.turn == 0
            assert one.used_parts(k) == one.parts
    assert all(one.parts == 1 for one in tilings(known, 49, 512, 4608, split=False))


@pytest.mark.parametrize(("rows", "n", "k", "tiling"), [
    (1568, 512, 4608, Tiling("128x128", 4)),  # layers of ResNet-50 at batch 32
    (25088, 128, 1152, Tiling("128x128")),
    (392, 512, 4608, Tiling("64x64", 4)),  # layers of ResNet-50 at batch 8
    (49, 512, 4608, Tiling("64x64_deep", 6)),
    (784, 128, 1152, Tiling("64x64", 3)),
])  # fmt: skip
def test_tiling_of_gathered_pixels(rows: int, n: int, k: int, tiling: Tiling) -> None:
    known = profile(reported("nvidia-h200"))
    assert tilings(known, rows, n, k, gathered=True, wide=False)[0] == tiling


def test_what_split_tiles_are() -> None:
    for shader in (SPLIT, IMPLICIT):
        assert catalog().shaders[shader].axes["tile"] == SPLIT_TILES
        for variant in catalog().shaders[shader].variants:
            tiling = Tiling(variant.axes["tile"])
            assert (variant.sizes["BM"], variant.sizes["BN"]) == tiling.size
            assert int(variant.sizes["BK"]) * int(variant.sizes["TURNS"]) == tiling.turn


def test_taps_are_whole_steps_of_channels() -> None:
    weight = np.random.default_rng(4).integers(-128, 128, (3, 40, 2, 3), dtype=np.int8)
    taps = by_taps(weight, np.array([5, 0, -7], np.int32)).reshape(3, 2, 3, 64)
    np.testing.assert_array_equal(taps[..., :40].transpose(0, 3, 1, 2), weight)
    assert (taps[..., 40:] == np.array([5, 0, -7]).reshape(3, 1, 1, 1)).all()


def test_gathering_workgroups_that_start_together() -> None:
    """In the cost model, workgroups that gather pixels start in pairs if their tiles have 128 rows: three
    workgroups on a multiprocessor cost as much as four, except for their epilogues."""
    known = profile(reported("nvidia-h200"))
    for tile, at_once in (("128x128", 2), ("64x64", 1)):
        rows = int(tile.split("x")[0]) * known.multiprocessors
        alone, together, end, _ = known.matrix_gathered_cycles[tile]
        for share in (1, 2, 3, 4):
            taken = share + share % at_once if share > 1 else 1
            want = 128 / 32 * max(alone, together * taken) + end * share
            assert Tiling(tile).cycles(known, rows * share, 64, 128, gathered=True) == want
