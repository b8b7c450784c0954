"""Tests of a network's first convolution (stem), whose image has few channels, on matrix units."""

from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from vkq.kernels.matrix_stem import STEM, by_lines
from vkq.layout.extent import BLOCKED, IMAGE
from vkq.probe.matrices import Matrices
from vkq.problem.names import parse

from .matrix_layers import SHAPES, make, name_of, units

RESNET = "conv2d[N=2,IC=3,H=37,W=45,OC=64,KH=7,KW=7,stride=2,padding=3]"  # pixels do not fill tiles


@pytest.mark.parametrize(
    ("name", "dtype", "zero_points"),
    [
        (RESNET, "int8", "none"),
        # MobileNet's first layer.
        ("conv2d[N=1,IC=3,H=35,W=33,OC=24,KH=3,KW=3,stride=2,padding=0x0x1x1]", "uint8", "none"),
        ("conv2d[N=1,IC=1,H=12,W=50,OC=70,KH=5,KW=8,padding=2x0x1x3]", "int8", "channel"),
        ("conv2d[N=1,IC=4,H=23,W=40,OC=5,KH=2,KW=4,stride=1x3,padding=1,dilation=2x1]", "uint8", "tensor"),
    ],
)
def test_exact(matrices: vkq.Device, name: str, dtype: Any, zero_points: Any) -> None:
    """The stem convolution is exact for 8-bit images, and for float32 images, which it quantizes as
    `vkq.quantize` does."""
    problem = parse(name)
    data = random_data(problem, np.random.default_rng(len(name)), dtype, w_zero_points=zero_points)
    floats = data.x_q.scale * np.random.default_rng(7).normal(0, 90, problem.x_shape).astype(np.float32)
    floats.flat[:4] = np.nan, np.inf, -np.inf, 0.5 * data.x_q.scale
    quantized = vkq.quantize(floats, data.x_q, device=matrices)
    y = data.y_q if zero_points == "none" else None
    layer = make(data, matrices, y, method="stem")
    assert layer.explain(problem.x_shape).variants[-1].startswith(f"{STEM}:")
    np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)
    np.testing.assert_array_equal(layer(floats), layer(quantized), strict=True)


@pytest.mark.parametrize("shape", SHAPES, ids=name_of)
def test_every_shape(strict_device: vkq.Device, shape: Matrices, monkeypatch: pytest.MonkeyPatch) -> None:
    units(strict_device, monkeypatch, shape)
    data = random_data(
        parse("conv2d[N=1,IC=3,H=20,W=37,OC=70,KH=3,KW=3,stride=2,padding=1]"), np.random.default_rng(14)
    )
    layer = make(data, strict_device, data.y_q, method="stem")
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)


def test_one_dispatch_from_floats(matrices: vkq.Device) -> None:
    """One dispatch reads a float32 image and stores the layout that matrix units read (BLOCKED)."""
    layer = make(random_data(parse(RESNET), np.random.default_rng(3)), matrices, vkq.QParams(0.5))
    image = vkq.Tensor.from_numpy(np.zeros((2, 3, 37, 45), np.float32), matrices)
    assert layer.plan(image.spec).variants == (f"{STEM}:q8to.s8s8.f32.8x16x64",)
    assert layer(image).layout == BLOCKED
    assert layer.input_layout(image.shape) == IMAGE


def test_what_it_refuses(matrices: vkq.Device) -> None:
    for weight, options in (((8, 5, 3, 3), {}), ((8, 3, 3, 9), {}), ((8, 3, 3, 3), {"dilation": (1, 2)})):
        with pytest.raises(vkq.MethodError, match="one group of at most 4 channels, 8 adjacent taps a row"):
            vkq.Conv2d(
                np.zeros(weight, np.int8), 1.0, x_qparams=vkq.QParams(1.0), y_qparams=vkq.QParams(1.0),
                path="coopmat", method="stem", device=matrices, **options,
            )  # fmt: skip


def test_taps_of_a_line_are_one_step() -> None:
    weight = np.random.default_rng(4).integers(-128, 128, (5, 3, 2, 7), dtype=np.int8)
    lines = by_lines(weight).reshape(5, 2, 8, 4)
    np.testing.assert_array_equal(lines[:, :, :7, :3].transpose(0, 3, 1, 2), weight)
    assert not lines[:, :, 7].any()
    assert not lines[..., 3].any()
