"""Convolutions on matrix units without an im2col matrix: the input pixels of a tile are in shared memory.
Images are in kPackedInt8_16C."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Hashable
from typing import Any

import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profiles import Profile, profile
from ..device.tuner import is_asked, ranked
from ..probe.matrices import Matrices, advertised
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .divisor import divisor
from .matrix_units import MatrixWeights, centred, counts
from .weights import Arithmetic, Int8, zeros_behind

CONV = "conv2d_q8ta_q8csw__coopmat"
KIND = "tile of a convolution"  # the name of these tiles in the tuner's rankings (`vkq.device.tuner`)


class MatrixConv:
    """A convolution on matrix units. Problems with the same `packing` share the packed weight; *p* is any
    of them."""

    def __init__(self, device: Device, p: Conv2dProblem, weight: Callable[[], Int8], arithmetic: Arithmetic):
        self.device = device
        shader, matrices = _shader(p, arithmetic, device.capabilities)
        chunk, multiple = int(shader.sizes["CH"]), turn(shader)

        def packed() -> npt.NDArray[Any]:
            return chunked(centred(weight(), arithmetic.w_zero_point), chunk, multiple).reshape(shape)

        shape = (p.groups, p.oc // p.groups, chunked_k(p, chunk, multiple))
        self.packed = MatrixWeights(device, shape, packed, arithmetic, matrices.form, p.oc)

    @staticmethod
    def packing(p: Conv2dProblem, arithmetic: Arithmetic, capabilities: Capabilities) -> Hashable:
        """Return the values on which the packed weight of a problem depends: *chunk* and *multiple* of
        `chunked`, and the dot form."""
        shader, matrices = _shader(p, arithmetic, capabilities)
        return shader.sizes["CH"], turn(shader), matrices.form

    def push(self, p: Conv2dProblem, shader: Variant) -> dict[str, int | float]:
        defines, w = {name: int(shader.sizes[name]) for name in ("TH", "TW", "BN", "CH", "BK")}, self.packed
        channels, tiles_h, tiles_w = p.ic // p.groups, -(-p.oh // defines["TH"]), -(-p.ow // defines["TW"])
        return {
            **w.push, "rows": p.gemm_m, "pixels": p.oh * p.ow, "oh": p.oh, "ow": p.ow,
            "k16": -(-channels // 16),
            "steps": w.k_padded // -(-channels // defines["CH"]) // defines["BK"], "taps": p.kh * p.kw,
            "x_rows": p.n * p.h * p.w, "h": p.h, "w": p.w, "x_zero_point": w.arithmetic.x_zero_point,
            "pad_t": p.padding[0], "pad_l": p.padding[1], "dilation_h": p.dilation[0],
            "dilation_w": p.dilation[1], "tiles_h": tiles_h, "tiles_w": tiles_w,
            **divisor("tiles_n", -(-w.n // defines["BN"])), **divisor("tiles_h", tiles_h),
            **divisor("tiles_w", tiles_w),
        }  # fmt: skip

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        w = self.packed
        shader, matrices = _shader(p, w.arithmetic, self.device.capabilities)
        push, in_place = self.push(p, shader), w.arithmetic.after.in_place
        chunks = -(-p.ic // (p.groups * int(shader.sizes["CH"])))
        trips = counts(self.device, TRIPS=int(push["steps"]), CHUNKS=chunks)
        program = w.program(shader, matrices, **_constants(p, shader), **trips)
        b.dispatch(program, w.slots(b, x, y), push, w.macs(p.gemm_m), in_place)


def chunked_k(p: Conv2dProblem, chunk: int, multiple: int) -> int:
    """Return the K of the result of `chunked`."""
    k = p.kh * p.kw * chunk
    return -(-(p.ic // p.groups) // chunk) * (k + -k % multiple)


def chunked(weight: npt.NDArray[Any], chunk: int, multiple: int) -> npt.NDArray[Any]:
    """Return a weight (OC, IC, KH, KW) as (OC, K) with k = (chunk of channels, kh, kw, channel).

    The channels are padded with zeros to whole chunks, and the k of each chunk to a multiple of *multiple*.
    """
    oc, ic, kh, kw = weight.shape
    chunks, k = -(-ic // chunk), kh * kw * chunk
    channels = zeros_behind(weight, chunks * chunk - ic, 0, 0)
    ordered = channels.reshape(oc, chunks, chunk, kh, kw).transpose(0, 1, 3, 4, 2).reshape(oc, chunks, k)
    padded = zeros_behind(ordered, -k % multiple)
    return padded.reshape(oc, chunks * padded.shape[2])


def turn(shader: Variant) -> int:
    """Return the number of elements along k of one unrolled iteration of the shader's loop. The k of a
    chunk is padded to a multiple of this number."""
    return int(shader.sizes["BK"]) * int(shader.sizes["TURNS"])


def halo(p: Conv2dProblem, shader: Variant) -> tuple[int, int]:
    """Return the size in pixels (rows, columns) of the input area of a tile."""
    tile_h, tile_w = int(shader.sizes["TH"]), int(shader.sizes["TW"])
    h = (tile_h - 1) * p.stride[0] + (p.kh - 1) * p.dilation[0] + 1
    return h, (tile_w - 1) * p.stride[1] + (p.kw - 1) * p.dilation[1] + 1


def conv_cycles(known: Profile, p: Conv2dProblem, shader: Variant, beside: bool = False) -> float:
    """Return the estimated cycles of a convolution with this tile (the profile's `matrix_conv_costs`), to
    compare it with other tiles or, with *beside*, with kernels that gather pixels (`implicit_cycles`). Each
    multiprocessor runs two workgroups at once; with fewer workgroups, part of the device is idle."""
    costs = known.matrix_conv_costs
    th, tw, bn, ch = (int(shader.sizes[name]) for name in ("TH", "TW", "BN", "CH"))
    chunks, k = -(-p.ic // (p.groups * ch)), p.kh * p.kw * ch
    steps = chunks * (-(-k // turn(shader)) * turn(shader) / 32 + costs["chunk"])
    tiles = math.prod(-(-a // b) for a, b in ((p.oh, th), (p.ow, tw), (p.oc // p.groups, bn)))
    count = p.n * p.groups * tiles
    workgroups = max(count, 2 * known.multiprocessors)
    step = costs["step"] * (costs["strided"] if max(p.stride) > 1 else 1)
    cycles = workgroups / known.multiprocessors * steps * math.sqrt(th * tw * bn) * step / 2
    if beside and count <= known.multiprocessors:
        return costs["lone"] * cycles + costs["end"] * th * tw * bn
    return cycles


def conv_shader(p: Conv2dProblem, out: str, capabilities: Capabilities) -> tuple[Variant, Matrices] | None:
    """Return the variant and matrix shape with the lowest estimated time, padding included. Only matrix
    shapes that the device lists, and tiles whose input pixels fit into shared memory, are considered; None
    if there are none.

    Among equal times, prefer the tile with more pixels (pixels share the weights), then the larger chunk of
    channels, then the matrix shape that the device lists first.
    """
    best_first = _conv_shaders(p, out, capabilities, profile(capabilities))
    if is_asked(KIND):
        best_first = tuple(ranked(KIND, best_first, lambda pair: f"{pair[0].axes['tile']}, {pair[1]}"))
    return next(
        (pair for pair in best_first if pair[1].runs(pair[0], capabilities, **_constants(p, pair[0]))), None
    )


# cached: a layer calls this several times, and layers have equal sizes
@functools.lru_cache(maxsize=1024)
def _conv_shaders(
    p: Conv2dProblem, out: str, capabilities: Capabilities, known: Profile
) -> tuple[tuple[Variant, Matrices], ...]:
    listed = advertised(capabilities)
    found: list[tuple[tuple[float, ...], tuple[Variant, Matrices]]] = []
    for variant, matrices in _in_whole_lines(out, listed):
        th, tw, ch = (int(variant.sizes[name]) for name in ("TH", "TW", "CH"))
        cost = conv_cycles(known, p, variant)
        found.append(((cost, -th * tw, -ch, listed.index(matrices)), (variant, matrices)))
    return tuple(pair for _, pair in sorted(found, key=lambda one: one[0]))


@functools.lru_cache(maxsize=64)
def _in_whole_lines(out: str, listed: tuple[Matrices, ...]) -> tuple[tuple[Variant, Matrices], ...]:
    """Return the variants for an output ("q8to" or "f32") for which `whole_lines` is True, each with its
    matrix shape."""
    shader = catalog().shaders[CONV]
    able = ((shader.variant(each), one) for one in listed for each in shader.having(out=out, dot=one.form))
    return tuple(pair for pair in able if whole_lines(*pair))


@functools.lru_cache(maxsize=4096)
def whole_lines(variant: Variant, matrices: Matrices) -> bool:
    """Return True if a tile and each of its rows of pixels consist of whole matrices."""
    th, tw = int(variant.sizes["TH"]), int(variant.sizes["TW"])
    return tw % matrices.n == 0 and matrices.fit(variant, th * tw)


def _constants(p: Conv2dProblem, shader: Variant) -> dict[str, Constant]:
    """Return the specialization constants for a problem and a tile."""
    h, w = halo(p, shader)
    return {"STRIDE_H": p.stride[0], "STRIDE_W": p.stride[1], "HALO_H": h, "HALO_W": w, "KW": p.kw}


def _shader(p: Conv2dProblem, a: Arithmetic, capabilities: Capabilities) -> tuple[Variant, Matrices]:
    """Return the result of `conv_shader` for a problem that has one."""
    shader = conv_shader(p, a.out, capabilities)
    assert shader is not None
    return shader
