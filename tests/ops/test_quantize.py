"""Tests that quantize and dequantize are exact on a device: for every tie, every kind of float and every
layout."""

import numpy as np
import pytest

import vkq
from vkq.device.profiles import preferred
from vkq.kernels.quantize import dequantized
from vkq.layout.extent import BLOCKED, MATRIX, PIXELS
from vkq.layout.pack import activation_layouts
from vkq.numerics.quantize import dequantize, quantize
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

from .run import assert_same_bits

LAYOUTS = [layout.name for layout in activation_layouts()]


def scales() -> list[float]:
    rng = np.random.default_rng(3)
    fixed = [1.0, 0.1, 1 / 3, 1 / 255, 2.0**-20, float(np.float32(2) ** -126), 1e30, 3e38, 1.9999999]
    return [float(np.float32(s)) for s in [*fixed, *np.exp(rng.uniform(-40, 40, 20))]]


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_ties_neighbours_and_extremes(dtype: str, device: vkq.Device) -> None:
    for scale in scales():
        with np.errstate(over="ignore", under="ignore"):
            ties = ((np.arange(-300, 300) + 0.5) * np.float64(scale)).astype(np.float32)
            up, down = np.nextafter(ties, np.float32(np.inf)), np.nextafter(ties, np.float32(-np.inf))
        edges = np.array([np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-45, -1e-40, 3.4e38, -3.4e38], np.float32)
        x = np.concatenate([ties, up, down, np.nextafter(up, np.float32(np.inf)), edges])
        for zero_point in (np.iinfo(dtype).min, 3, np.iinfo(dtype).max):
            q = vkq.QParams(scale, int(zero_point), dtype)  # type: ignore[arg-type]
            assert_same_bits(vkq.quantize(x, q, device=device), quantize(x, q))


def test_random_bit_patterns(device: vkq.Device) -> None:
    rng = np.random.default_rng(4)
    for scale in scales():
        x = rng.integers(0, 2**32, 20_000, dtype=np.uint32).view(np.float32)
        with np.errstate(over="ignore"):
            near = (rng.uniform(-140, 140, 20_000) * np.float64(scale)).astype(np.float32)
        q = vkq.QParams(scale, 5)
        both = np.concatenate([x, near])
        assert_same_bits(vkq.quantize(both, q, device=device), quantize(both, q))


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (2, 5, 3, 7), (1, 4, 4, 4), (3, 3, 2, 9)])
def test_every_layout_agrees_with_numpy_on_every_element(
    shape: tuple[int, ...], layout: str, device: vkq.Device
) -> None:
    rng = np.random.default_rng(5)
    x = rng.normal(size=shape).astype(np.float32)
    q = vkq.QParams(0.02, -7)
    tensor = vkq.quantize(vkq.Tensor.from_numpy(x, device), q, layout=layout)
    assert tensor.layout == layout
    assert_same_bits(tensor.numpy(), quantize(x, q))
    assert_same_bits(vkq.dequantize(tensor).numpy(), dequantize(quantize(x, q), q))


@pytest.mark.parametrize("layout", PIXELS)
def test_images_with_ties_in_both_forms(layout: str, device: vkq.Device) -> None:
    """Images with ties are quantized exactly in both forms of the shader: 16 channels of a pixel at once,
    and four at a time. The last block of channels is partial."""
    rng = np.random.default_rng(8)
    # Plans are cached by zero point, so each form gets its own zero point.
    for ahead, zero_point in ((True, 4), (False, 5)):
        q = vkq.QParams(0.037, zero_point)
        x = rng.integers(0, 2**32, (2, 21, 5, 6), dtype=np.uint32).view(np.float32)
        ties = ((rng.integers(-140, 140, x.shape) + 0.5) * np.float64(q.scale)).astype(np.float32)
        x = np.where(rng.random(x.shape) < 0.3, x, ties)
        with preferred({"unrolled_loops": ahead}):
            got = vkq.quantize(vkq.Tensor.from_numpy(x, device), q, layout=layout).numpy()
        assert_same_bits(got, quantize(x, q))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_dequantize_every_value(dtype: str, device: vkq.Device) -> None:
    values = np.arange(256).astype(np.uint8).view(dtype)
    for scale in scales()[:8]:
        q = vkq.QParams(scale, 9, dtype)  # type: ignore[arg-type]
        with np.errstate(over="ignore"):
            assert_same_bits(vkq.dequantize(values, q, device=device), dequantize(values, q))


ROWS = [
    ((5, 12), MATRIX, "rows:4h4w"), ((2, 3, 2, 8), MATRIX, "rows:4h4w"), ((9, 4), MATRIX, "rows:4h4w"),
    ((7, 20), BLOCKED, "rows:16c"), ((3, 1, 36), BLOCKED, "rows:16c"), ((6, 8, 1, 1), BLOCKED, "rows:16c"),
    ((5, 7), MATRIX, "element"), ((5, 18), BLOCKED, "pixels:16c"), ((2, 8, 3, 1), BLOCKED, "pixels:16c"),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "layout", "name"), ROWS, ids=str)
def test_rows_of_whole_words_become_vectors(
    shape: tuple[int, ...], layout: str, name: str, device: vkq.Device
) -> None:
    x = np.random.default_rng(6).integers(0, 256, shape).astype(np.uint8)
    q = vkq.QParams(0.0371, 117, "uint8")
    tensor, b = vkq.Tensor.from_numpy(x, device, layout, q), Builder(device)
    plan = b.plan(dequantized(b, b.input(tensor.spec), q))
    assert plan.variants == (f"dequantize_q8ta__{name}",)
    assert_same_bits(run(plan, [tensor]).numpy(), dequantize(x, q))


def test_empty_and_scalar(device: vkq.Device) -> None:
    q = vkq.QParams(0.5)
    assert vkq.quantize(np.zeros((0, 3), np.float32), q, device=device).shape == (0, 3)
    assert vkq.quantize(np.float32(1.0), q, device=device) == 2


def test_wrong_types_are_refused(any_device: vkq.Device) -> None:
    q = vkq.QParams(0.5)
    with pytest.raises(vkq.DTypeError, match="quantize: x has dtype float64; it must be float32"):
        vkq.quantize(np.zeros(3), q, device=any_device)
    with pytest.raises(vkq.DTypeError, match="dequantize: x has dtype uint8 and the qparams are for int8"):
        vkq.dequantize(np.zeros(3, np.uint8), q, device=any_device)
    with pytest.raises(vkq.ArgumentError, match="carries no qparams"):
        vkq.dequantize(vkq.Tensor.from_numpy(np.zeros((2, 2), np.int8), any_device))
