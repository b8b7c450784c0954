"""Tests of products and convolutions in float16 arithmetic, without matrix units: results equal, bit for
bit, those of NumPy code with the shader's operations and roundings. On a device without float16, the shader
is rewritten to compute in float32 and to round to float16 after each operation. On a GPU with float16,
results need only be within the error bound, because its compiler may fuse a product and a sum."""

import dataclasses
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.cases import random_data
from tests.device.reported import reported
from tests.ops import doctored
from vkq.check.catalogue import check_of
from vkq.check.compare import run_check
from vkq.device.profiles import preferred, profile
from vkq.kernels.float16 import K_TOGETHER, UNIT
from vkq.probe import float16, selftest
from vkq.problem.names import parse
from vkq.runtime.program import Program
from vkq.select.path import float16_refusal
from vkq.shader.compile import text
from vkq.shader.spec import Value, Variant

from . import rewritten, sixteen_bits

# M, N and K are multiples of neither the tiles nor the blocks of k. Convolutions have strides, dilation,
# uneven padding and groups.
PROBLEMS = (
    "linear[M=37,K=16,N=33]",
    "linear[M=70,K=41,N=6]",
    "conv2d[N=2,IC=9,H=7,W=11,OC=10,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=48,H=9,W=14,OC=24,KH=2,KW=3,stride=2,padding=1,dilation=2,groups=2]",
    "conv2d[N=2,IC=40,H=5,W=9,OC=12,KH=1,KW=1]",
)
TILES = ("4x4", "4x8", "8x8", "2x4")
ROUNDED = """
float half_rounded(float v) {
  uint bits = floatBitsToUint(v), size = bits & 0x7fffffffu, sign_ = bits & 0x80000000u;
  uint cut = max(13u, 126u - min(size >> 23, 125u)), whole = (1u << cut) - 1u;
  if (size < 0x38800000u) {  // below the smallest normal number: a multiple of 2^-24
    precise float moved = abs(v) + 0.5;
    precise float back = moved - 0.5;
    return uintBitsToFloat(floatBitsToUint(back) | sign_);
  }
  size += 0xfffu + (size >> 13 & 1u);
  return uintBitsToFloat((size & ~0x1fffu) | sign_);
}
vec4 half_rounded4(vec4 v) {
  return vec4(half_rounded(v.x), half_rounded(v.y), half_rounded(v.z), half_rounded(v.w));
}
vec4 halves4(uvec2 words) { return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y)); }
"""


def in_float32(source: str) -> str:
    """Return the shader's GLSL, changed so that it computes in float32 and rounds to float16 after each
    operation."""
    source = re.sub(
        r"#extension GL_EXT_shader_(16bit_storage|explicit_arithmetic_types_float16).*\n", "", source
    )
    source = re.sub(r"#(define|undef) (Four|four_of).*|f16vec4 four_of.*", "", source).replace(
        "Four ", "uvec2 "
    )
    source = re.sub(r"four_of\((.*)\);", r"halves4(\1);", source)
    step = "parts[i][j] += values[i][k] * weights;"
    assert step in source
    source = source.replace(
        step, "parts[i][j] = half_rounded4(parts[i][j] + half_rounded4(values[i][k] * weights));"
    )
    source = source.replace("f16vec4", "vec4").replace("writeonly buffer Y", "buffer Y")
    before, found, after = source.partition("layout(constant_id = 0)")
    words = sixteen_bits.words() if "#define FLOAT16_IMAGES 1" in source else ""
    return before + words + ROUNDED + found + after


WAYS: dict[str, dict[str, Any]] = {
    "16 at once": {"float16_k": K_TOGETHER},
    "4 at once": {"float16_k": 4},
    "words": {"float16_k": 4, "float16_words": True},
}
FEATURES = ("shaderFloat16", "storageBuffer16BitAccess")


