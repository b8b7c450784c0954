"""Functions that pack weights for integer kernels, and the interface between schemes and kernels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .after import After

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]

WEIGHT_LAYOUT = "kPackedInt8_4N4K"  # the layout of weights for all kernels of dot forms
PARAMETER_BYTES = 64  # bytes of `Arithmetic.channel_parameters` for a block of four channels


@dataclasses.dataclass(frozen=True)
class GemmWeight:
    """The weight of a matrix product."""

    shape: tuple[int, int, int]
    make: Callable[[], Int8]  # returns the int8 weight (G, N, K) of this shape, when a kernel needs it
    zero_point: Int32  # (G, N), in int8's range
    channels: int  # number of output channels without padding


class Arithmetic(Protocol):
    """The part of a scheme (`vkq.schemes`) that integer kernels use: the names of the scheme's shaders, and
    the conversion of sums to results."""

    @property
    def family(self) -> str:
        """The family in the names of the scheme's shaders, such as ``q8ta_q8csw``."""

    @property
    def axes(self) -> Mapping[str, str]:
        """The axes of shader variants that the scheme determines, such as ``{"out": "q8to"}``."""

    @property
    def out(self) -> str:
        """The type of the results: ``q8to`` (8-bit) or ``f32``."""

    @property
    def x_scale(self) -> float:
        """The scale of the activations; 0 if each row has its own scale."""

    @property
    def x_zero_point(self) -> int:
        """The stored zero point of the activations (int8); 0 if each row has its own zero point."""

    @property
    def w_zero_point(self) -> Int32:
        """The stored zero point of each output channel's weights (int8)."""

    @property
    def largest_bias(self) -> int:
        """A bound of the magnitude of every int32 bias."""

    @property
    def after(self) -> After:
        """The epilogue of 8-bit results."""

    @property
    def epilogue(self) -> Mapping[str, int | float]:
        """The push constants of a kernel's epilogue."""

    def channel_parameters(self, blocked: Int8, form: str, zero_point: Int32) -> Int32:
        """Return the parameters of the epilogue for weights (G, N, K), as int32 [block of four channels][4
        parameters][4 channels]. *zero_point* is (G, N), in int8's range."""


def ceil4(n: int) -> int:
    """Return ceil(n / 4)."""
    return -(-n // 4)


def block_weights(weight: Int8, zero_point: Int32) -> Int8:
    """Return a weight (G, N, K) with N and K rounded up to multiples of four.

    Padding along K is the channel's zero point, so its products are zero for every x. Padding channels are
    zeros.
    """
    groups, n, k = weight.shape
    if n % 4 == 0 and k % 4 == 0:
        return weight
    out = np.zeros((groups, 4 * ceil4(n), 4 * ceil4(k)), np.int8)
    out[:, :n, :] = zero_point.reshape(groups, n, 1).astype(np.int8)
    out[:, :n, :k] = weight
    return out


def zeros_behind(values: npt.NDArray[Any], *counts: int) -> npt.NDArray[Any]:
    """Pad the last axes of an array with *counts* zeros at the end. Return the array itself if all counts
    are 0: np.pad would copy it, which takes as long as packing."""
    if not any(counts):
        return values
    before = ((0, 0),) * (values.ndim - len(counts))
    return np.pad(values, (*before, *((0, count) for count in counts)))


def by_group(values: npt.NDArray[Any], groups: int, n: int) -> npt.NDArray[Any]:
    """Return values (channels,) as (G, N), padded with zeros if the last group has fewer channels."""
    out = np.zeros(groups * n, values.dtype)
    out[: values.size] = values
    return out.reshape(groups, n)


def merge_groups(weight: Int8, groups: int, zero_points: Int32) -> Int8:
    """Return a weight (OC, IC/groups, KH, KW) as (merged groups, N, K) with k = (kh, kw, ic). Each merged
    group has a multiple of four output channels.

    A kernel stores words of four channels, so a merged group must have whole words. Its weight is
    block-diagonal. Outside of the blocks, it is the channel's zero point, so that products there are zero.
    The weight grows by at most a factor of four (for depthwise convolutions). The last merged group may
    have fewer groups: its missing weights are zeros, and their results are not stored.
    """
    oc, ic, kh, kw = weight.shape
    n = oc // groups
    super_groups, merged = merged_groups(oc, groups)
    out = np.zeros((super_groups * merged, n, kh, kw, merged, ic), np.int8)
    out[:groups] = zero_points.astype(np.int8).reshape(groups, n, 1, 1, 1, 1)
    slot = np.arange(groups) % merged
    out[np.arange(groups), :, :, :, slot, :] = weight.reshape(groups, n, ic, kh, kw).transpose(0, 1, 3, 4, 2)
    return out.reshape(super_groups, merged * n, kh * kw * merged * ic)


def merged_groups(oc: int, groups: int) -> tuple[int, int]:
    """Return (number of merged groups, number of groups in each); see `merge_groups`."""
    n = oc // groups
    merged = min(groups, 4 // np.gcd(4, n)) if groups > 1 and n else 1
    return -(-groups // int(merged)), int(merged)
