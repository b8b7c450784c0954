"""What pools are compiled with, and how sure their short formula is."""

from __future__ import annotations

import numpy as np

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..numerics.qparams import QParams
from ..problem.window import Window
from ..shader.spec import Value
from .binary import FLOAT_STEP, TIE
from .sharing import sharers

MOST_KERNEL, MOST_STRIDE, INVOCATIONS = 3, 2, 128  # of a window that is unrolled, and of its workgroups
BY_AXES = 1 << 12  # elements of a window from which its maximum is found along one axis, then the other


def unrolled(c: Capabilities, window: Window) -> dict[str, Value]:
    """What the shader of a maximum or a mean knows of a window before it is compiled: of a small one its
    size, where the device unrolls such; how many invocations share a large one."""
    if (threads := sharers(window.taps)) > 1:
        return {"LOCAL_X": threads, "THREADS": threads}
    kernel, stride = window.kernel[0], window.stride[0]
    square = window.kernel == (kernel, kernel) and window.stride == (stride, stride)
    small = square and kernel <= MOST_KERNEL and stride <= MOST_STRIDE and window.dilation == (1, 1)
    if not (small and profile(c).unrolled_windows):
        return {}
    return {"LOCAL_X": INVOCATIONS, "KERNEL": kernel, "STRIDE": stride, "ASIDE": -window.padding[1] % 4}


def error_of_average(window: Window, ratio: float) -> float:
    """Of an average in steps of y, x_scale / y_scale being *ratio*, at most: every addition of the float32
    steps may be off by half a step of the partial sum, at most taps * 255 * x_scale."""
    return (window.taps + 16) * FLOAT_STEP * (255 * ratio + 512)


def sure(window: Window, x: QParams, y: QParams, count_include_pad: bool) -> bool:
    """Whether every window of an average counts all of its elements, and no sum of them lies so near to a tie
    that the order of roundings could matter: all sums are tried."""
    if not count_include_pad and (any(window.padding) or window.ceil_mode):
        return False
    ratio, bounds = x.scale / y.scale, np.iinfo(y.dtype)
    sums = np.arange(-255 * window.taps, 255 * window.taps + 1)  # of x - x_zero
    values = np.clip(sums * (ratio / window.taps) + y.zero_point, bounds.min, bounds.max)
    return bool(np.abs(values - np.rint(values)).max() < TIE - 2 * error_of_average(window, ratio))
