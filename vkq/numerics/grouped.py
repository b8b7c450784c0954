"""Weights with a scale for each group of consecutive elements along K, in the format of ONNX Runtime's
MatMulNBits.

A code ``q`` of ``bits`` bits stands for the value ``(q - zero_point) * scale``, with the scale and zero point
of its group. The default zero point is the middle of the range, ``2**(bits - 1)``.
https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md#com.microsoft.MatMulNBits
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.arguments import RULES, Rule, checked
from vkq.errors import ArgumentError, DTypeError
from vkq.numerics.qparams import SMALLEST_SCALE
from vkq.numerics.stored import owned

BITS = (4, 8)
_ANY_OF_BITS = " or ".join(map(str, BITS))
GROUPS = (16, 32, 64, 128)  # allowed numbers of elements in a group
WHOLE = 32  # K must be a multiple of WHOLE: kernels read 16 bytes of 4-bit codes at once
SCALES = ("float16", "float32")


def largest_group(k: int) -> int:
    """Return the largest group size that divides K, or `WHOLE` if none does."""
    return max((group for group in GROUPS if k % group == 0), default=WHOLE)


class GroupedWeight:
    """A weight (N, K) in groups along K. Its arrays ``packed``, ``scale`` and ``zero_point`` are read-only.

    Args:
        packed: (N, groups, group * bits / 8), uint8: the codes along K, the first in the lowest bits.
        scale: (N, groups), or flat; float16 or float32, of any sign. Magnitudes below 2**-126 count as 0.
        zero_point: None for the default, or an array. A uint8 array, (N, ceil(groups * bits / 8)) or flat,
            has integers packed along K like the codes. An array of the scale's dtype, (N, groups) or flat,
            has any finite values.
        bits: 4 or 8.
        k: K, if the last group is not full; codes beyond K are ignored.

    Raises ArgumentError or DTypeError, with the sizes or values, for arguments that do not fit together.

    >>> w = GroupedWeight(np.full((2, 3, 16), 0x98, np.uint8), np.full((2, 3), 0.5, np.float16))
    >>> w.shape, w.group, w.dequantize()[0, :4]
    ((2, 96), 32, array([0. , 0.5, 0. , 0.5], dtype=float32))
    """

    @checked
    def __init__(
        self,
        packed: npt.ArrayLike,
        scale: npt.ArrayLike,
        zero_point: npt.ArrayLike | None = None,
        bits: int = 4,
        k: int | None = None,
    ):
        codes, scales = np.asarray(packed), np.asarray(scale)
        if bits not in BITS:
            raise ArgumentError(f"GroupedWeight: bits is {bits}; it must be {_ANY_OF_BITS}.")
        if codes.dtype != np.uint8 or scales.dtype.name not in SCALES:
            raise DTypeError(
                f"GroupedWeight: packed has dtype {codes.dtype} and scale {scales.dtype}; they must be uint8,"
                " and float16 or float32."
            )
        if codes.ndim != 3 or codes.shape[2] * 8 // bits not in GROUPS or codes.shape[2] * 8 % bits:
            sizes = " or ".join(str(group * bits // 8) for group in GROUPS)
            raise ArgumentError(
                f"GroupedWeight: packed has shape {codes.shape}; it must be (N, groups, {sizes}) for"
                f" {bits} bits in groups of {', '.join(map(str, GROUPS))}; quantize again with such a group."
            )
        self.bits, self.group = int(bits), codes.shape[2] * 8 // bits
        n, blocks = codes.shape[:2]
        self.shape = (n, blocks * self.group if k is None else int(k))
        if -(-self.shape[1] // self.group) != blocks or self.shape[1] < 0:
            raise ArgumentError(
                f"GroupedWeight: k is {k} and packed has {blocks} groups of {self.group} (shape"
                f" {codes.shape}); k must end in the last group, from"
                f" {max(blocks - 1, 0) * self.group + 1} to {blocks * self.group}."
            )
        self.packed = owned(np.ascontiguousarray(codes))
        self.scale = _sized(scales, (n, blocks), "scale")
        self.zero_point = None if zero_point is None else self._zero_points(np.asarray(zero_point))
        for name, values in (("scale", self.scale), ("zero_point", self.zero_point)):
            if values is not None and not np.isfinite(values).all():
                at = tuple(int(i) for i in np.argwhere(~np.isfinite(values))[0])
                raise ArgumentError(f"GroupedWeight: {name}{list(at)} is {values[at]}; it must be finite.")

    def _zero_points(self, given: npt.NDArray[Any]) -> npt.NDArray[Any]:
        n, blocks = self.scale.shape
        if given.dtype == np.uint8:
            return _sized(given, (n, -(-blocks * self.bits // 8)), "zero_point (packed)")
        if given.dtype != self.scale.dtype:
            raise DTypeError(
                f"GroupedWeight: zero_point has dtype {given.dtype}; it must be uint8 (packed) or that of"
                f" scale, {self.scale.dtype}."
            )
        return _sized(given, (n, blocks), "zero_point")

    def __reduce__(self) -> Any:
        """Pickle as arguments of the constructor, which makes the arrays read-only."""
        return GroupedWeight, (self.packed, self.scale, self.zero_point, self.bits, self.shape[1])

    @property
    def nbytes(self) -> int:
        """The number of bytes of codes, scales and zero points."""
        return sum(a.nbytes for a in (self.packed, self.scale, self.zero_point) if a is not None)

    def codes(self) -> npt.NDArray[np.uint8]:
        """Return the unpacked codes (N, K) as uint8."""
        n, blocks, size = self.packed.shape
        return unpacked(self.packed.reshape(n, blocks * size), self.bits)[:, : self.shape[1]]

    def filled(self) -> GroupedWeight:
        """Return the weight as kernels need it: all groups are full, and K is a multiple of `WHOLE`. The
        result is this weight, or a padded copy whose codes beyond K stand for 0. Kernels pad the rows of x
        beyond K with zeros."""
        k, blocks = self.shape[1], self.scale.shape[1]
        if k % self.group == 0 and k % WHOLE == 0:
            return self
        codes, points = self.packed.copy(), self.zero_points()
        last = unpacked(codes[:, -1], self.bits)
        last[:, k - (blocks - 1) * self.group :] = np.clip(np.rint(points[:, -1:]), 0, (1 << self.bits) - 1)
        codes[:, -1] = packed(last, self.bits)
        more = ((0, 0), (0, -blocks * self.group % WHOLE // self.group))
        scale = np.pad(self.scale, more)  # append groups with scale 0 until K is a multiple of WHOLE
        stored = None if self.zero_point is None else np.pad(points, more, "edge").astype(scale.dtype)
        return GroupedWeight(np.pad(codes, (*more, (0, 0))), scale, stored, self.bits)

    def scales(self) -> npt.NDArray[np.float32]:
        """Return the scales (N, groups) as float32. Subnormal scales, which a device may flush, become 0."""
        scale = self.scale.astype(np.float32)
        return np.where(np.abs(scale) < np.float32(SMALLEST_SCALE), np.float32(0), scale)

    def zero_points(self) -> npt.NDArray[np.float32]:
        """Return the zero points (N, groups) as float32."""
        n, blocks = self.scale.shape
        if self.zero_point is None:
            return np.full((n, blocks), 1 << self.bits - 1, np.float32)
        stored = self.zero_point
        if stored.dtype == np.uint8:
            stored = unpacked(stored, self.bits)[:, :blocks]
        return stored.astype(np.float32)

    def dequantize(self) -> npt.NDArray[np.float32]:
        """Return the weight (N, K) as float32: ``(q - zero_point) * scale``, each step rounded to float32."""
        points, scales = (self.along_k(each) for each in (self.zero_points(), self.scales()))
        return np.asarray((self.codes() - points) * scales)

    def along_k(self, of_groups: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return (N, K): the values of groups (N, groups), repeated for each element of their group."""
        return np.repeat(of_groups, self.group, 1)[:, : self.shape[1]]

    def __repr__(self) -> str:
        points = "" if self.zero_point is None else ", zero points"
        return f"GroupedWeight{self.shape}: {self.bits} bits, group {self.group}, {self.scale.dtype}{points}"


