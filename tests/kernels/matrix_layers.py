"""Layers on matrix units for tests, and every supported shape of matrices."""

import dataclasses
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.device.profiles import profile
from vkq.kernels import half, half_configs
from vkq.kernels.half import HalfMatrices
from vkq.probe.matrices import Matrices, advertised, lacking

from . import emulated

Q, Y = vkq.QParams(0.05, 3), vkq.QParams(0.7, -5)
# Convolutions for float activations. Their M, N and K are not multiples of the tile sizes; one K is a
# multiple of 8.
CONVOLUTIONS = (
    "conv2d[N=2,IC=5,H=9,W=11,OC=18,KH=3,KW=3,padding=1]",
    "conv2d[N=1,IC=48,H=7,W=9,OC=40,KH=2,KW=3,stride=2x1,padding=1x0x2x1,dilation=1x2,groups=2]",
)


def with_matrices(device: vkq.Device, *rows: Any) -> vkq.Capabilities:
    """Return the device's capabilities with *rows* as the list of cooperative matrices, and with subgroups
    of 32."""
    properties = {**device.capabilities.properties, "minSubgroupSize": 32, "maxSubgroupSize": 32}
    return dataclasses.replace(device.capabilities, cooperative_matrices=rows, properties=properties)


def make(data: Any, device: vkq.Device, y: vkq.QParams | None, **changes: Any) -> Any:
    op = vkq.Linear if data.problem.name.startswith("linear") else vkq.Conv2d
    options = {"x_qparams": data.x_q, "y_qparams": y, "bias": data.bias, "w_zero_point": data.w_zero_point}
    options |= {"path": "coopmat", "overflow": data.overflow}
    return op(data.w, data.w_scale, device=device, **(options | data.options | changes))


def tiled(data: Any, device: vkq.Device, y: vkq.QParams | None, **changes: Any) -> Any:
    """Return the layer of `make`. A convolution with several taps or with padding uses tiles of input
    pixels in shared memory."""
    p = data.problem
    several = p.name.startswith("conv2d") and ((p.kh, p.kw) != (1, 1) or any(p.padding))
    return make(data, device, y, **({"method": "matrix"} if several else {}), **changes)


def layer_of(device: vkq.Device, weight_shape: tuple[int, ...], **options: Any) -> Any:
    make = vkq.Linear if len(weight_shape) == 2 else vkq.Conv2d
    weight = np.random.default_rng(5).integers(-128, 128, weight_shape, dtype=np.int8)
    return make(weight, 0.01, device=device, **{"x_qparams": Q, "y_qparams": Y, "path": "coopmat", **options})


def only(monkeypatch: pytest.MonkeyPatch, tile: str, parts: int | None = None) -> None:
    """Force the tile of float-activation products on matrix units, and the number of parts of k (split-K)."""
    made = HalfMatrices.__init__

    def init(self: HalfMatrices, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        self.tile, self.parts = tile, parts

    monkeypatch.setattr(HalfMatrices, "__init__", init)


def known(monkeypatch: pytest.MonkeyPatch, **says: Any) -> None:
    """Override fields of the device profile in the kernels for float activations."""
    for module in (half, half_configs):
        monkeypatch.setattr(module, "profile", lambda c: dataclasses.replace(profile(c), **says))


def units(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, matrices: Matrices) -> None:
    """Give the device only these matrix units: real ones if it has them, emulated ones if it has no
    matrix units. Skip the test if the device's matrix units have other shapes."""
    shape = f"{matrices.m}x{matrices.n}x{matrices.k}"
    if lacking(device.capabilities) is not None:
        emulated.emulate(device, monkeypatch, shape, form=matrices.form, subgroup=matrices.subgroup)
    elif matrices in advertised(device.capabilities):
        rows = (emulated.row(shape, matrices.form),)
        monkeypatch.setattr(
            device, "capabilities", dataclasses.replace(device.capabilities, cooperative_matrices=rows)
        )
    else:
        pytest.skip(f"the device does not list {matrices}")


SHAPES = [
    Matrices(16, 16, 32),  # NVIDIA lists this shape and the next
    Matrices(16, 8, 32),
    Matrices(16, 16, 32, "u8u8"),
    Matrices(16, 8, 32, "u8u8"),
    Matrices(16, 16, 16),  # AMD gfx11 and Xclipse list this shape
    Matrices(16, 16, 16, subgroup=64),
    Matrices(8, 8, 16),
    Matrices(64, 16, 32, subgroup=64),  # Adreno lists this shape
    Matrices(4, 16, 16, subgroup=16),  # Mali lists this shape
    Matrices(8, 8, 32, subgroup=8),  # Intel lists this shape
    Matrices(8, 16, 32, "u8u8", subgroup=16),
]


def name_of(value: Any) -> str:
    return f"{value}_{value.subgroup}".replace(" ", "_") if isinstance(value, Matrices) else str(value)
