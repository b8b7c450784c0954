"""Tests of products that read their operands in the form that the device does not prefer: uniform texel
buffers on a device that prefers words, words on a device that prefers texel buffers."""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import random_data
from tests.conftest import share
from tests.device.reported import picked, profile_says
from tests.runtime import work
from tests.runtime.work import OUT_OF_DEVICE_MEMORY, failing
from vkq import reference
from vkq.device.profiles import preferred, profile
from vkq.kernels import gemm, gemv
from vkq.problem.names import parse
from vkq.reference import dynamic
from vkq.runtime.plan import step_of
from vkq.select import registers
from vkq.select.path import FORMS
from vkq.shader.catalog import catalog

TEXELS = catalog().shaders["gemm_q8ta_q8csw__texels"]
# Rows and columns do not fill a tile. K is one word and a part of a second word, an odd number of words,
# or too long for exact float sums. Forms that sum the rows of x have weight zero points.
PATH = {form: path for path, form in FORMS.items()}
SHAPES = {
    "s8s8": "linear[M=9,K=27,N=33]",
    "u8s8": "linear[M=37,K=70,N=21]",
    "u8u8": "linear[M=9,K=5,N=77]",
    "float": "linear[M=9,K=1050,N=9]",
}


@pytest.fixture(autouse=True)
def texels(monkeypatch: pytest.MonkeyPatch) -> None:
    profile_says(monkeypatch, gemm, texels=True, staged=None)
    profile_says(monkeypatch, gemv, gemv_rows=2)


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch, device: vkq.Device) -> str:
    """Make the device read words if it prefers texels, and texels if it prefers words. Return the form of
    operands that the device now reads, "words" or "texels"."""
    known = profile(device.capabilities)
    flipped = {"texels": not known.texels, "lane_loads": not known.lane_loads}
    profile_says(monkeypatch, gemm, **flipped, staged=None)
    return "words" if known.texels else "texels"


def outputs(device: vkq.Device, form: str) -> list[bool]:
    """Return the values of *wide* (in `layer`) to test: True for float32 results, False for int8 results.
    On SwiftShader return only one of the two, which alternates with the form."""
    first = TEXELS.axes["dot"].index(form) % 2 == 1
    return share((first, not first), device, 2)


def layer(device: vkq.Device, name: str, form: str, wide: bool = False, **options: Any) -> work.Work:
    data = random_data(
        parse(name), np.random.default_rng(len(name)), w_zero_points="channel" if form == "u8u8" else "none"
    )
    y = None if wide else data.y_q
    kind: Any = vkq.Conv2d if name.startswith("conv2d") else vkq.Linear
    made = kind(
        data.w, data.w_scale, x_qparams=data.x_q, y_qparams=y, bias=data.bias, device=device,
        w_zero_point=data.w_zero_point, path=PATH[form], **getattr(data, "options", {}), **options,
    )  # fmt: skip
    return work.Work(made, data.x, data.expected(y))


@pytest.mark.parametrize("tile", TEXELS.axes["tile"])
@pytest.mark.parametrize("form", TEXELS.axes["dot"])
def test_products(device: vkq.Device, other: str, form: str, tile: str) -> None:
    for wide in outputs(device, form):
        one = layer(device, SHAPES[form], form, wide)
        with picked(registers.Setting(tile, 16, 4)):
            shader = "gemm_q8ta_q8csw__" + {"texels": "texels", "words": "tiled"}[other]
            out = "f32" if wide else "q8to"
            assert one.layer.explain(one.x.shape).variants[-1] == f"{shader}:{form}.{out}.{tile}"
            one.check()


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("form", TEXELS.axes["dot"])
def test_few_rows(device: vkq.Device, other: str, form: str, rows: int) -> None:
    _, size = SHAPES[form].split(",", 1)
    for wide in outputs(device, form):
        one = layer(device, f"linear[M={rows},{size}", form, wide, method="gemv")
        shader = "gemv_q8ta_q8csw__" + {"texels": "texels", "words": "split"}[other]
        out = "f32" if wide else "q8to"
        assert one.layer.explain(one.x.shape).variants[-1] == f"{shader}:{form}.{rows}.{out}"
        one.check()


@pytest.mark.parametrize("rows", [1, 2, 3, 9])
@pytest.mark.parametrize("form", TEXELS.axes["dot"])
def test_rows_quantized_one_by_one(device: vkq.Device, other: str, form: str, rows: int) -> None:
    rng = np.random.default_rng(rows)
    x, w = rng.standard_normal((rows, 70)).astype(np.float32), rng.integers(-127, 128, (21, 70), np.int8)
    made = vkq.Linear(w, 0.01, x_qparams="dynamic", path=PATH[form], device=device)
    shader = made.explain(x.shape).variants[-1].split(":")[0]
    assert shader.endswith("texels" if other == "texels" else ("tiled", "split"))
    np.testing.assert_array_equal(made(x), dynamic.linear_dynamic(x, w, 0.01), strict=True)


