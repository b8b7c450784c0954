"""Exact integer convolution, correlation and template matching of images, and integer matrix products, on any
Vulkan device.

There are no scales and no rounding: ``y = sum x * w`` in integers. The result has the same bits as NumPy's
in int64, for all shapes and for windows of any size. Arrays are NumPy's, of dtype int8, uint8, int16,
uint16 or int32; ``x`` and ``w`` may have different dtypes.

Integers of more than 8 bits are split into bytes, so no 16-bit or 64-bit feature of the device is needed.
The kernels use packed dot products, 32-bit multiplies, matrix units or number-theoretic transforms. vkq
runs the kernel with the lowest estimated cost (`explain`). `vkq.integer.Templates` keeps templates on the
device for repeated use.

Overflow is checked. Before anything runs, vkq computes the largest possible sum of each template from the
range of the image and the sums of the template's taps (see `conv2d`). If this sum exceeds int32,
``accumulate`` decides:

| accumulate | dtype of the result | if a sum may exceed int32 |
| --- | --- | --- |
| "int32" | int32 | an error, with the numbers |
| "int64" | int64 | exact 64-bit sums (computed in 32-bit arithmetic) |
| "auto" | int32 or int64 | the same, in int64 |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError
from ..problem.conv2d import Conv2dProblem
from ..problem.options import Padding
from ..runtime.device import Device
from ..runtime.opened import opened
from . import correlation as op
from .checks import Accumulate, Array, accumulator, bias_of, integers, range_of
from .chunks import correlate
from .templates import Templates


@checked
def conv2d(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    accumulate: Accumulate = "int32",
    *,
    path: str = "auto",
    device: Device | int | str | None = None,
) -> Array:
    """Return the exact 2-D convolution of x and w in integers, a cross-correlation as in PyTorch's conv2d
    and ONNX ConvInteger:

        y[n,o,i,j] = bias[o] + sum_{c,a,b} w[o,c,a,b] * x[n, c, row, column]
        row = i*stride + a*dilation - pad; column = j*stride + b*dilation - pad

    Args:
        x: (N, C, H, W), int8, uint8, int16, uint16 or int32.
        w: (OC, C/groups, KH, KW), of any of these dtypes. The window may be larger than the image, but not
            than the padded image.
        bias: None or integers (OC,).
        stride, dilation, padding, groups: as in `vkq.Conv2d`; padding has the value 0.
        accumulate: "int32", "int64" or "auto". All results of a template (output channel o) are in the
            range ``[lo*P + hi*Q + bias, hi*P + lo*Q + bias]``. Both ends must fit the accumulator. lo is
            min(x, 0) and hi is max(x, 0) over the given data; P is the sum of the template's positive taps,
            and Q that of its negative taps.
        path: "auto" chooses the kernel with the lowest estimated cost (`explain`). "dot", "dot_s8s8",
            "dot_u8s8", "dot_u8u8" and "portable" choose a form of the dot product, "coopmat" matrix units,
            and "transform" number-theoretic transforms. Problems that the chosen path does not support run
            on another path. All paths give the same results.
        device: None is the default device.

    Returns:
        (N, OC, OH, OW), int32 or int64.

    Raises:
        DTypeError: the dtype is none of these (floats are not rounded silently).
        ArgumentError: shapes or options do not fit together.
        AccumulatorOverflowError: a sum may exceed the accumulator; the message names the template.

    https://onnx.ai/onnx/operators/onnx__ConvInteger.html

    >>> x = np.arange(9, dtype=np.uint16).reshape(1, 1, 3, 3) * 1000
    >>> conv2d(x, np.array([[[[1, -1]]]], np.int8), accumulate="auto")[0, 0, 0]
    array([-1000, -1000], dtype=int32)
    """
    image, taps = integers("conv2d", "x", x), integers("conv2d", "w", w)
    problem = Conv2dProblem.of(image.shape, taps.shape, stride, padding, dilation, groups)
    offsets = bias_of("conv2d", bias, problem.oc)
    return _correlate("conv2d", problem, image, taps, offsets, accumulate, path, device)


@checked
def correlate2d(
    image: npt.ArrayLike,
    templates: npt.ArrayLike,
    mode: Literal["full", "same", "valid"] = "full",
    accumulate: Accumulate = "auto",
    *,
    path: str = "auto",
    device: Device | int | str | None = None,
) -> Array:
    """Correlate one image with one or more templates in exact integers, as `scipy.signal.correlate2d` does.
    Pixels outside the image are 0.

    *image*: (H, W). *templates*: (h, w) or (T, h, w); they may be larger than the image, unless *mode* is
    "valid". The axis T is the first axis of the result.

    *mode*: the returned positions of a template.

    - "full": every position where image and template overlap, (H+h-1, W+w-1);
    - "same": the centre of "full", (H, W);
    - "valid": the positions inside the image, (H-h+1, W-w+1).

    For the dtypes, the other arguments and the errors see `conv2d`.

    >>> correlate2d(np.array([[1, 2, 3]], np.int16), np.array([[1, 10]], np.int8), "valid")
    array([[21, 32]], dtype=int32)
    """
    a, t = integers("correlate2d", "image", image), integers("correlate2d", "templates", templates)
    if a.ndim != 2 or t.ndim not in (2, 3):
        raise ArgumentError(
            f"correlate2d: image {a.shape}, templates {t.shape}; they must be (H, W) and (h, w) or (T, h, w)"
        )
    kh, kw = t.shape[-2:]
    pads = {
        "full": (kh - 1, kw - 1, kh - 1, kw - 1),
        "same": ((kh - 1) // 2, (kw - 1) // 2, kh // 2, kw // 2),
        "valid": (0,) * 4,
    }
    if mode not in pads:
        raise ArgumentError(f"correlate2d: mode is {mode!r}; it must be one of {', '.join(pads)}")
    w = t.reshape(-1, 1, kh, kw)
    problem = Conv2dProblem.of((1, 1, *a.shape), w.shape, padding=pads[mode])
    y = _correlate(
        "correlate2d", problem, a[None, None], w, bias_of("", None, problem.oc), accumulate, path, device
    )
    scores: Array = y[0] if t.ndim == 3 else y[0, 0]
    return scores


@checked
def matmul(
    a: npt.ArrayLike,
    b: npt.ArrayLike,
    bias: npt.ArrayLike | None = None,
    accumulate: Accumulate = "int32",
    *,
    path: str = "auto",
    device: Device | int | str | None = None,
) -> Array:
    """Return ``a @ b + bias`` in exact integers, (..., M, N) or (N,). *a* is (..., M, K) or (K,), *b* is
    (K, N), and *bias* is None or (N,). All sizes may be 0.

    For the dtypes, *accumulate*, the other arguments and the errors see `conv2d`. The product is that of ONNX
    MatMulInteger (https://onnx.ai/onnx/operators/onnx__MatMulInteger.html).

    >>> matmul(np.array([[300, -300]], np.int16), np.array([[100], [200]], np.uint8))
    array([[-30000]], dtype=int32)
    """
    x, w = integers("matmul", "a", a), integers("matmul", "b", b)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ArgumentError(
            f"matmul: a {x.shape}, b {w.shape}; they must be (..., M, K) and (K, N) with equal K"
        )
    k, n = w.shape
    lead = x.shape[:-1]
    m = math.prod(lead)
    offsets = bias_of("matmul", bias, n)
    if k == 0:  # for K = 0, use K = 1 with zeros, which gives the same product: 0
        x, w, k = np.zeros((m, 1), np.int8), np.zeros((1, n), np.int8), 1
    # Each row of a is a row of one image of width K. Each column of b is a template of 1 x K. So a row has
    # one result for each template.
    problem = Conv2dProblem(1, 1, m, k, n, 1, k) if m else None
    if problem is None:
        return np.zeros((*lead, n), np.int64 if accumulate == "int64" else np.int32)
    rows, columns = x.reshape(1, 1, m, k), w.T.reshape(n, 1, 1, k)
    y = _correlate("matmul", problem, rows, columns, offsets, accumulate, path, device)
    return np.ascontiguousarray(y[0, :, :, 0].T).reshape(*lead, n)


@checked
def explain(
    x: npt.ArrayLike,
    w: npt.ArrayLike,
    stride: int | Sequence[int] = 1,
    padding: Padding = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    accumulate: Accumulate = "auto",
    *,
    path: str = "auto",
    device: Device | int | str | None = None,
) -> str:
    """Return a text on how `conv2d` would compute these operands, and why: digits, kernel, shaders and
    memory. Nothing is computed."""
    image, taps = integers("explain", "x", x), integers("explain", "w", w)
    low, high = range_of(image)
    kept = Templates(
        taps, None, stride, padding, dilation, groups, accumulate, x_dtype=image.dtype.name,
        x_range=(low, high), path=path, device=device,
    )  # fmt: skip
    return kept.explain(image.shape)


# ----------------------------------------------------------------------------------------------------------
# checks


def _correlate(
    name: str, p: Conv2dProblem, x: Array, w: Array, bias: npt.NDArray[np.int64], accumulate: Accumulate,
    path: str, device: Device | int | str | None
) -> Array:  # fmt: skip
    """Return the correlation (N, OC, OH, OW), after a check that the sums fit into the accumulator. *name*:
    the caller's name in error messages."""
    x_range = range_of(x)
    dtype = accumulator(name, x_range, w, bias, accumulate)
    where = opened(device)
    if p.gemm_k == 0 or 0 in p.y_shape:
        op.choice_of(where, path)  # raises an error if the path is invalid
        return np.array(np.broadcast_to(bias.astype(dtype).reshape(1, -1, 1, 1), p.y_shape))
    return correlate(where, path, op.Sums.of(x_range, w, dtype == np.int64), p, x, w, bias)
