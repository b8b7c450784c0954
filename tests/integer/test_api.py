"""Tests that integer convolution, correlation and matrix products equal NumPy's int64 exactly, on every
path."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scipy.signal

import vkq
from tests.device.reported import profile_says
from tests.integer import cases as integer_cases
from tests.integer.cases import PATHS
from tests.referees import ort
from tests.runtime.work import doctored
from vkq.integer import api as integer
from vkq.integer import chunks, tiles, work
from vkq.integer import correlation as op
from vkq.problem.conv2d import Conv2dProblem
from vkq.reference import integer as reference_integer

CASES = {  # purpose of the case -> (shape of x, shape of w, options)
    "the smallest": ((1, 1, 1, 1), (1, 1, 1, 1), {}),
    "one template, ragged words": ((1, 1, 11, 13), (1, 1, 3, 5), {}),
    "a window as wide as the image": ((2, 1, 19, 10), (5, 1, 4, 10), {}),
    "a window larger than the image": ((1, 1, 5, 6), (9, 1, 8, 9), {"padding": 5}),
    "outputs that see only padding": ((1, 2, 3, 3), (3, 2, 2, 2), {"padding": 7}),
    "wider than a step of 64 words": ((1, 1, 4, 300), (2, 1, 2, 290), {"padding": (1, 0)}),
    "all options": (
        (2, 6, 17, 19),
        (6, 2, 3, 4),
        {"stride": (2, 3), "dilation": (3, 2), "groups": 3, "padding": (1, 2, 3, 4)},
    ),
    "depthwise": ((1, 5, 9, 9), (5, 1, 3, 3), {"groups": 5, "padding": 1}),
    "many channels": ((1, 70, 6, 7), (12, 70, 3, 3), {"padding": 1}),
}
PAIRS = [("int8", "int8"), ("uint8", "int8"), ("uint8", "uint8"), ("int16", "int8"), ("int16", "uint16")]


def data(seed: int, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    info = np.iinfo(dtype)
    return np.random.default_rng(seed).integers(info.min, info.max, shape, dtype, endpoint=True)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", CASES)
def test_conv2d(device: vkq.Device, name: str, path: str) -> None:
    x_shape, w_shape, options = CASES[name]
    p = Conv2dProblem.of(x_shape, w_shape, **options)
    bias = np.arange(-2, p.oc - 2) * 1000
    first = list(CASES).index(name)
    for i in (first, first + 2):  # on each path, the cases together use every pair of dtypes
        x, w = (data(i + k, PAIRS[i % len(PAIRS)][k], s) for k, s in enumerate((x_shape, w_shape)))
        want = reference_integer.conv2d(x, w, bias, p)
        got = integer.conv2d(
            x, w, bias, **options, accumulate="auto" if i % 2 else "int64", path=path, device=device
        )
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16"])
def test_thirty_templates(device: vkq.Device, dtype: str) -> None:
    """30 templates of 100x100 on one 100x100 image with padding 30 are exact: a billion multiply-adds."""
    x, w = data(1, dtype, (1, 1, 100, 100)), data(2, dtype, (30, 1, 100, 100))
    x[0, 0, :50, :50] = np.iinfo(dtype).min
    w[0] = np.iinfo(dtype).max
    w[1] = np.iinfo(dtype).min
    accumulate: Any = "int64" if dtype == "int16" and "llvmpipe" in device.name else "auto"
    if dtype == "int16":
        w = (w // 256).astype(np.int16)  # weights that need two bytes, although all sums fit int32
        w[2, 0, :9] = 300
    got = integer.conv2d(x, w, padding=30, accumulate=accumulate, device=device)
    np.testing.assert_array_equal(got, blas(x, w, 30))


def test_five_hundred_templates(device: vkq.Device) -> None:
    """500 templates of 50x50 on one 100x100 image are exact."""
    x, w = data(3, "int8", (1, 1, 100, 100)), data(4, "int8", (500, 1, 50, 50))
    np.testing.assert_array_equal(integer.conv2d(x, w, device=device), blas(x, w, 0))


def blas(x: np.ndarray, w: np.ndarray, pad: int) -> np.ndarray:
    """Return the convolution, computed by float64 matrix products, which are exact below 2**53. Loops in
    int64 would take minutes."""
    assert (
        float(np.abs(x.astype(np.float64)).max() * np.abs(w.astype(np.float64)).sum(axis=(1, 2, 3)).max())
        < 2**53
    )
    padded = np.pad(x[0, 0].astype(np.float64), pad)
    windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:])
    flat = w.reshape(len(w), -1).astype(np.float64).T
    rows = [(line.reshape(len(line), -1) @ flat).T for line in windows]
    return np.stack(rows, axis=1)[None].astype(np.int64)


def test_oracles_agree() -> None:
    x, w = data(5, "int16", (1, 1, 12, 13)), data(6, "int16", (3, 1, 4, 5))
    p = Conv2dProblem.of(x.shape, w.shape, padding=2)
    np.testing.assert_array_equal(reference_integer.conv2d(x, w, None, p), blas(x, w, 2))


@pytest.mark.parametrize("seed", range(12))
def test_random(device: vkq.Device, seed: int) -> None:
    assert integer_cases.check(device, seed) is None


def test_int16_extremes(device: vkq.Device) -> None:
    """With all values -32768 and a window of 100x100, each sum is 1.07e13: refused for int32, and exact in
    int64."""
    x, w = np.full((1, 1, 101, 102), -32768, np.int16), np.full((1, 1, 100, 100), -32768, np.int16)
    with pytest.raises(
        vkq.AccumulatorOverflowError, match=r"\[0, 10737418240000\].*int32 holds .*accumulate='int64'"
    ):
        integer.conv2d(x, w, device=device)
    for accumulate in ("int64", "auto"):
        got = integer.conv2d(x, w, accumulate=accumulate, device=device)  # type: ignore[arg-type]
        assert got.dtype == np.int64
        assert (got == 100 * 100 * 2**30).all()


@pytest.mark.parametrize("path", PATHS)
def test_wide_digits(device: vkq.Device, path: str) -> None:
    """Products of int32 and int32 are exact for sums close to both ends of int64. Each operand needs four
    digits."""
    x = np.array([-(2**31), 2**31 - 1, -1, 1, 123456789, 0] * 3, np.int32).reshape(1, 1, 3, 6)
    w = np.array([[2**31 - 1], [-(2**31)]], np.int32).reshape(2, 1, 1, 1)
    got = integer.conv2d(x, w, accumulate="auto", path=path, device=device)
    np.testing.assert_array_equal(got, x.astype(np.int64) * w.astype(np.int64).reshape(1, 2, 1, 1))
    with pytest.raises(vkq.AccumulatorOverflowError, match="int64 holds"):
        integer.conv2d(x, np.full((1, 1, 3, 1), -(2**31), np.int32), accumulate="int64", device=device)


@pytest.mark.parametrize("path", PATHS)
def test_int32_edge(device: vkq.Device, path: str) -> None:
    """The largest and smallest sums that int32 holds are exact; sums beyond them are refused."""
    x, w = np.full((1, 1, 1, 3), 32767, np.int16), np.array([32767, 32767, 4], np.int16).reshape(1, 1, 1, 3)
    room = 2**31 - 1 - 32767 * (32767 + 32767 + 4)
    assert integer.conv2d(x, w, np.array([room]), path=path, device=device).item() == 2**31 - 1
    with pytest.raises(vkq.AccumulatorOverflowError, match=f"{2**31}.*template 0|template 0.*{2**31}"):
        integer.conv2d(x, w, np.array([room + 1]), path=path, device=device)
    assert integer.conv2d(-x, w, np.array([-room - 1]), path=path, device=device).item() == -(2**31)


def test_multiplies(device: vkq.Device) -> None:
    """A 32-bit multiply replaces four byte products if the sums fit 32 bits. It does not replace two byte
    products, because they are cheaper."""
    x, w = data(20, "int16", (1, 1, 9, 20)) // 64, data(21, "int16", (3, 1, 3, 5)) // 64
    got = integer.conv2d(x, w, device=device)
    assert got.dtype == np.int32
    p = Conv2dProblem.of(x.shape, w.shape)
    np.testing.assert_array_equal(got, reference_integer.conv2d(x, w, None, p))
    assert "kernel: 32-bit multiplies" in integer.explain(x, w, device=device)
    said = integer.explain(x, (w // 4).astype(np.int8), path="dot_u8u8", device=device)
    assert "2 digits of 8 bits" in said
    assert "kernel: the dot product u8u8: dot_u8u8, requested by name" in said


@pytest.mark.parametrize("wide", [False, True])
@pytest.mark.parametrize("path", ["dot_u8u8", "portable"])
def test_split_reduction(device: vkq.Device, path: str, wide: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workgroups add to the same results: the sums are exact, also with carries from the low to the
    high word."""
    profile_says(monkeypatch, tiles, busy_workgroups=500)
    x, w = data(7, "int16", (1, 2, 30, 40)), data(8, "uint8", (3, 2, 20, 30))
    if not wide:
        x = (x // 64).astype(np.int16)
    p = Conv2dProblem.of(x.shape, w.shape, padding=1)
    got = integer.conv2d(x, w, padding=1, accumulate="int64" if wide else "int32", path=path, device=device)
    np.testing.assert_array_equal(got, reference_integer.conv2d(x, w, None, p))


def test_chunks(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results are exact if they are computed in chunks of images, rows and templates, and device memory
    stays bounded."""
    monkeypatch.setattr(chunks, "CHUNK_BYTES", 20_000)
    monkeypatch.setattr(work, "BAND_BYTES", 4_000)
    steps = []
    plan = op.Correlation.plan

    def spy(*given: Any) -> Any:
        found = plan(*given)
        steps.append(len(found.steps))
        return found

    monkeypatch.setattr(op.Correlation, "plan", spy)
    for x_shape, w_shape, options in (
        ((3, 2, 40, 50), (9, 2, 3, 4), {"stride": (2, 1), "dilation": (1, 2), "padding": 2}),
        ((2, 8, 30, 31), (8, 2, 5, 5), {"groups": 4, "padding": (9, 0)}),
    ):
        x, w = data(9, "int16", x_shape), data(10, "int8", w_shape)
        p = Conv2dProblem.of(x_shape, w_shape, **options)
        device.reset_memory_peak()
        before = device.memory_used_bytes
        got = integer.conv2d(x, w, **options, device=device)
        np.testing.assert_array_equal(got, reference_integer.conv2d(x, w, None, p))
        assert device.memory_peak_bytes - before < 3 * 20_000 + 4_000 + 20 * 512
    assert len(steps) > 10
    assert max(steps) > 3  # a chunk is computed in several bands of rows


def test_chunks_of_a_device_with_small_buffers(any_device: vkq.Device) -> None:
    """Results are exact although the result is six times, and the image 1.5 times, as large as the device's
    maximum storage buffer range."""
    x, w = data(9, "uint8", (1, 1, 240, 1000)), data(10, "int8", (1, 1, 3, 3))
    limit = doctored(any_device.capabilities, maxStorageBufferRange=160_000)
    with vkq.Device(capabilities=limit) as small:
        got = integer.conv2d(x, w, device=small)
    np.testing.assert_array_equal(
        got, reference_integer.conv2d(x, w, None, Conv2dProblem.of(x.shape, w.shape))
    )


@pytest.mark.parametrize("x_dtype", ["uint8", "int8"])
@pytest.mark.parametrize("w_dtype", ["uint8", "int8"])
def test_onnx_runtime(device: vkq.Device, x_dtype: str, w_dtype: str) -> None:
    """Results equal ONNX Runtime's ConvInteger and MatMulInteger on its CPU provider."""
    low, high = ort.exact_int8_weights()
    x, w = data(11, x_dtype, (2, 3, 12, 11)), data(12, w_dtype, (5, 3, 3, 4))
    a, b = data(13, x_dtype, (7, 21)), data(14, w_dtype, (21, 10))
    if (low, high) != (-128, 127):
        w, b = (np.clip(v, max(low, np.iinfo(w_dtype).min), high) for v in (w, b))
    if x_dtype == "uint8" or w_dtype == "int8":
        options = {"strides": (2, 1), "pads": (1, 0, 2, 1), "dilations": (1, 2)}
        if x_dtype == "uint8":  # ONNX Runtime's CPU provider has no ConvInteger for int8 images
            want = ort.run("ConvInteger", [x, w], "int32", **options)
            got = integer.conv2d(x, w, stride=(2, 1), padding=(1, 0, 2, 1), dilation=(1, 2), device=device)
            np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(
        integer.matmul(a, b, device=device), ort.run("MatMulInteger", [a, b], "int32")
    )


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 7), (300, 67, 9), (2, 3000, 2), (1, 8, 40), (65, 1, 1)])
@pytest.mark.parametrize("path", ["dot_s8s8", "portable"])
def test_matmul(device: vkq.Device, shape: tuple[int, int, int], path: str) -> None:
    m, k, n = shape
    a, b = data(m, "int16", (m, k)), data(n, "uint8", (k, n))
    want = a.astype(np.int64) @ b.astype(np.int64) + np.arange(n)
    np.testing.assert_array_equal(integer.matmul(a, b, np.arange(n), "auto", path=path, device=device), want)


