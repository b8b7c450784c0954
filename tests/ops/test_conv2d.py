"""Tests of convolutions: every method and path equals the reference and ONNX Runtime bit for bit."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from tests.cases import CASES, Data, random_conv2d, random_data
from tests.conftest import EVERY, share
from tests.referees import ort
from vkq import reference
from vkq.device.profiles import preferred
from vkq.kernels.methods import METHODS, names
from vkq.layout.extent import BLOCKED, IMAGE, PIXELS
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.names import parse

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")
CONVS = [
    case.problem for case in CASES if isinstance(case.problem, Conv2dProblem) and case.use == "correctness"
]
SMALL = [p for p in CONVS if p.macs < 1_000_000]


def layer_of(data: Data, device: vkq.Device, y: vkq.QParams | None, **options: Any) -> vkq.Conv2d:
    arguments = {
        "x_qparams": data.x_q,
        "y_qparams": y,
        "bias": data.bias,
        "w_zero_point": data.w_zero_point,
        "overflow": data.overflow,
        "device": device,
    }
    return vkq.Conv2d(data.w, data.w_scale, **arguments, **data.options, **options)


def check(data: Data, device: vkq.Device, **options: Any) -> None:
    """Check the int8 and the float32 results of a layer with these options against the reference."""
    for y in (data.y_q, None):
        got = layer_of(data, device, y, **options)(data.x)
        np.testing.assert_array_equal(
            got, data.expected(y, activation=options.get("activation")), strict=True
        )


def check_blocked(data: Data, device: vkq.Device, **options: Any) -> None:
    """Check that a layer reads and writes kPackedInt8_16C without a repack."""
    layer = layer_of(data, device, data.y_q, **options)
    x = vkq.Tensor.from_numpy(data.x, device, BLOCKED)
    y = layer(x)
    np.testing.assert_array_equal(y.numpy(), data.expected(data.y_q), strict=True)
    assert y.layout == BLOCKED
    assert len(layer.plan(x.spec).variants) == 1


def methods_for(problem: Conv2dProblem) -> list[str]:
    """Return the methods that the problem's sizes allow, derived independently of the code's error checks."""
    found = ["im2col"]
    if problem.ic:
        found.append("direct")
    if problem.ic == problem.groups:
        found.append("depthwise")
    if (problem.kh, problem.kw, problem.stride, problem.groups) == (1, 1, (1, 1), 1) and not any(
        problem.padding
    ):
        found.append("pointwise")
    return found


@pytest.mark.parametrize("problem", SMALL, ids=lambda p: p.name)
def test_every_method_gives_the_reference(device, problem):
    data = random_data(problem, np.random.default_rng([1, problem.macs]), w_zero_points="none")
    for method in methods_for(problem):
        check(data, device, method=method)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seed", range(1, 5))
def test_every_method_and_path_on_random_problems(device, path, seed):
    """Every method is correct on every path for random groups, strides, dilations, asymmetric padding, uint8
    and int8, weight zero points, and activations."""
    rng = np.random.default_rng([2, seed])
    problem = random_conv2d(rng)
    x_dtype, w_dtype = [
        ("int8", "int8"),
        ("uint8", "uint8"),
        ("uint8", "int8"),
        ("int8", "uint8"),
        ("int8", "int8"),
    ][seed]
    points = ["none", "channel", "tensor", "channel", "none"][seed]
    data = random_data(problem, rng, x_dtype, w_dtype, w_zero_points=points, extreme=seed == 4)
    activation = [None, "relu", None, (-0.5, 0.75), "relu6"][seed]
    for method in methods_for(problem):
        check(data, device, method=method, path=path, activation=activation)


DEPTHWISE = [
    "conv2d[N=2,IC=1,H=7,W=9,OC=1,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=1,H=6,W=5,OC=7,KH=2,KW=3,padding=1]",
    "conv2d[N=1,IC=5,H=9,W=8,OC=10,KH=3,KW=3,padding=1,stride=2,groups=5]",
    "conv2d[N=2,IC=6,H=8,W=11,OC=18,KH=3,KW=5,padding=2x3,dilation=2x1,groups=6]",
    "conv2d[N=1,IC=3,H=5,W=13,OC=12,KH=3,KW=3,stride=1x2,groups=3]",
    "conv2d[N=1,IC=9,H=5,W=6,OC=45,KH=1,KW=1,groups=9]",
    "conv2d[N=1,IC=13,H=7,W=17,OC=13,KH=7,KW=7,padding=3,groups=13]",
    "conv2d[N=1,IC=8,H=4,W=4,OC=8,KH=5,KW=2,padding=6x1x8x9,dilation=3x4,groups=8]",
]


@pytest.mark.parametrize("name", DEPTHWISE)
def test_depthwise_with_any_multiplier(device, name):
    """Depthwise convolutions with multipliers 1, 2, 3, 4, 5 and 7 are exact: a word of four outputs needs
    inputs from one word or from two."""
    rng = np.random.default_rng(3)
    problem = parse(name)
    check(random_data(problem, rng), device, method="depthwise")
    check(random_data(problem, rng, "uint8", "uint8", w_zero_points="channel"), device, method="depthwise")
    check_blocked(random_data(problem, rng, w_zero_points="channel"), device, method="depthwise")


COLUMNS = [
    "conv2d[N=2,IC=37,H=9,W=11,OC=37,KH=3,KW=3,padding=1,groups=37]",
    "conv2d[N=1,IC=16,H=8,W=14,OC=16,KH=3,KW=3,stride=2,padding=0x1x1x0,groups=16]",
    "conv2d[N=1,IC=18,H=4,W=7,OC=18,KH=5,KW=5,padding=2,groups=18]",
    "conv2d[N=1,IC=33,H=7,W=10,OC=33,KH=5,KW=5,stride=2,padding=2,groups=33]",
    "conv2d[N=1,IC=17,H=1,W=2,OC=17,KH=3,KW=3,padding=1,groups=17]",  # the image is smaller than the kernel
]
LARGE_BIAS = "conv2d[N=1,IC=5,H=10,W=18,OC=5,KH=3,KW=3,padding=1,groups=5]"


@pytest.mark.parametrize("path", PATHS[:3])
@pytest.mark.parametrize("name", COLUMNS)
def test_depthwise_on_dot_products(device, name, path):
    """Depthwise convolutions on dot products are exact for 3x3 and 5x5 kernels, strides 1 and 2, and
    partial blocks of rows, columns and channels. With weight zero points the kernels also sum x."""
    with preferred({"depthwise_lines": None}):
        # The products have the same code with and without zero points. So for each image only one path
        # also runs without zero points.
        without = EVERY or COLUMNS.index(name) % 3 == PATHS.index(path)
        for points in ("none", "channel") if without else ("channel",):
            data = random_data(parse(name), np.random.default_rng(5), w_zero_points=points)
            check_blocked(data, device, path=path)
        spec = vkq.Tensor.from_numpy(data.x, device, BLOCKED).spec
        assert "depthwise_columns" in layer_of(data, device, data.y_q, path=path).plan(spec).variants[0]


@pytest.mark.parametrize("name", [*COLUMNS, LARGE_BIAS])
def test_depthwise_on_dot_products_of_lines(device, name):
    """Depthwise convolutions that read whole image rows are exact in both layouts, for 1, 2 and 4 output
    rows per invocation, in the padding and inside the image. LARGE_BIAS makes sums large. The first two
    images run every variant of the shader; the others run one variant for each number of rows."""
    strided = parse(name).stride[0] == 2
    for lines, shares in ((2 if strided else 4, ()), (2, ((2, 1 << 20),)), (1, ((1, 1 << 20),))):
        ways = (("channel", IMAGE, True), ("channel", IMAGE, False), ("none", BLOCKED, True))
        ways = ways[lines % 3 :] + ways[: lines % 3]
        for points, layout, texels in share(ways if EVERY or name in COLUMNS[:2] else ways[:1], device, 3):
            data = random_data(parse(name), np.random.default_rng(6), w_zero_points=points)
            if name == LARGE_BIAS:
                data = dataclasses.replace(data, bias=data.bias + np.int32(1 << 22))
            with preferred({"depthwise_lines": shares, "texels": texels}):
                layer = layer_of(data, device, data.y_q, path="dot_s8s8")
                x = vkq.Tensor.from_numpy(data.x, device, layout, data.x_q)
                found = layer.plan(x.spec).variants[0]
                assert "depthwise_lines" in found
                read = "texels" if texels and layout == IMAGE else PIXELS[layout]
                assert found.endswith(f".s{1 + strided}x{lines}.{read}")
                np.testing.assert_array_equal(layer(x).numpy(), data.expected(data.y_q), strict=True)


GROUPED = [
    "conv2d[N=1,IC=6,H=6,W=7,OC=6,KH=3,KW=3,padding=1,groups=3]",
    "conv2d[N=1,IC=10,H=5,W=5,OC=4,KH=3,KW=2,groups=2]",
    "conv2d[N=2,IC=9,H=6,W=7,OC=15,KH=3,KW=3,padding=1,groups=3]",
    "conv2d[N=1,IC=21,H=4,W=5,OC=3,KH=2,KW=2,groups=3]",
    "conv2d[N=1,IC=14,H=4,W=9,OC=28,KH=1,KW=3,groups=7]",
    "conv2d[N=1,IC=24,H=5,W=6,OC=8,KH=3,KW=3,stride=2,padding=1,groups=2]",
    "conv2d[N=1,IC=5,H=5,W=6,OC=35,KH=3,KW=3,padding=1,groups=5]",
]


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", GROUPED)
def test_direct_with_groups_that_straddle_words(device, name, path):
    data = random_data(parse(name), np.random.default_rng(4), "uint8", "uint8", w_zero_points="channel")
    check(data, device, method="direct", path=path)
    check_blocked(data, device, method="direct", path=path)


@pytest.mark.parametrize(
    ("path", "name"),
    [("dot_u8u8", GROUPED[2]), ("portable", "conv2d[N=1,IC=512,H=2,W=5,OC=3,KH=3,KW=3,padding=1]")],
)
def test_direct_with_one_channel_after_the_other(device, path, name):
    data = random_data(parse(name), np.random.default_rng(4), "uint8", w_zero_points="channel")
    with preferred({"registers": "few"}):
        check(data, device, method="direct", path=path)


@pytest.mark.parametrize("method", ["direct", "im2col"])
def test_portable_stays_exact_beyond_the_float_block(device, method):
    """Float sums of the portable path are exact for up to 256 words. The path is exact for longer sums,
    too: here it sums 1152 words of extreme values."""
    problem = parse("conv2d[N=1,IC=512,H=4,W=5,OC=3,KH=3,KW=3,padding=1]")
    check(
        random_data(problem, np.random.default_rng(5), extreme=True), device, method=method, path="portable"
    )


@pytest.mark.parametrize("seed", range(6))
def test_onnx_runtime_agrees(device, seed):
    rng = np.random.default_rng([6, seed])
    dtype = ("int8", "uint8")[seed % 2]
    data = random_data(random_conv2d(rng), rng, dtype, w_range=ort.exact_int8_weights())
    for method in methods_for(data.problem):
        got = layer_of(data, device, data.y_q, method=method)(data.x)
        np.testing.assert_array_equal(got, ort.qlinear(data), strict=True)


def test_float_bias(device):
    rng = np.random.default_rng(7)
    for name in (GROUPED[2], DEPTHWISE[3], "conv2d[N=1,IC=8,H=4,W=5,OC=6,KH=1,KW=1]"):
        data = random_data(parse(name), rng)
        bias = rng.standard_normal(data.problem.oc).astype(np.float32) * np.float32(data.y_q.scale * 20)
        for method in methods_for(data.problem):
            options = {"x_qparams": data.x_q, "bias": bias, "device": device, "method": method}
            got = vkq.conv2d(data.x, data.w, data.w_scale, **options, **data.options)
            np.testing.assert_array_equal(got, data.expected(None, bias=bias), strict=True)


def test_weight_only_against_float64(device):
    """The error of weight-only results is at most K + 2 roundings of 2**-24 of the sum of magnitudes, the
    bound for a float32 sum of K terms."""
    rng = np.random.default_rng(8)
    for name in (DEPTHWISE[3], GROUPED[2], "conv2d[N=2,IC=5,H=7,W=6,OC=9,KH=3,KW=3,stride=2,padding=1]"):
        p = parse(name)
        x = rng.standard_normal(p.x_shape).astype(np.float32)
        w = rng.integers(-128, 128, p.weight_shape, dtype=np.int8)
        scale = rng.uniform(0.01, 0.1, p.oc).astype(np.float32)
        options = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
        got = vkq.conv2d(x, w, scale, device=device, **options)
        magnitude = reference.conv2d_q8csw(
            abs(x), np.maximum(abs(w.astype(np.int16)), 1).clip(max=127).astype(np.int8), scale, **options
        )
        error = abs(got - reference.conv2d_q8csw(x, w, scale, **options))
        assert (error <= magnitude * (p.gemm_k + 2) * 2.0**-24).all()


@pytest.mark.parametrize(
    ("name", "method"),
    [
        ("conv2d[N=1,IC=8,H=9,W=9,OC=4,KH=1,KW=1]", "pointwise"),
        ("conv2d[N=1,IC=8,H=9,W=9,OC=4,KH=1,KW=1,stride=2]", "im2col"),
        ("conv2d[N=1,IC=8,H=9,W=9,OC=16,KH=3,KW=3,groups=8]", "depthwise"),
        ("conv2d[N=1,IC=3,H=9,W=9,OC=16,KH=7,KW=7]", "im2col"),
        ("conv2d[N=1,IC=1,H=9,W=9,OC=16,KH=5,KW=5]", "im2col"),
        ("conv2d[N=1,IC=18,H=9,W=9,OC=6,KH=3,KW=3,groups=3]", "direct"),
        ("conv2d[N=1,IC=40,H=9,W=9,OC=6,KH=3,KW=3,groups=2]", "direct"),
        ("conv2d[N=1,IC=32,H=9,W=9,OC=8,KH=3,KW=3,groups=2]", "direct"),
        ("conv2d[N=1,IC=40,H=9,W=9,OC=8,KH=3,KW=3,groups=2]", "im2col"),
        ("conv2d[N=1,IC=0,H=9,W=9,OC=8,KH=1,KW=2]", "im2col"),
    ],
)
def test_auto_names_its_method_and_why(software_device, name, method):
    data = random_data(parse(name), np.random.default_rng(9))
    explained = layer_of(data, software_device, data.y_q).explain(data.x.shape)
    assert explained.method == method
    assert f"method   {method} ({explained.method_reason})" in str(explained)
    assert explained.method_reason
    assert all(variant.startswith(("conv2d_", "gemm_", "im2col_")) for variant in explained.variants)
    assert (explained.scratch_bytes > 0) == (method == "im2col" and data.problem.ic > 0)


@pytest.mark.parametrize(
    ("name", "method", "reason"),
    [
        ("conv2d[N=1,IC=8,H=9,W=9,OC=4,KH=1,KW=1,stride=2]", "pointwise", r"stride \(2, 2\)"),
        ("conv2d[N=1,IC=8,H=9,W=9,OC=4,KH=1,KW=1,groups=2]", "pointwise", "groups=2; it needs 1"),
        ("conv2d[N=1,IC=8,H=9,W=9,OC=8,KH=3,KW=3,groups=4]", "depthwise", "IC/groups=2; it needs 1"),
        ("conv2d[N=1,IC=0,H=9,W=9,OC=8,KH=3,KW=3]", "direct", "IC=0"),
        (
            "conv2d[N=1,IC=4,H=9,W=9,OC=8,KH=3,KW=3]",
            "winograd",
            f"it must be one of {', '.join(names())}",
        ),
    ],
)
def test_a_method_that_does_not_apply_is_refused_with_its_reason(any_device, name, method, reason):
    data = random_data(parse(name), np.random.default_rng(10))
    with pytest.raises(vkq.ArgumentError, match=reason):
        # path="portable", because matrix units accept strided 1x1 convolutions.
        layer_of(data, any_device, data.y_q, method=method, path="portable")


def test_int8_methods_refuse_float_activations(any_device):
    with pytest.raises(vkq.ArgumentError, match="method im2col cannot be used: its activations are float"):
        vkq.Conv2d(np.ones((4, 1, 1, 1), np.int8), 1.0, method="im2col", device=any_device)


def test_methods_are_named_once():
    assert names() == ("auto", *dict.fromkeys(method.name for method in METHODS))


def test_memory_of_a_large_convolution(any_device):
    """A large im2col convolution allocates at most 32 MiB besides its output; the whole im2col matrix of
    1x64x256x1024 with 3x3 taps would need 144 MiB."""
    device = any_device
    p = Conv2dProblem.of((1, 64, 256, 1024), (4, 64, 3, 3), padding=1)
    layer = vkq.Conv2d(
        np.ones(p.weight_shape, np.int8), 1.0, padding=1, x_qparams=vkq.QParams(1.0),
        y_qparams=vkq.QParams(16.0), method="im2col", device=device,
    )  # fmt: skip
    x = vkq.Tensor(device, p.x_shape, "int8")
    with device.operation() as recording:
        recording.fill(x.buffer, 0x01010101)
    device.synchronize()
    before = device.memory_used_bytes
    device.reset_memory_peak()
    y = layer(x)
    device.synchronize()
    assert device.memory_peak_bytes - before <= y.nbytes + (32 << 20)
    # Read only the first row of y.
    last = vkq.Tensor(device, (1, 4, 1, 1024), "int8", buffer=y.buffer).numpy()
    np.testing.assert_array_equal(last[0, 0, 0, [0, 1, 1023]], [16, 24, 16])


def test_a_chain_of_convolutions_shares_its_scratch(any_device):
    device = any_device
    rng = np.random.default_rng(11)
    q = vkq.QParams(1.0)
    weights = [rng.integers(-1, 2, (8, 8, 3, 3), dtype=np.int8) for _ in range(4)]
    layers = [
        vkq.Conv2d(w, 0.25, padding=1, x_qparams=q, y_qparams=q, method="im2col", device=device)
        for w in weights
    ]
    x = rng.integers(-10, 10, (1, 8, 100, 100), dtype=np.int8)
    want, chained = x, vkq.Tensor.from_numpy(x, device)
    for layer in layers:  # the first call allocates weights and scratch memory
        layer(x)
    device.synchronize()
    device.reset_memory_peak()
    before = device.memory_used_bytes
    tensors = [chained]
    for layer in layers:
        tensors.append(layer(tensors[-1]))
    outputs = sum(t.nbytes for t in tensors[1:])
    assert device.memory_peak_bytes - before <= outputs + 4 * 256
    for w in weights:
        want = reference.conv2d(want, w, x=q, w_scale=0.25, y=q, padding=1)
    np.testing.assert_array_equal(tensors[-1].numpy(), want)


@pytest.mark.parametrize(
    ("images", "width", "rows"), [(8, 1, "1"), (9, 1, None), (2, 2, "2"), (3, 2, None), (1, 3, None)]
)
def test_narrow_images_are_few_rows(
    software_device: vkq.Device, images: int, width: int, rows: str | None
) -> None:
    """1x1 convolutions of narrow images, as in squeeze-and-excite, use the GEMV for few rows: in a block of
    four rows, one pixel would leave three rows of padding."""
    problem = parse(f"conv2d[N={images},IC=37,H=1,W={width},OC=10,KH=1,KW=1]")
    data = random_data(problem, np.random.default_rng(images))
    layer = vkq.Conv2d(
        data.w, data.w_scale, x_qparams=data.x_q, y_qparams=data.y_q, bias=data.bias, device=software_device
    )
    (variant,) = layer.explain(problem.x_shape).variants
    assert (variant.split(".")[1] if variant.startswith("gemv") else None) == rows
    np.testing.assert_array_equal(layer(data.x), data.expected(data.y_q), strict=True)