@pytest.mark.parametrize(
    "name",
    [
        "conv2d[N=1,IC=9,H=7,W=9,OC=6,KH=1,KW=1]",  # the kernel reads x as an image
        "conv2d[N=2,IC=7,H=5,W=6,OC=6,KH=3,KW=3,padding=1]",  # x is a matrix in the middle of scratch memory
        "conv2d[N=1,IC=12,H=6,W=5,OC=9,KH=3,KW=3,groups=3]",  # the kernel reads a matrix for each group
    ],
)
def test_convolutions(device: vkq.Device, name: str) -> None:
    one = layer(device, name, "u8s8", method="pointwise" if "KH=1" in name else "im2col")
    assert one.layer.explain(one.x.shape).variants[-1].startswith(f"{TEXELS.name}:")
    one.check()


def test_a_chain_that_is_replayed(device: vkq.Device) -> None:
    """A recording of two layers gives exact results in every run. The first layer writes its result as
    words, and the second layer reads it as texels."""
    first = layer(device, SHAPES["u8s8"], "u8s8")
    q, w = first.layer.y_qparams, np.arange(5 * 21).astype(np.int8).reshape(5, 21)
    second = vkq.Linear(w, 0.1, x_qparams=q, y_qparams=work.Y, path="dot_u8s8", device=device)
    assert TEXELS.name in second.explain((37, 21)).variants[-1]
    x = vkq.Tensor.from_numpy(first.x, device)
    with device.record() as recording:
        y = second(first.layer(x))
    want = reference.linear(first.want, w, x=q, w_scale=0.1, y=work.Y)
    for _ in range(200):
        recording.run()
        assert y.numpy().tobytes() == want.tobytes()


def test_more_texel_buffers_than_a_pool_has(device: vkq.Device) -> None:
    """A recording may have more dispatches that read texels than a descriptor pool has texel buffers for."""
    q, w = vkq.QParams(0.05, 3), np.random.default_rng(5).integers(-9, 10, (21, 21), np.int8)
    one = vkq.Linear(w, 0.05, x_qparams=q, y_qparams=q, path="dot_u8s8", device=device)
    assert TEXELS.name in one.explain((37, 21)).variants[-1]
    want = np.random.default_rng(6).integers(-128, 128, (37, 21), np.int8)
    y = vkq.Tensor.from_numpy(want, device)
    with device.record() as recording:
        for _ in range(70):  # a pool has 64 sets of three texel buffers
            y = one(y)
            want = reference.linear(want, w, x=q, w_scale=0.05, y=q)
    recording.run()
    np.testing.assert_array_equal(y.numpy(), want)


def test_a_range_that_is_too_long_is_read_as_words(device: vkq.Device) -> None:
    """Operands up to the device's limit of texels are read as texels, longer operands as words. Here the
    37 rows are ten blocks of 18 texels, and the 21 columns are six such blocks."""
    for most, shader in ((180, "texels"), (179, "tiled")):
        limited = work.doctored(device.capabilities, maxTexelBufferElements=most)
        with vkq.Device(capabilities=limited) as small:
            one = layer(small, SHAPES["u8s8"], "u8s8")
            variant = one.layer.explain(one.x.shape).variants[-1]
            assert variant.startswith(f"gemm_q8ta_q8csw__{shader}:")
            one.check()


def test_a_depthwise_convolution_whose_image_is_too_long(device: vkq.Device) -> None:
    """A depthwise convolution reads images up to the device's limit of texels as texels, larger ones as
    words. Here the image has five rows of two texels."""
    for most, read in ((10, "texels"), (9, "4w4c")):
        limited = work.doctored(device.capabilities, maxTexelBufferElements=most)
        with (
            preferred({"texels": True, "depthwise_lines": ()}),
            vkq.Device(capabilities=limited) as small,
        ):
            one = layer(small, "conv2d[N=1,IC=3,H=5,W=6,OC=3,KH=3,KW=3,padding=1,groups=3]", "s8s8")
            assert one.layer.explain(one.x.shape).variants[-1].endswith(f".{read}")
            one.check()


@pytest.mark.parametrize("rows", [1, 9])
def test_no_view_is_empty(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    profile_says(monkeypatch, gemm, texels=True, lane_loads=True, staged=None)
    layer(device, f"linear[M={rows},K=0,N=5]", "u8s8").check()


def test_a_range_that_is_too_long_is_refused_all_the_same(any_device: vkq.Device) -> None:
    program = any_device.program(TEXELS.variants[0])
    push = {constant.name: 1 for constant in program.variant.push_constants[1:]}
    most = any_device.capabilities.properties["maxTexelBufferElements"]
    with pytest.raises(vkq.ArgumentError, match=rf"{most + 1} texels, .* maxTexelBufferElements of {most};"):
        step_of(any_device, program, [16 * most + 16, 16, 16, 16], push)


def test_a_view_that_cannot_be_made(device: vkq.Device) -> None:
    one = layer(device, SHAPES["u8s8"], "u8s8")
    one.check()
    for nth in (1, 2):
        with failing("vkCreateBufferView", nth), pytest.raises(vkq.OutOfMemoryError) as caught:
            one.layer(one.x)
        assert (caught.value.result, caught.value.call) == (OUT_OF_DEVICE_MEMORY, "vkCreateBufferView")
        one.check()
    gc.collect()
