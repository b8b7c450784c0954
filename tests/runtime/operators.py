"""Every public operator, scheme and method that software drivers can run, as calls on a device, for tests
that inject faults."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import vkq
from vkq.kernels.methods import names
from vkq.runtime.tensor import Tensor

RNG = np.random.default_rng(0)
W = RNG.integers(-127, 128, (8, 8, 3, 3), np.int8)
X = RNG.integers(-128, 128, (1, 8, 9, 9), np.int8)
ROWS = X.reshape(9, 72)
FLOATS = ROWS.astype(np.float32) / 16
PHOTO = RNG.integers(0, 256, (1, 1, 30, 41), np.uint8)
WINDOWS = RNG.integers(0, 256, (3, 1, 5, 7), np.uint8)
GROUPED = vkq.quantize_weight(W.reshape(9, 64).astype(np.float32), bits=4, group=32)
TABLES = RNG.integers(-128, 128, (256, 256), np.int8)
Q = vkq.QParams(0.1, 3)
QQ: dict[str, Any] = {"x_qparams": Q, "y_qparams": Q}
AB: dict[str, Any] = {"y_qparams": Q, "a_qparams": Q, "b_qparams": Q}
MATRIX_UNITS = ("matrix", "stem")  # these methods need matrix units
METHODS = tuple(name for name in names() if name not in ("auto", *MATRIX_UNITS))
Call = Callable[[Any], Any]
Make = Callable[[vkq.Device], Call]


def _conv(method: str, **options: Any) -> Make:
    w, groups = (W[:, :1], 8) if method == "depthwise" else (W, 1)
    w, padding = (w[:, :, :1, :1], 0) if method == "pointwise" else (w, 1)
    return lambda d: vkq.Conv2d(
        w, 0.01, padding=padding, groups=groups, device=d, method=method, **(options or QQ)
    )


def _linear(*weight: Any, **options: Any) -> Make:
    return lambda d: vkq.Linear(*weight, device=d, **options)


def _of(function: Callable[..., Any], *more: Any, **options: Any) -> Make:
    """Return a function that maps a device to a call of function(x)."""
    return lambda d: lambda x: function(x, *more, device=d, **options)


def _twice(function: Callable[..., Any], *more: Any, **options: Any) -> Make:
    """Return a function that maps a device to a call of function(x, x)."""
    return lambda d: lambda x: function(x, x, *more, device=d, **options)


def _of_tensor(function: Callable[..., Any], *more: Any) -> Make:
    """Return a function that maps a device to a call of function(x) with x as a Tensor on the device."""
    return lambda d: lambda x: function(Tensor.from_numpy(x, d), *more).numpy()


def _templates(d: vkq.Device) -> Call:
    kept = vkq.integer.Templates(WINDOWS, device=d)
    return lambda x: np.stack([kept.best(x).place, kept.best(x, "ssd").place])


OPERATORS: dict[str, tuple[Make, Any]] = {
    **{f"conv2d {method}": (_conv(method), X) for method in ("auto", *METHODS)},
    "conv2d weight-only": (_conv("auto", activation=None), X.astype(np.float32)),
    "conv_transpose2d": (lambda d: vkq.ConvTranspose2d(W, 0.01, device=d, **QQ), X),
    "linear": (_linear(W.reshape(8, 72), 0.01, **QQ), ROWS),
    "linear of one row": (_linear(W.reshape(8, 72), 0.01, **QQ), ROWS[:1]),
    "linear dynamic": (_linear(W.reshape(8, 72), 0.01, x_qparams="dynamic"), FLOATS),
    "linear weight-only": (_linear(W.reshape(8, 72), 0.01), FLOATS),
    "linear grouped": (_linear(GROUPED), FLOATS[:, :64]),
    "linear grouped of one row": (_linear(GROUPED), FLOATS[:1, :64]),
    "matmul": (_of(vkq.matmul, W.reshape(72, 8), **AB), ROWS),
    "add": (_twice(vkq.add, **AB), X),
    "sub": (_twice(vkq.sub, **AB), X),
    "mul": (_twice(vkq.mul, **AB), X),
    "quantize": (_of(vkq.quantize, Q), FLOATS),
    "dequantize": (_of(vkq.dequantize, Q), X),
    "requantize": (_of(vkq.requantize, vkq.QParams(0.2), x_qparams=Q), X),
    "lookup": (_of(vkq.lookup, TABLES[0]), X),
    "lookup_axis": (_of(vkq.lookup_axis, TABLES[:8]), X),
    "lookup_pair": (_twice(vkq.lookup_pair, TABLES), X),
    "unary": (lambda d: lambda x: vkq.unary("sigmoid", x, Q, x_qparams=Q, device=d), X),
    "softmax": (_of(vkq.softmax, x_qparams=Q), X),
    "max_pool2d": (_of(vkq.max_pool2d, 2), X),
    "avg_pool2d": (_of(vkq.avg_pool2d, 2, x_qparams=Q), X),
    "global_avg_pool2d": (_of(vkq.global_avg_pool2d, x_qparams=Q), X),
    "reduce_mean": (_of(vkq.reduce_mean, x_qparams=Q), X),
    "resize": (_of(vkq.resize, (13, 7)), X),
    "resize linear": (_of(vkq.resize, (13, 7), mode="linear"), X),
    "concat": (lambda d: lambda x: vkq.concat([x, x], 1, Q, x_qparams=[Q, Q], device=d), X),
    "pad": (_of(vkq.pad, [(0, 0), (1, 0), (0, 2), (1, 1)], 3), X),
    "transpose": (_of(vkq.transpose, (0, 2, 3, 1)), X),
    "slice": (_of(vkq.slice, [slice(0, 1), slice(1, 7, 2)]), X),
    "split": (lambda d: lambda x: vkq.split(x, [3, 5], 1, device=d)[1], X),
    "take": (_of(vkq.take, np.arange(0, 600, 7).reshape(2, 43)), X),
    "flatten": (_of_tensor(vkq.flatten), X),
    "reshape": (_of_tensor(vkq.reshape, (24, 27)), X),
    "integer.conv2d": (_of(vkq.integer.conv2d, WINDOWS, path="portable"), PHOTO),
    "integer.conv2d by transforms": (_of(vkq.integer.conv2d, WINDOWS, path="transform"), PHOTO),
    "integer.conv2d in 64 bits": (_of(vkq.integer.conv2d, WINDOWS, accumulate="int64"), PHOTO),
    "integer.correlate2d": (_of(vkq.integer.correlate2d, WINDOWS[0, 0]), PHOTO[0, 0]),
    "integer.matmul": (_of(vkq.integer.matmul, W.reshape(72, 8)), ROWS),
    "integer.match_template": (_of(vkq.integer.match_template, WINDOWS[:, 0], "ccoeff_normed"), PHOTO[0, 0]),
    "integer.Templates": (_templates, PHOTO),
}  # fmt: skip
