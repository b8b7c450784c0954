"""Tests of pooling on the device: results equal the reference bit for bit in every layout, also if the
device's float rounding is not trusted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

import vkq
from vkq import QParams, Tensor, reference
from vkq.device.profiles import preferred
from vkq.kernels.pooling import sure
from vkq.kernels.sharing import SHARERS
from vkq.layout.extent import BLOCKED, IMAGE, Spec
from vkq.layout.pack import activation_layouts
from vkq.numerics.qparams import QDType
from vkq.ops.mean import averaged_by_table
from vkq.ops.pool import globally_averaged
from vkq.problem.window import Window
from vkq.reference.operators import mean_of_table
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

WINDOWS = {  # (x shape, kernel, stride, padding, dilation, ceil_mode) -> reason for the case
    ((1, 3, 8, 8), 2, 2, 0, 1, False): "half the size; three channels",
    ((2, 5, 9, 7), 3, 2, 1, 1, False): "ResNet's first pool: channels and width fill no block; two images",
    ((1, 6, 7, 7), (7, 7), 1, 0, 1, False): "one window for the whole image",
    ((1, 4, 1, 9), (1, 3), (1, 2), (0, 1), 1, False): "an image of one row",
    (
        (1, 1, 10, 11),
        (3, 2),
        (2, 3),
        (2, 0, 1, 1),
        1,
        True,
    ): "asymmetric padding and ceil mode: windows beyond the padding",
    ((1, 9, 5, 5), 2, 3, 0, 1, True): "pixels that no window reads; an output that only ceil mode has",
    ((1, 5, 1, 1), 1, 1, 0, 1, False): "one pixel",
    (
        (1, 3, 2, 1),
        (3, 2),
        3,
        (1, 0, 0, 0),
        1,
        True,
    ): "one window, which reaches beyond the image in ceil mode",
    ((1, 8, 6, 33), 5, 1, 2, 1, False): "SPP (spatial pyramid pooling): stride 1; wider than a workgroup",
}
DILATED = {
    ((1, 5, 9, 9), 3, 1, 2, 2, False): "dilation 2",
    (
        (1, 3, 4, 4),
        2,
        1,
        (3, 0, 3, 3),
        (4, 3),
        False,
    ): "a dilated kernel that reaches beyond the image: some windows see only padding",
}
POINTS = {"int8": (-128, -5, 127), "uint8": (0, 131, 255)}


@pytest.fixture(params=["loops", "unrolled", "shared"])
def unrolled(
    request: pytest.FixtureRequest, device: vkq.Device, monkeypatch: pytest.MonkeyPatch
) -> Iterator[None]:
    """Run the test with each form of the kernel: loops, unrolled code for small windows, and several
    invocations per window."""
    device._plans.clear()
    if request.param == "shared":
        monkeypatch.setattr("vkq.kernels.pooling.sharers", lambda taps: SHARERS)
    with preferred({"registers": "plenty" if request.param == "unrolled" else "enough"}):
        yield
    device._plans.clear()


def image(shape: tuple[int, ...], dtype: QDType) -> np.ndarray:
    return np.random.default_rng(30).integers(0, 256, shape).astype(np.uint8).view(dtype)


@pytest.mark.usefixtures("unrolled")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_max(device: vkq.Device, dtype: QDType) -> None:
    for (shape, kernel, stride, padding, dilation, ceil), reason in (WINDOWS | DILATED).items():
        x = image(shape, dtype)
        got = vkq.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=ceil, device=device)
        window = Window.of("pool", shape, kernel, stride, padding, dilation, ceil)
        np.testing.assert_array_equal(got, reference.max_pool2d(x, window), err_msg=reason)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_max_of_large_windows(device: vkq.Device, dtype: QDType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Maxima of large windows are exact. One dispatch reduces along one axis, and a second dispatch along
    the other axis."""
    large = (1, 2, 1024, 1025), 1024, 1, 0, 1, False
    device._plans.clear()
    for shape, kernel, stride, padding, dilation, ceil in [large, *WINDOWS, *DILATED]:
        x, window = image(shape, dtype), Window.of("pool", shape, kernel, stride, padding, dilation, ceil)
        got = vkq.max_pool2d(x, kernel, stride, padding, dilation, ceil_mode=ceil, device=device)
        wanted = x[..., :1024].max((2, 3)) if shape == large[0] else reference.max_pool2d(x, window)
        np.testing.assert_array_equal(got if shape != large[0] else got[..., 0, 0], wanted)
        monkeypatch.setattr("vkq.ops.pool.BY_AXES", 1)  # forces two dispatches for the other windows, too
    device._plans.clear()