RULES |= {
    "npt.ArrayLike | GroupedWeight": Rule(
        lambda value: isinstance(value, GroupedWeight) or RULES["npt.ArrayLike"].check(value),
        "an array of numbers or a GroupedWeight (without group, quantize_weight returns the pair weight,"
        " w_scale: call Linear(*quantize_weight(w)))",
    ),
}


def quantize_groups(
    given: npt.NDArray[np.float32], bits: int, group: int, symmetric: bool, scale_dtype: str
) -> GroupedWeight:
    """Quantize finite values (N, K) in groups along K, as `vkq.quantize_weight` describes.

    >>> quantize_groups(np.linspace(-1, 1, 256, dtype=np.float32).reshape(2, 128), 4, 64, True, "float32")
    GroupedWeight(2, 128): 4 bits, group 64, float32
    """
    if bits not in BITS or group not in GROUPS or scale_dtype not in SCALES:
        raise ArgumentError(
            f"quantize_weight: bits={bits}, group={group}, scale_dtype={scale_dtype!r}; bits must be"
            f" {_ANY_OF_BITS}, group {', '.join(map(str, GROUPS))}, scale_dtype 'float16' or 'float32'."
        )
    if given.ndim != 2:
        raise ArgumentError(
            f"quantize_weight: weight has shape {given.shape}; in groups it must be (N, K): give each matrix"
            " by itself."
        )
    n, k = given.shape
    groups = np.pad(given, ((0, 0), (0, -k % group))).reshape(n, -(-k // group), group)
    dtype = np.dtype(scale_dtype)
    low, high = groups.min(-1, initial=0), groups.max(-1, initial=0)
    middle, most = 1 << bits - 1, (1 << bits) - 1
    with np.errstate(over="ignore"):
        if symmetric:
            exact = np.where(high > -low, high, low) / np.float32(-middle)
        else:
            exact = (high - low) / np.float32(most)
        stored = exact.astype(dtype)
    if bad := np.argwhere(~np.isfinite(stored)).tolist():
        row, at = bad[0]
        span = f"weight[{row}, {at * group}:{min((at + 1) * group, k)}] spans"
        span += f" {low[row, at]:g} to {high[row, at]:g}"
        remedy = "use scale_dtype='float32'" if np.isfinite(exact).all() else "make the weight smaller"
        raise ArgumentError(f"quantize_weight: {span}, a scale beyond {np.finfo(dtype).max:g}: {remedy}")
    scale = stored.astype(np.float32)
    stored = np.where(np.abs(scale) < np.float32(SMALLEST_SCALE), 1, stored).astype(dtype)
    scale = stored.astype(np.float32)
    zero = np.full(scale.shape, middle) if symmetric else np.clip(np.rint(-low / scale), 0, most)
    codes = np.clip(np.rint(groups / scale[..., None]) + zero[..., None], 0, most).astype(np.uint8)
    points = None if symmetric else packed(zero.astype(np.uint8), bits)
    return GroupedWeight(packed(codes, bits), stored, points, bits, k)


def packed(codes: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Pack 4-bit or 8-bit codes along the last axis into bytes, the first code in the lowest bits."""
    if bits == 8:
        return codes
    even = np.concatenate([codes, np.zeros((*codes.shape[:-1], codes.shape[-1] % 2), np.uint8)], -1)
    return np.asarray(even[..., ::2] | even[..., 1::2] << 4)


def unpacked(data: npt.NDArray[np.uint8], bits: int) -> npt.NDArray[np.uint8]:
    """Unpack codes of 2, 4 or 8 bits along the last axis. The result includes codes that only pad the last
    byte."""
    if bits == 8:
        return data
    codes = [data >> shift & (1 << bits) - 1 for shift in range(0, 8, bits)]
    return np.stack(codes, -1).reshape(*data.shape[:-1], len(codes) * data.shape[-1])


def _sized(values: npt.NDArray[Any], shape: tuple[int, int], what: str) -> npt.NDArray[Any]:
    if values.shape != shape and values.shape != (shape[0] * shape[1],):
        raise ArgumentError(
            f"GroupedWeight: {what} has shape {values.shape}; by packed it must be {shape}, or flat."
        )
    return owned(np.ascontiguousarray(values.reshape(shape)))
