"""The interface of the methods that compute convolutions."""

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
    """A convolution kernel with its weights."""

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        """Add the convolution to a plan."""


class FloatKernel(Kernel, Protocol):
    """A convolution kernel for float activations."""

    def writes(self, x: Value) -> str:
        """Return the dtype of the results for this x: float32 or float16."""


@dataclasses.dataclass(frozen=True)
class Convolution:
    """The inputs of every method: the weight (OC, IC/groups, KH, KW), which is float, or int8 with zero
    points (OC,) in int8's range; a scheme of `vkq.schemes`; and the chosen path (*choice*)."""

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
        """The product of the im2col matrix with the weight. All methods with this product share its
        weights."""
        oc, ic, kh, kw = self.weight.shape
        super_groups, merged = merged_groups(oc, self.groups)
        shape = (super_groups, merged * (oc // self.groups), kh * kw * merged * ic)
        zeros = np.zeros(shape[:2], np.int32)
        zeros.reshape(-1)[:oc] = self.zero_points
        # The function must not refer to self: this reference cycle would keep the weights until the garbage
        # collector runs.
        merge = functools.partial(merge_groups, self.weight, self.groups, self.zero_points)
        weight = GemmWeight(shape, merge, zeros, oc)
        made: Int8Gemm | FloatGemm = self.scheme.product(self.device, weight, self.choice.form)
        return made


Verdict = Callable[[Convolution, Conv2dProblem], "str | None"]


@dataclasses.dataclass(frozen=True)
class Method:
    """A method that computes convolutions.

    ``packing`` returns the values of a problem that determine the packed weights. Problems with equal
    values share a kernel.
    """

    name: str
    refusal: Verdict  # why the method cannot compute a convolution and its problem, or None
    merit: Verdict  # why "auto" uses the method if it can compute the problem, or None
    make: Callable[[Convolution, Conv2dProblem], Kernel]  # returns the kernel
    layout: str = IMAGE  # of the int8 images that the kernel reads and writes
    packing: Callable[[Convolution, Conv2dProblem], Hashable] = lambda c, p: None
    floats: bool = False  # activations are floats, not integers
    layouts: tuple[str, ...] = ()  # that the kernel reads and writes, if several; y has the layout of x
    x_layout: str = ""  # the layout of the kernel's input, if it differs from layout
    quantizes: bool = False  # the kernel quantizes float32 images

    @property
    def takes(self) -> str:
        """The preferred layout of the kernel's int8 input images."""
        return self.x_layout or self.layout

    def layout_of(self, x: Spec) -> str:
        """Return the layout of the result for an input of spec *x*: the layout of x if the kernel reads and
        writes that layout, else `layout`."""
        return x.layout if x.layout in self.layouts else self.layout


def not_depthwise(c: Convolution, p: Conv2dProblem) -> str | None:
    """Return None if a convolution is depthwise, else the reason why it is not."""
    return None if p.ic == p.groups else f"IC/groups={p.ic // p.groups}; it needs 1"
