"""Exact integer convolution, correlation and template matching of images, and integer matrix products, on any
Vulkan device.

No scales and no rounding: ``y = sum x * w`` in whole numbers, equal to NumPy's int64 to the last bit, for any
shape and windows of any size. Arrays are NumPy's, of dtype int8, uint8, int16, uint16 or int32; ``x`` and
``w`` may differ. 8-bit data runs on the packed dot product; wider data is split into signed bytes, so no
16-bit or 64-bit feature of the device is needed.

The accumulator is checked, never hoped for: before anything runs, the largest possible sum of each template
is computed from the range of the image and the template's own sums (see `conv2d`). ``accumulate`` says what
happens then:

| accumulate | result | where the sums may leave int32 |
| --- | --- | --- |
| "int32" | int32 | refused, with the numbers |
| "int64" | int64 | exact in 64 bits (made of 32-bit arithmetic) |
| "auto" | int32 or int64 | int64 |
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import AccumulatorOverflowError, ArgumentError, DTypeError
from ..problem.conv2d import Conv2dProblem
from ..problem.options import Padding
from ..runtime.device import Device
from ..runtime.opened import default_device
from ..select.path import choose_path
from . import correlation as op
from .work import arithmetic

Accumulate = Literal["int32", "int64", "auto"]
Array = npt.NDArray[Any]

DTYPES = ("int8", "uint8", "int16", "uint16", "int32")
_LIMITS = {"int32": (-(2**31), 2**31 - 1), "int64": (-(2**63), 2**63 - 1)}


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
    device: Device | None = None,
) -> Array:
    """Integer 2-D convolution (cross-correlation, as PyTorch's conv2d and ONNX ConvInteger), exactly.

        y[n,o,i,j] = bias[o] + sum_{c,a,b} x[n, c, i*stride + a*dilation - pad, j*stride + b*dilation - pad] *
        w[o,c,a,b]

    Args:
        x: (N, C, H, W), int8, uint8, int16, uint16 or int32.
        w: (OC, C/groups, KH, KW), of any of these dtypes; windows may be larger than the image where padding
            makes room.
        bias: None or integers (OC,).
        stride, dilation, padding, groups: as `vkq.Conv2d`; padding has the value 0.
        accumulate: "int32", "int64" or "auto". A template o fits where both ends of
            ``[lo*P + hi*Q + bias, hi*P + lo*Q + bias]`` do, with lo = min(x, 0), hi = max(x, 0) over the data
            given, P the sum of the template's positive taps and Q of its negative ones. No result can lie
            outside.
        path: "auto", "dot", "dot_s8s8", "dot_u8s8", "dot_u8u8" or "portable"; all give the same numbers.
        device: None is the default device.

    Returns:
        (N, OC, OH, OW), int32 or int64.

    Raises:
        DTypeError: another dtype (floats are not rounded silently).
        ArgumentError: shapes or options that do not fit.
        AccumulatorOverflowError: a sum could leave the accumulator; names the template and the numbers.

    https://onnx.ai/onnx/operators/onnx__ConvInteger.html

    >>> x = np.arange(9, dtype=np.uint16).reshape(1, 1, 3, 3) * 1000
    >>> conv2d(x, np.array([[[[1, -1]]]], np.int8), accumulate="auto")[0, 0, 0]
    array([-1000, -1000], dtype=int32)
    """
    image, taps = _integers("conv2d", "x", x), _integers("conv2d", "w", w)
    problem = Conv2dProblem.of(image.shape, taps.shape, stride, padding, dilation, groups)
    offsets = _bias("conv2d", bias, problem.oc)
    return _correlate("conv2d", problem, image, taps, offsets, accumulate, path, device)


@checked
def correlate2d(
    image: npt.ArrayLike,
    templates: npt.ArrayLike,
    mode: Literal["full", "same", "valid"] = "full",
    accumulate: Accumulate = "auto",
    *,
    path: str = "auto",
    device: Device | None = None,
) -> Array:
    """`scipy.signal.correlate2d` of one image with one or many templates, in exact integers; the border is
    filled with 0.

    image: (H, W); templates: (h, w) or (T, h, w), which may be larger than the image unless *mode* is
    "valid". The dtypes, the other arguments and errors are those of `conv2d`. "full" is every overlap,
    (H+h-1, W+w-1); "same" its centre, (H, W); "valid" the windows inside, (H-h+1, W-w+1). Returns those
    sizes, with a leading T where there is one.

    >>> correlate2d(np.array([[1, 2, 3]], np.int16), np.array([[1, 10]], np.int8), "valid")
    array([[21, 32]], dtype=int32)
    """
    a, t = _integers("correlate2d", "image", image), _integers("correlate2d", "templates", templates)
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
        "correlate2d", problem, a[None, None], w, _bias("", None, problem.oc), accumulate, path, device
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
    device: Device | None = None,
) -> Array:
    """``a @ b + bias`` in exact integers: a (..., M, K) or (K,), b (K, N), bias None or (N,); any sizes, 0
    included.

    The dtypes, *accumulate*, the other arguments and the errors are those of `conv2d`. As ONNX MatMulInteger
    (https://onnx.ai/onnx/operators/onnx__MatMulInteger.html). Returns (..., M, N) or (N,).

    >>> matmul(np.array([[300, -300]], np.int16), np.array([[100], [200]], np.uint8))
    array([[-30000]], dtype=int32)
    """
    x, w = _integers("matmul", "a", a), _integers("matmul", "b", b)
    if x.ndim < 1 or w.ndim != 2 or x.shape[-1] != w.shape[0]:
        raise ArgumentError(
            f"matmul: a {x.shape}, b {w.shape}; they must be (..., M, K) and (K, N) with equal K"
        )
    k, n = w.shape
    m = math.prod(x.shape[:-1])
    offsets = _bias("matmul", bias, n)
    if k == 0:  # one column of zeros has the same product
        x, w, k = np.zeros((m, 1), np.int8), np.zeros((1, n), np.int8), 1
    lead = np.shape(a)[:-1]
    # The rows are an image of width K, and every column of b is a template as wide: one result per image row.
    problem = Conv2dProblem(1, 1, m, k, n, 1, k) if m else None
    if problem is None:
        return np.zeros((*lead, n), np.int64 if accumulate == "int64" else np.int32)
    rows, columns = x.reshape(1, 1, m, k), w.T.reshape(n, 1, 1, k)
    y = _correlate("matmul", problem, rows, columns, offsets, accumulate, path, device)
    return np.ascontiguousarray(y[0, :, :, 0].T).reshape(*lead, n)


@checked
def match_template(
    image: npt.ArrayLike,
    templates: npt.ArrayLike,
    method: Literal["ccorr", "ssd", "ccoeff_normed"] = "ccorr",
    *,
    path: str = "auto",
    device: Device | None = None,
) -> Array:
    """How well each template fits at every place of the image, from exact integer sums.

    With sums over the window I at a place and the template T of n numbers (all channels together):

    | method | value | dtype | best | elsewhere |
    | --- | --- | --- | --- | --- |
    | "ccorr" | sum I*T | int64, exact | largest | cv2.TM_CCORR |
    | "ssd" | sum (I - T)**2 | int64, exact | smallest; 0 where equal | cv2.TM_SQDIFF |
    | "ccoeff_normed" | cov(I, T) / sqrt(var(I) * var(T)) | float64 | largest; 1 where I = a*T + b, a > 0 |
      cv2.TM_CCOEFF_NORMED, skimage.feature.match_template |

    The products run on the device; the sums of I and I*I are integral images in int64. "ccoeff_normed"
    divides exact whole numbers in float64, and is 0 where the window or the template is constant, as
    scikit-image's.

    Args:
        image: (H, W) or (C, H, W), of the dtypes of `conv2d`.
        templates: (h, w) or (T, h, w) for an image (H, W); (C, h, w) or (T, C, h, w) for an image (C, H, W);
            h <= H, w <= W.
        path, device: as `conv2d`.

    Returns:
        (T, H-h+1, W-w+1), or without T where one template was given alone. The value at [i, j] is that of the
        window whose top left pixel is (i, j).

    Raises:
        DTypeError, ArgumentError: as `conv2d`. AccumulatorOverflowError: sums of squares beyond int64 (32-bit
        data alone).

    >>> image = np.arange(20, dtype=np.uint8).reshape(4, 5) ** 2
    >>> score = match_template(image, image[1:3, 2:4], "ssd")
    >>> np.argwhere(score == 0)
    array([[1, 2]])
    """
    if method not in ("ccorr", "ssd", "ccoeff_normed"):
        raise ArgumentError(f"match_template: method is {method!r}; it must be ccorr, ssd or ccoeff_normed")
    a, t = _integers("match_template", "image", image), _integers("match_template", "templates", templates)
    single = t.ndim == a.ndim
    if a.ndim not in (2, 3) or t.ndim not in (a.ndim, a.ndim + 1):
        raise ArgumentError(
            f"match_template: image {a.shape}, templates {t.shape}; they must be (H, W) with (h, w) or (T, h,"
            " w), or (C, H, W) with (C, h, w) or (T, C, h, w)"
        )
    a = a if a.ndim == 3 else a[None]
    w = t[None] if single else t
    w = w if w.ndim == 4 else w[:, None]
    problem = Conv2dProblem.of((1, *a.shape), w.shape)
    sums = _correlate(
        "match_template", problem, a[None], w, _bias("", None, problem.oc), "auto", path, device
    )
    products = sums[0].astype(np.int64, copy=False)
    score = products if method == "ccorr" else _score(method, a, w, products)
    return score[0] if single else score


def _score(method: str, a: Array, w: Array, products: npt.NDArray[np.int64]) -> Array:
    """The measures that need sums of squares; products is (T, OH, OW)."""
    window = w.shape[-2:]
    count = math.prod(w.shape[1:])
    reach = max(_reach(a), _reach(w))
    if count * (2 * reach) ** 2 >= 2**63:
        raise AccumulatorOverflowError(
            f"match_template: {count} squares of numbers up to {reach} may leave int64; use smaller templates"
            " or 16-bit data"
        )
    t = w.reshape(len(w), -1).astype(np.int64)
    t_squares = (t * t).sum(axis=1)[:, None, None]
    squares = _window_sums((a.astype(np.int64) ** 2).sum(axis=0), window)
    if method == "ssd":
        return np.asarray(squares - 2 * products + t_squares)
    t_sums = t.sum(axis=1)[:, None, None]
    sums = _window_sums(a.sum(axis=0, dtype=np.int64), window)
    spread = _centred(squares, sums, sums, count) * _centred(t_squares, t_sums, t_sums, count)
    covariance = _centred(products, sums, t_sums, count)
    safe = np.sqrt(np.where(spread > 0, spread, 1.0))
    return np.asarray(np.clip(np.where(spread > 0, covariance / safe, 0.0), -1.0, 1.0))


def _centred(products: Array, a: Array, b: Array, count: int) -> npt.NDArray[np.float64]:
    """sum ab - sum a * sum b / count, rounded once or twice only: everything that could cancel is a whole
    number."""
    quotient, remainder = np.divmod(b, count)
    rest, part = np.divmod(a * remainder, count)
    return np.asarray((products - a * quotient - rest) - part / count, np.float64)


def _window_sums(values: npt.NDArray[np.int64], window: Sequence[int]) -> npt.NDArray[np.int64]:
    """The sum over every window that lies inside, through an integral image."""
    h, w = window
    total = np.zeros((values.shape[0] + 1, values.shape[1] + 1), np.int64)
    np.cumsum(np.cumsum(values, axis=0), axis=1, out=total[1:, 1:])
    return np.asarray(total[h:, w:] - total[:-h, w:] - total[h:, :-w] + total[:-h, :-w])


# ----------------------------------------------------------------------------------------------------------
# checks


def _correlate(
    name: str, p: Conv2dProblem, x: Array, w: Array, bias: npt.NDArray[np.int64], accumulate: Accumulate,
    path: str, device: Device | None
) -> Array:  # fmt: skip
    """Checks the accumulator, and runs."""
    x_range, w_range = _range(x), _range(w)
    dtype = accumulator(name, x_range, w, bias, accumulate)
    device = device or default_device()
    choice = choose_path(device, path)
    if 0 in p.y_shape:
        return np.zeros(p.y_shape, dtype)
    if p.gemm_k == 0:
        return np.array(np.broadcast_to(bias.astype(dtype).reshape(1, -1, 1, 1), p.y_shape))
    how = arithmetic(x_range, w_range, dtype == np.int64, choice.form)
    return op.correlate(device, choice, how, p, x, w, bias)


def accumulator(
    name: str, x_range: tuple[int, int], w: Array, bias: npt.NDArray[np.int64], accumulate: Accumulate
) -> np.dtype[Any]:
    """int32 or int64, where every sum fits it: see *accumulate* of `conv2d`. Raises AccumulatorOverflowError
    where none does."""
    if accumulate not in ("int32", "int64", "auto"):
        raise ArgumentError(f"{name}: accumulate is {accumulate!r}; it must be int32, int64 or auto")
    low, high = x_range
    flat = w.reshape(len(w), math.prod(w.shape[1:]))
    positive = (
        np.where(flat > 0, flat, 0).sum(axis=1, dtype=np.int64).astype(object)
    )  # Python's numbers: products may be large
    negative = np.where(flat < 0, flat, 0).sum(axis=1, dtype=np.int64).astype(object)
    offsets = bias.astype(object)
    least, most = positive * low + negative * high + offsets, positive * high + negative * low + offsets
    for dtype in ("int32", "int64") if accumulate == "auto" else (accumulate,):
        bottom, top = _LIMITS[dtype]
        if all(bottom <= v for v in least) and all(v <= top for v in most):
            return np.dtype(dtype)
    bottom, top = _LIMITS["int64" if accumulate == "auto" else accumulate]
    worst = max(range(len(flat)), key=lambda i: max(most[i] - top, bottom - least[i]))
    remedy = "use accumulate='int64' or 'auto'" if accumulate == "int32" else "use smaller numbers or windows"
    raise AccumulatorOverflowError(
        f"{name}: template {worst}: its sums lie in [{least[worst]}, {most[worst]}] (x in [{low}, {high}],"
        f" positive taps sum to {positive[worst]}, negative ones to {negative[worst]}), and"
        f" {'int64' if accumulate == 'auto' else accumulate} holds [{bottom}, {top}]; {remedy}"
    )


def _integers(name: str, what: str, values: npt.ArrayLike) -> Array:
    array = np.asarray(values)
    native = array.dtype.newbyteorder("=")
    if native.name not in DTYPES:
        raise DTypeError(f"{name}: {what} has dtype {array.dtype}; it must be one of {', '.join(DTYPES)}")
    return array.astype(native, copy=False)


def _bias(name: str, bias: npt.ArrayLike | None, channels: int) -> npt.NDArray[np.int64]:
    if bias is None:
        return np.zeros(channels, np.int64)
    values = np.asarray(bias)
    if values.dtype.kind not in "iu" or values.dtype.name == "uint64":
        raise DTypeError(f"{name}: bias has dtype {values.dtype}; it must be of integers, at most int64")
    if values.shape != (channels,):
        raise ArgumentError(
            f"{name}: bias has shape {values.shape}; it must be ({channels},), one number per template"
        )
    return values.astype(np.int64)


def _range(values: Array) -> tuple[int, int]:
    """The least and the largest number, with 0 among them: padding, and lanes beyond an edge, are 0."""
    if values.size == 0:
        return 0, 0
    return min(int(values.min()), 0), max(int(values.max()), 0)


def _reach(values: Array) -> int:
    low, high = _range(values)
    return max(-low, high)