def test_matmul_shapes(any_device: vkq.Device) -> None:
    a, b = data(1, "int8", (2, 3, 4, 5)), data(2, "int8", (5, 6))
    want = a.astype(np.int64) @ b.astype(np.int64)
    np.testing.assert_array_equal(integer.matmul(a, b, device=any_device), want)
    np.testing.assert_array_equal(integer.matmul(a[0, 0, 0], b, device=any_device), want[0, 0, 0])
    assert integer.matmul(a[:0], b, device=any_device).shape == (0, 3, 4, 6)
    assert integer.matmul(a, b[:, :0], device=any_device).shape == (2, 3, 4, 0)
    no_k = integer.matmul(a[..., :0], b[:0], np.arange(6), device=any_device)
    np.testing.assert_array_equal(no_k, np.broadcast_to(np.arange(6), (2, 3, 4, 6)))
    with pytest.raises(vkq.ArgumentError, match=r"\(2, 3, 4, 5\).*\(6, 5\)"):
        integer.matmul(a, b.T, device=any_device)


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (6, 5), (20, 22)])
def test_correlate2d_is_scipys(device: vkq.Device, mode: Any, size: tuple[int, int]) -> None:
    image, template = data(15, "int16", (20, 23)), data(16, "int16", size)
    want = scipy.signal.correlate2d(image.astype(np.int64), template.astype(np.int64), mode)
    np.testing.assert_array_equal(integer.correlate2d(image, template, mode, device=device), want)
    if mode == "full":
        large = data(17, "uint8", (9, 30))
        want = scipy.signal.correlate2d(image[:5, :7].astype(np.int64), large.astype(np.int64), mode)
        np.testing.assert_array_equal(
            integer.correlate2d(image[:5, :7], large[None], mode, device=device)[0], want
        )


