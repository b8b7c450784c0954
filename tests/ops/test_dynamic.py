"""Tests of layers that quantize activations per row: the device equals the reference bit for bit, and the
reference equals ONNX Runtime."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.referees import ort
from vkq.kernels import gemv
from vkq.kernels.dynamic import quantize_rows
from vkq.layout.extent import BLOCKED, MATRIX
from vkq.reference import dynamic as reference_dynamic
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")
TINY = np.float32(2.0**-126)


def odd_rows(rng: np.random.Generator, k: int) -> npt.NDArray[np.float32]:
    """Return rows of every magnitude, of one sign, of zeros, of ties, of subnormal numbers, with infinities
    and NaN."""
    with np.errstate(over="ignore", under="ignore"):
        rows = [rng.standard_normal(k) * 10.0**e for e in (-44, -38, -37, -36, -20, -3, 0, 0, 0, 5, 37)]
        rows += [abs(rng.standard_normal(k)), -abs(rng.standard_normal(k)), np.zeros(k), -np.zeros(k)]
        rows += [
            rng.integers(-255, 256, k) / 2.0,
            rng.integers(0, 511, k) / 2.0,
            np.full(k, 1e-45),
            np.full(k, -7.0),
        ]
        x = np.array(rows).astype(np.float32)
    extremes = rng.choice(np.array([3.4e38, -3.4e38, 0, 1e38], np.float32), (1, k))
    special = rng.standard_normal((4, k)).astype(np.float32)
    special[0, ::3], special[1, ::2], special[2, ::2], special[3] = np.nan, np.inf, -np.inf, np.nan
    # Rows with a scale of about 2**-126.
    edge = np.linspace(-1, 1, k, dtype=np.float32) * np.float32(127.5) * TINY
    return np.concatenate([x, extremes, special, edge[None], edge[None] * np.float32(1.01)])


def on_device(device: vkq.Device, x: npt.NDArray[np.float32], layout: str = MATRIX) -> tuple[Any, Any, Any]:
    """Return (q, scale, zero point) of the rows of x, quantized on the device."""
    tensor = vkq.Tensor.from_numpy(x, device)
    results = []
    for i in (0, 1):
        b = Builder(device)
        results.append(run(b.plan(quantize_rows(b, b.input(tensor.spec), *x.shape, layout)[i]), [tensor]))
    q, rows = results[0].numpy(), results[1].numpy().reshape(-1, 2)
    return q, np.ascontiguousarray(rows[:, 0]).view(np.float32), rows[:, 1]


@pytest.mark.parametrize("piece", [1 << 16, 32])
@pytest.mark.parametrize("layout", [MATRIX, BLOCKED])
@pytest.mark.parametrize("k", [1, 2, 3, 64, 257, 5000])
def test_rows_are_quantized_as_the_reference_does(device, monkeypatch, k, layout, piece):
    """Scales, zero points and codes of rows equal the reference's. Several workgroups share a row that is
    longer than PIECE."""
    monkeypatch.setattr("vkq.kernels.dynamic.PIECE", piece)
    x = odd_rows(np.random.default_rng([1, k]), k)
    q, scale, zero_point = on_device(device, x, layout)
    want_scale, want_zero_point = reference_dynamic.row_parameters(x)
    np.testing.assert_array_equal(scale, want_scale)
    np.testing.assert_array_equal(zero_point, want_zero_point)
    np.testing.assert_array_equal(q, reference_dynamic.quantize_rows(x, want_scale, want_zero_point))


@pytest.mark.parametrize("seed", range(12))
def test_onnx_runtime_agrees_with_the_reference(seed):
    """ONNX Runtime's DynamicQuantizeLinear of one row equals the reference as uint8. ONNX Runtime
    computes the scale in another order, which may round it differently, but does not do so for these
    rows."""
    rng = np.random.default_rng([2, seed])
    x = (rng.standard_normal((1, 300)) * 10.0 ** rng.uniform(-30, 30) + rng.choice([0, 5, -5])).astype(
        np.float32
    )
    if seed % 4 == 0:
        x = (rng.integers(-255, 256, (1, 300)) / 2).astype(np.float32)  # many values become ties
    scale, zero_point = reference_dynamic.row_parameters(x)
    q = reference_dynamic.quantize_rows(x, scale, zero_point)
    got = ort.run_all("DynamicQuantizeLinear", [x], ["uint8", "float32", "uint8"])
    np.testing.assert_array_equal(got[0].astype(np.int32) - 128, q)
    assert got[1] == scale[0]
    assert int(got[2]) - 128 == zero_point[0]


def test_scale_is_raised_to_the_smallest_normal_number():
    x = np.array([[1e-45, 0], [255 * TINY, 0], [254 * TINY, 0]], np.float32)
    scale, zero_point = reference_dynamic.row_parameters(x)
    np.testing.assert_array_equal(scale, [TINY] * 3)
    np.testing.assert_array_equal(
        reference_dynamic.quantize_rows(x, scale, zero_point)[:, 0], [-128, 127, 126]
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("method", "k", "n"), [("tiled", 64, 32), ("tiled", 29, 19), ("tiled", 1, 1), ("gemv", 300, 5)]
)
def test_linear_is_the_reference_bit_for_bit(device, monkeypatch, path, method, k, n):
    # Split k among invocations as on a GPU.
    monkeypatch.setattr(gemv, "split", lambda _device, n4, k4, *_, **__: gemv.shared_split(256, n4, k4))
    rng = np.random.default_rng([3, k, n])
    x = odd_rows(rng, k)
    scale = (10.0 ** rng.uniform(-8, 3, n)).astype(np.float32)
    for w_dtype, activation in ((np.int8, None), (np.uint8, (-2.5, 100.0))):
        info = np.iinfo(w_dtype)
        w = rng.integers(info.min, info.max + 1, (n, k)).astype(w_dtype)
        bias = rng.standard_normal(n).astype(np.float32) if activation is None else None
        points = rng.integers(info.min, info.max + 1, n) if w_dtype == np.uint8 else None
        options = {"bias": bias, "w_zero_point": points, "activation": activation}
        layer = vkq.Linear(w, scale, x_qparams="dynamic", path=path, method=method, device=device, **options)
        want = reference_dynamic.linear_dynamic(x, w, scale, **options)
        got = layer(x)
        np.testing.assert_array_equal(got.view(np.int32), want.view(np.int32))


@pytest.mark.parametrize("shape", [(2, 3, 40), (40,), (1, 40), (0, 40), (2, 1, 5, 40)])
def test_batch_dims(device, shape):
    rng = np.random.default_rng(4)
    x = rng.standard_normal(shape).astype(np.float32)
    w = rng.integers(-127, 128, (11, 40), dtype=np.int8)
    got = vkq.linear(x, w, 0.01, x_qparams="dynamic", device=device)
    np.testing.assert_array_equal(got, reference_dynamic.linear_dynamic(x, w, 0.01), strict=True)


def test_no_input_features_leave_the_bias(device):
    bias = np.array([1.5, -2.0, 0.25], np.float32)
    got = vkq.linear(
        np.zeros((5, 0), np.float32),
        np.zeros((3, 0), np.int8),
        1.0,
        bias=bias,
        x_qparams="dynamic",
        device=device,
    )
    np.testing.assert_array_equal(got, np.tile(bias, (5, 1)))


def test_a_row_does_not_depend_on_its_neighbours(device):
    rng = np.random.default_rng(5)
    x = rng.standard_normal((6, 50)).astype(np.float32)
    layer = vkq.Linear(
        rng.integers(-127, 128, (9, 50), dtype=np.int8), 0.02, x_qparams="dynamic", device=device
    )
    together = layer(x)
    for i in range(6):
        np.testing.assert_array_equal(layer(x[i]), together[i])


def test_explain_names_both_steps(software_device):
    layer = vkq.Linear(np.ones((8, 12), np.int8), 1.0, x_qparams="dynamic", device=software_device)
    explained = layer.explain((5, 12))
    assert explained.scheme == "dq8ca_q8csw"
    assert [name.split(":")[0] for name in explained.variants] == [
        "quantize_dq8ca__row",
        "gemm_dq8ca_q8csw__texels",
    ]
    assert explained.scratch_bytes == 2 * 3 * 16 + 5 * 8


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"y_qparams": vkq.QParams(1.0)}, vkq.ArgumentError, "its result is float32"),
        (
            {"bias": np.zeros(2, np.int32)},
            vkq.DTypeError,
            "bias has dtype int32; with x_qparams='dynamic' it must be float32",
        ),
        (
            {"x_qparams": "dynamical"},
            vkq.ArgumentError,
            "x_qparams is 'dynamical'; it must be a QParams, None or 'dynamic'",
        ),
    ],
)
def test_what_is_refused(any_device, options, error, message):
    with pytest.raises(error, match=message):
        vkq.Linear(np.ones((2, 4), np.int8), 1.0, device=any_device, **({"x_qparams": "dynamic"} | options))


def test_weights_that_could_overflow_with_any_zero_point_are_refused(any_device):
    w = np.full((1, 2**31 // (255 * 127) + 1), 127, np.int8)
    with pytest.raises(vkq.AccumulatorOverflowError, match="output channel 0"):
        vkq.Linear(w, 1.0, x_qparams="dynamic", device=any_device)
    vkq.Linear(w[:, :-1], 1.0, x_qparams="dynamic", device=any_device)


@pytest.mark.parametrize("path", PATHS)
def test_sums_that_wrap(device, path):
    """Sums beyond int32 wrap as in the reference. The sums of the first row are the largest possible: all
    its values are at one end of the range, and its zero point is at the other."""
    k = 2**31 // (255 * 127) + 5
    x, w = np.full((2, k), 1.0, np.float32), np.full((3, k), 127, np.int8)
    x[1], w[1] = np.random.default_rng(1).standard_normal(k), -127
    layer = vkq.Linear(w, 0.01, x_qparams="dynamic", path=path, overflow="wrap", device=device)
    assert layer.explain(x.shape).overflowing == (0, 1, 2)
    want = reference_dynamic.linear_dynamic(x, w, 0.01, overflow="wrap")
    assert want[0, 0] < 0 < want[0, 1]
    np.testing.assert_array_equal(layer(x), want)


def test_inputs_and_other_layers_that_do_not_fit(any_device):
    layer = vkq.Linear(np.ones((2, 4), np.int8), 1.0, x_qparams="dynamic", device=any_device)
    with pytest.raises(vkq.DTypeError, match="x has dtype int8"):
        layer(np.ones((1, 4), np.int8))
    with pytest.raises(
        vkq.DTypeError, match=r"Conv2d: x_qparams is 'dynamic' \(str\); it must be a QParams or None"
    ):
        vkq.Conv2d(np.ones((2, 4, 1, 1), np.int8), 1.0, x_qparams="dynamic", device=any_device)
