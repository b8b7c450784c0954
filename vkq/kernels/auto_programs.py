"""The programs that the method ``auto`` chooses for typical layers. They depend only on the device's
capabilities, so they can be compiled without the device.

The layers are those of ResNet-50 and MobileNetV2 for one image of 224x224, linear layers with one or four
rows, and an attention layer. Activations are int8, or float32 with weights of 8 or 4 bits.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..layout.extent import IMAGE, MATRIX, Spec
from ..numerics.grouped import GroupedWeight
from ..numerics.qparams import QParams
from ..probe.float16 import lacking
from ..problem.conv2d import Conv2dProblem
from ..problem.window import Window
from ..runtime.builder import Builder
from ..runtime.program import Program
from ..select.path import TABLE, Choice
from ..shader.catalog import catalog
from ..shader.spec import Value, Variant
from .after import NOTHING
from .attention import AttentionSizes
from .attention_q8 import AttentionQ8
from .attention_steps import AttentionSteps
from .binary import arithmetic
from .depthwise import Depthwise
from .direct import Direct, Sweep
from .expanded import ExpandDepthwise
from .float16 import Float16Gemm
from .floats import Affine, FloatGemm
from .gemm import Int8Gemm, Rows
from .grouped import GroupedGemm
from .implicit import Implicit
from .method import Convolution
from .methods import method_for
from .pixels import pixel_rows
from .pooling import unrolled
from .quantize import quantize_constants

FORM_WITHOUT = "float"
RESULTS = {
    "avg_pool_q8__pixels": 16, "binary_q8__word": 16, "conv2d_q8ta_q8csw__depthwise": 16,
    "max_pool_q8__pixels": 16, "quantize_q8ta__pixels": 16, "transpose_q8__pixels": 16,
}  # fmt: skip
# With these parameters, the float formula of an addition is exact and needs no table (binary.py), as with
# most parameters.
SUMMANDS, SUM = QParams(0.023, 3), QParams(0.031, -5)
UNBOUNDED = Affine(np.ones(1, np.float32), np.zeros(1, np.float32), (-math.inf, math.inf))


@dataclasses.dataclass(frozen=True)
class AutoProgram:
    """The kernel of a layer: the layer's name, and the shader variant with its constants."""

    layer: str
    variant: Variant
    constants: Mapping[str, Value]

    @property
    def results(self) -> int | None:
        """The number of results of an invocation of the shader; None for shaders not in `RESULTS`."""
        return RESULTS.get(self.variant.shader)


