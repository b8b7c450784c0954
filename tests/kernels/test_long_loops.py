"""Tests of layers for which one invocation would loop longer than the driver allows. Several invocations
or several dispatches then share the work. To keep problems small, the tests set a limit of a sixteenth of
lavapipe's."""

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.device.reported import profile_says
from vkq.kernels import float_direct, float_product, floats, gemm, gemv, grouped
from vkq.runtime.builder import EVERYWHERE

RNG = np.random.default_rng(36)
ONE = vkq.QParams(1.0, 3)


@pytest.fixture
def ending(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    """Return a device on which the loops of an invocation may run only `EVERYWHERE` iterations. Its profile
    does not split sums over k among invocations."""
    monkeypatch.setattr(type(device), "loop_limit", EVERYWHERE)
    for module in (gemm, floats, gemv, grouped):
        profile_says(
            monkeypatch, module, gemv_columns=16, lane_loads=False, staged=None, registers="enough",
            texels=False, gemv_rows_shared=0,
        )  # fmt: skip
    return device


def small(*shape: int) -> npt.NDArray[np.int8]:
    """Return small integers, whose sums are exact in float32 in any order."""
    return RNG.integers(-3, 4, shape).astype(np.int8)


@pytest.mark.parametrize("rows", [1, 3, 9])  # rows: one, part of a block of four, more than a block
@pytest.mark.parametrize("path", ["auto", "portable"])
def test_linear_of_a_long_k(ending: vkq.Device, rows: int, path: str) -> None:
    x, w = small(rows, 66_001), small(5, 66_001)
    layer = vkq.Linear(w, np.float32(1), x_qparams=ONE, device=ending, path=path)
    np.testing.assert_array_equal(layer(x), (x.astype(np.int64) - 3) @ w.T.astype(np.int64))
    (variant,) = layer.explain(x.shape).variants
    assert variant.startswith("gemv_q8ta_q8csw__split")


def test_long_rows_quantized_at_run_time(ending: vkq.Device) -> None:
    x, w = np.zeros((9, 66_001), np.float32), small(5, 66_001)
    x[:, ::7], x[:, 0] = 127, -128  # the scale of each row is 1, its zero point 0
    layer = vkq.Linear(w, np.float32(1), x_qparams="dynamic", device=ending)
    np.testing.assert_array_equal(layer(x), x.astype(np.int64) @ w.T.astype(np.int64))
    assert layer.explain(x.shape).variants[-1].startswith("gemv_dq8ca_q8csw__split")


@pytest.mark.parametrize("rows", [1, 9, 20])
def test_float_rows_of_a_long_k(ending: vkq.Device, rows: int) -> None:
    x, w = small(rows, 66_001).astype(np.float32), small(5, 66_001)
    layer = vkq.Linear(w, np.float32(1), device=ending)
    np.testing.assert_array_equal(layer(x), x @ w.T.astype(np.float32))
    (variant,) = layer.explain(x.shape).variants
    assert variant.startswith("gemv_q8csw__split")


def test_weights_in_groups_of_a_long_k(ending: vkq.Device) -> None:
    w = vkq.quantize_weight(small(6, 66_048).astype(np.float32), bits=4, group=32)
    x = small(20, 66_048).astype(np.float32)
    layer = vkq.Linear(w, device=ending)
    wanted = x.astype(np.float64) @ w.dequantize().astype(np.float64).T
    magnitude = np.abs(x).astype(np.float64) @ np.abs(w.dequantize()).astype(np.float64).T
    assert (np.abs(layer(x) - wanted) <= 2**-24 * 66_048 * magnitude).all()
    assert "tiled" in layer.explain(x.shape).method
    (program,) = (step.program for step in layer.plan(vkq.Tensor(ending, x.shape, "float32").spec).steps)
    assert program is not None
    assert program.constants["LOCAL_Y"] > 1


@pytest.mark.parametrize("groups", [1, 3, 6])  # with 6 groups the convolution is depthwise
def test_int8_convolutions_of_large_kernels(ending: vkq.Device, groups: int) -> None:
    """int8 convolutions with large kernels use im2col and a product, because an invocation of the direct or
    depthwise kernel would loop too long. Requesting these kernels raises an error."""
    w, x = small(6, 6 // groups, 67, 61), small(1, 6, 69, 64)
    layer = vkq.Conv2d(w, np.float32(1), x_qparams=vkq.QParams(1.0), groups=groups, device=ending)
    np.testing.assert_array_equal(layer(x), convolved(x, w, groups))
    assert layer.explain(x.shape).method == "im2col"
    method = "depthwise" if groups == 6 else "direct"
    with pytest.raises(vkq.MethodError, match=r"an invocation would loop \d+ times, and the driver ends"):
        vkq.conv2d(
            x, w, np.float32(1), x_qparams=vkq.QParams(1.0), groups=groups, device=ending, method=method
        )  # fmt: skip


def convolved(x: npt.NDArray[np.int8], w: npt.NDArray[np.int8], groups: int) -> npt.NDArray[np.float64]:
    views = np.lib.stride_tricks.sliding_window_view(x[0].astype(np.float64), w.shape[2:], axis=(1, 2))
    each = np.split(views, groups), np.split(w.astype(np.float64), groups)
    return np.concatenate([np.einsum("chwij,ocij->ohw", v, part) for v, part in zip(*each, strict=True)])[
        None
    ]


@pytest.mark.parametrize("weights", ["int8", "float32"])
@pytest.mark.parametrize("groups", [1, 2])
# Maximum number of taps of a dispatch: a row of taps, a part of a channel's taps, or two channels' taps.
@pytest.mark.parametrize("most", [12, 50, 100])
def test_float_convolutions_in_several_dispatches(
    device: vkq.Device, weights: str, groups: int, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, w = RNG.standard_normal((2, 10, 9, 13)).astype(np.float32), small(6, 10 // groups, 4, 9)
    kind = w.astype(weights) * (np.float32(0.37) if weights == "float32" else np.int8(1))
    scale = np.float32(0.25) if weights == "int8" else None
    bias = RNG.standard_normal(6).astype(np.float32)

    def layer() -> vkq.Conv2d:
        return vkq.Conv2d(
            kind, scale, bias=bias, padding=2, stride=2, groups=groups, method="direct", activation="relu",
            device=device,
        )  # fmt: skip

    once = layer()(x)
    monkeypatch.setattr(float_direct, "LONGEST", most)
    split = layer()
    parts = len(split.explain(x.shape).variants)
    assert parts == {12: 40, 50: 10, 100: 5}[most] // groups + (most == 100 and groups == 2)
    np.testing.assert_allclose(split(x), once, rtol=1e-5, atol=1e-5)
    if weights == "float32":  # each addition rounds to float32 in both layers, so bits are equal
        np.testing.assert_array_equal(split(x), once)
    else:  # the float32 sums of all dispatches are rounded to float16 once
        x = x.astype(np.float16)
        np.testing.assert_array_equal(split(x), split(x.astype(np.float32)).astype(np.float16))


@pytest.mark.parametrize("rows", [1, 8, 9, 33])  # k is split for few rows only
@pytest.mark.parametrize("columns", [5, 66])
def test_float_products_in_several_dispatches(
    device: vkq.Device, rows: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    k = 301
    x, w = (RNG.standard_normal((n, k)).astype(np.float32) for n in (rows, columns))
    bias = RNG.standard_normal(columns).astype(np.float32)
    monkeypatch.setattr(float_product, "LONGEST", 37)
    layer = vkq.Linear(w, bias=bias, activation="relu", device=device)
    parts = float_product.slices(rows, k)
    assert len(layer.explain(x.shape).variants) == -(-k // (37 * parts))
    total = np.zeros((rows, columns), np.float32)
    for first in range(0, k, 37 * parts):
        ends = range(first, min(first + 37 * parts, k))
        length = -(-len(ends) // parts)
        for part in range(parts):
            sums = np.zeros_like(total) if part else total
            for i in ends[part * length : (part + 1) * length]:
                sums = sums + x[:, i, None] * w[None, :, i]
            total = total + sums if part else sums
    np.testing.assert_array_equal(layer(x), np.maximum(total + bias, np.float32(0)))