@pytest.mark.usefixtures("unrolled")
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("soft", [False, True])
def test_average(device: vkq.Device, dtype: QDType, soft: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Average pools are exact, also at ties (equal scales). With *soft*, the device's float rounding is not
    trusted, and the shader computes floats with integer operations."""
    if soft:
        monkeypatch.setattr(device, "_soft_float", True)
    scales = [(0.5, 0.5), (0.1, 0.1), (0.013, 0.007), (3.0, 3.7)]
    for i, ((shape, kernel, stride, padding, _, ceil), reason) in enumerate(WINDOWS.items()):
        x, window = image(shape, dtype), Window.of("pool", shape, kernel, stride, padding, 1, ceil)
        for (xs, ys), include in itertools.product(scales, (False, True)):
            xq, yq = QParams(xs, POINTS[dtype][i % 3], dtype), QParams(ys, POINTS[dtype][(i + 1) % 3], dtype)
            got = vkq.avg_pool2d(
                x,
                kernel,
                stride,
                padding,
                ceil_mode=ceil,
                count_include_pad=include,
                x_qparams=xq,
                y_qparams=yq,
                device=device,
            )
            np.testing.assert_array_equal(
                got, reference.avg_pool2d(x, window, xq, yq, include), err_msg=f"{reason} {xs} {ys}"
            )


@pytest.mark.usefixtures("unrolled")
@pytest.mark.parametrize("name", [IMAGE, BLOCKED])
def test_average_that_is_sure_of_every_sum(device: vkq.Device, name: str) -> None:
    """Average pools are exact with and without the check for ties. The kernel omits the check if no possible
    sum is near a tie (`sure`): here, for windows of nine elements, but not for windows of four. Elements
    outside the image count as x's zero point."""
    x, q, y = image((2, 18, 9, 14), "int8"), QParams(0.1, 100), QParams(0.1, -5)
    for kernel, padding, expected in ((3, 1, True), (3, (0, 2, 2, 0), True), (2, 0, False)):
        window = Window.of("pool", x.shape, kernel, 2, padding, 1, False)
        assert sure(window, q, y, True) is expected
        got = vkq.avg_pool2d(Tensor.from_numpy(x, device, name, q), kernel, 2, padding, y_qparams=y)
        np.testing.assert_array_equal(got.numpy(), reference.avg_pool2d(x, window, q, y, True))


def test_average_of_extreme_scales(device: vkq.Device) -> None:
    """Average pools equal the reference for scales at the limits 2^-100 and 2^100, and for a scale of x that
    is much larger than that of y."""
    x = image((1, 3, 6, 6), "int8")
    window = Window.of("pool", x.shape, 3, 1, 0, 1, False)
    for xs, ys in (
        (2.0**-100, 2.0**-100),
        (2.0**99, 2.0**100),
        (2.0**100, 2.0**-100),
        (2.0**-100, 2.0**100),
        (1e6, 1.0),
    ):
        xq, yq = QParams(xs, 7), QParams(ys, -9)
        got = vkq.avg_pool2d(x, 3, 1, x_qparams=xq, y_qparams=yq, device=device)
        np.testing.assert_array_equal(
            got, reference.avg_pool2d(x, window, xq, yq, True), err_msg=f"{xs} {ys}"
        )


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 7, 7), (1, 37, 13, 11), (1, 4, 1, 300), (3, 0, 4, 4)])
def test_global_average(device: vkq.Device, shape: tuple[int, ...], dtype: QDType) -> None:
    x = image(shape, dtype)
    for xs, ys in ((0.5, 0.125), (0.1, 0.01), (2.0**-126, 1.0)):
        xq, yq = QParams(xs, POINTS[dtype][1], dtype), QParams(ys, POINTS[dtype][1], dtype)
        got = vkq.global_avg_pool2d(x, x_qparams=xq, y_qparams=yq, device=device)
        np.testing.assert_array_equal(got, reference.global_avg_pool(x, xq, yq))


