"""Compare random pools, means and softmaxes with the reference: ``vkq check windows --count 1000``. The seed
determines the case.

One case in four is large: its window or row may have more elements than some drivers allow iterations of a
loop.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import reference
from ..numerics.qparams import QDType, QParams
from ..ops.mean import reduce_mean
from ..ops.pool import avg_pool2d, global_avg_pool2d, max_pool2d
from ..ops.softmax import softmax
from ..problem.window import Window
from ..reference.softmax import softmax_onnxruntime
from ..runtime.device import Device

Array = npt.NDArray[Any]
# (description, function that runs the operator on a device, function that computes the reference's result)
Case = tuple[str, Callable[[Device], Array], Callable[[], Array]]
LARGE = 4  # one case in LARGE is large
LONGEST = 17.5  # log2 of the maximum number of elements of a row or an area (185,000)
MOST_TAPS = 15.5  # log2 of the maximum number of taps of a window: the reference loops over the taps


def random_case(seed: int) -> Case:
    """Return the case that a seed determines."""
    rng = np.random.default_rng(seed)
    make = (_max_pool, _average_pool, _global_average, _mean, _softmax)[seed // LARGE % 5]
    return make(rng, seed % LARGE == LARGE - 1)


def check(device: Device, seed: int) -> str | None:
    """Run the case of a seed. Return a text that describes the difference from the reference, or None if the
    result is right."""
    what, run, want = random_case(seed)
    got, right = run(device), want()
    wrong = np.argwhere(got != right)
    if (got.dtype, got.shape) != (right.dtype, right.shape):
        return f"seed {seed}: {what}: {got.dtype}{list(got.shape)}, must be {right.dtype}{list(right.shape)}"
    if not len(wrong):
        return None
    at = tuple(int(i) for i in wrong[0])
    return f"seed {seed}: {what}: {len(wrong)} wrong, {at}: {got[at]}, must be {right[at]}"


def _dtype(rng: np.random.Generator) -> QDType:
    return "int8" if rng.integers(2) else "uint8"


def _image(rng: np.random.Generator, shape: tuple[int, ...], dtype: QDType) -> Array:
    """Return random 8-bit values: either from the whole range of bytes, or only the bytes 0, 1 and 2."""
    high = 256 if rng.integers(3) else 3
    return rng.integers(0, high, shape).astype(np.uint8).view(dtype)


def _parameters(rng: np.random.Generator, dtype: QDType) -> QParams:
    """Return random quantization parameters. With some of the scales, quotients lie halfway between two
    integers (ties)."""
    scale = rng.choice([1 / 16, 1 / 60, 1 / 30, 0.05]) if rng.integers(2) else 2 ** rng.uniform(-8, 1)
    least = int(np.iinfo(dtype).min)
    return QParams(float(np.float32(scale)), least + int(rng.integers(256)), dtype)


def _sides(rng: np.random.Generator, large: bool, most: float = LONGEST) -> tuple[int, int]:
    """Return a random height and width, at most 13. If *large*, the area is up to 2**most instead, often as a
    single row or column."""
    if not large:
        h, w = (int(v) for v in rng.integers(1, 14, 2))
        return h, w
    area, part = 2 ** rng.uniform(10, most), float(rng.choice([0, 1, 0.5, rng.uniform(0, 1)]))
    return max(1, round(area**part)), max(1, round(area ** (1 - part)))


def _window(rng: np.random.Generator, large: bool, op: str) -> Window:
    """Return a random window. Some windows cover the whole image, and some have padding. Some *large* ones
    have a small kernel and thousands of channels."""
    kernel = _sides(rng, large, MOST_TAPS)
    n, c = int(rng.integers(1, 3)), int(rng.integers(1, 4 if large else 21))
    if large and rng.integers(3) == 0:
        kernel, c = (int(rng.integers(1, 4)), int(rng.integers(1, 4))), int(2 ** rng.uniform(9, 13))
    more = rng.integers(0, 3, 2) if rng.integers(3) else (0, 0)
    pads = [int(rng.integers(0, min(3, size))) if rng.integers(2) else 0 for size in (*kernel, *kernel)]
    image = (n, c, kernel[0] + int(more[0]), kernel[1] + int(more[1]))
    stride = (int(rng.integers(1, 4)), int(rng.integers(1, 4)))
    return Window.of(op, image, kernel, stride, pads, 1, bool(rng.integers(2)))


def _told(window: Window, dtype: str) -> str:
    return (
        f"{window.op}[x={'x'.join(map(str, window.x_shape))},kernel={window.kernel},stride={window.stride},"
        f"padding={window.padding},ceil_mode={window.ceil_mode}] {dtype}"
    )


def _max_pool(rng: np.random.Generator, large: bool) -> Case:
    w, dtype = _window(rng, large, "max_pool2d"), _dtype(rng)
    x, how = _image(rng, w.x_shape, dtype), (w.kernel, w.stride, w.padding)
    return (
        _told(w, dtype),
        lambda device: np.asarray(max_pool2d(x, *how, ceil_mode=w.ceil_mode, device=device)),
        lambda: reference.max_pool2d(x, w),
    )


def _average_pool(rng: np.random.Generator, large: bool) -> Case:
    w, dtype, inside = _window(rng, large, "avg_pool2d"), _dtype(rng), bool(rng.integers(2))
    x, xq, yq = _image(rng, w.x_shape, dtype), _parameters(rng, dtype), _parameters(rng, dtype)
    more: dict[str, Any] = {"ceil_mode": w.ceil_mode, "count_include_pad": not inside}
    more |= {"x_qparams": xq, "y_qparams": yq}
    return (
        f"{_told(w, dtype)} {xq} {yq} inside={inside}",
        lambda device: np.asarray(avg_pool2d(x, w.kernel, w.stride, w.padding, device=device, **more)),
        lambda: reference.avg_pool2d(x, w, xq, yq, not inside),
    )


def _global_average(rng: np.random.Generator, large: bool) -> Case:
    shape = (int(rng.integers(1, 3)), int(rng.integers(1, 9)), *_sides(rng, large))
    dtype = _dtype(rng)
    x, xq, yq = _image(rng, shape, dtype), _parameters(rng, dtype), _parameters(rng, dtype)
    return (
        f"global_avg_pool2d{list(shape)} {xq} {yq}",
        lambda device: np.asarray(global_avg_pool2d(x, x_qparams=xq, y_qparams=yq, device=device)),
        lambda: reference.global_avg_pool(x, xq, yq),
    )


def _mean(rng: np.random.Generator, large: bool) -> Case:
    """Return the case of a mean over one or two of the three axes of x."""
    shape = (int(rng.integers(1, 4)), *_sides(rng, large))
    gone = sorted({int(a) for a in rng.integers(0, 3, 2)})
    order = [*(a for a in range(3) if a not in gone), *gone]
    count = int(np.prod([shape[a] for a in gone]))
    dtype = _dtype(rng)
    x, xq, yq = _image(rng, shape, dtype), _parameters(rng, dtype), _parameters(rng, dtype)

    def want() -> Array:
        y = reference.global_avg_pool(x.transpose(order).reshape(1, -1, 1, count), xq, yq)
        return y.reshape([1 if a in gone else n for a, n in enumerate(shape)])

    return (
        f"reduce_mean{list(shape)} axes={gone} {xq} {yq}",
        lambda device: np.asarray(reduce_mean(x, gone, x_qparams=xq, y_qparams=yq, device=device)),
        want,
    )


def _softmax(rng: np.random.Generator, large: bool) -> Case:
    """Return the case of a softmax. Its form is random: a float32 result, an 8-bit result, or an 8-bit result
    as ONNX Runtime computes it."""
    shape, axis = (int(rng.integers(1, 3)), *_sides(rng, large)), int(rng.integers(3))
    dtype, form = _dtype(rng), int(rng.integers(3))
    x, xq = _image(rng, shape, dtype), _parameters(rng, dtype)
    yq = (
        QParams(float(rng.choice([1 / 256, 1 / 60, 1e-4])), int(np.iinfo(dtype).min), dtype) if form else None
    )
    more: dict[str, Any] = {"x_qparams": xq, "onnxruntime": form == 2}

    def want() -> Array:
        own = yq if form == 2 else None
        return reference.softmax(x, xq, axis, yq) if own is None else softmax_onnxruntime(x, xq, axis, own)

    return (
        f"softmax{list(shape)} axis={axis} form={form} {xq} {yq}",
        lambda device: np.asarray(softmax(x, axis, yq, device=device, **more)),
        want,
    )
