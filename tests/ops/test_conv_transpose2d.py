"""Tests of transposed convolutions against the reference, the definition and ONNX Runtime's float
operator."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.cases import TRANSPOSED, random_transposed
from tests.referees import ort
from vkq import reference
from vkq.kernels.phases import Taps
from vkq.layout.extent import BLOCKED
from vkq.numerics.requantize import multipliers
from vkq.problem.names import parse
from vkq.problem.transposed import TransposedConv2dProblem

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")


@dataclass
class Operands:
    problem: TransposedConv2dProblem
    x: Any
    w: Any
    options: dict[str, Any]  # arguments of the reference, without y
    y: vkq.QParams

    @property
    def sizes(self) -> dict[str, Any]:
        p = self.problem
        names = ("stride", "padding", "output_padding", "dilation", "groups")
        return {name: getattr(p, name) for name in names}


def operands(
    problem: TransposedConv2dProblem, rng: np.random.Generator, dtype: Any = "int8", w_dtype: Any = "int8"
) -> Operands:
    p, info, w_info = problem, np.iinfo(dtype), np.iinfo(w_dtype)
    x = rng.integers(info.min, info.max + 1, p.x_shape).astype(dtype)
    w = rng.integers(w_info.min, w_info.max + 1, p.weight_shape).astype(w_dtype)
    typical = int(np.sqrt(max(p.gemm_k, 1) * 10_000.0) * 50)
    points = None if w_dtype == "int8" else rng.integers(0, 256, p.oc)
    options = {
        "x": vkq.QParams(0.37, int(rng.integers(info.min, info.max + 1)), dtype),
        "w_scale": rng.uniform(0.001, 0.003, p.oc).astype(np.float32),
        "bias": rng.integers(-typical, typical + 1, p.oc).astype(np.int32),
        "w_zero_point": points,
    }
    y = vkq.QParams(
        float(np.float32(typical * 0.37 * 0.002 / 40)), int(rng.integers(info.min, info.max + 1)), dtype
    )
    return Operands(problem, x, w, options, y)


def scattered(o: Operands) -> npt.NDArray[np.int64]:
    """Return the accumulators by definition: scatter every input pixel, times every tap, over the output."""
    p = o.problem
    points = np.zeros(p.oc, np.int64) if o.options["w_zero_point"] is None else o.options["w_zero_point"]
    x = o.x.astype(np.int64) - o.options["x"].zero_point
    icg, ocg = p.ic // p.groups, p.oc // p.groups
    acc = np.zeros(p.y_shape, np.int64) + o.options["bias"].reshape(-1, 1, 1)
    for ic, j, kh, kw, h, w in np.ndindex(p.ic, ocg, p.kh, p.kw, p.h, p.w):
        oc = ic // icg * ocg + j
        oy, ox = (
            p.stride[i] * at + p.dilation[i] * k - p.padding[i]
            for i, (at, k) in enumerate(((h, kh), (w, kw)))
        )
        if 0 <= oy < p.oh and 0 <= ox < p.ow:
            acc[:, oc, oy, ox] += x[:, ic, h, w] * (int(o.w[ic, j, kh, kw]) - points[oc])
    return acc


def check(o: Operands, device: vkq.Device, **options: Any) -> None:
    given = {("x_qparams" if k == "x" else k): v for k, v in o.options.items()}
    for y in (o.y, None):
        got = vkq.conv_transpose2d(o.x, o.w, y_qparams=y, device=device, **given, **o.sizes, **options)
        want = reference.conv_transpose2d(
            o.x, o.w, y=y, activation=options.get("activation"), **o.options, **o.sizes
        )
        np.testing.assert_array_equal(got, want, strict=True)


def check_blocked(o: Operands, device: vkq.Device) -> None:
    """Check that a transposed convolution of an image in kPackedInt8_16C gives the reference's result in
    this layout."""
    given = {("x_qparams" if k == "x" else k): v for k, v in o.options.items()}
    x = vkq.Tensor.from_numpy(o.x, device, BLOCKED)
    y = vkq.conv_transpose2d(x, o.w, y_qparams=o.y, **given, **o.sizes)
    assert y.layout == BLOCKED
    np.testing.assert_array_equal(
        y.numpy(), reference.conv_transpose2d(o.x, o.w, y=o.y, **o.options, **o.sizes)
    )


@pytest.mark.parametrize("seed", range(12))
def test_the_reference_is_the_definition(seed):
    rng = np.random.default_rng([1, seed])
    problem = next(p for p in iter(lambda: random_transposed(rng), None) if p.macs < 30_000)
    o = operands(problem, rng, *[("int8", "int8"), ("uint8", "uint8")][seed % 2])
    multiplier = multipliers(o.options["x"].scale, o.options["w_scale"]).reshape(-1, 1, 1)
    got = reference.conv_transpose2d(o.x, o.w, y=None, **o.options, **o.sizes)
    np.testing.assert_array_equal(got, scattered(o).astype(np.float32) * multiplier, strict=True)


@pytest.mark.parametrize("seed", range(8))
def test_onnx_runtime_agrees_with_the_reference(seed):
    """The reference equals ONNX Runtime's float32 ConvTranspose of integers, which is exact below 2**24."""
    rng = np.random.default_rng([2, seed])
    # ONNX Runtime requires output_padding below the stride.
    problems = iter(lambda: random_transposed(rng), None)
    p = next(
        p
        for p in problems
        if all(extra < step for extra, step in zip(p.output_padding, p.stride, strict=True))
    )
    x, w = (
        rng.integers(-20, 21, p.x_shape).astype(np.int8),
        rng.integers(-20, 21, p.weight_shape).astype(np.int8),
    )
    sizes = {
        "strides": p.stride,
        "pads": p.padding,
        "output_padding": p.output_padding,
        "dilations": p.dilation,
        "group": p.groups,
    }
    want = ort.run("ConvTranspose", [x.astype(np.float32), w.astype(np.float32)], "float32", **sizes)
    options = {
        "stride": p.stride,
        "padding": p.padding,
        "output_padding": p.output_padding,
        "dilation": p.dilation,
    }
    one = vkq.QParams(1.0)
    got = reference.conv_transpose2d(x, w, x=one, w_scale=1.0, y=None, groups=p.groups, **options)
    np.testing.assert_array_equal(got, want, strict=True)


