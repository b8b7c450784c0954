"""What pools are compiled with."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..problem.window import Window
from ..shader.spec import Value

MOST_KERNEL, MOST_STRIDE, INVOCATIONS = 3, 2, 128  # of a window that is unrolled, and of its workgroups


def unrolled(c: Capabilities, window: Window) -> dict[str, Value]:
    """What the shader of a maximum or a mean knows of a small window before it is compiled, where the device
    unrolls such."""
    kernel, stride = window.kernel[0], window.stride[0]
    square = window.kernel == (kernel, kernel) and window.stride == (stride, stride)
    small = square and kernel <= MOST_KERNEL and stride <= MOST_STRIDE and window.dilation == (1, 1)
    if not (small and profile(c).unrolled_windows):
        return {}
    return {"LOCAL_X": INVOCATIONS, "KERNEL": kernel, "STRIDE": stride, "ASIDE": -window.padding[1] % 4}
