"""Keeps the clock of a GPU up while kernels are timed one after the other.

A GPU lowers its clock while it has little to do: an H200 from 1,980 to 345 MHz within seconds. The host works
between the times of two kernels, so without this module they would be measured at different clocks.
"""

from __future__ import annotations

import contextlib
import math
import time

from ..device.profiles import profile
from ..errors import PathError
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .tuning import Chosen, Subject, Trial

WARM_S = 0.2  # a GPU runs for this time before the first measurement: its clock then is at its highest
AGAIN_S = 0.3  # maximum time for raising the clock again
NEAR = 1.1  # the clock is up if the product takes at most this times its shortest time
RUNS = 5  # the product's time is the shortest of this number of runs
ROWS, K, N = 64, 1024, 512  # the sizes of the product; ROWS for each core


class Awake:
    """Calling the object runs a product on the device until the product is about as fast as it has been. On a
    CPU device, and on a device without timestamps, this does nothing: their times also depend on other work
    of the host."""

    def __init__(self, device: Device):
        c = device.capabilities
        self._trial, self._best, self._works = Trial({}, ()), math.inf, False
        if c.device_type == "cpu" or not c.timestamp_valid_bits:
            return
        with contextlib.suppress(PathError):  # the device has no int8 path
            call = Chosen(Subject.of(device, f"linear[M=1,K={K},N={N}]", "auto").layer, {})
            self._trial.record(device, call, filled(device, (ROWS * profile(c).multiprocessors, K), "int8"))
            self._works = True
            self._run(WARM_S, 0.0)

    def __call__(self) -> None:
        if self._works:
            self._run(AGAIN_S, NEAR)

    def _run(self, seconds: float, near: float) -> None:
        """Run the product for *seconds*, or until it takes at most *near* times its shortest time."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            took = min(self._trial.run() for _ in range(RUNS))
            self._best = min(self._best, took)
            if took <= near * self._best:
                return


def filled(device: Device, shape: tuple[int, ...], dtype: str) -> Tensor:
    """Return a tensor whose elements are equal. The device fills it, because the host would take long for
    the operands of a large product."""
    x = Tensor(device, shape, dtype)
    with device.operation() as recording:
        recording.fill(x.buffer, 0x11111111)
    return x