@pytest.mark.parametrize("case", TRANSPOSED, ids=lambda case: case.name)
def test_known_shapes(device, case):
    check(operands(case.problem, np.random.default_rng(3)), device)


ODD = {
    "conv_transpose2d[N=1,IC=1,H=1,W=1,OC=1,KH=1,KW=1]": "the smallest",
    "conv_transpose2d[N=1,IC=5,H=3,W=4,OC=6,KH=1,KW=1,stride=3,output_padding=2]": (
        "phases without taps: results are the bias"
    ),
    "conv_transpose2d[N=2,IC=6,H=4,W=5,OC=6,KH=3,KW=3,stride=2,padding=1,groups=6]": "depthwise",
    "conv_transpose2d[N=1,IC=4,H=5,W=3,OC=7,KH=3,KW=4,stride=2x3,dilation=2x3]": (
        "stride and dilation share a factor"
    ),
    "conv_transpose2d[N=1,IC=3,H=4,W=6,OC=5,KH=4,KW=2,stride=3x1,padding=0x1x2x0,dilation=2x1]": (
        "every option differs between the axes"
    ),
    "conv_transpose2d[N=1,IC=4,H=3,W=3,OC=4,KH=2,KW=2,stride=2,padding=3x3x1x1]": (
        "padding crops more than the kernel reaches"
    ),
    "conv_transpose2d[N=1,IC=9,H=3,W=7,OC=15,KH=3,KW=3,padding=1,groups=3]": (
        "stride 1, groups that straddle words"
    ),
    "conv_transpose2d[N=1,IC=4,H=2,W=2,OC=3,KH=5,KW=5,stride=4,padding=2,output_padding=3]": (
        "the largest output_padding"
    ),
    "conv_transpose2d[N=0,IC=4,H=2,W=2,OC=3,KH=3,KW=3]": "no image",
    "conv_transpose2d[N=1,IC=4,H=2,W=2,OC=0,KH=3,KW=3]": "no output channel",
    "conv_transpose2d[N=1,IC=0,H=2,W=2,OC=3,KH=3,KW=3]": "no input channel: results are the bias",
    "conv_transpose2d[N=1,IC=2,H=0,W=2,OC=3,KH=3,KW=3]": "no rows",
}


