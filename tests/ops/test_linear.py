"""Tests of linear layers: every kernel and path equals the reference and ONNX Runtime bit for bit."""

from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import CASES, Data, random_data, random_linear
from tests.referees import ort
from vkq import reference
from vkq.device.profiles import preferred
from vkq.kernels import gemv
from vkq.ops.linear import METHODS
from vkq.problem.linear import LinearProblem
from vkq.problem.names import parse

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")
FORCED = METHODS[1:]
LINEARS = [
    case.problem for case in CASES if isinstance(case.problem, LinearProblem) and case.use == "correctness"
]


def layer_of(data: Data, device: vkq.Device, y: vkq.QParams | None, **options: Any) -> vkq.Linear:
    arguments = {
        "x_qparams": data.x_q,
        "y_qparams": y,
        "bias": data.bias,
        "w_zero_point": data.w_zero_point,
        "overflow": data.overflow,
        "device": device,
    }
    return vkq.Linear(data.w, data.w_scale, **arguments, **options)


def check(data: Data, device: vkq.Device, **options: Any) -> None:
    """Check the int8 and the float32 results of a layer with these options against the reference."""
    for y in (data.y_q, None):
        got = layer_of(data, device, y, **options)(data.x)
        np.testing.assert_array_equal(
            got, data.expected(y, activation=options.get("activation")), strict=True
        )


@pytest.mark.parametrize("problem", [p for p in LINEARS if p.macs < 30_000_000], ids=lambda p: p.name)
def test_the_shapes_with_a_reason(device, problem):
    check(random_data(problem, np.random.default_rng([1, problem.macs])), device)


@pytest.fixture
def shared(monkeypatch):
    """Make CPU devices split k as GPUs do: parts are summed in shared memory."""
    monkeypatch.setattr(gemv, "split", lambda _device, n4, k4, *_, **__: gemv.shared_split(256, n4, k4))


@pytest.mark.parametrize("path", PATHS)
def test_every_path_on_random_problems(device, path):
    rng = np.random.default_rng([2, PATHS.index(path)])
    types = [("int8", "int8", "none"), ("uint8", "uint8", "channel"), ("uint8", "int8", "tensor")]
    for i, (x_dtype, w_dtype, points) in enumerate(types):
        data = random_data(random_linear(rng), rng, x_dtype, w_dtype, w_zero_points=points, extreme=i == 2)
        check(data, device, method="tiled", path=path, activation=(None, "relu", (-0.5, 0.25))[i])


# Only some shapes run on all paths, because software drivers compile shaders with barriers slowly.
FEW_ROWS = {
    "linear[M=1,K=4099,N=9]": PATHS,  # parts of k of unequal length; the last word has three elements
    "linear[M=7,K=96,N=20]": PATHS,  # two blocks of rows: four and three
    "linear[M=1,K=1,N=1]": ("portable",),
    "linear[M=2,K=1030,N=70]": ("dot_u8u8",),
    "linear[M=3,K=64,N=515]": ("dot_s8s8",),  # k is too short to be split into many parts
    "linear[M=4,K=333,N=33]": ("dot_u8s8",),
    "linear[M=3,K=0,N=5]": ("portable",),
}


@pytest.mark.parametrize(
    ("name", "path"), [(name, path) for name, paths in FEW_ROWS.items() for path in paths]
)
@pytest.mark.usefixtures("shared")
def test_gemv_with_few_rows(device, name, path):
    rng = np.random.default_rng(3)
    check(
        random_data(parse(name), rng, "uint8", "uint8", w_zero_points="channel"),
        device,
        method="gemv",
        path=path,
    )
    data = random_data(parse(name), rng)
    got = layer_of(data, device, data.y_q, method="gemv", path=path, activation="relu")(data.x)
    np.testing.assert_array_equal(got, data.expected(data.y_q, activation="relu"), strict=True)


@pytest.mark.parametrize(("path", "unroll"), [*((path, 4) for path in PATHS), ("portable", 2)])
@pytest.mark.usefixtures("shared")
def test_gemv_is_exact_at_the_ends_of_int32(device, path, unroll):
    """A GEMV is exact at the ends of int32. An invocation of the portable form sums more than the 256 words
    that float sums hold exactly, and the total is near 2**31."""
    k = 66_000
    x, w = np.full((1, k), 127, np.int8), np.full((5, k), 127, np.int8)
    w[1:, ::3] = -128
    layer = vkq.Linear(w, 1.0, x_qparams=vkq.QParams(1.0, -128), path=path, method="gemv", device=device)
    want = reference.linear(x, w, x=vkq.QParams(1.0, -128), w_scale=1.0, y=None)
    assert want.max() > 2**30.9
    with preferred({"registers": "few" if unroll == 2 else "enough"}):
        np.testing.assert_array_equal(layer(x), want)


@pytest.mark.parametrize(
    ("columns", "parts", "unroll"), [(1, 1, 4), (1, 64, 4), (32, 2, 4), (2, 8, 4), (4, 4, 2), (8, 2, 2)]
)
def test_every_split_gives_the_same(device, monkeypatch, columns, parts, unroll):
    monkeypatch.setattr(gemv, "split", lambda *_, **__: {"LOCAL_X": columns, "LOCAL_Y": parts})
    data = random_data(parse("linear[M=3,K=141,N=77]"), np.random.default_rng(4), w_zero_points="channel")
    with preferred({"registers": "few" if unroll == 2 else "enough"}):
        got = layer_of(data, device, data.y_q, method="gemv")(data.x)
    np.testing.assert_array_equal(got, data.expected(data.y_q), strict=True)


