"""The ways to compute a convolution, as data: what each can take, when ``method="auto"`` takes it, and what
makes its kernel.

A method is added by putting it into `METHODS`, in order of preference.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Protocol

from ..errors import ArgumentError
from ..problem.conv2d import Conv2dProblem
from ..runtime.buffer import Buffer
from ..runtime.recording import Recording
from ..runtime.tensor import BLOCKED, IMAGE
from .direct import Depthwise, Direct
from .im2col import Im2col, MatrixPointwise, Pointwise
from .implicit import CoopmatConv, Implicit
from .matrix_units import CoopmatGemm

if TYPE_CHECKING:
    from ..ops.conv2d import Conv2d

# A grouped convolution with up to so many input channels in a group fills few columns of a matrix kernel's
# tile, and its im2col matrix is as large as that of a full convolution. (lavapipe, 128 channels 28x28 3x3 in
# 32 groups: direct 2.3 ms, im2col 14 ms; 96 channels in 4 groups: 6.0 and 7.4 ms; ungrouped im2col is the
# faster: 64 channels 4.6 and 9.7 ms.)
DIRECT_GROUP_CHANNELS = 16


class Kernel(Protocol):
    """A convolution with its weights on the device."""

    def record(self, recording: Recording, p: Conv2dProblem, x: Buffer, y: Buffer) -> None:
        """Records the dispatches."""

    def describe(self, p: Conv2dProblem) -> tuple[tuple[str, ...], int]:
        """The shader variants in order of dispatch, and the bytes of scratch memory."""


Verdict = Callable[["Conv2d", Conv2dProblem], "str | None"]


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to compute a convolution.

    refusal: why it cannot take a layer and its problem; None where it can. merit: why "auto" should take it
    where it can; None where it should not. make: its kernel. All see the layer, so that they can ask for its
    device, path and scheme.
    layout: that of the int8 images that the kernel takes and gives. packing: what of a problem the kernel's
    weights depend on; a kernel is made for each.
    """

    name: str
    refusal: Verdict
    merit: Verdict
    make: Callable[[Conv2d, Conv2dProblem], Kernel]
    layout: str = IMAGE
    packing: Callable[[Conv2d, Conv2dProblem], Hashable] = lambda layer, p: None


def _not_pointwise(layer: Conv2d, p: Conv2dProblem) -> str | None:
    if layer.scales is None:
        return "its activations are float"
    if (p.kh, p.kw, p.stride) != (1, 1, (1, 1)) or any(p.padding):
        return (
            f"the kernel is {p.kh}x{p.kw}, stride {p.stride}, padding {p.padding}; it needs 1x1, stride 1 and"
            " no padding"
        )
    return None if p.groups == 1 else f"groups={p.groups}; it needs 1"


def _not_depthwise(layer: Conv2d, p: Conv2dProblem) -> str | None:
    if layer.scales is None:
        return "its activations are float"
    return None if p.ic == p.groups else f"IC/groups={p.ic // p.groups}; it needs 1"


def _not_direct(layer: Conv2d, p: Conv2dProblem) -> str | None:
    if layer.scales is None:
        return "its activations are float"
    return "IC=0; it needs at least 1" if p.ic == 0 else None


def _direct_merit(layer: Conv2d, p: Conv2dProblem) -> str | None:
    if p.groups == 1:
        return None
    group_ic, group_oc = p.ic // p.groups, p.oc // p.groups
    if group_ic % 4 or group_oc % 4:
        return f"groups of {group_ic} to {group_oc} channels are not whole words of 4"
    return (
        f"IC/groups={group_ic} is at most {DIRECT_GROUP_CHANNELS}"
        if group_ic <= DIRECT_GROUP_CHANNELS
        else None
    )


METHODS = [
    Method(
        "pointwise",
        MatrixPointwise.refusal,
        lambda layer, p: "a 1x1 convolution is a matrix product" if CoopmatGemm.worth(p.gemm_m) else None,
        MatrixPointwise,
        BLOCKED,
    ),
    Method(
        "pointwise",
        _not_pointwise,
        lambda layer, p: "a 1x1 convolution is a matrix product",
        lambda layer, p: Pointwise(layer.int8_gemm),
    ),
    Method(
        "depthwise",
        _not_depthwise,
        lambda layer, p: "each output channel sees one input channel" if p.groups > 1 else None,
        lambda layer, p: Depthwise(*layer.operands),
    ),
    Method(
        "matrix",
        CoopmatConv.refusal,
        lambda layer, p: (
            "matrix units, with the input pixels of a tile in shared memory" if p.ic > 4 else None
        ),
        CoopmatConv,
        BLOCKED,
        CoopmatConv.packing,
    ),
    Method("direct", _not_direct, _direct_merit, lambda layer, p: Direct(*layer.operands)),
    Method(
        "implicit",
        Implicit.refusal,
        lambda layer, p: (
            "large enough to gather tiles into shared memory" if Implicit.fits(layer.device, p) else None
        ),
        lambda layer, p: Implicit(layer.int8_gemm),
    ),
    Method(
        "im2col",
        lambda layer, p: None,
        lambda layer, p: "any convolution is a matrix product of its im2col matrix",
        lambda layer, p: Im2col(layer.gemm, layer.weight_shape[2] * layer.weight_shape[3]),
    ),
]


def names() -> tuple[str, ...]:
    """What ``Conv2d(method=...)`` takes."""
    return ("auto", *dict.fromkeys(method.name for method in METHODS))


def choose(layer: Conv2d, p: Conv2dProblem, name: str = "auto") -> tuple[Method, str]:
    """The method for a layer and a problem, and why: the first that can take it and should, or the one asked
    for.

    Raises ArgumentError for an unknown name, and where the method asked for cannot take the problem, with the
    reason.
    """
    if name not in names():
        raise ArgumentError(f"conv2d: method is {name!r}; it must be one of {', '.join(names())}")
    able: list[Method] = []
    reason: str | None = ""
    for method in METHODS:
        if name not in ("auto", method.name):
            continue
        reason = method.refusal(layer, p)
        if reason is None:
            able.append(method)
            if merit := method.merit(layer, p):
                return method, merit if name == "auto" else "asked for by name"
    if not able:
        raise ArgumentError(
            f"conv2d: method {name} cannot be taken: {reason}; method='auto' chooses one that can"
        )
    return able[0], "asked for by name"
