"""The operators that use matrix units, as calls on a device, for tests that inject faults. They use
emulated matrix units on a device without real ones."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import vkq
from tests.kernels import emulated
from tests.runtime.operators import PHOTO, QQ, WINDOWS, Make
from vkq.probe.matrices import lacking

RNG = np.random.default_rng(1)
IMAGE = RNG.integers(-128, 128, (1, 24, 9, 11), np.int8)
COLOURS = RNG.integers(-128, 128, (1, 3, 13, 19), np.int8)
ROWS = RNG.integers(-128, 128, (65, 72), np.int8)
FLOATS = ROWS.astype(np.float32) / 16
OPTIONS: dict[str, Any] = {"path": "coopmat", **QQ}


def weight(*shape: int) -> Any:
    return RNG.integers(-127, 128, shape, np.int8)


def _conv(w: Any, **options: Any) -> Make:
    return lambda d: vkq.Conv2d(w, 0.01, device=d, **OPTIONS, **options)


def _linear(w: Any, **options: Any) -> Make:
    return lambda d: vkq.Linear(w, 0.01, device=d, **options)


OPERATORS: dict[str, tuple[Make, Any]] = {
    "conv2d matrix": (_conv(weight(37, 24, 3, 3), padding=1, method="matrix"), IMAGE),
    "conv2d stem": (_conv(weight(20, 3, 3, 3), padding=1, stride=2, method="stem"), COLOURS),
    "conv2d stem of float32": (
        _conv(weight(20, 3, 3, 3), padding=1, stride=2, method="stem"), COLOURS.astype(np.float32),
    ),
    "conv2d of one pixel": (_conv(weight(40, 24, 1, 1)), IMAGE),
    "linear": (_linear(weight(40, 72), **OPTIONS), ROWS),
    "linear dynamic": (_linear(weight(40, 72), path="coopmat", x_qparams="dynamic"), FLOATS),
    "linear float16": (_linear(weight(40, 72), compute="float16"), FLOATS),
    "integer.conv2d": (
        lambda d: lambda x: vkq.integer.conv2d(x, WINDOWS, path="coopmat", device=d), PHOTO,
    ),
}  # fmt: skip


@contextlib.contextmanager
def fitted(device: vkq.Device) -> Iterator[None]:
    """Context manager: the device has matrix units for int8 and float16, real or emulated."""
    with pytest.MonkeyPatch.context() as patch:
        if lacking(device.capabilities) is not None:
            emulated.emulate(device, patch, "16x8x32")
            rows = (*device.capabilities.cooperative_matrices, emulated.row("16x16x16", "f16"))
            has = dataclasses.replace(device.capabilities, cooperative_matrices=rows)
            patch.setattr(device, "capabilities", has)
        yield