class _DeviceStandIn:
    """A stand-in for a device: it has the device's capabilities, and makes programs without pipelines."""

    def __init__(self, capabilities: Capabilities):
        self.capabilities = capabilities

    def program(
        self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        return Program(variant, variant.constants(constants or {}), None)

    def groups_per_dispatch(self, total: int, macs: int, size: int) -> int:
        return total

    def seconds_of(self, macs: int, size: int) -> float:
        return 0.0


class _Int8Results:
    """A stand-in for a scheme with int8 activations and results: it has every attribute that kernels read
    before a dispatch."""

    family, axes, out, after = "q8ta_q8csw", {"out": "q8to"}, "q8to", NOTHING
    x_zero_point, largest_bias = 0, 0
    epilogue = types.MappingProxyType(dict.fromkeys(("y_zero_point", "y_min", "y_max", "y_low", "y_high"), 0))


SCHEME: Any = _Int8Results()
FLOATS = types.SimpleNamespace(  # a stand-in for the schemes with float activations
    integer=False,
    affine=UNBOUNDED,
    product=lambda device, w, _: FloatGemm(device, w.shape, w.make, w.zero_point, UNBOUNDED, w.channels),
)


def form(c: Capabilities) -> str:
    """Return the dot form of a device without measured rates: the first form in `vkq.select.path.TABLE`
    that the device supports and the driver reports as accelerated."""
    able = (row for row in TABLE if row.needs and c.features.get(row.needs))
    return next((row.form for row in able if row.flag and c.facts.get(row.flag)), FORM_WITHOUT)


def auto_programs(c: Capabilities) -> list[AutoProgram]:
    """Return the programs in the order of the layers."""
    device = _DeviceStandIn(c)
    found = [*_programs(device, form(c)), *_weight_only(device)]
    return [AutoProgram(layer, p.variant, p.constants) for layer, p in found]


def _programs(device: Any, dot: str) -> Iterator[tuple[str, Program]]:
    for m, n, k in ((3136, 256, 64), (49, 2048, 512), (1, 1000, 2048), (1, 4096, 4096), (4, 1000, 2048)):
        rows = Rows(m)
        yield f"linear {m}x{n}x{k}", _gemm(device, dot, n, k).chosen(rows, rows.blocks)
    for channels, size in ((64, 56), (512, 7)):
        p = Conv2dProblem.of((1, channels, size, size), (channels, channels, 3, 3), padding=1)
        gemm, rows = _gemm(device, dot, channels, 9 * channels), pixel_rows(p, 4)
        if Implicit.fits(device.capabilities, p):
            yield f"conv 3x3 C{channels} {size}x{size}", Implicit(gemm).program(p)
        else:
            yield f"conv 3x3 C{channels} {size}x{size}: im2col", gemm.gather(channels)
            yield f"conv 3x3 C{channels} {size}x{size}", gemm.chosen(rows, rows.blocks)
    for channels, size, stride in ((32, 112, 1), (96, 112, 2)):
        shape = (channels, 1, 3, 3)
        p = Conv2dProblem.of((1, channels, size, size), shape, stride=stride, padding=1, groups=channels)
        kernel = Depthwise(device, _zeros(*shape), _points(channels), SCHEME, dot, channels)
        yield f"depthwise 3x3 C{channels} {size}x{size} stride {stride}", kernel.program(Sweep.of(p))
    yield from _expanded(device, dot)
    yield from _attention(device, dot)
    p = Conv2dProblem.of((1, 128, 56, 56), (128, 4, 3, 3), padding=1, groups=32)
    direct = Direct(device, _zeros(128, 4, 3, 3), _points(128), SCHEME, dot, 32)
    yield "grouped 3x3 C128 56x56 in 32 groups", direct.program(Sweep.of(p))
    yield from _moved(device)


def _expanded(device: Any, dot: str) -> Iterator[tuple[str, Program]]:
    """Yield the program that computes an expansion and a depthwise convolution in one dispatch, if the
    device has a packed dot product. (`vkq.check.measuring` compares its time with that of two dispatches.)"""
    p = Conv2dProblem.of((1, 192, 28, 28), (192, 1, 3, 3), padding=1, groups=192)
    depthwise = Depthwise(device, _zeros(192, 1, 3, 3), _points(192), SCHEME, dot, 192)
    product, x = _gemm(device, dot, 192, 32), Spec((1, 32, 28, 28), "int8", IMAGE)
    if ExpandDepthwise.refusal(product, depthwise, p) is None:
        both = ExpandDepthwise(product, depthwise)
        if tile := both.tile(p, x):
            yield "1x1 C32 -> 192, depthwise 3x3 28x28", both.program(p, x, tile)


def _attention(device: Any, dot: str) -> Iterator[tuple[str, Program]]:
    """Yield the program of 8-bit attention if the device has a packed dot product."""
    scores, weights = QParams(0.1), QParams(1 / 256, -128)
    three = QParams(0.02), QParams(0.02), QParams(0.1)
    steps = AttentionSteps(three, (scores, scores, SUM), (SUM, weights), (weights, *three[1:]))
    sizes = AttentionSizes(1, 12, 12, 128, 128, 64, 64)
    if dot != FORM_WITHOUT and not profile(device.capabilities).attention_in_steps:
        attention = AttentionQ8(device, sizes, steps, (12, 12, 12, 12), (128,), MATRIX, dot)
        yield "attention of 12 heads, 128 tokens", attention.program()


def _moved(device: Any) -> Iterator[tuple[str, Program]]:
    """Yield the programs of operators with little arithmetic, such as additions."""
    c = device.capabilities
    sure = {"SURE": arithmetic("add", SUMMANDS, SUMMANDS, SUM).sure(soft_float=False)}
    yield "add", device.program(catalog().find("binary_q8__word", op="add", shape="same"), sure)
    variant = catalog().find("global_avg_pool_q8__reduce", layout="4w4c")
    yield "global average pool", device.program(variant)
    window = Window.of("avg_pool2d", (1, 64, 112, 112), 3, 2, 1, 1, False)
    for layer, name in (("average pool", "avg_pool_q8__pixels"), ("max pool", "max_pool_q8__pixels")):
        yield layer, device.program(catalog().find(name, layout="4w4c"), unrolled(c, window))
    order = {f"ORDER_{i}": axis for i, axis in enumerate((0, 2, 3, 1))}
    yield "transpose", device.program(catalog().find("transpose_q8__pixels", layout="4w4c"), order)
    variant = catalog().find("quantize_q8ta__pixels", layout="4w4c")
    yield "quantize", device.program(variant, quantize_constants(c))


def _weight_only(device: Any) -> Iterator[tuple[str, Program]]:
    """Yield the programs of layers with float activations: int8 weights, and 4-bit weights in groups."""
    for m, n, k in ((1, 4096, 4096), (49, 2048, 512)):
        yield f"float32 linear {m}x{n}x{k}", _float_gemm(device, n, k).program(m)
        codes, scale = np.zeros((n, k // 32, 16), np.uint8), np.ones((n, k // 32), np.float16)
        grouped = GroupedGemm(device, GroupedWeight(codes, scale), None, UNBOUNDED.bounds)
        yield f"float32 linear {m}x{n}x{k}, 4 bits", grouped.program(m)
    p = Conv2dProblem.of((1, 64, 56, 56), (64, 64, 3, 3), padding=1)
    yield "float32 conv 3x3 C64 56x56", _float_convolution(device, p)
    if lacking(device.capabilities) is None:
        product = Float16Gemm(_float_gemm(device, 2048, 512), 512)
        yield "float16 arithmetic linear 49x2048x512", product.program("float32", pixels=False, padded=False)
        product = Float16Gemm(_float_gemm(device, 64, 9 * 64), 64)
        yield "float16 arithmetic conv 3x3 C64 56x56", product.program("float32", pixels=True, padded=True)
    p = Conv2dProblem.of((1, 32, 112, 112), (32, 1, 3, 3), padding=1, groups=32)
    yield "float32 depthwise 3x3 C32 112x112", _float_convolution(device, p)


def _float_convolution(device: Any, p: Conv2dProblem) -> Any:
    """Return the program of a float convolution, a single dispatch."""
    weight, choice = _zeros(*p.weight_shape), Choice("float", "float", "")
    c, b = Convolution(device, weight, _points(p.oc), FLOATS, choice, p.groups), Builder(device)
    x, y = (b.new(Spec(shape, "float32")) for shape in (p.x_shape, p.y_shape))
    method_for(c, p)[0].make(c, p).build(b, p, x, y)
    (step,) = b.plan().steps
    return step.program


def _zeros(*shape: int) -> Any:
    return np.zeros(shape, np.int8)


def _points(n: int) -> Any:
    return np.zeros(n, np.int32)


def _gemm(device: Any, dot: str, n: int, k: int) -> Int8Gemm:
    shape = (1, n, k)
    return Int8Gemm(device, shape, lambda: _zeros(*shape), _points(n)[None], SCHEME, dot, n)


def _float_gemm(device: Any, n: int, k: int) -> FloatGemm:
    return FloatGemm(device, (1, n, k), lambda: _zeros(1, n, k), _points(n)[None], UNBOUNDED, n)
