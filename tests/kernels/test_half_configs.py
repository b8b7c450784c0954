"""Tests of products on float16 matrix units that load weights from memory directly into matrices
(STRAIGHT)."""

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import reported
from vkq.device.profiles import profile
from vkq.kernels import half
from vkq.kernels.half_configs import GATHERED, PLANES, STRAIGHT, GemmConfig, OperandKind
from vkq.probe.matrices import HALF, advertised_half
from vkq.problem.names import parse
from vkq.select.path import half_refusal
from vkq.shader.catalog import catalog

from . import emulated
from .matrix_layers import known, only
from .test_half import layer_of

TILES = catalog().shaders[STRAIGHT.product].axes["tile"]


@pytest.fixture
def straight(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    """Return a device whose products load weights directly into matrices."""
    known(monkeypatch, half_tile_cycles={}, straight_tile_cycles=dict.fromkeys(TILES, (1, 1)))
    if half_refusal(strict_device):
        emulated.emulate(strict_device, monkeypatch, "16x8x16", form="f16")
    return strict_device


@pytest.mark.parametrize(("tile", "parts", "k", "n"), [  # n is below or above a tile; k, n do not fill it
    ("64x256", 1, 77, 284), ("64x128", 1, 77, 284), ("64x64", 2, 333, 67), ("32x64", 2, 333, 36),
    ("16x64", 1, 77, 66),
])  # fmt: skip
def test_every_tile(
    straight: vkq.Device, tile: str, parts: int, k: int, n: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tile is within the error bound if M, N and K are not multiples of the tile and each output has
    its own zero point."""
    only(monkeypatch, tile, parts)
    rows, rng = int(tile.split("x")[0]) + 2, np.random.default_rng(n)
    data = random_data(parse(f"linear[M={rows},K={k},N={n}]"), rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(scale=0.1, size=(rows, k)).astype(np.float32)
    layer = layer_of(straight, data)
    shader, y = STRAIGHT.split if parts > 1 else STRAIGHT.product, "any" if n % 4 else "four"
    assert layer.explain(x.shape).variants[1:] == (f"{shader}:{y}.{tile}",)
    assert data.expected_sum(x, None, "float16").mismatch(layer(x)) is None


@pytest.mark.parametrize(("tile", "k", "parts"), [
    ("64x256", 200, 1), ("64x128", 264, 2), ("64x64", 200, 1), ("32x64", 264, 2), ("16x64", 520, 2),
    ("16x64", 77, 1),
])  # fmt: skip
def test_float16_rows(
    straight: vkq.Device, tile: str, k: int, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernels read float16 rows without a copy if k is a multiple of 8. If there are few rows and the
    tile has few columns, the kernels also read float32 rows without a copy. Infinities and NaN affect only
    their own rows. Repeated runs with the smallest tile give the same bytes."""
    only(monkeypatch, tile, parts)
    rng = np.random.default_rng(k)
    w, x = rng.integers(-128, 128, (36, k), np.int8), rng.normal(size=(14, k)).astype(np.float16)
    w[w == 0] = 1
    x[3, 5], x[4, k - 1] = np.nan, np.inf
    layer, shader = vkq.Linear(w, 1e-3, compute="float16", device=straight), STRAIGHT.product
    if parts > 1:
        shader = STRAIGHT.split
    given = vkq.Tensor.from_numpy(x, straight)
    assert layer.plan(given.spec).variants[-1] == f"{shader}:{'half' if k % 8 else 'float16_rows'}.{tile}"
    with straight.record() as recording:
        y = layer(given)
    recording.run()
    got, whole = y.numpy(), [row for row in range(14) if row not in (3, 4)]
    assert np.isnan(got[3]).all()
    np.testing.assert_array_equal(got[4], np.copysign(np.inf, w[:, k - 1]).astype(np.float16))
    want = 1e-3 * x[whole].astype(np.float64) @ w.T.astype(np.float64)
    np.testing.assert_allclose(got[whole], want, rtol=2**-10, atol=1e-4)
    for _ in range(emulated.REPLAYS if (tile, parts) == ("16x64", 2) else 1):
        recording.run()
        assert y.numpy().tobytes() == got.tobytes()
    wide = layer(x.astype(np.float32))
    in_place = layer.explain(x.shape).variants == (f"{STRAIGHT.split}:float32_rows.{tile}",)
    assert in_place == (tile in ("32x64", "16x64") and parts > 1)
    np.testing.assert_array_equal(wide.astype(np.float16), got)
    counts = [len(layer.explain((rows, k)).variants) for rows in (half.MOST_ROWS, half.MOST_ROWS + 1)]
    assert counts == [1 if in_place else 2, 2]
    monkeypatch.setattr(half, "MOST_READ", 14 * k - 1)  # 14 rows read one element more than this limit
    layer = vkq.Linear(w, 1e-3, compute="float16", device=straight)
    assert layer.explain(x.shape).variants[-1] == f"{shader}:four.{tile}"
    np.testing.assert_array_equal(layer(x.astype(np.float32)), wide)


def test_the_first_matrices_of_16_outputs_are_taken(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel uses the first entry of the device's list with 16 outputs and 16 k, because the stored
    order of the weights fits only these matrices. Without such an entry the kernel is not used."""
    known(monkeypatch, straight_tile_cycles={"64x64": (1, 1)})
    for shapes, taken in (
        (("16x8x8", "16x16x16", "16x8x16"), ["16x16x16 f16"]),
        (("16x8x16", "16x16x16"), ["16x8x16 f16"]),
        (("8x16x16", "16x8x8"), []),
    ):
        device = emulated.capabilities(strict_device, *shapes, form="f16")
        assert [str(config.matrices) for config in STRAIGHT.able(device)] == taken


@pytest.mark.parametrize(("of", "pairs"), [(GATHERED[HALF], True), (PLANES[HALF, "float32"], False)])
def test_what_convolutions_should_take(of: OperandKind, pairs: bool) -> None:
    """The cost model of a convolution adds the cost of an epilogue for each workgroup of a
    multiprocessor. Workgroups that gather pixels run in pairs, so an odd number of workgroups costs as
    much as the next even number."""
    facts = reported("nvidia-h200")
    variant, known = catalog().find(of.product, tile="64x64", y="any"), profile(facts)
    config = GemmConfig(variant, advertised_half(facts)[0], of)
    alone, together, end = of.of(known)["64x64"]
    steps = config.steps(256) * int(variant.sizes["BK"]) // 32
    for share in (1, 2, 3, 4, 5):
        at_once = share + share % 2 if pairs and share > 1 else share
        want = share * end + max(alone, at_once * together) * steps
        assert config.cycles(known, 64 * known.multiprocessors * share, 64, 256, 1) == want
