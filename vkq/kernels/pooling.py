"""Specialization constants of pooling kernels, and a test whether the float formula of averages is exact."""

from __future__ import annotations

import numpy as np

from ..device.capabilities import Capabilities
from ..device.profile_fields import PLENTY
from ..device.profiles import profile
from ..numerics.qparams import QParams
from ..problem.window import Window
from ..shader.spec import Value
from .binary import FLOAT_STEP, TIE
from .sharing import sharers

# Loops over a window are unrolled for kernels up to MOST_KERNEL and strides up to MOST_STRIDE. Workgroups
# with unrolled loops have INVOCATIONS invocations.
MOST_KERNEL, MOST_STRIDE, INVOCATIONS = 3, 2, 128
# Minimum elements of a window whose maximum is computed along one axis, then along the other.
BY_AXES = 1 << 12


def unrolled(c: Capabilities, window: Window) -> dict[str, Value]:
    """Return the specialization constants of a maximum or mean over windows: the size of a small window,
    whose loops are unrolled, or the number of invocations that share a large window."""
    if (threads := sharers(window.taps)) > 1:
        return {"LOCAL_X": threads, "THREADS": threads}
    kernel, stride = window.kernel[0], window.stride[0]
    square = window.kernel == (kernel, kernel) and window.stride == (stride, stride)
    small = square and kernel <= MOST_KERNEL and stride <= MOST_STRIDE and window.dilation == (1, 1)
    if not (small and profile(c).registers == PLENTY):
        return {}
    return {"LOCAL_X": INVOCATIONS, "KERNEL": kernel, "STRIDE": stride, "ASIDE": -window.padding[1] % 4}


def error_of_average(window: Window, ratio: float) -> float:
    """Return a bound of an average's error, in steps of y. *ratio* is x_scale / y_scale. Every float32
    addition has an error of up to half an ulp of the partial sum, which is at most taps * 255 * x_scale."""
    return (window.taps + 16) * FLOAT_STEP * (255 * ratio + 512)


def sure(window: Window, x: QParams, y: QParams, count_include_pad: bool) -> bool:
    """Return True if the float formula gives every average exactly: every average divides by the number of
    taps, and no possible sum is so close to a tie that rounding errors change the result."""
    if not count_include_pad and (any(window.padding) or window.ceil_mode):
        return False
    ratio, bounds = x.scale / y.scale, np.iinfo(y.dtype)
    sums = np.arange(-255 * window.taps, 255 * window.taps + 1)  # every possible sum of x - x_zero_point
    values = np.clip(sums * (ratio / window.taps) + y.zero_point, bounds.min, bounds.max)
    return bool(np.abs(values - np.rint(values)).max() < TIE - 2 * error_of_average(window, ratio))
