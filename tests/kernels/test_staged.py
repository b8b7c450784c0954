"""Tests of products and implicit convolutions with tiles in shared memory, also on devices whose profile
prefers other kernels."""

import dataclasses

import numpy as np
import pytest

import vkq
from tests.cases import Data, random_data
from tests.conftest import share
from vkq import Tensor
from vkq.device.profiles import profile
from vkq.kernels import gemm
from vkq.kernels.gemm import Rows, staged_tile
from vkq.kernels.implicit import Implicit
from vkq.layout.extent import Spec
from vkq.probe import selftest
from vkq.problem.names import parse
from vkq.runtime.builder import Builder
from vkq.runtime.eager import run

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")
# Each shape runs on one path only, because software drivers compile shaders with barriers slowly.
PRODUCTS = {
    "linear[M=131,K=37,N=77]": "dot_s8s8",  # 3 x 3 tiles, with remainders along every axis
    "linear[M=5,K=1,N=3]": "dot_u8s8",  # one tile, most of it padding
    "linear[M=37,K=64,N=40]": "dot_u8u8",  # k is a whole number of iterations
    "linear[M=33,K=1300,N=34]": "portable",  # float sums are added to int32 sums once before the end
}
CONVOLUTIONS = {
    "conv2d[N=2,IC=8,H=9,W=7,OC=12,KH=3,KW=3,padding=1]": "dot_s8s8",
    "conv2d[N=1,IC=12,H=11,W=13,OC=6,KH=3,KW=3,stride=2,padding=1x0x2x1,dilation=2,groups=3]": "dot_u8s8",
    # An iteration reads 32 channels, and 36 is not a multiple of 32.
    "conv2d[N=1,IC=36,H=6,W=9,OC=40,KH=2,KW=3,stride=1x2,padding=2x1]": "dot_u8u8",
    # A block of k has one tap, so every iteration begins a new tap.
    "conv2d[N=1,IC=4,H=1,W=5,OC=3,KH=1,KW=7,padding=0x3]": "portable",
}


def outputs(data: Data, device: vkq.Device, path: str) -> list[vkq.QParams | None]:
    """Return the results to test: quantization parameters stand for int8 results, None for float results.
    On SwiftShader return only one of the two, which alternates with the path."""
    both = (data.y_q, None)
    return share(both if PATHS.index(path) % 2 else both[::-1], device, 2)


def operands(data: Data, device: vkq.Device, y: vkq.QParams | None, **options: object) -> dict[str, object]:
    return {
        "x_qparams": data.x_q, "y_qparams": y, "bias": data.bias, "w_zero_point": data.w_zero_point,
        "device": device, **options
    }  # fmt: skip


@pytest.mark.parametrize(("name", "path"), PRODUCTS.items())
def test_products(device: vkq.Device, name: str, path: str) -> None:
    problem, rng = parse(name), np.random.default_rng(len(name))
    data = random_data(
        problem, rng, "uint8", "int8", w_zero_points="channel" if path == "dot_u8u8" else "none"
    )
    for y in outputs(data, device, path):
        layer = vkq.Linear(data.w, data.w_scale, **operands(data, device, y, path=path, method="staged"))
        assert "__staged" in layer.explain(problem.x_shape).variants[0]
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize(("name", "path"), CONVOLUTIONS.items())
def test_implicit_convolutions(device: vkq.Device, name: str, path: str) -> None:
    problem, rng = parse(name), np.random.default_rng(len(name))
    data = random_data(
        problem, rng, "int8", "int8", w_zero_points="channel" if path == "dot_s8s8" else "none"
    )
    for y in outputs(data, device, path):
        layer = vkq.Conv2d(
            data.w, data.w_scale, **operands(data, device, y, path=path, method="implicit"), **data.options
        )
        explained = layer.explain(problem.x_shape)
        assert explained.variants[0].startswith("conv2d_q8ta_q8csw__staged")
        assert explained.scratch_bytes == 0
        np.testing.assert_array_equal(layer(data.x), data.expected(y), strict=True)


@pytest.mark.parametrize("tile", ["64x64", "32x32"])
def test_both_tiles(any_device: vkq.Device, tile: str) -> None:
    problem = parse("conv2d[N=1,IC=8,H=13,W=15,OC=70,KH=3,KW=3,padding=1]")
    data = random_data(problem, np.random.default_rng(5))
    layer = vkq.Conv2d(
        data.w, data.w_scale, **operands(data, any_device, data.y_q, path="dot_s8s8"), **data.options
    )
    x, b = Tensor.from_numpy(data.x, any_device), Builder(any_device)
    taken, y = b.input(x.spec), b.new(Spec(problem.y_shape, "int8", qparams=data.y_q))
    Implicit(layer._convolution.gemm, tile).build(b, problem, taken, y)
    np.testing.assert_array_equal(run(b.plan(y), [x]).numpy(), data.expected(data.y_q))


def test_refused_where_a_word_of_channels_straddles_taps(any_device: vkq.Device) -> None:
    data = random_data(parse("conv2d[N=1,IC=6,H=5,W=5,OC=4,KH=3,KW=3]"), np.random.default_rng(1))
    with pytest.raises(vkq.ArgumentError, match="groups of 6 input channels are not whole words of 4"):
        vkq.Conv2d(
            data.w, data.w_scale, **operands(data, any_device, None, method="implicit", path="portable")
        )


def test_chosen_by_size_on_gpus_only(software_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    capabilities = software_device.capabilities
    assert staged_tile(capabilities, 1000, 1000) is None
    known = dataclasses.replace(profile(capabilities), staged="64x64", texels=False, staged_conv="64x64")
    for cores, size, tile in (
        (1, (8, 8), "64x64"), (1, (7, 100), "32x32"), (1, (100, 3), None),
        (4, (16, 48), "32x32"), (4, (32, 32), "64x64"), (5, (32, 32), "32x32"),
    ):  # fmt: skip
        own = dataclasses.replace(known, multiprocessors=cores)
        monkeypatch.setattr(gemm, "profile", lambda capabilities, own=own: own)
        assert staged_tile(capabilities, *size) == tile
        assert staged_tile(capabilities, *size, conv=True) == ("64x64" if min(size) >= 8 else None)
    monkeypatch.setattr(gemm, "profile", lambda capabilities: dataclasses.replace(known, multiprocessors=1))
    data = random_data(parse("linear[M=64,K=16,N=64]"), np.random.default_rng(2))
    layer = vkq.Linear(data.w, data.w_scale, **operands(data, software_device, None, path="dot_s8s8"))
    assert layer.explain((64, 16)).variants == ("gemm_q8ta_q8csw__staged:s8s8.f32.64x64",)
    assert "tiled" in layer.explain((12, 16)).variants[0]
    program = layer._gemm.chosen(Rows(64), 16)
    assert program.constants["SOFT_FLOAT"] == selftest.report(software_device).soft_float