@pytest.mark.parametrize("name", ODD)
def test_odd_shapes(device, name):
    problem = parse(name)
    assert problem.name == name
    o = operands(problem, np.random.default_rng(4), "uint8", "uint8")
    check(o, device)
    check_blocked(o, device)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("seed", range(3))
def test_random_problems_on_every_path(device, path, seed):
    rng = np.random.default_rng([5, seed])
    o = operands(
        random_transposed(rng), rng, *[("int8", "int8"), ("uint8", "uint8"), ("uint8", "int8")][seed]
    )
    check(o, device, path=path, activation=[None, "relu", (-0.5, 0.5)][seed])


def test_taps_cover_the_kernel_once():
    for size, stride, dilation, padding in np.ndindex(6, 4, 3, 4):
        size, stride, dilation = size + 1, stride + 1, dilation + 1
        phases = [Taps.of(first, size, stride, dilation, padding) for first in range(stride)]
        assert sorted(tap for phase in phases for tap in phase.kernel) == list(range(size))
        for phase in phases:
            # Input pixel i goes to stride * i + dilation * tap - padding.
            for j, tap in enumerate(phase.kernel):
                assert stride * (phase.offset + j * phase.step) + dilation * tap - padding == phase.first


def test_explain(any_device):
    layer = vkq.ConvTranspose2d(
        np.ones((8, 4, 3, 3), np.int8), 1.0, stride=2, x_qparams=vkq.QParams(1.0), device=any_device
    )
    explained = layer.explain((1, 8, 5, 5))
    assert explained.problem == "conv_transpose2d[N=1,IC=8,H=5,W=5,OC=4,KH=3,KW=3,stride=2]"
    assert len(explained.variants) == 1
    assert "2x2 phases" in explained.method_reason
    assert explained.scratch_bytes == 0


def test_it_chains_with_an_ordinary_convolution(device):
    rng = np.random.default_rng(6)
    q = vkq.QParams(0.5, 3)
    down, up = (
        rng.integers(-20, 21, (8, 5, 3, 3), dtype=np.int8),
        rng.integers(-20, 21, (8, 5, 3, 3), dtype=np.int8),
    )
    x = rng.integers(-128, 128, (2, 5, 9, 10), dtype=np.int8)
    first = vkq.Conv2d(down, 0.02, stride=2, padding=1, x_qparams=q, y_qparams=q, device=device)
    second = vkq.ConvTranspose2d(up, 0.02, stride=2, padding=1, x_qparams=q, y_qparams=q, device=device)
    got = second(first(vkq.Tensor.from_numpy(x, device))).numpy()
    middle = reference.conv2d(x, down, x=q, w_scale=0.02, y=q, stride=2, padding=1)
    np.testing.assert_array_equal(
        got, reference.conv_transpose2d(middle, up, x=q, w_scale=0.02, y=q, stride=2, padding=1)
    )


def test_layer_refuses(any_device):
    w = np.ones((4, 2, 3, 3), np.int8)
    with pytest.raises(vkq.ArgumentError, match="weight has 3 axes"):
        vkq.ConvTranspose2d(w[0], 1.0, x_qparams=vkq.QParams(1.0), device=any_device)
    with pytest.raises(vkq.ArgumentError, match=r"w_scale has shape \(4,\) but there are 2 output channels"):
        vkq.ConvTranspose2d(w, np.ones(4), x_qparams=vkq.QParams(1.0), device=any_device)
