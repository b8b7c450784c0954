"""Pooling of 8-bit images: maximum, mean, and the mean of a whole channel."""

from __future__ import annotations

from typing import Any

from ..arguments import checked
from ..device.profiles import profile
from ..errors import ArgumentError
from ..kernels.binary import TIE
from ..kernels.divisor import of_pixels
from ..kernels.excite import Excite
from ..kernels.pooling import BY_AXES, error_of_average, sure, unrolled
from ..kernels.repack import repacked
from ..kernels.weights import ceil4
from ..layout.extent import BLOCKED, IMAGE, MATRIX, PIXELS, Spec
from ..numerics.elementwise import global_multiplier, offset_of_mean
from ..numerics.qparams import QParams
from ..numerics.stored import shift, signed_zero_point
from ..problem.options import Ints
from ..problem.window import Window
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from . import operand
from .operand import Operand

# With scales in this range, no float32 step of an average is subnormal or infinite.
SCALES = (2.0**-100, 2.0**100)
# In a global average of images in kPackedInt8_4W4C, a workgroup averages several neighbouring blocks of
# four channels. A small workgroup averages at least LEAST_ACROSS blocks (32 consecutive bytes), and up to
# MOST_ACROSS if an image has few pixels. A large workgroup averages twice as many blocks.
LEAST_ACROSS, MOST_ACROSS = 2, 8
MANY = 1 << 17  # minimum number of vectors for which a global average uses the largest workgroup
SUM_BYTES = 16  # shared memory of an invocation of a global average, in bytes: four sums
# Constants of a global average:
# - LEAST_INVOCATIONS: minimum number of invocations of a workgroup
# - AT_ONCE: loads that an invocation of a large workgroup issues before it uses their values
LEAST_INVOCATIONS, AT_ONCE = 128, 4
LEAST_BLOCKED = 32  # LEAST_INVOCATIONS for kPackedInt8_16C, where an image has fewer vectors
# In a global average, maximum bytes of a channel whose sum fits into 16 bits. An invocation that adds more
# bytes adds them in parts (LONG).
MOST_VECTORS = 256
MEANS_IN = {IMAGE: 1, MATRIX: 2}  # the shader's constant TO for each layout of y that x does not have
MOST_PIXELS = 1 << 23  # maximum number of pixels whose sum fits into int32 (global average)