def test_arrays_of_every_kind(any_device: vkq.Device) -> None:
    x, w = data(18, "int16", (1, 2, 9, 10)), data(19, "int8", (3, 2, 4, 4))
    want = integer.conv2d(x, w, device=any_device)
    frozen = x.copy()
    frozen.flags.writeable = False
    for other in (
        x.astype(">i2"),
        np.asfortranarray(x),
        frozen,
        np.repeat(x, 2, axis=3)[..., ::2],
        x.astype(np.int32),
        x.tolist(),
    ):
        if isinstance(other, list):
            with pytest.raises(vkq.DTypeError, match="int64"):
                integer.conv2d(other, w, device=any_device)
        else:
            np.testing.assert_array_equal(integer.conv2d(other, w, device=any_device), want)
    np.testing.assert_array_equal(frozen, x)


def test_nothing_to_do(any_device: vkq.Device) -> None:
    x, w = np.zeros((0, 2, 5, 5), np.int8), np.ones((3, 2, 2, 2), np.int8)
    assert integer.conv2d(x, w, device=any_device).shape == (0, 3, 4, 4)
    assert integer.conv2d(np.zeros((1, 2, 5, 5), np.int8), w[:0], device=any_device).shape == (1, 0, 4, 4)
    no_channels = integer.conv2d(np.zeros((1, 0, 5, 5), np.int8), w[:, :0], np.arange(3), device=any_device)
    np.testing.assert_array_equal(
        no_channels, np.broadcast_to(np.arange(3).reshape(1, 3, 1, 1), (1, 3, 4, 4))
    )