def test_a_cpu_device_needs_no_barrier(device):
    """A GEMV on a CPU device has one part of k and no barrier. It is exact for one row, for two rows, and
    if the last workgroup is partly empty."""
    assert (gemv.split(device.capabilities, 100, 100, 1)["LOCAL_Y"] == 1) == (
        device.capabilities.device_type == "cpu"
    )
    for name in ("linear[M=1,K=1500,N=70]", "linear[M=2,K=37,N=3]"):
        rng = np.random.default_rng(9)
        data = random_data(parse(name), rng, "uint8", "uint8", w_zero_points="tensor")
        check(data, device, method="gemv")


def test_split_fills_a_workgroup_and_no_more():
    for most in (128, 256, 1024):
        for n4, k4 in [
            (1, 1),
            (1, 4096),
            (3, 7),
            (4096, 4096),
            (64, 4096),
            (4096, 2),
            (1024, 1 << 20),
            (5, 0),
        ]:
            constants = gemv.shared_split(most, n4, k4)
            columns, parts = int(constants["LOCAL_X"]), int(constants["LOCAL_Y"])
            assert columns * parts <= most
            assert parts & (parts - 1) == 0
            assert parts == 1 or parts * gemv.BLOCKS_PER_PART <= k4


@pytest.mark.parametrize("seed", range(6))
def test_onnx_runtime_agrees(device, seed):
    rng = np.random.default_rng([5, seed])
    data = random_data(random_linear(rng), rng, ("int8", "uint8")[seed % 2], w_range=ort.exact_int8_weights())
    for method in ("tiled",) if seed else FORCED:
        options = {"x_qparams": data.x_q, "y_qparams": data.y_q, "method": method, "device": device}
        np.testing.assert_array_equal(
            vkq.linear(data.x, data.w, data.w_scale, **options), ort.qlinear(data), strict=True
        )


@pytest.mark.parametrize("method", FORCED)
@pytest.mark.parametrize(("m", "k"), [(1, 640), (1, 641), (3, 259), (6, 96), (2, 1)])
@pytest.mark.usefixtures("shared")
def test_weight_only_against_float64(device, method, m, k):
    """The error of weight-only results is at most K + 2 roundings of 2**-24 of the sum of magnitudes, the
    bound for a float32 sum of K products."""
    rng = np.random.default_rng([6, m, k])
    x, w = rng.standard_normal((m, k)).astype(np.float32), rng.integers(-127, 128, (37, k), dtype=np.int8)
    scale, bias = rng.uniform(0.01, 0.1, 37).astype(np.float32), rng.standard_normal(37).astype(np.float32)
    got = vkq.Linear(w, scale, bias=bias, method=method, device=device)(x)
    magnitude = reference.linear_q8csw(abs(x), abs(w), scale, abs(bias))
    assert (abs(got - reference.linear_q8csw(x, w, scale, bias)) <= magnitude * (k + 2) * 2.0**-24).all()


def test_weight_only_gemv_does_not_read_beyond_a_row(any_device):
    """A weight-only GEMV does not read beyond a row: NaN at the start of the second row does not affect the
    first row."""
    x = np.ones((2, 5), np.float32)
    x[1] = np.nan
    got = vkq.Linear(np.ones((3, 5), np.int8), 1.0, method="gemv", device=any_device)(x)
    np.testing.assert_array_equal(got, [[5.0] * 3, [np.nan] * 3])


@preferred({"lane_loads": False})  # the lanes kernel would compute any number of rows
def test_the_number_of_rows_chooses_the_kernel(any_device):
    w = np.ones((8, 16), np.int8)
    q = vkq.QParams(1.0)
    for options in ({"x_qparams": q}, {"x_qparams": q, "y_qparams": q}, {"x_qparams": "dynamic"}, {}):
        most = gemv.max_rows(any_device.capabilities, int8=bool(options))
        for m, kernel in ((1, "gemv"), (most, "gemv"), (most + 1, "gemm")):
            explained = vkq.Linear(w, 1.0, device=any_device, **options).explain((m, 16))
            assert explained.variants[-1].startswith(f"{kernel}_")
            forced = vkq.Linear(w, 1.0, device=any_device, method="tiled", **options).explain((m, 16))
            assert forced.variants[-1].startswith("gemm_")


def test_a_pointwise_convolution_of_one_pixel_takes_it_too(software_device):
    rng = np.random.default_rng(7)
    q, w = vkq.QParams(0.5, 3), rng.integers(-128, 128, (24, 40, 1, 1), dtype=np.int8)
    layer = vkq.Conv2d(w, 0.01, x_qparams=q, y_qparams=q, device=software_device)
    assert layer.explain((1, 40, 1, 1)).variants[0].startswith("gemv_")
    assert layer.explain((1, 40, 2, 3)).variants[0].startswith("gemm_")
    x = rng.integers(-128, 128, (1, 40, 1, 3), dtype=np.int8)
    np.testing.assert_array_equal(layer(x), reference.conv2d(x, w, x=q, w_scale=0.01, y=q))


def test_a_method_that_does_not_exist_is_refused(any_device):
    with pytest.raises(vkq.ArgumentError, match="method is 'split'; it must be one of auto, gemv, tiled"):
        vkq.Linear(np.ones((4, 4), np.int8), 1.0, method="split", device=any_device)
