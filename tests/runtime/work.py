"""Layers with inputs and expected results, with which tests check that a device still computes correctly."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from tests.cases import random_data
from vkq.device.capabilities import Capabilities
from vkq.device.extension import native_module
from vkq.problem.names import parse

OUT_OF_DEVICE_MEMORY, DEVICE_LOST = -2, -4
Y = vkq.QParams(0.5, 3)


def opened(device: vkq.Device, staging: bool) -> vkq.Device:
    """Open the device again, with or without staging copies, and return it. Skip the test if the device is
    a discrete GPU, which refuses staging=False because its memory cannot be mapped."""
    if staging or device.capabilities.device_type != "discrete":
        return vkq.Device(device.name, staging=staging)
    with pytest.raises(vkq.ArgumentError, match="which staging=False needs"):
        vkq.Device(device.name, staging=False)
    pytest.skip("a discrete GPU refuses staging=False, as it must")


@dataclasses.dataclass
class Work:
    """A layer, an input and the expected result."""

    layer: Any
    x: npt.NDArray[Any]
    want: npt.NDArray[Any]

    def check(self) -> None:
        np.testing.assert_array_equal(self.layer(self.x), self.want)


def linear(
    device: vkq.Device, m: int = 9, k: int = 70, n: int = 13, path: str = "portable", seed: int = 1
) -> Work:
    """Return a linear layer whose sizes fill no tile."""
    data = random_data(parse(f"linear[M={m},K={k},N={n}]"), np.random.default_rng(seed))
    layer = vkq.Linear(
        data.w, data.w_scale, x_qparams=data.x_q, y_qparams=Y, bias=data.bias, path=path, device=device
    )
    return Work(layer, data.x, data.expected(Y))


def conv2d(device: vkq.Device, path: str = "portable", seed: int = 2) -> Work:
    """Return a convolution of two dispatches (im2col and product), with scratch memory between them."""
    data = random_data(
        parse("conv2d[N=2,IC=7,H=5,W=6,OC=6,KH=3,KW=3,padding=1]"), np.random.default_rng(seed)
    )
    layer = vkq.Conv2d(
        data.w,
        data.w_scale,
        x_qparams=data.x_q,
        y_qparams=Y,
        bias=data.bias,
        path=path,
        device=device,
        **data.options,
    )
    return Work(layer, data.x, data.expected(Y))


def replayed(layer: Any, x: npt.NDArray[Any], device: vkq.Device, times: int = 200) -> npt.NDArray[Any]:
    """Return the layer's result, after checking that all of *times* runs give the same bytes, whatever the
    memory held before."""
    taken, found = vkq.Tensor.from_numpy(x, device), set()
    with device.record() as recording:
        y = layer(taken)
    for _ in range(times):
        with device.operation() as before:
            before.fill(y.buffer, 0xA5A5A5A5)
        recording.run()
        found.add(y.numpy().tobytes())
    assert len(found) == 1
    return y.numpy()


def doctored(c: Capabilities, **properties: int) -> Capabilities:
    """Return the capabilities with changed properties. The probe, in its own process, still tests the real
    device."""
    return dataclasses.replace(c, properties={**c.properties, **properties})


@contextlib.contextmanager
def failing(call: str, nth: int = 1, result: int = OUT_OF_DEVICE_MEMORY, times: int = 1) -> Iterator[None]:
    """Context manager: calls nth to nth + times - 1 of the Vulkan function *call* fail with *result*. With
    *nth* = 0, no call fails; the calls are only counted."""
    native_module().inject(call, nth, result, times)
    try:
        yield
    finally:
        native_module().inject("")


def counted() -> int:
    """Return the number of calls that `failing` has counted."""
    return int(native_module().injected_calls())
