"""Pooling of 8-bit images: maximum, mean, and the mean of a whole channel."""

from __future__ import annotations

from typing import Any

from ..errors import ArgumentError
from ..kernels.gemm import ceil4
from ..numerics import elementwise
from ..numerics.qparams import QParams
from ..numerics.stored import signed_zero_point
from ..probe import selftest
from ..problem.options import Ints
from ..problem.window import Window
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from . import operand
from .elementwise import FLOAT_STEP, TIE
from .operand import Operand
from .quantize import layout_number
from .repack import to_layout

SCALES = (2.0**-100, 2.0**100)  # of an average: its float32 steps stay normal numbers
MOST_PIXELS = 1 << 23  # of a global average: the sum of so many fits int32


def max_pool2d(
    x: Operand,
    kernel: Ints,
    stride: Ints | None = None,
    padding: Ints = 0,
    dilation: Ints = 1,
    *,
    ceil_mode: bool = False,
    device: Device | None = None,
) -> Any:
    """The maximum under a sliding window.

    x: (N, C, H, W), int8 or uint8, a NumPy array or a Tensor (the result is the same kind, with the same
    qparams). kernel, stride (by default the kernel), dilation: an int or (vertical, horizontal); padding:
    also (top, left, bottom, right). Padding never wins. ceil_mode: OH and OW round up. As ONNX MaxPool
    (https://onnx.ai/onnx/operators/onnx__MaxPool.html) and torch.nn.functional.max_pool2d.

    Raises ArgumentError for sizes that do not fit, DTypeError for another type.

    >>> import numpy as np
    >>> max_pool2d(np.arange(9, dtype=np.int8).reshape(1, 1, 3, 3), 2, 1)
    array([[[[4, 5],
             [7, 8]]]], dtype=int8)
    """
    tensor = operand.take("max_pool2d", "x", x, operand.device_of("max_pool2d", [x], device))
    window = Window.of("max_pool2d", tensor.shape, kernel, stride, padding, dilation, ceil_mode)
    tensor = to_layout(tensor, operand.image_layout(tensor))
    y = Tensor(tensor.device, window.y_shape, tensor.dtype, tensor.layout, tensor.qparams)
    if y.size:
        program = tensor.device.program(
            catalog().find("max_pool_q8__word"), {"LAYOUT": layout_number(y.layout)}
        )
        push = _window_constants(window, y)
        operand.dispatch(program, tensor.device, [tensor.buffer, y.buffer], push, y.size * window.taps)
    return operand.give(y, x)


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
    device: Device | None = None,
) -> Any:
    """The mean under a sliding window, as ONNX Runtime's com.microsoft.QLinearAveragePool, byte for byte.

    ``y_q = saturate(round_half_even((sum / count) / y_scale + y_zp))``, each step rounded to float32; sum
    adds ``x_scale * (x_q - x_zp)`` in row-major order; count is the kernel's size (count_include_pad, the
    default as in PyTorch and not in ONNX), or the number of elements inside the image. x, kernel, stride,
    padding and ceil_mode as `max_pool2d`; y_qparams by default those of x.

    Raises ArgumentError for sizes that do not fit, for missing qparams and for scales outside [2**-100,
    2**100].

    >>> import numpy as np
    >>> avg_pool2d(np.arange(16, dtype=np.int8).reshape(1, 1, 4, 4), 2, x_qparams=QParams(1.0))
    array([[[[ 2,  4],
             [10, 12]]]], dtype=int8)
    """
    op = "avg_pool2d"
    tensor = operand.take(op, "x", x, operand.device_of(op, [x], device))
    window = Window.of(op, tensor.shape, kernel, stride, padding, 1, ceil_mode)
    xq = operand.meaning(op, "x", tensor, x_qparams)
    yq = y_qparams or xq
    for name, q in (("x", xq), ("y", yq)):
        if not SCALES[0] <= q.scale <= SCALES[1]:
            raise ArgumentError(
                f"{op}: the scale of {name} is {q.scale}; it must be in [2**-100, 2**100] for an average"
            )
    tensor = to_layout(tensor, operand.image_layout(tensor))
    y = Tensor(tensor.device, window.y_shape, yq.dtype, tensor.layout, yq)
    if y.size:
        constants = {"LAYOUT": layout_number(y.layout), "SOFT_FLOAT": selftest.report(y.device).soft_float}
        program = y.device.program(catalog().find("avg_pool_q8__word"), constants)
        push = _window_constants(window, y) | _average_constants(window, xq, yq, count_include_pad)
        operand.dispatch(program, y.device, [tensor.buffer, y.buffer], push, 8 * y.size * window.taps)
    return operand.give(y, x)