@pytest.mark.parametrize("how", ["mean", "sum"])
@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("name", [IMAGE, BLOCKED])
def test_litert_rounds_with_the_offset(
    device: vkq.Device, name: str, soft: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Global means and sums with LiteRT's rounding are exact, also at ties, and with soft floats."""
    if soft:
        monkeypatch.setattr(device, "_soft_float", True)
    for dtype in ("int8", "uint8"):
        x, unit = image((2, 37, 4, 8), dtype), 1.0 if how == "mean" else 32.0
        for scales in ((0.5, 0.5 * unit), (0.5, 0.125 * unit), (0.1, 0.013 * unit)):
            xq, yq = (QParams(s, POINTS[dtype][1], dtype) for s in scales)
            tensor, b = Tensor.from_numpy(x, device, name, xq), Builder(device)
            plan = b.plan(globally_averaged(b, b.input(tensor.spec), yq, xq, litert=how))
            want = reference.global_avg_pool(x, xq, yq, how)
            np.testing.assert_array_equal(run(plan, [tensor]).numpy(), want)


@pytest.mark.parametrize("name", [IMAGE, BLOCKED])
def test_global_average_of_large_images(device: vkq.Device, name: str) -> None:
    """Global averages of large images are exact with workgroups of 512 invocations, which some devices use.
    A row of pixels is whole vectors, or has a partial last vector."""
    device._plans.clear()
    q, y = QParams(0.05, 3), QParams(0.002, -5)
    with preferred({"mean_invocations": 512}):
        for shape in ((1, 21, 33, 64), (2, 5, 47, 45)):
            x = image(shape, "int8")
            got = vkq.global_avg_pool2d(Tensor.from_numpy(x, device, name, q), y_qparams=y)
            np.testing.assert_array_equal(got.numpy(), reference.global_avg_pool(x, q, y))


@pytest.mark.parametrize("name", [IMAGE, BLOCKED])
def test_global_average_of_huge_images(device: vkq.Device, name: str) -> None:
    """Global averages are correct for images with more pixels than 64 invocations may loop over on
    lavapipe."""
    x, q, y = image((1, 1, 2049, 1100), "int8"), QParams(0.05, 3), QParams(1e-5, -5)
    got = vkq.global_avg_pool2d(Tensor.from_numpy(x, device, name, q), y_qparams=y)
    np.testing.assert_array_equal(got.numpy(), reference.global_avg_pool(x, q, y))


@pytest.mark.parametrize(("name", "shape"), [(IMAGE, (1, 3, 131, 130)), (BLOCKED, (1, 3, 182, 181))])
@pytest.mark.parametrize("value", [-128, 127])
def test_global_average_of_more_bytes_than_half_a_word_can_add(
    device: vkq.Device, name: str, shape: tuple[int, ...], value: int
) -> None:
    """Global averages are exact if one of 128 invocations sums more than 256 extreme bytes, which overflow
    16 bits. All bytes but one are equal."""
    x, q, y = np.full(shape, value, np.int8), QParams(0.05, 3), QParams(0.05, 3)
    x[0, 2, 77, 5] = 1
    with preferred({"mean_invocations": 128}):
        got = vkq.global_avg_pool2d(Tensor.from_numpy(x, device, name, q), y_qparams=y)
    np.testing.assert_array_equal(got.numpy(), reference.global_avg_pool(x, q, y))


@pytest.mark.usefixtures("unrolled")
@pytest.mark.parametrize("name", [one.name for one in activation_layouts()])
def test_every_layout(device: vkq.Device, name: str) -> None:
    x, q = image((2, 6, 9, 7), "uint8"), QParams(0.1, 100, "uint8")
    tensor = Tensor.from_numpy(x, device, name, q)
    window = Window.of("pool", x.shape, 3, 2, 1, 1, False)
    most, mean, whole = (
        vkq.max_pool2d(tensor, 3, 2, 1),
        vkq.avg_pool2d(tensor, 3, 2, 1),
        vkq.global_avg_pool2d(tensor),
    )
    kept = name if name == "kPackedInt8_16C" else "kPackedInt8_4W4C"
    assert {y.layout for y in (most, mean, whole)} == {kept}
    assert {y.qparams for y in (most, mean, whole)} == {q}
    np.testing.assert_array_equal(most.numpy(), reference.max_pool2d(x, window))
    np.testing.assert_array_equal(mean.numpy(), reference.avg_pool2d(x, window, q, q, True))
    np.testing.assert_array_equal(whole.numpy(), reference.global_avg_pool(x, q, q))


def test_empty_batch(device: vkq.Device) -> None:
    x, q = np.zeros((0, 3, 8, 8), np.int8), QParams(1.0)
    assert vkq.max_pool2d(x, 2, device=device).shape == (0, 3, 4, 4)
    assert vkq.avg_pool2d(x, 2, x_qparams=q, device=device).shape == (0, 3, 4, 4)
    assert vkq.global_avg_pool2d(x, x_qparams=q, device=device).shape == (0, 3, 1, 1)


def test_refusals(device: vkq.Device) -> None:
    x, q = np.zeros((1, 3, 8, 8), np.int8), QParams(1.0)
    with pytest.raises(vkq.ArgumentError, match=r"padding along H is \(3, 3\) and the kernel spans 3"):
        vkq.max_pool2d(x, 3, 1, 3, device=device)
    with pytest.raises(vkq.ArgumentError, match="the kernel spans 9 but H with padding is 8"):
        vkq.max_pool2d(x, 9, device=device)
    with pytest.raises(vkq.ArgumentError, match="stride is 0; it must be at least 1"):
        vkq.max_pool2d(x, 3, 0, device=device)
    with pytest.raises(vkq.DTypeError, match=r"kernel is 2\.5"):
        vkq.max_pool2d(x, 2.5, device=device)  # type: ignore[arg-type]
    with pytest.raises(vkq.ArgumentError, match="x has 3 axes"):
        vkq.max_pool2d(x[0], 2, device=device)
    with pytest.raises(vkq.ArgumentError, match="x carries no qparams"):
        vkq.avg_pool2d(x, 2, device=device)
    with pytest.raises(vkq.ArgumentError, match="scale of y is"):
        vkq.avg_pool2d(x, 2, x_qparams=q, y_qparams=QParams(1e-37), device=device)
    with pytest.raises(vkq.ArgumentError, match="0 x 8 pixels"):
        vkq.global_avg_pool2d(x[:, :, :0], x_qparams=q, device=device)


@pytest.mark.parametrize("count", [1, 6])
@pytest.mark.parametrize("size", [(1, 1), (7, 9), (200, 300)], ids=str)
def test_mean_of_table(device: vkq.Device, size: tuple[int, int], count: int) -> None:
    """Means of table entries equal exact arithmetic, for sums of both signs, small sums, and sums above
    2**31."""
    rng = np.random.default_rng(3)
    x = rng.integers(-128, 128, (2, 6, *size)).astype(np.int8)
    for scale in (1.0, 1e-20, 3e30):
        table = (scale * rng.normal(0.2, 1, (count, 256))).astype(np.float32)
        table = table[0] if count == 1 else table
        yq = QParams(scale / 100, 3)
        want = mean_of_table(x, table, yq)
        builder = Builder(device)
        value = builder.input(Spec(x.shape, "int8"))
        plan = builder.plan(averaged_by_table(builder, value, table, yq))
        got = run(plan, [Tensor.from_numpy(x, device)]).numpy()
        np.testing.assert_array_equal(got, want)
        index = x.astype(int) + 128
        channel = np.arange(6).reshape(1, -1, 1, 1) if count > 1 else 0
        exact = table.reshape(count, 256).astype(np.float64)[channel, index].mean((2, 3), keepdims=True)
        near = np.clip(np.rint(exact / yq.scale) + 3, -128, 127)
        assert (want == near).mean() > 0.9
        assert np.abs(want - near).max() <= 1


@pytest.mark.parametrize("name", [IMAGE, BLOCKED])
def test_windows_that_one_invocation_would_loop_over_for_too_long(device: vkq.Device, name: str) -> None:
    """Pools are exact if their windows have more elements than one invocation may loop over. lavapipe
    ends loops after 65,535 iterations; the maximum of 127 x 127 elements and the average of 90 x 90
    elements need more."""
    x = np.zeros((1, 5, 127, 131), np.uint8)
    x[..., -1, -1] = 255
    got = vkq.max_pool2d(Tensor.from_numpy(x, device, name), 127, 2)
    np.testing.assert_array_equal(got.numpy(), np.full((1, 5, 1, 3), [0, 0, 255]))
    x, q, yq = image((1, 3, 90, 91), "uint8"), QParams(0.013, 3, "uint8"), QParams(0.0071, 5, "uint8")
    window = Window.of("pool", x.shape, 90, 1, 0, 1, False)
    got = vkq.avg_pool2d(Tensor.from_numpy(x, device, name, q), 90, 1, y_qparams=yq).numpy()
    np.testing.assert_array_equal(got, reference.avg_pool2d(x, window, q, yq, True))
