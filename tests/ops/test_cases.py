"""Tests of every listed shape on every path and driver, with int8 and float32 results. Results equal the
reference bit for bit."""

import numpy as np
import pytest

import vkq

from ..cases import CASES, Case, random_conv2d, random_data, random_linear
from ..conftest import share
from .run import PATHS, assert_same_bits, run

# Number of multiply-adds of a large shape. On a CPU device large shapes take seconds for each path, so they
# run on one path only; smaller shapes have the same index arithmetic.
LARGE = 40_000_000
SMALL_CASES = [case for case in CASES if case.problem.macs <= LARGE]
LARGE_CASES = [case for case in CASES if case.problem.macs > LARGE]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("case", SMALL_CASES, ids=lambda case: case.name)
def test_every_path_gives_the_reference_s_bits(case: Case, path: str, device: vkq.Device) -> None:
    """Every path gives the reference's bits. SwiftShader computes only one output of each case, int8 or
    float32, alternating over cases and paths."""
    data = random_data(case.problem, np.random.default_rng(case.problem.macs))
    second = SMALL_CASES.index(case) // len(PATHS) % 2
    for y in share((None, data.y_q) if second else (data.y_q, None), device, 2):
        assert_same_bits(run(data, y, device, path), data.expected(y))


@pytest.mark.parametrize("case", LARGE_CASES, ids=lambda case: case.name)
def test_large_shapes(case: Case, any_device: vkq.Device) -> None:
    data = random_data(case.problem, np.random.default_rng(7))
    assert_same_bits(run(data, data.y_q, any_device, "dot_s8s8"), data.expected(data.y_q))


@pytest.mark.parametrize("path", PATHS)
def test_extremes_fill_the_accumulator(path: str, device: vkq.Device) -> None:
    """Results are exact if all operands are -128 or 127 and zero points are at the other extreme:
    accumulators are then far above 2**24, the limit of exact float32 integers."""
    rng = np.random.default_rng(11)
    for _ in range(6):
        for problem in (random_linear(rng), random_conv2d(rng)):
            data = random_data(problem, rng, extreme=True)
            assert_same_bits(run(data, data.y_q, device, path), data.expected(data.y_q))
            assert_same_bits(run(data, None, device, path), data.expected(None))


@pytest.mark.parametrize("w_zero_points", ["tensor", "channel"])
@pytest.mark.parametrize(("x_dtype", "w_dtype"), [("uint8", "uint8"), ("uint8", "int8"), ("int8", "int8")])
def test_types_and_weight_zero_points(
    x_dtype: str, w_dtype: str, w_zero_points: str, device: vkq.Device
) -> None:
    rng = np.random.default_rng(12)
    for i in range(6):
        problem = random_linear(rng) if i % 2 else random_conv2d(rng)
        data = random_data(problem, rng, x_dtype, w_dtype, w_zero_points=w_zero_points)  # type: ignore[arg-type]
        for path in PATHS:
            assert_same_bits(run(data, data.y_q, device, path), data.expected(data.y_q))
            assert_same_bits(run(data, None, device, path), data.expected(None))


@pytest.mark.smoke
@pytest.mark.parametrize("path", PATHS)
def test_weights_of_minus_128_are_kept(path: str, device: vkq.Device) -> None:
    x = np.full((1, 7), -128, np.int8)
    w = np.full((3, 7), -128, np.int8)
    got = vkq.linear(x, w, 1.0, x_qparams=vkq.QParams(1.0), path=path, device=device)
    assert got.tolist() == [[7 * 128 * 128] * 3]


@pytest.mark.parametrize("activation", ["relu", "relu6", (-0.5, 0.25)])
def test_fused_activation_is_a_clamp(activation: object, device: vkq.Device) -> None:
    rng = np.random.default_rng(13)
    for problem in (random_linear(rng), random_conv2d(rng)):
        data = random_data(problem, rng)
        for y in (data.y_q, None):
            want = data.expected(y, activation=activation)
            assert_same_bits(run(data, y, device, activation=activation), want)


def test_float_bias_with_float_output(device: vkq.Device) -> None:
    rng = np.random.default_rng(14)
    for problem in (random_linear(rng), random_conv2d(rng)):
        data = random_data(problem, rng)
        bias = rng.normal(size=problem.gemm_n).astype(np.float32)
        assert_same_bits(run(data, None, device, bias=bias), data.expected(None, bias=bias))


def test_chunked_im2col_is_the_same(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """im2col in chunks is exact. Scratch memory holds one block of rows here, so that chunks end at every
    position."""
    rng = np.random.default_rng(15)
    monkeypatch.setattr("vkq.kernels.im2col.SCRATCH_BYTES", 300)
    for _ in range(4):
        data = random_data(random_conv2d(rng), rng)
        assert_same_bits(run(data, data.y_q, device, method="im2col"), data.expected(data.y_q))
        assert_same_bits(run(data, None, device, method="im2col"), data.expected(None))


def test_two_hundred_replays_are_identical(device: vkq.Device) -> None:
    rng = np.random.default_rng(16)
    data = random_data(random_conv2d(rng), rng)
    layer = vkq.Conv2d(
        data.w,
        data.w_scale,
        x_qparams=data.x_q,
        y_qparams=data.y_q,
        bias=data.bias,
        device=device,
        **data.options,
    )
    x = vkq.Tensor.from_numpy(data.x, device)
    with device.record() as recording:
        y = layer(x)
    want = data.expected(data.y_q)
    for _ in range(200):
        recording.run()
        assert_same_bits(y.numpy(), want)