@pytest.fixture(params=WAYS)
def arithmetic(
    strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[vkq.Device]:
    """Return a device with float16 arithmetic and without matrix units."""
    device = strict_device
    if any(not device.capabilities.features[name] for name in FEATURES):
        provide(device, monkeypatch)
    monkeypatch.setattr(device, "capabilities", doctored.capabilities(device))
    with preferred(WAYS[request.param]):
        yield device


def variant_of(device: vkq.Device, y: str = "float32") -> str:
    """Return the name of the variant of float16 products."""
    return (
        f"gemm_f16__tiled:words.{y}"
        if profile(device.capabilities).float16_words
        else f"gemm_f16__tiled:halves.{y}"
    )


def provide(device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    make = device.program

    def program(
        variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        if variant.shader != "gemm_f16__tiled":
            return make(variant, constants, subgroup_size)
        values = variant.constants(constants or {})
        return rewritten.program(device, variant, values, in_float32(text(variant)))

    features = dict.fromkeys(FEATURES, True)
    monkeypatch.setattr(device, "capabilities", doctored.capabilities(device, **features))
    monkeypatch.setattr(device, "program", program)


def layer_of(device: vkq.Device, data: Any, **options: Any) -> Any:
    kind = vkq.Linear if data.problem.name.startswith("linear") else vkq.Conv2d
    return kind(
        data.w,
        0.5,
        w_zero_point=data.w_zero_point,
        device=device,
        compute="float16",
        **data.options,
        **options,
    )


def same_steps(rows: npt.NDArray[np.float16], w: npt.NDArray[np.float16]) -> npt.NDArray[np.float32]:
    """Return the product of x (pixel, tap, k) and w (output, tap, k), summed in the shader's order."""
    sums = np.zeros((rows.shape[0], w.shape[0]), np.float32)
    for tap in range(rows.shape[1]):
        for first in range(0, rows.shape[2], K_TOGETHER):
            part = np.zeros(sums.shape, np.float16)
            for k in range(first, min(first + K_TOGETHER, rows.shape[2])):
                part = part + rows[:, tap, k, None] * w[None, :, tap, k]
            sums += part.astype(np.float32)
    return sums


def oracle(data: Any, x: npt.NDArray[np.float32], scale: float = 0) -> npt.NDArray[np.float32]:
    """Return the expected results, without a bias. *scale*: the scale of unchanged float weights; 0 means
    int8 weights with a scale of 0.5."""
    points = 0 if data.w_zero_point is None else data.w_zero_point.reshape(-1, *(1,) * (data.w.ndim - 1))
    w = data.w.astype(np.float16) if scale else ((data.w.astype(np.int32) - points) * UNIT).astype(np.float16)
    factor = np.float32(scale or 0.5 / UNIT)
    halves, p = x.astype(np.float16), data.problem
    if data.w.ndim == 2:
        return same_steps(halves[:, None], w[:, None]) * factor
    top, left, bottom, right = p.padding
    padded = np.pad(halves, ((0, 0), (0, 0), (top, bottom), (left, right)))
    y, ic, oc = np.empty(p.y_shape, np.float32), p.ic // p.groups, p.oc // p.groups
    for group in range(p.groups):
        taps = [
            padded[:, group * ic : (group + 1) * ic, h : h + (p.oh - 1) * p.stride[0] + 1 : p.stride[0],
                   v : v + (p.ow - 1) * p.stride[1] + 1 : p.stride[1]]
            for h in range(0, p.kh * p.dilation[0], p.dilation[0])
            for v in range(0, p.kw * p.dilation[1], p.dilation[1])
        ]  # fmt: skip
        rows = np.stack(taps, 1).transpose(0, 3, 4, 1, 2).reshape(-1, len(taps), ic)
        weights = w[group * oc : (group + 1) * oc].reshape(oc, ic, -1).swapaxes(1, 2)
        found = same_steps(rows, weights).reshape(p.n, p.oh, p.ow, oc).transpose(0, 3, 1, 2)
        y[:, group * oc : (group + 1) * oc] = found * factor
    return y


def check(device: vkq.Device, data: Any, x: npt.NDArray[np.float32], y: npt.NDArray[np.float32]) -> None:
    """Check results of int8 weights, without a bias: each bit on a CPU device, and the error bound."""
    if device.capabilities.device_type == "cpu":
        np.testing.assert_array_equal(y, oracle(data, x))
    scale, bias = np.full(len(data.w), 0.5, np.float32), np.zeros_like(data.bias)
    bound = dataclasses.replace(data, w_scale=scale, bias=bias)
    assert bound.expected_sum(x, None, "float16 sums").mismatch(y) is None


def operands(name: str) -> tuple[Any, npt.NDArray[np.float32]]:
    problem, rng = parse(name), np.random.default_rng(len(name))
    data = random_data(problem, rng, "int8", "int8", w_zero_points="channel")
    x = rng.normal(size=problem.x_shape) * 2.0 ** rng.integers(-16, 6, problem.x_shape)
    return data, x.astype(np.float16).astype(np.float32)


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_bit(arithmetic: vkq.Device, name: str) -> None:
    data, x = operands(name)
    layer = layer_of(arithmetic, data)
    assert layer.explain(x.shape).variants[1:] == ("halves_weights__rows", variant_of(arithmetic))
    check(arithmetic, data, x, layer(x))


@pytest.mark.parametrize("tile", TILES)
def test_every_tile(arithmetic: vkq.Device, tile: str) -> None:
    for name in PROBLEMS[1:4]:
        data, x = operands(name)
        told = {"float16_k": 4, "float16_words": profile(arithmetic.capabilities).float16_words}
        with preferred(told | {"tile_float": tile, "avoid_local": frozenset({(8, 8)})}):
            check(arithmetic, data, x, layer_of(arithmetic, data)(x))


def test_float16_tensors_and_an_epilogue(arithmetic: vkq.Device) -> None:
    for name in PROBLEMS[1:3]:
        data, x = operands(name)
        layer = layer_of(arithmetic, data, activation="relu6", bias=data.float_bias)
        given = vkq.Tensor.from_numpy(x.astype(np.float16), arithmetic)
        got = layer(given)
        last = layer.plan(given.spec).variants[-1]
        words = profile(arithmetic.capabilities).float16_words
        assert last == ("cast_float16__words:float16" if words else variant_of(arithmetic, "float16"))
        np.testing.assert_array_equal(got.numpy(), layer(x).astype(np.float16))


def test_where_it_is_not_taken(arithmetic: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Float16 arithmetic is not used in these cases:

    - a single row, few channels, or a depthwise convolution
    - a loop that is too long for the driver
    - weights that are too large for a storage buffer"""
    few = vkq.Linear(np.ones((8, 64), np.int8), 1.0, compute="float16", device=arithmetic)
    thin = vkq.Conv2d(np.ones((8, 4, 3, 3), np.int8), 1.0, compute="float16", device=arithmetic)
    each = vkq.Conv2d(np.ones((16, 1, 3, 3), np.int8), 1.0, groups=16, compute="float16", device=arithmetic)
    for layer, shape in ((few, (1, 64)), (thin, (1, 4, 9, 9)), (each, (1, 16, 9, 9))):
        assert "gemm_f16" not in str(layer.explain(shape).variants)
    assert variant_of(arithmetic) in few.explain((40, 64)).variants
    product = few._gemm.matrices
    assert product.fits()
    monkeypatch.setattr("vkq.kernels.float16.lets_loop", lambda device, rounds: rounds < 64 // 4 * 6)
    assert not product.fits()
    monkeypatch.undo()
    monkeypatch.setitem(arithmetic.capabilities.properties, "maxStorageBufferRange", 2 * 8 * 64 - 1)
    assert not product.fits()


def test_the_self_test_sees_wrong_sums(arithmetic: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    assert selftest.stages(arithmetic)["float16"]() is None
    products = float16._products
    monkeypatch.setattr(float16, "_products", lambda *given: products(*given) * (1 + 2.0**-5))
    said = selftest.stages(arithmetic)["float16"]()
    assert "sums of 16 products are wrong; row 0, column 0 gave" in said
    found = dataclasses.replace(selftest.report(arithmetic), failures={"float16": said})
    monkeypatch.setattr(selftest, "report", lambda _: found)
    assert float16_refusal(arithmetic) == said
    layer = vkq.Linear(np.ones((40, 64), np.int8), 1.0, compute="float16", device=arithmetic)
    assert layer.explain((40, 64)).reason.endswith(said)


def test_who_takes_it() -> None:
    """Float16 arithmetic is used on Adreno and AMD GPUs. Lavapipe does not use it, because it is slower
    there."""
    names = ("adreno-640", "adreno-650", "adreno-740", "radv-gfx1030")
    assert {float16.lacking(reported(name)) for name in names} == {None}
    assert [profile(reported(name)).float16_words for name in names[1:3]] == [True, False]
    assert (
        float16.lacking(reported("lavapipe"))
        == "float16 arithmetic is no faster than float32 (Mesa's lavapipe)"
    )
    assert float16.lacking(reported("swiftshader")) == "shaderFloat16 is false"


def test_vkq_check_knows_the_bound(arithmetic: vkq.Device) -> None:
    """`vkq check` compares float16 arithmetic with the bound of float16 sums: errors exceed the bound of
    float32 sums."""
    check = check_of("linear[M=40,K=300,N=20]/seed=1,scheme=q8csw_f16")
    assert run_check(arithmetic, check, ["auto"]).mismatches == []
    data = check.data()
    given = check.input(data)
    y = vkq.Linear(
        data.w, data.w_scale, bias=data.float_bias, w_zero_point=data.w_zero_point, compute="float16",
        device=arithmetic,
    )(given)  # fmt: skip
    assert data.expected_sum(given, None, "float32").mismatch(y) is not None


def in_floats(device: vkq.Device, name: str, dtype: str) -> tuple[Any, Any, npt.NDArray[np.float32]]:
    data, x = operands(name)
    w = (np.random.default_rng(5).normal(size=data.w.shape) * 0.3).astype(dtype)
    kind = vkq.Linear if w.ndim == 2 else vkq.Conv2d
    return kind(w, device=device, compute="float16", **data.options), dataclasses.replace(data, w=w), x


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_float_weights(arithmetic: vkq.Device, name: str, dtype: str) -> None:
    layer, data, x = in_floats(arithmetic, name, dtype)
    assert layer.scheme == ("f32_f16" if dtype == "float32" else "f16_f16")
    assert layer.explain(x.shape).variants[-1] == variant_of(arithmetic)
    y = layer(x)
    if arithmetic.capabilities.device_type == "cpu":
        np.testing.assert_array_equal(y, oracle(data, x, 1))
    given = vkq.Tensor.from_numpy(x.astype(np.float16), arithmetic)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(layer(given).numpy(), y.astype(np.float16))
    rounded = vkq.Linear if data.w.ndim == 2 else vkq.Conv2d
    exact = rounded(data.w, device=arithmetic, **data.options)(x)
    size = rounded(np.abs(data.w), device=arithmetic, **data.options)(np.abs(x))
    k, largest = data.problem.gemm_k, np.abs(data.w).max() + np.abs(x).max() + 2
    assert (np.abs(y - exact) <= ((1 + 2.0**-10) ** 19 - 1) * size + k * largest * 2.0**-14).all()


def test_float_weights_beyond_float16(arithmetic: vkq.Device) -> None:
    w = np.full((8, 64), 7e4, np.float32)
    with pytest.raises(vkq.ArgumentError, match=r"weight has .*70000.*below 65520; leave compute out"):
        vkq.Linear(w, compute="float16", device=arithmetic)
    layer = vkq.Linear(np.ones((8, 64), np.float32), compute="float16", device=arithmetic)
    # One row is too few for float16 arithmetic.
    assert layer.explain((1, 64)).variants == ("gemm_f32__tiled",)
    assert layer.explain((40, 64)).variants[-1] == variant_of(arithmetic)


def test_float_weights_without_float16_arithmetic(software_device: vkq.Device) -> None:
    layer = vkq.Linear(np.ones((8, 64), np.float32), compute="float16", device=software_device)
    assert layer.explain((40, 64)).variants == ("gemm_f32__tiled",)
    assert "compute='float16' uses float32 on this device: " in layer.explain((40, 64)).reason


@pytest.mark.parametrize("dtype", ["int8", "float32"])
def test_transposed_convolutions_stay_float32(arithmetic: vkq.Device, dtype: str) -> None:
    rng = np.random.default_rng(3)
    w, x = rng.integers(-9, 9, (16, 8, 2, 2)).astype(dtype), rng.integers(-9, 9, (1, 16, 5, 6))
    scale = None if dtype == "float32" else 1.0
    layers = [
        vkq.ConvTranspose2d(w, scale, stride=2, compute=compute, device=arithmetic)
        for compute in ("float16", "float32")
    ]
    for floats in ("float32", "float16"):
        given = vkq.Tensor.from_numpy(x.astype(floats), arithmetic)
        found, want = (layer(given).numpy() for layer in layers)
        np.testing.assert_array_equal(found, want, strict=True)
