"""The int8 and weight-only matrix products that linear layers and convolutions share: packed weights, and
their dispatches."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..layout.pack import layout
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation, activation_bounds, activation_range, multipliers
from ..numerics.stored import signed_zero_point
from ..probe import selftest
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.program import Program
from ..runtime.recording import Recording
from ..select import tune
from ..shader.catalog import catalog
from ..shader.spec import Value, Variant
from . import gemv

WEIGHT_LAYOUT = "kPackedInt8_4N4K"  # as every kernel of a dot form reads them
FLOAT_WORDS = 256  # of k that float lanes sum exactly: WORDS_PER_FLUSH of shaders/common/dot4x8.glslh
INVOCATIONS = 64  # of a workgroup: every device has them, and most schedule them well
Int8 = npt.NDArray[np.int8]


@dataclasses.dataclass(frozen=True)
class Rows:
    """Where the rows of a product lie in its result: ``lines`` lines of ``ow`` pixels, ``oh`` of them an
    image.

    A row of the matrix is one pixel, and every line is ``ow_padded`` rows long. A linear layer has lines of
    one pixel.
    """

    lines: int
    oh: int = 1
    ow: int = 1
    ow_padded: int = 1

    @property
    def count(self) -> int:
        return self.lines * self.ow_padded

    @property
    def blocks(self) -> int:
        return ceil4(self.count)


@dataclasses.dataclass(frozen=True)
class Scales:
    """The numbers of an int8 layer: weight scales and zero points by channel, bias, and the parameters of x
    and y."""

    x: QParams | None  # None: found by rows at run time
    w_scale: npt.NDArray[np.float32]
    w_zero_point: npt.NDArray[np.int32]
    bias: npt.NDArray[Any] | None  # int32, or float32 where the output is
    y: QParams | None
    activation: Activation


def ceil4(n: int) -> int:
    """ceil(n / 4)"""
    return -(-n // 4)


def block_weights(weight: Int8, zero_point: npt.NDArray[np.int32]) -> Int8:
    """(G, N, K) with N and K rounded up to blocks of four.

    Padding along K holds the channel's zero point: it then counts as zero, whatever x holds there. Padding
    channels are zero.
    """
    groups, n, k = weight.shape
    out = np.zeros((groups, 4 * ceil4(n), 4 * ceil4(k)), np.int8)
    out[:, :n, :] = zero_point.reshape(groups, n, 1).astype(np.int8)
    out[:, :n, :k] = weight
    return out


def channel_parameters(
    blocked: Int8, scales: Scales, form: str, zero_point: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """What the epilogue needs for each block of four channels: [block][offset, weight zero point, multiplier,
    bias][4].

    With x' = x + a and w' = w + b as the dot form takes them (a, b = 0 or 128) and all zero points moved
    alike,
        sum (x - xz)(w - wz) = sum x'w' - wz' sum x' + (K xz' wz' - xz' sum w')
    and the offset is the bracket plus the int32 bias, modulo 2^32: only the final accumulator must fit.
    *zero_point* is (G, N) as int8.
    """
    if scales.x is None:
        return row_channel_parameters(blocked, scales, form, zero_point)
    groups, n_padded, k_padded = blocked.shape
    n = zero_point.shape[1]
    shift_x, shift_w = (128 if form in ("u8s8", "u8u8") else 0), (128 if form == "u8u8" else 0)
    x_zero = signed_zero_point(scales.x) + shift_x
    w_zero = np.zeros((groups, n_padded), np.int64)
    w_zero[:, :n] = zero_point
    w_zero += shift_w
    w_sums = blocked.astype(np.int64).sum(axis=2) + shift_w * k_padded
    offset = k_padded * x_zero * w_zero - x_zero * w_sums
    scale = multipliers(scales.x.scale, scales.w_scale, scales.y.scale if scales.y else None)
    if scales.y is not None:
        # A subnormal multiplier gives zero for every accumulator, and a device may flush it or not.
        scale = np.where(scale < np.finfo(np.float32).tiny, np.float32(0), scale)
    out = np.zeros((groups, n_padded, 4), np.int32)
    bias = scales.bias
    if bias is not None and bias.dtype == np.int32:
        offset[:, :n] += _by_group(bias, groups, n).astype(np.int64)
    elif bias is not None:
        out[:, :n, 3] = _by_group(bias, groups, n).view(np.int32)
    out[:, :, 0] = offset.astype(np.uint64).astype(np.uint32).view(np.int32)
    out[:, :, 1] = w_zero
    out[:, :n, 2] = _by_group(scale.astype(np.float32), groups, n).view(np.int32)
    return np.ascontiguousarray(out.reshape(-1, 4, 4).transpose(0, 2, 1))


def row_channel_parameters(
    blocked: Int8, scales: Scales, form: str, zero_point: npt.NDArray[np.int32]
) -> npt.NDArray[np.int32]:
    """`channel_parameters` for activations quantized by rows: [block][step, weight zero point, weight scale,
    bias][4].

    The step is what one unit of a row's zero point adds to an accumulator: K wz' - sum w'.
    """
    groups, n_padded, k_padded = blocked.shape
    n = zero_point.shape[1]
    shift_w = 128 if form == "u8u8" else 0
    out = np.zeros((groups, n_padded, 4), np.int64)
    out[:, :n, 1] = zero_point
    out[:, :, 1] += shift_w
    out[:, :, 0] = k_padded * out[:, :, 1] - blocked.astype(np.int64).sum(axis=2) - shift_w * k_padded
    out[:, :n, 2] = _by_group(scales.w_scale, groups, n).view(np.int32)
    if scales.bias is not None:
        out[:, :n, 3] = _by_group(scales.bias, groups, n).view(np.int32)
    return np.ascontiguousarray(out.astype(np.int32).reshape(-1, 4, 4).transpose(0, 2, 1))


def epilogue_push(scales: Scales) -> dict[str, int | float]:
    """The push constants of an epilogue: y's zero point and the bounds of the activation, for both kinds of
    result."""
    low, high = activation_range(scales.activation)
    if scales.y is None:
        return {"y_zero_point": 0, "y_min": 0, "y_max": 0, "y_low": low, "y_high": high}
    q_low, q_high = activation_bounds(scales.activation, scales.y)
    zero_point = signed_zero_point(scales.y)
    moved = scales.y.zero_point - zero_point
    return {
        "y_zero_point": zero_point,
        "y_min": q_low - moved,
        "y_max": q_high - moved,
        "y_low": low,
        "y_high": high,
    }


def _by_group(values: npt.NDArray[Any], groups: int, n: int) -> npt.NDArray[Any]:
    """(channels,) as (G, N); the last group may have fewer channels of its own."""
    out = np.zeros(groups * n, values.dtype)
    out[: values.size] = values
    return out.reshape(groups, n)


class Int8Gemm:
    """Weights on a device for one dot form, and the dispatches of a product with them.

    *weight* is (G, N, K) int8 after `signed`, *zero_point* (G, N) alike; *channels* is the number of real
    output channels.
    """

    def __init__(
        self,
        device: Device,
        weight: Int8,
        zero_point: npt.NDArray[np.int32],
        scales: Scales,
        form: str,
        channels: int,
    ):
        self.device = device
        self.form = form
        self.scales = scales
        self.channels = channels
        self.groups, self.n, self.k = weight.shape
        self.n4, self.k4 = ceil4(self.n), ceil4(self.k)
        self.row_sums = bool(zero_point.any())
        self.kernel = "auto"  # or "gemv", "tiled", "staged"
        blocked = block_weights(weight, zero_point)
        self.weights = upload(device, layout(WEIGHT_LAYOUT).pack(blocked))
        self.parameters = upload(device, channel_parameters(blocked, scales, form, zero_point))

    @property
    def out(self) -> str:
        """The variant's output: ``q8to`` or ``f32``."""
        return "f32" if self.scales.y is None else "q8to"

    def variant(self, kernel: str, **axes: str) -> Variant:
        """The variant of a kernel (``gemm_{}__tiled``) for the scheme, dot form and output of this
        product."""
        if self.scales.x is None:
            return catalog().find(kernel.format("dq8ca_q8csw"), dot=self.form, **axes)
        return catalog().find(kernel.format("q8ta_q8csw"), dot=self.form, out=self.out, **axes)

    def program(self, m4: int) -> Program:
        """The pipeline for a product with so many row blocks: tiles in shared memory, or in registers
        alone."""
        staged = self.staged_tile(m4)
        if staged:
            return self.device.program(self.variant("gemm_{}__staged", tile=staged), self.constants())
        setting = tune.choose(self.device, tune.Shape(self.form, self.out, m4, self.n4, self.k4, self.groups))
        variant = self.variant("gemm_{}__tiled", tile=setting.tile)
        return self.device.program(variant, {**setting.local, **self.constants()})

    def staged_tile(self, m4: int) -> str | None:
        """The tile through shared memory for so many row blocks, or None where the plain kernel is to do
        it."""
        if self.scales.x is None or self.kernel not in ("auto", "staged") or tune.is_forced():
            return None
        return staged_tile(self.device.capabilities, m4, self.n4) or (
            SMALLEST_STAGED if self.kernel == "staged" else None
        )

    def gemv_program(self, rows: int) -> Program:
        """The pipeline for so few rows that reading the weights is the work (`gemv`)."""
        split = gemv.split(self.device.capabilities, self.n4, self.k4, rows)
        constants = {**split, **self.constants(-(-self.k4 // int(split["LOCAL_Y"])))}
        variant = self.variant("gemv_{}__split", rows=str(max(1, min(rows, 4))))
        return self.device.program(variant, constants)

    def chosen(self, rows: Rows, m4: int) -> Program:
        """The pipeline that `dispatch` takes for these rows: by their number, unless ``kernel`` names it."""
        few = rows.count if rows.ow == rows.ow_padded else 4 * (m4 - 1) + min(rows.ow, 4)
        if self.kernel == "gemv" or (
            self.kernel == "auto" and few <= gemv.max_rows(self.device.capabilities)
        ):
            return self.gemv_program(few)
        return self.program(m4)

    def constants(self, words: int | None = None) -> dict[str, Value]:
        """The specialization constants that all of its kernels have. *words*: of k that one invocation sums;
        by default all."""
        words = self.k4 if words is None else words
        return {
            "ROW_SUMS": self.row_sums,
            "SOFT_FLOAT": selftest.report(self.device).soft_float,
            "LONG_K": self.form == "float" and words > FLOAT_WORDS,
        }

    def dispatch(
        self, recording: Recording, x: Buffer, y: Buffer, rows: Rows, first_m4: int = 0,
        m4: int | None = None, row_parameters: Buffer | None = None,
    ) -> None:  # fmt: skip
        """Row blocks [first_m4, first_m4 + m4) of the result, all by default; x holds just those.

        row_parameters: scale and zero point of every row, where x is quantized by rows.
        """
        m4 = rows.blocks if m4 is None else m4
        buffers = [x, self.weights, self.parameters, y]
        if row_parameters is not None:
            buffers.append(row_parameters)
        recording.dispatch(self.chosen(rows, m4), buffers, self.push(rows, first_m4, m4), self.block_macs(m4))

    def block_macs(self, m4: int) -> int:
        """Multiply-adds of so many row blocks, padding included."""
        return int(64 * m4 * self.n4 * self.k4 * self.groups)

    def push(self, rows: Rows, first_m4: int, m4: int) -> dict[str, int | float]:
        """The push constants that every int8 product has."""
        return {
            "m4": m4,
            "n4": self.n4,
            "k4": self.k4,
            "groups": self.groups,
            "first_m4": first_m4,
            **self.output_push(rows),
        }

    def output_push(self, rows: Rows) -> dict[str, int | float]:
        """The push constants of the end of a product: shaders/common/gemm_output.glslh."""
        return {
            "y_c4": ceil4(self.channels), "lines": rows.lines, "oh": rows.oh, "ow": rows.ow,
            "ow_padded": rows.ow_padded, "channels": self.channels, **epilogue_push(self.scales),
        }  # fmt: skip


class FloatGemm:
    """The weight-only product: float32 rows times int8 weights dequantized in the shader."""

    def __init__(
        self, device: Device, weight: Int8, w_scale: npt.NDArray[np.float32], bias: npt.NDArray[Any] | None,
        activation: Activation, channels: int
    ):  # fmt: skip
        self.device = device
        self.channels = channels
        self.bounds = activation_range(activation)
        self.groups, self.n, self.k = weight.shape
        self.n4 = ceil4(self.n)
        self.kernel = "auto"  # or "gemv", "tiled"
        blocked = block_weights(weight, np.zeros(weight.shape[:2], np.int32))
        self.weights = upload(device, layout(WEIGHT_LAYOUT).pack(blocked))
        parameters = np.zeros((self.groups, 4 * self.n4, 2), np.float32)
        parameters[:, : self.n, 0] = _by_group(w_scale, self.groups, self.n)
        if bias is not None:
            parameters[:, : self.n, 1] = _by_group(bias, self.groups, self.n)
        self.parameters = upload(
            device, np.ascontiguousarray(parameters.reshape(-1, 4, 2).transpose(0, 2, 1))
        )

    def program(self, m: int) -> Program:
        """The pipeline for a product with so many rows."""
        clamped = self.bounds != (-math.inf, math.inf)
        if self.kernel == "gemv" or (
            self.kernel == "auto" and m <= gemv.max_rows(self.device.capabilities, int8=False)
        ):
            x = "any" if self.k % 4 else "four"
            variant = catalog().find("gemv_q8csw__split", x=x, rows=str(max(1, min(m, 4))))
            constants = {
                **gemv.split(self.device.capabilities, self.n4, ceil4(self.k), m),
                "CLAMPED": clamped,
            }
            return self.device.program(variant, constants)
        variant = catalog().find("gemm_q8csw__tiled", tile="4x4")
        constants = {**tune.default_local(self.device.capabilities, ceil4(m)), "CLAMPED": clamped}
        return self.device.program(variant, constants)

    def dispatch(
        self, recording: Recording, x: Buffer, y: Buffer, rows: Rows, first_m: int = 0, m: int | None = None
    ) -> None:
        """Rows [first_m, first_m + m) of the result, all by default; x holds just those."""
        m = rows.count if m is None else m
        low, high = self.bounds
        push: dict[str, int | float] = {
            "m": m, "n4": self.n4, "k": self.k, "groups": self.groups, "x_stride": self.k, "first_m": first_m,
            "lines": rows.lines, "oh": rows.oh, "ow": rows.ow, "ow_padded": rows.ow_padded,
            "channels": self.channels, "y_low": low, "y_high": high,
        }  # fmt: skip
        recording.dispatch(
            self.program(m),
            [x, self.weights, self.parameters, y],
            push,
            4 * m * self.n4 * self.k * self.groups,
        )


SMALLEST_STAGED = "32x32"


def staged_tile(capabilities: Capabilities, m4: int, n4: int) -> str | None:
    """The tile through shared memory for a product of so many blocks of rows and columns, or None where the
    kernel in registers does as well: the profile's, if the product fills half of it both ways."""
    tile = profile(capabilities).staged
    if tile is None:
        return None
    rows, columns = (int(size) // 8 for size in tile.split("x"))
    return tile if m4 >= rows and n4 >= columns else None


def upload(device: Device, data: npt.NDArray[Any]) -> Buffer:
    """A buffer that holds the array."""
    buffer = device.allocate(data.nbytes)
    device.upload(buffer, data)
    return buffer