def global_avg_pool2d(
    x: Operand,
    *,
    y_qparams: QParams | None = None,
    x_qparams: QParams | None = None,
    device: Device | None = None,
) -> Any:
    """The mean of each channel: (N, C, H, W) to (N, C, 1, 1), as ONNX Runtime's
    com.microsoft.QLinearGlobalAveragePool.

    ``y_q = saturate(round_half_even(float32(sum(x_q - x_zp)) * m) + y_zp)``, ``m = x_scale / (y_scale * H *
    W)``, the sum exact and each float32 step rounded. y_qparams by default those of x. H * W is at most
    2**23.

    >>> import numpy as np
    >>> global_avg_pool2d(np.arange(8, dtype=np.int8).reshape(1, 2, 2, 2), x_qparams=QParams(1.0)).ravel()
    array([2, 6], dtype=int8)
    """
    op = "global_avg_pool2d"
    tensor = operand.take(op, "x", x, operand.device_of(op, [x], device))
    operand.check_image(op, tensor.shape)
    xq = operand.meaning(op, "x", tensor, x_qparams)
    yq = y_qparams or xq
    n, c, h, w = tensor.shape
    if not 0 < h * w <= MOST_PIXELS:
        raise ArgumentError(
            f"{op}: x has {h} x {w} pixels; there must be 1 to {MOST_PIXELS}, so that their sum fits int32"
        )
    multiplier = float(elementwise.global_multiplier(h * w, xq, yq))
    tensor = to_layout(tensor, operand.image_layout(tensor))
    y = Tensor(tensor.device, (n, c, 1, 1), yq.dtype, tensor.layout, yq)
    if y.size:
        constants = {"LAYOUT": layout_number(y.layout), "SOFT_FLOAT": selftest.report(y.device).soft_float}
        program = y.device.program(catalog().find("global_avg_pool_q8__reduce"), constants)
        push: dict[str, int | float] = {
            "n": n, "c": c, "h": h, "w": w, "c4": ceil4(c), "x_zero": signed_zero_point(xq),
            "y_zero": signed_zero_point(yq), "y_min": -128, "y_max": 127, "multiplier": multiplier,
        }  # fmt: skip
        operand.dispatch(program, y.device, [tensor.buffer, y.buffer], push, tensor.size)
    return operand.give(y, x)


def _window_constants(window: Window, y: Tensor) -> dict[str, int | float]:
    n, c, h, w = window.x_shape
    return {
        "words": y.nbytes // 4, "n": n, "c": c, "x_h": h, "x_w": w, "y_h": y.shape[2], "y_w": y.shape[3],
        "kernel_h": window.kernel[0], "kernel_w": window.kernel[1], "stride_h": window.stride[0],
        "stride_w": window.stride[1], "pad_t": window.padding[0], "pad_l": window.padding[1],
        "dilation_h": window.dilation[0], "dilation_w": window.dilation[1],
    }  # fmt: skip


def _average_constants(
    window: Window, xq: QParams, yq: QParams, count_include_pad: bool
) -> dict[str, int | float]:
    ratio = xq.scale / yq.scale
    # Every addition of the float32 steps may be off by half a step of the partial sum, at most taps * 255 *
    # x_scale.
    error = (window.taps + 16) * FLOAT_STEP * (255 * ratio + 512)
    moved = operand.shift(yq.dtype)
    return {
        "count": window.taps if count_include_pad else 0, "x_zero": signed_zero_point(xq),
        "y_zero": yq.zero_point, "y_shift": moved, "y_min": -128, "y_max": 127, "x_scale": xq.scale,
        "y_scale": yq.scale, "ratio": min(ratio, 2.0**100), "safe": TIE - error if error < TIE / 2 else -1.0,
    }  # fmt: skip
