"""The interface of a method of computing a convolution."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Hashable
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from ..layout.extent import IMAGE, Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..select.path import Choice
from .floats import FloatGemm
from .gemm import Int8Gemm
from .weights import GemmWeight, Int8, Int32, merge_groups, merged_groups


class Kernel(Protocol):
    """A convolution with its weights."""

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        """Add the dispatches."""


class FloatKernel(Kernel, Protocol):
    """A kernel of float activations."""

    def writes(self, x: Value) -> str:
        """Return the type of the results: float32, or float16 if x is."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The inputs from which a convolution's kernel is made: the weight (OC, IC/groups, KH, KW) and zero
    points (OC,) as int8, a scheme of `vkq.schemes`, and the path."""

    device: Device
    weight: Int8
    zero_points: Int32
    scheme: Any
    choice: Choice
    groups: int

    @property
    def integer(self) -> bool:
        """True if the activations are integers."""
        return bool(self.scheme.integer)

    @cached_property
    def gemm(self) -> Any:
        """The product of an im2col matrix with the weight, shared by the methods that use its weights."""
        oc, ic, kh, kw = self.weight.shape
        super_groups, merged = merged_groups(oc, self.groups)
        shape = (super_groups, merged * (oc // self.groups), kh * kw * merged * ic)
        zeros = np.zeros(shape[:2], np.int32)
        zeros.reshape(-1)[:oc] = self.zero_points
        # This function is not a closure over self, because self holds the product. So the weights are freed
        # with the last reference, without the garbage collector.
        merge = functools.partial(merge_groups, self.weight, self.groups, self.zero_points)
        weight = GemmWeight(shape, merge, zeros, oc)
        made: Int8Gemm | FloatGemm = self.scheme.product(self.device, weight, self.choice.form)
        return made


Verdict = Callable[[Convolution, Conv2dProblem], "str | None"]


@dataclasses.dataclass(frozen=True)
class Method:
    """A method of computing a convolution.

    refusal: why it cannot compute a convolution and its problem; None if it can. merit: why "auto" should use
    it if it can; None if it should not. make: makes its kernel. layout: of the int8 images that the kernel
    reads and writes; x_layout: of those that it reads, if different; layouts: others that it reads, and then
    writes. packing: the part of a problem that the packed weights depend on; a kernel is made for each.
    floats: whether activations are floats, not integers. quantizes: whether it quantizes float32 images
    itself.
    """

    name: str
    refusal: Verdict
    merit: Verdict
    make: Callable[[Convolution, Conv2dProblem], Kernel]
    layout: str = IMAGE
    packing: Callable[[Convolution, Conv2dProblem], Hashable] = lambda c, p: None
    floats: bool = False
    layouts: tuple[str, ...] = ()
    x_layout: str = ""
    quantizes: bool = False

    @property
    def takes(self) -> str:
        """The layout of the int8 images that the kernel reads if theirs is not known."""
        return self.x_layout or self.layout

    def layout_of(self, x: Spec) -> str:
        """Return the layout of the result for this input; without `x_layout`, the input is read in it,
        too."""
        return x.layout if x.layout in self.layouts else self.layout


def not_depthwise(c: Convolution, p: Conv2dProblem) -> str | None:
    """Return why a convolution is not depthwise, or None if it is."""
    return None if p.ic == p.groups else f"IC/groups={p.ic // p.groups}; it needs 1"