def test_refusals(any_device: vkq.Device) -> None:
    x, w = np.ones((1, 1, 5, 5), np.int8), np.ones((2, 1, 3, 3), np.int8)
    with pytest.raises(vkq.DTypeError, match="x has dtype float32"):
        integer.conv2d(x.astype(np.float32), w, device=any_device)
    with pytest.raises(vkq.DTypeError, match="bias has dtype float64"):
        integer.conv2d(x, w, np.ones(2), device=any_device)
    with pytest.raises(vkq.ArgumentError, match=r"bias has shape \(3,\).*\(2,\)"):
        integer.conv2d(x, w, np.ones(3, int), device=any_device)
    with pytest.raises(vkq.ArgumentError, match="accumulate is 'int16'"):
        integer.conv2d(x, w, accumulate="int16", device=any_device)  # type: ignore[arg-type]
    with pytest.raises(vkq.ArgumentError, match="OH"):
        integer.conv2d(x, np.ones((1, 1, 6, 6), np.int8), device=any_device)
    with pytest.raises(vkq.ArgumentError, match="path is 'fast'"):
        integer.conv2d(x, w, path="fast", device=any_device)
    with pytest.raises(vkq.ArgumentError, match="mode is 'wrap'"):
        integer.correlate2d(x[0, 0], w[:, 0], "wrap", device=any_device)  # type: ignore[arg-type]


def test_more_channels_than_a_loop_has_rounds(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several workgroups share a long reduction over channels, because drivers may end longer loops."""
    monkeypatch.setattr(work, "LONGEST", 2000)
    profile_says(monkeypatch, tiles, busy_workgroups=1)
    divisions = []
    of = work.Division.of
    monkeypatch.setattr(work.Division, "of", lambda *a: divisions.append(of(*a)) or divisions[-1])
    r = np.random.default_rng(36)
    x, w = (r.integers(-128, 128, shape).astype(np.int8) for shape in ((1, 2001, 2, 3), (2, 2001, 1, 1)))
    got = integer.conv2d(x, w, device=device)
    wanted = np.einsum("nchw,tc->nthw", x.astype(np.int64), w[:, :, 0, 0].astype(np.int64))
    np.testing.assert_array_equal(got, wanted)
    assert {(one.splits, one.per_split) for one in divisions} == {(34, 2)}
