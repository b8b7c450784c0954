"""What a way to compute a convolution is."""

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
from .weights import Int8, Int32, merge_groups, merged_groups


class Kernel(Protocol):
    """A convolution with its weights."""

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        """Adds the dispatches."""


class FloatKernel(Kernel, Protocol):
    """One of float activations."""

    def writes(self, x: Value) -> str:
        """The type of its results: float32, or float16 where x is."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """What kernels of a convolution are made of: the weight (OC, IC/groups, KH, KW) and zero points (OC,) as
    int8, a scheme of `vkq.schemes`, and the path."""

    device: Device
    weight: Int8
    zero_points: Int32
    scheme: Any
    choice: Choice
    groups: int

    @property
    def integer(self) -> bool:
        """Whether the activations are integers."""
        return bool(self.scheme.integer)

    @cached_property
    def gemm(self) -> Any:
        """The product of an im2col matrix with the weight; the methods that take its weights share it."""
        oc, ic, kh, kw = self.weight.shape
        super_groups, merged = merged_groups(oc, self.groups)
        shape = (super_groups, merged * (oc // self.groups), kh * kw * merged * ic)
        zeros = np.zeros(shape[:2], np.int32)
        zeros.reshape(-1)[:oc] = self.zero_points
        # Without self, which keeps the product: weights are freed with the last reference, in no collection.
        merge = functools.partial(merge_groups, self.weight, self.groups, self.zero_points)
        made: Int8Gemm | FloatGemm = self.scheme.product(
            self.device, shape, merge, zeros, self.choice.form, oc
        )
        return made


Verdict = Callable[[Convolution, Conv2dProblem], "str | None"]


@dataclasses.dataclass(frozen=True)
class Method:
    """One way to compute a convolution.

    refusal: why it cannot take a convolution and its problem; None where it can. merit: why "auto" should
    take it where it can; None where it should not. make: its kernel. layout: that of the int8 images that the
    kernel takes and gives; x_layout: of those that it takes, where that is another; layouts: others that it
    takes, and gives then. packing: what of a problem the kernel's weights depend on; a kernel is made for
    each. floats: whether it is one of float activations, not of integers. quantizes: whether it quantizes
    float32 images itself.
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
        """The layout of the int8 images that the kernel takes if nothing is known of them."""
        return self.x_layout or self.layout

    def layout_of(self, x: Spec) -> str:
        """The layout of the result of this input, and but for `x_layout` the one in which it is taken."""
        return x.layout if x.layout in self.layouts else self.layout


def not_depthwise(c: Convolution, p: Conv2dProblem) -> str | None:
    """Why a convolution is not depthwise; None where it is."""
    return None if p.ic == p.groups else f"IC/groups={p.ic // p.groups}; it needs 1"
