"""The methods that compute convolutions: the problems that each supports, those for which ``method="auto"``
uses it, and its kernel.

To add a method, insert it into `METHODS`, which lists methods in order of preference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..device.profiles import profile
from ..device.tuner import is_asked, ranked
from ..errors import ArgumentError, MethodError
from ..layout.extent import BLOCKED, IMAGE
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import lets_loop
from ..select.path import COOPMAT
from ..shader.catalog import catalog
from .depthwise import Depthwise
from .direct import LAYOUTS, Direct, words_of
from .float_methods import FLOAT_METHODS
from .im2col import Im2col
from .implicit import Implicit
from .matrix_conv import MatrixConv, conv_cycles, conv_shader
from .matrix_implicit import MatrixImplicit, MatrixPatches, implicit_cycles
from .matrix_stem import CHANNELS, TAPS, MatrixStem, stem_shader
from .matrix_tiles import is_faster_as_given
from .matrix_units import MatrixGemm, whole_blocks
from .method import Convolution, Kernel, Method, not_depthwise
from .pointwise import MatrixPointwise, Pointwise


def _not_pointwise(c: Convolution, p: Conv2dProblem) -> str | None:
    if (p.kh, p.kw, p.stride) != (1, 1, (1, 1)) or any(p.padding):
        kernel = f"the kernel is {p.kh}x{p.kw}, stride {p.stride}, padding {p.padding}"
        return f"{kernel}; it needs 1x1, stride 1 and no padding"
    return None if p.groups == 1 else f"groups={p.groups}; it needs 1"


def _not_depthwise(c: Convolution, p: Conv2dProblem) -> str | None:
    return not_depthwise(c, p) or _too_long(c, DEPTHWISE, {"kh": p.kh, "kw": p.kw}, out="q8to")


def _too_long(c: Convolution, shader: str, sizes: Mapping[str, int], **axes: str) -> str | None:
    """Return the reason why the driver would abort the loops of a kernel for these *sizes*, or None."""
    rounds = catalog().find(shader, **axes).iterations(sizes)
    ends = lets_loop(c.device, rounds)
    return None if ends else f"an invocation would loop {rounds} times, and the driver ends loops earlier"


def _not_depthwise_beside_matrices(c: Convolution, p: Conv2dProblem) -> str | None:
    """Return None if a convolution is depthwise and on the matrix path, else the reason. On the matrix
    path, a depthwise convolution keeps the layout of its neighbours in a network."""
    return _not_depthwise(c, p) if c.choice.path == COOPMAT else f"its path is {c.choice.path}"


def _not_direct(c: Convolution, p: Conv2dProblem) -> str | None:
    if p.ic == 0:
        return "IC=0; it needs at least 1"
    sizes = {"kh": p.kh, "kw": p.kw, "span": words_of(p.oc, p.ic // p.groups, p.oc // p.groups)}
    return _too_long(c, DIRECT, sizes, dot="float", out="q8to")


def _direct_merit(c: Convolution, p: Conv2dProblem) -> str | None:
    if p.groups == 1:
        return None
    group_ic, group_oc = p.ic // p.groups, p.oc // p.groups
    if group_ic % 4 or group_oc % 4:
        return f"groups of {group_ic} to {group_oc} channels are not whole words of 4"
    few = group_ic <= DIRECT_GROUP_CHANNELS
    return f"IC/groups={group_ic} is at most {DIRECT_GROUP_CHANNELS}" if few else None


def _not_implicit(c: Convolution, p: Conv2dProblem) -> str | None:
    channels = c.gemm.k // max(p.kh * p.kw, 1)
    return (
        f"groups of {channels} input channels are not whole words of 4"
        if channels % 4 or not channels
        else None
    )


def _not_matrix(c: Convolution, p: Conv2dProblem) -> str | None:
    """Return the reason why kernels on matrix units cannot compute the convolution, or None."""
    if c.choice.path != COOPMAT:
        return f"its path is {c.choice.path}; it needs {COOPMAT}"
    if not p.ic or not p.oc:
        return f"IC={p.ic}, OC={p.oc}; it needs at least 1"
    if not (whole_blocks(p.ic, p.groups) and whole_blocks(p.oc, p.groups)):
        return f"groups of {p.ic // p.groups} to {p.oc // p.groups} channels are not whole blocks of 16"
    return None


def _not_matrix_pointwise(c: Convolution, p: Conv2dProblem) -> str | None:
    if (p.kh, p.kw) != (1, 1) or any(p.padding):
        return f"the kernel is {p.kh}x{p.kw}, padding {p.padding}; it needs 1x1 and no padding"
    return _not_matrix(c, p)


def _not_matrix_conv(c: Convolution, p: Conv2dProblem) -> str | None:
    if reason := _not_matrix(c, p):
        return reason
    fits = conv_shader(p, "q8to", c.device.capabilities) is not None
    return None if fits else "the input pixels of a tile do not fit into shared memory"


def _not_stem(c: Convolution, p: Conv2dProblem) -> str | None:
    if p.ic > CHANNELS or p.kw > TAPS or p.groups > 1 or p.dilation[1] > 1:
        sizes = f"IC={p.ic}, KW={p.kw}, groups={p.groups}, dilation={p.dilation[1]} along a row"
        return f"{sizes}; it needs one group of at most {CHANNELS} channels, {TAPS} adjacent taps a row"
    if reason := _not_matrix(c, p):
        return reason
    fits = stem_shader(p, "q8to", True, c.device.capabilities) is not None
    return None if fits else "the input pixels of a tile do not fit into shared memory"


def _matrix_implicit_merit(c: Convolution, p: Conv2dProblem) -> str | None:
    """Return the reason why gathering pixels is faster than loading tiles of pixels, or None. Gathering is
    often faster for strided convolutions, whose tiles read many input pixels, and for images smaller than a
    tile."""
    if p.ic <= CHANNELS or not MatrixGemm.worth(p.gemm_m):
        return None
    found = conv_shader(p, "q8to", c.device.capabilities)
    if found is None:
        return "matrix units; the input pixels of a tile do not fit into shared memory"
    known = profile(c.device.capabilities)
    faster = implicit_cycles(known, p) < conv_cycles(known, p, found[0], beside=True)
    return "matrix units, with pixels gathered for one tap at a time" if faster else None


def _matrix_pointwise(c: Convolution, p: Conv2dProblem) -> Kernel:
    shape = (p.oc, p.ic // p.groups)
    return MatrixPointwise(MatrixGemm(c.device, shape, lambda: c.weight.reshape(shape), c.scheme, p.groups))


def _direct(kind: type[Direct]) -> Callable[[Convolution, Conv2dProblem], Kernel]:
    return lambda c, p: kind(c.device, c.weight, c.zero_points, c.scheme, c.choice.form, c.groups)


# Maximum input channels of a group for which "auto" computes a grouped convolution directly. As a product,
# a small group would fill few columns of a tile, and the im2col matrix would be as large as without groups.
# Times on a CPU of 3x3 convolutions of 28x28 pixels, direct and by im2col:
# - 128 channels in 32 groups: 2.3 and 14 ms;
# - 96 channels in 4 groups: 6.0 and 7.4 ms;
# - 64 channels in one group: 9.7 and 4.6 ms.
DIRECT_GROUP_CHANNELS = 16
DEPTHWISE, DIRECT = "conv2d_q8ta_q8csw__depthwise", "conv2d_q8ta_q8csw__direct"
KIND = "method of a convolution"  # the name of this choice in the tuner's rankings (`vkq.device.tuner`)
METHODS = [
    Method(
        "pointwise",
        _not_matrix_pointwise,
        lambda c, p: "a 1x1 convolution is a matrix product" if MatrixGemm.worth(p.gemm_m) else None,
        _matrix_pointwise,
        BLOCKED,
    ),
    Method(
        "pointwise",
        _not_pointwise,
        lambda c, p: "a 1x1 convolution is a matrix product",
        lambda c, p: Pointwise(c.gemm),
    ),
    Method(
        "depthwise",
        _not_depthwise_beside_matrices,
        lambda c, p: "each output channel reads one input channel" if p.groups > 1 else None,
        _direct(Depthwise),
        BLOCKED,
        layouts=LAYOUTS,
    ),
    Method(
        "depthwise",
        _not_depthwise,
        lambda c, p: "each output channel reads one input channel" if p.groups > 1 else None,
        _direct(Depthwise),
        layouts=LAYOUTS,
    ),
    Method(
        "stem",
        _not_stem,
        lambda c, p: (
            "matrix units, with all taps of a kernel row in one step of k"
            if MatrixGemm.worth(p.gemm_m)
            else None
        ),
        lambda c, p: MatrixStem(c.device, c.weight, c.scheme),
        BLOCKED,
        x_layout=IMAGE,
        quantizes=True,
    ),
    Method(
        "implicit",
        lambda c, p: MatrixPatches.refusal(p) or _not_matrix(c, p),
        lambda c, p: "matrix units, with vectors of four pixels" if MatrixGemm.worth(p.gemm_m) else None,
        lambda c, p: MatrixPatches(c.device, c.weight, c.zero_points, c.scheme),
        BLOCKED,
        x_layout=IMAGE,
    ),
    Method(
        "implicit",
        _not_matrix,
        _matrix_implicit_merit,
        lambda c, p: MatrixImplicit(c.device, c.weight, c.zero_points, c.scheme, p.groups),
        BLOCKED,
    ),
    Method(
        "matrix",
        _not_matrix_conv,
        lambda c, p: "matrix units, with the input pixels of a tile in shared memory" if p.ic > 4 else None,
        lambda c, p: MatrixConv(c.device, p, lambda: c.weight, c.scheme),
        BLOCKED,
        lambda c, p: MatrixConv.packing(p, c.scheme, c.device.capabilities),
    ),
    Method("direct", _not_direct, _direct_merit, _direct(Direct), layouts=LAYOUTS),
    Method(
        "implicit",
        _not_implicit,
        lambda c, p: (
            "large enough to gather tiles into shared memory"
            if Implicit.fits(c.device.capabilities, p)
            else None
        ),
        lambda c, p: Implicit(c.gemm),
    ),
    Method(
        "im2col",
        lambda c, p: None,
        lambda c, p: "any convolution is a matrix product of its im2col matrix",
        lambda c, p: Im2col(c.gemm, c.weight.shape[2] * c.weight.shape[3]),
    ),
    *FLOAT_METHODS,
]


def names() -> tuple[str, ...]:
    """Return the allowed values of ``Conv2d(method=...)``."""
    return ("auto", *dict.fromkeys(method.name for method in METHODS))


def check_name(name: str) -> None:
    """Raise ArgumentError for an unknown method."""
    if name not in names():
        raise ArgumentError(f"conv2d: method is {name!r}; it must be one of {', '.join(names())}")


def method_for(
    c: Convolution, p: Conv2dProblem, name: str = "auto", given: str = ""
) -> tuple[Method, str]:  # fmt: skip
    """Return (method for a convolution and a problem, reason). For the *name* "auto", return the first
    method that can compute the problem and has a merit; else the method with this *name*. *given*: the
    layout of x if the convolution is a whole plan; "" in a network, which chooses x's layout.

    Raises ArgumentError for an unknown name, and MethodError with the reason if the requested method cannot
    compute the problem.
    """
    check_name(name)
    if name == "auto" and is_asked(KIND):
        return _picked(c, p, given)
    able: list[Method] = []
    reason: str | None = ""
    for method in METHODS:
        if name not in ("auto", method.name):
            continue
        if method.floats == c.integer:
            reason = reason or f"its activations are {'integers' if c.integer else 'float'}"
            continue
        reason = method.refusal(c, p)
        if reason is None:
            able.append(method)
            if merit := _merit(method, c, p, given):
                return method, merit if name == "auto" else "requested by name"
    if not able:
        raise MethodError(
            f"conv2d: method {name} cannot be used: {reason}; method='auto' chooses one that can"
        )
    return able[0], "requested by name"


def _merit(method: Method, c: Convolution, p: Conv2dProblem, given: str) -> str | None:
    """Return the reason for "auto" to use a method, or None. A 1x1 convolution of a small image in
    kPackedInt8_4W4C has no reason to use matrix units: dot products take less time than a repack and matrix
    units."""
    as_given = given == IMAGE and method.takes == BLOCKED and _not_pointwise(c, p) is None
    if as_given and is_faster_as_given(profile(c.device.capabilities), p.gemm_m, p.oc, p.ic):
        return None
    return method.merit(c, p)


def _picked(c: Convolution, p: Conv2dProblem, given: str) -> tuple[Method, str]:
    """Return the method that the tuner picked if it can compute the problem, else the first method that
    "auto" has a reason to use."""
    able = [one for one in METHODS if one.floats != c.integer and one.refusal(c, p) is None]
    merits = {one: _merit(one, c, p, given) for one in able}
    best_first = sorted(able, key=lambda one: not merits[one])
    method = ranked(KIND, best_first, lambda one: f"{one.name} of {one.takes}")[0]
    return method, merits[method] or "it was the fastest when it was tuned"