@checked
def max_pool2d(
    x: Operand,
    kernel: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    *,
    ceil_mode: bool = False,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return the maximum under a window that slides over x.

    Args:
        x: (N, C, H, W), int8 or uint8, a NumPy array or a Tensor. The result is of the same class, with
            the same qparams.
        kernel, stride, dilation: an int or (vertical, horizontal). By default, stride is the kernel.
        padding: an int, (vertical, horizontal) or (top, left, bottom, right). It is never the maximum.
        ceil_mode: round OH and OW up, not down.

    The results equal those of ONNX MaxPool (https://onnx.ai/onnx/operators/onnx__MaxPool.html) and
    torch.nn.functional.max_pool2d.

    Raises ArgumentError for a window that is invalid for x, DTypeError for another type.

    >>> import numpy as np
    >>> max_pool2d(np.arange(9, dtype=np.int8).reshape(1, 1, 3, 3), 2, 1)
    array([[[[4, 5],
             [7, 8]]]], dtype=int8)
    """
    options = (kernel, stride, padding, dilation, ceil_mode)
    return operand.apply("max_pool2d", max_pooled, {"x": x}, options, device, out)


def max_pooled(
    b: Builder, x: Value, kernel: Ints, stride: Ints | None, padding: Ints, dilation: Ints, ceil_mode: bool
) -> Value:
    """Add `max_pool2d` to a plan."""
    window = Window.of("max_pool2d", x.spec.shape, kernel, stride, padding, dilation, ceil_mode)
    x = repacked(b, x, x.spec.image_layout)
    for part in window.by_axes() if min(window.kernel) > 1 and window.taps >= BY_AXES else (window,):
        x = _max_pooled(b, x, part)
    return x


def _max_pooled(b: Builder, x: Value, window: Window) -> Value:
    y = b.new(Spec(window.y_shape, x.spec.dtype, x.spec.layout, x.spec.qparams))
    if y.spec.size:
        variant = catalog().find("max_pool_q8__pixels", layout=PIXELS[y.spec.layout])
        program = b.device.program(variant, unrolled(b.device.capabilities, window))
        b.dispatch(program, [x, y], _window_constants(window, y.spec), y.spec.size * window.taps)
    return y


@checked
def avg_pool2d(
    x: Operand,
    kernel: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    *,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    y_qparams: QParams | None = None,
    x_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return the mean under a window that slides over x, with the bytes of ONNX Runtime's
    com.microsoft.QLinearAveragePool.

        y_q = saturate(round_half_even((sum / count) / y_scale + y_zp)), each step rounded to float32

    - sum adds ``x_scale * (x_q - x_zp)`` in row-major order.
    - count is the kernel's size. With ``count_include_pad=False`` (ONNX's default), it is the number of
      elements inside the image.
    - If the kernel covers the whole image, the formula is that of `global_avg_pool2d`, as in ONNX Runtime.

    x, kernel, stride, padding and ceil_mode: as for `max_pool2d`. y_qparams: by default the parameters of
    x.

    Raises ArgumentError for a window that is invalid for x, for missing qparams, and for scales outside
    [2**-100, 2**100].

    >>> import numpy as np
    >>> avg_pool2d(np.arange(16, dtype=np.int8).reshape(1, 1, 4, 4), 2, x_qparams=QParams(1.0))
    array([[[[ 2,  4],
             [10, 12]]]], dtype=int8)
    """
    options = (kernel, stride, padding, ceil_mode, count_include_pad, y_qparams, x_qparams)
    return operand.apply("avg_pool2d", averaged, {"x": x}, options, device, out)


def averaged(
    b: Builder,
    x: Value,
    kernel: Ints,
    stride: Ints | None,
    padding: Ints,
    ceil_mode: bool,
    count_include_pad: bool,
    y_qparams: QParams | None,
    x_qparams: QParams | None,
) -> Value:
    """Add `avg_pool2d` to a plan."""
    op = "avg_pool2d"
    window = Window.of(op, x.spec.shape, kernel, stride, padding, 1, ceil_mode)
    xq = operand.meaning(op, "x", x.spec, x_qparams)
    yq = y_qparams or xq
    for name, q in (("x", xq), ("y", yq)):
        if not SCALES[0] <= q.scale <= SCALES[1]:
            raise ArgumentError(
                f"{op}: the scale of {name} is {q.scale}; it must be in [2**-100, 2**100] for an average"
            )
    if window.whole:
        return globally_averaged(b, x, yq, xq)
    x = repacked(b, x, x.spec.image_layout)
    y = b.new(Spec(window.y_shape, yq.dtype, x.spec.layout, yq))
    if y.spec.size:
        variant = catalog().find("avg_pool_q8__pixels", layout=PIXELS[y.spec.layout])
        constants = unrolled(b.device.capabilities, window)
        if "KERNEL" in constants:
            constants["SURE"] = not b.device.soft_float and sure(window, xq, yq, count_include_pad)
        program = b.device.program(variant, constants)
        push = _window_constants(window, y.spec) | _average_constants(window, xq, yq, count_include_pad)
        b.dispatch(program, [x, y], push, 8 * y.spec.size * window.taps)
    return y


@checked
def global_avg_pool2d(
    x: Operand,
    *,
    y_qparams: QParams | None = None,
    x_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return the mean of each channel of x (N, C, H, W) as (N, C, 1, 1), with the bytes of ONNX Runtime's
    com.microsoft.QLinearGlobalAveragePool.

        y_q = saturate(round_half_even(float32(sum(x_q - x_zp)) * m) + y_zp),  m = x_scale / (y_scale * H * W)

    The sum is exact, and each float32 step is rounded. y_qparams: by default the parameters of x. H * W is
    at most 2**23.

    >>> import numpy as np
    >>> global_avg_pool2d(np.arange(8, dtype=np.int8).reshape(1, 2, 2, 2), x_qparams=QParams(1.0)).ravel()
    array([2, 6], dtype=int8)
    """
    options = (y_qparams, x_qparams)
    return operand.apply("global_avg_pool2d", globally_averaged, {"x": x}, options, device, out)


def globally_averaged(
    b: Builder, x: Value, y_qparams: QParams | None, x_qparams: QParams | None, layout: str | None = None,
    excite: Excite | None = None, litert: str = "",
) -> Value:  # fmt: skip
    """Add `global_avg_pool2d` to a plan. A result in kPackedInt8_4H4W has shape (N, C).

    - *layout*: the wanted layout of the result; if the kernel cannot write it, the layout of x.
    - *excite*: compute the gates of the channels from the means and return them; gates have no qparams.
    - *litert*: compute LiteRT's "mean" or "sum" (`offset_of_mean`)."""
    op = "global_avg_pool2d"
    operand.check_image(op, x.spec.shape)
    xq = operand.meaning(op, "x", x.spec, x_qparams)
    yq = y_qparams or xq
    n, c, h, w = x.spec.shape
    if not 0 < h * w <= MOST_PIXELS:
        raise ArgumentError(
            f"{op}: x has {h} x {w} pixels; there must be 1 to {MOST_PIXELS}, so that their sum fits int32"
        )
    formula = _formula(h * w, xq, yq, litert)
    x = repacked(b, x, x.spec.image_layout)
    blocked = x.spec.layout == BLOCKED
    of = IMAGE if excite is not None else layout if layout in MEANS_IN else x.spec.layout
    shape = (n, c) if of == MATRIX else (n, c, 1, 1)
    y = b.new(Spec(shape, yq.dtype, of, yq if excite is None else None))
    if y.spec.size:
        blocks = -(-c // 16) if blocked else ceil4(c)
        least = LEAST_BLOCKED if blocked and excite is None else LEAST_INVOCATIONS
        constants = _sharers(b.device, h * (w if blocked else ceil4(w)), blocked, least)
        constants["OFFSET"] = bool(litert)
        push: dict[str, int | float] = {"n": n, "c": c, "h": h, "w": w, "blocks": blocks, **formula}
        if excite is not None:
            excite.build(b, x, y, push, constants)
        else:
            variant = catalog().find("global_avg_pool_q8__reduce", layout=PIXELS[x.spec.layout])
            constants["TO"] = MEANS_IN[of] if of != x.spec.layout else 0
            b.dispatch(b.device.program(variant, constants), [x, y], push, x.spec.size)
    return y


def _formula(pixels: int, xq: QParams, yq: QParams, litert: str) -> dict[str, int | float]:
    """Return the push constants of a global average's formula."""
    if not litert:
        return {
            "x_zero": signed_zero_point(xq), "y_zero": signed_zero_point(yq), "y_min": -128, "y_max": 127,
            "multiplier": float(global_multiplier(pixels, xq, yq)), "offset": 0.0,
        }  # fmt: skip
    multiplier, offset = offset_of_mean(pixels, xq, yq, litert == "sum")
    return {
        "x_zero": -shift(xq.dtype), "y_zero": 0, "y_min": yq.qmin, "y_max": yq.qmax,
        "multiplier": multiplier, "offset": offset,
    }  # fmt: skip


def _sharers(device: Device, vectors: int, blocked: bool, least: int) -> dict[str, Constant]:
    """Return the specialization constants of a global average of images of *vectors* vectors: the number of
    invocations of a workgroup (at least *least*), its number of blocks of channels, and the variant of the
    loop. *blocked*: x is in kPackedInt8_16C."""
    limits = device.capabilities.properties
    sum_bytes = 4 * SUM_BYTES if blocked else SUM_BYTES
    room = min(limits["maxComputeWorkGroupInvocations"], limits["maxComputeSharedMemorySize"] // sum_bytes)
    most = room if vectors >= MANY else min(profile(device.capabilities).mean_invocations, room)
    invocations, across = least, 1 if blocked else LEAST_ACROSS
    while not blocked and across < MOST_ACROSS and vectors * across < LEAST_INVOCATIONS:
        across *= 2
    while 2 * invocations <= most and 2 * invocations * AT_ONCE <= vectors * across:
        invocations *= 2
    large = invocations > least
    across *= 2 if large and not blocked else 1
    long = vectors * across > MOST_VECTORS // (1 if blocked else 4) * invocations
    return {"LOCAL_X": invocations, "ACROSS": across, "AT_ONCE": AT_ONCE if large else 1, "LONG": long}


def _window_constants(window: Window, y: Spec) -> dict[str, int | float]:
    n, c, h, w = window.x_shape
    return {
        "vectors": y.nbytes // 16, "n": n, "c": c, "x_h": h, "x_w": w, "y_h": y.shape[2], "y_w": y.shape[3],
        "kernel_h": window.kernel[0], "kernel_w": window.kernel[1], "stride_h": window.stride[0],
        "stride_w": window.stride[1], "pad_t": window.padding[0], "pad_l": window.padding[1],
        "dilation_h": window.dilation[0], "dilation_w": window.dilation[1], **of_pixels(y),
    }  # fmt: skip


def _average_constants(
    window: Window, xq: QParams, yq: QParams, count_include_pad: bool
) -> dict[str, int | float]:
    ratio = xq.scale / yq.scale
    error = error_of_average(window, ratio)
    moved = shift(yq.dtype)
    return {
        "count": window.taps if count_include_pad else 0, "x_zero": signed_zero_point(xq),
        "y_zero": yq.zero_point, "y_shift": moved, "y_min": -128, "y_max": 127, "x_scale": xq.scale,
        "y_scale": yq.scale, "ratio": min(ratio, 2.0**100), "safe": TIE - error if error < TIE / 2 else -1.0,
    }  # fmt: skip
