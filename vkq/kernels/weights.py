"""Weights as integer kernels read them, and what a kernel needs to know of a scheme."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from .after import After

Int8 = npt.NDArray[np.int8]
Int32 = npt.NDArray[np.int32]

WEIGHT_LAYOUT = "kPackedInt8_4N4K"  # as every kernel of a dot form reads them
PARAMETER_BYTES = 64  # of a block of four channels: `Arithmetic.channel_parameters`


class Arithmetic(Protocol):
    """What an integer kernel needs to know of a scheme (`vkq.schemes`): its shaders, and how sums become
    results."""

    @property
    def family(self) -> str:
        """Of the shaders, as their names say it: ``q8ta_q8csw``."""

    @property
    def axes(self) -> Mapping[str, str]:
        """The axes of a shader's variants that the scheme decides: ``{"out": "q8to"}``."""

    @property
    def out(self) -> str:
        """``q8to`` (8-bit results) or ``f32``."""

    @property
    def x_scale(self) -> float:
        """Of the activations; 0 where each row has its own."""

    @property
    def x_zero_point(self) -> int:
        """Of the activations as they are stored (int8); 0 where each row has its own."""

    @property
    def w_zero_point(self) -> Int32:
        """Of each output channel's weights as they are stored (int8)."""

    @property
    def largest_bias(self) -> int:
        """No int32 bias is farther from 0."""

    @property
    def after(self) -> After:
        """What is done to 8-bit results before they are stored."""

    @property
    def epilogue(self) -> Mapping[str, int | float]:
        """The push constants of the end of a kernel."""

    def channel_parameters(self, blocked: Int8, form: str, zero_point: Int32) -> Int32:
        """What the end of a kernel reads for each block of four channels, for weights (G, N, K) in blocks of
        four: [block][4 numbers][4 channels]. *zero_point* is (G, N) as int8."""


def ceil4(n: int) -> int:
    """ceil(n / 4)"""
    return -(-n // 4)


def block_weights(weight: Int8, zero_point: Int32) -> Int8:
    """(G, N, K) with N and K rounded up to blocks of four.

    Padding along K holds the channel's zero point: it then counts as zero, whatever x holds there. Padding
    channels are zero.
    """
    groups, n, k = weight.shape
    if n % 4 == 0 and k % 4 == 0:
        return weight
    out = np.zeros((groups, 4 * ceil4(n), 4 * ceil4(k)), np.int8)
    out[:, :n, :] = zero_point.reshape(groups, n, 1).astype(np.int8)
    out[:, :n, :k] = weight
    return out


def zeros_behind(values: npt.NDArray[Any], *counts: int) -> npt.NDArray[Any]:
    """The array with so many zeros behind the last of each of its last axes; itself where there are none
    (np.pad copies all the same, and takes as long as packing)."""
    if not any(counts):
        return values
    before = ((0, 0),) * (values.ndim - len(counts))
    return np.pad(values, (*before, *((0, count) for count in counts)))


def by_group(values: npt.NDArray[Any], groups: int, n: int) -> npt.NDArray[Any]:
    """(channels,) as (G, N); the last group may have fewer channels of its own."""
    out = np.zeros(groups * n, values.dtype)
    out[: values.size] = values
    return out.reshape(groups, n)


def merge_groups(weight: Int8, groups: int, zero_points: Int32) -> Int8:
    """(OC, IC/groups, KH, KW) as (G merged groups, N, K) with k = (kh, kw, ic), each with a multiple of four
    output channels.

    A store writes whole words of four channels, so a group must own whole words. Within a merged group the
    weight is block-diagonal, with each channel's zero point elsewhere, which counts as zero; that costs at
    most a factor of four (depthwise). The last merged group may be short of groups: theirs are zeros, and not
    stored.
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
    """(how many merged groups, groups in each), see `merge_groups`."""
    n = oc // groups
    merged = min(groups, 4 // np.gcd(4, n)) if groups > 1 and n else 1
    return -(-groups // int(merged)), int(merged)
