"""The methods that compute convolutions of float activations, in order of preference."""

from __future__ import annotations

from ..probe.float16 import FLOAT16
from ..probe.matrices import BRAIN, HALF
from ..problem.conv2d import Conv2dProblem
from . import half, half_planes
from .float16 import Float16Convolution, Float16Gemm
from .float_depthwise import FloatDepthwise
from .float_direct import FloatDirect
from .float_lanes import FloatLanes
from .float_shared import FloatShared
from .float_vectors import FloatVectors
from .floats import FloatImplicit, of_floats
from .half import worth
from .half_operands import RUN
from .half_planes import PartsConvolution
from .half_tiles import HalfConvolution
from .method import Convolution, Kernel, Method, not_depthwise

MATRICES = {HALF: "matrix units of float16", BRAIN: "matrix units of bfloat16, x in three parts"}


def _not_float_implicit(c: Convolution, p: Conv2dProblem) -> str | None:
    return _has_floats(c) or _not_whole_groups(c, p)


def _not_whole_groups(c: Convolution, p: Conv2dProblem) -> str | None:
    if p.groups > 1 and p.oc // p.groups % 4:
        return f"groups of {p.oc // p.groups} output channels are not whole words of 4"
    return "IC=0; it needs at least 1" if p.ic == 0 else None


def _has_floats(c: Convolution) -> str | None:
    """Return None for an int8 weight, else the reason why the weight is refused."""
    return f"its weight is {c.weight.dtype}" if c.weight.dtype.kind == "f" else None


def _not_half_matrix(c: Convolution, p: Conv2dProblem) -> str | None:
    return c.choice.reason if c.choice.form not in MATRICES else _not_whole_groups(c, p)


def _matrices(c: Convolution, p: Conv2dProblem) -> str | None:
    form, facts = c.choice.form, c.device.capabilities
    numbers = p.n * p.groups * -(-p.ic // (p.groups * RUN)) * RUN * p.h * p.w
    least = (half_planes if half_planes.are_rows(p) else half).LEAST_MACS[form]
    return MATRICES[form] if worth(form, facts, p.gemm_m, p.oc // p.groups, p.macs, numbers, least) else None


def _matrix_kernel(c: Convolution, p: Conv2dProblem) -> Kernel:
    if c.choice.form == BRAIN:
        return PartsConvolution(c.gemm, c.weight)
    floats = c.weight.dtype.kind == "f"
    gemm = of_floats(c.device, c.weight, c.scheme.affine, c.groups) if floats else c.gemm
    return HalfConvolution(gemm, c.weight, c.zero_points, c.groups)


def _not_float16(c: Convolution, p: Conv2dProblem) -> str | None:
    """Return None if float16 arithmetic can compute the convolution, else the reason."""
    if c.choice.form != FLOAT16:
        return c.choice.reason
    reason = _not_whole_groups(c, p)
    fits = reason is None and _in_float16(c).fits()
    return reason if reason or fits else "it has few channels, or a weight too large for float16 arithmetic"


def _in_float16(c: Convolution) -> Float16Gemm:
    if c.weight.dtype.kind == "f":
        return Float16Gemm.of_floats(c.device, c.weight, c.scheme.affine, c.groups)
    return Float16Gemm(c.gemm, c.weight.shape[1])


def _not_float_pointwise(c: Convolution, p: Conv2dProblem) -> str | None:
    if (p.kh, p.kw) != (1, 1) or any(p.padding):
        return f"the kernel is {p.kh}x{p.kw}, padding {p.padding}; it needs 1x1 and no padding"
    return _not_float_implicit(c, p)


def _gathered(c: Convolution, p: Conv2dProblem) -> str | None:
    """Return the reason to compute the convolution by `FloatLanes` or `FloatImplicit` (see `_gathering`),
    or None."""
    if FloatLanes.fits(c.gemm, p):
        return "lanes of a subgroup share pixels"
    fits = FloatImplicit.fits(c.device.capabilities, p)
    return "large enough to gather tiles into shared memory" if fits else None


def _gathering(c: Convolution, p: Conv2dProblem) -> Kernel:
    return FloatLanes(c.gemm) if FloatLanes.fits(c.gemm, p) else FloatImplicit(c.gemm)


def _float_depthwise(c: Convolution, p: Conv2dProblem) -> Kernel:
    if FloatDepthwise.fits(c.device, p):
        return FloatDepthwise(c.device, c.weight, c.zero_points, c.scheme.affine)
    return FloatVectors(_float_direct(c, p), c.weight, c.zero_points)


def _float_direct(c: Convolution, p: Conv2dProblem) -> FloatDirect:
    return FloatDirect(c.device, c.weight, c.zero_points, c.scheme.affine, c.groups)


def _shared(c: Convolution, p: Conv2dProblem) -> bool:
    """Return True if the weight is float and the lanes of a subgroup can share pixels on this device."""
    return c.weight.dtype.kind == "f" and FloatShared.fits(c.device, p)


def _straight(c: Convolution, p: Conv2dProblem) -> Kernel:
    if _shared(c, p):
        return FloatShared(c.device, c.weight, c.scheme.affine, c.groups)
    return _float_direct(c, p)


FLOAT_METHODS = [
    Method(
        "matrix",
        _not_half_matrix,
        _matrices,
        _matrix_kernel,
        floats=True,
    ),
    Method(
        "implicit",
        _not_float16,
        lambda c, p: "in float16 arithmetic",
        lambda c, p: Float16Convolution(_in_float16(c)),
        floats=True,
    ),
    Method(
        "pointwise",
        _not_float_pointwise,
        lambda c, p: "a 1x1 convolution is a matrix product" if _gathered(c, p) else None,
        _gathering,
        floats=True,
    ),
    Method(
        "depthwise",
        not_depthwise,
        lambda c, p: "each output channel reads one input channel" if p.groups > 1 else None,
        _float_depthwise,
        floats=True,
    ),
    Method(
        "implicit",
        _not_float_implicit,
        _gathered,
        _gathering,
        floats=True,
    ),
    Method(
        "direct",
        lambda c, p: None,
        lambda c, p: "reads the image directly, in registers",
        _straight,
        packing=_shared,
        floats=True,
    ),
]
