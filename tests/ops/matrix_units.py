"""Matrix units for a device that has none: the kernels' addressing in NumPy, on the buffers and push constants they would get.

What is emulated is what the host must get right: where the shaders find activations, weights and channels, and where results
go. How the work is spread over subgroups is left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import vkq
from vkq.device.capabilities import CooperativeMatrix
from vkq.runtime.buffer import Buffer
from vkq.runtime.program import Program
from vkq.runtime.recording import Recording
from vkq.shader.spec import Value, Variant

from . import doctored

ROW = CooperativeMatrix(16, 8, 32, "s8", "s8", "s32", "s32", False, "subgroup")
FEATURES = ("cooperativeMatrix", "vulkanMemoryModel", "shaderInt8", "subgroupSizeControl", "computeFullSubgroups")
LIMITS = {
    "minSubgroupSize": 32,
    "maxSubgroupSize": 32,
    "maxComputeSharedMemorySize": 49152,
    "maxComputeWorkGroupInvocations": 1024,
}
Array = npt.NDArray[Any]
Push = Mapping[str, int | float]


def capabilities(device: vkq.Device, *shapes: str, **changes: Any) -> vkq.Capabilities:
    """The device's, as if it had matrix units of these shapes (MxNxK)."""
    sizes = [tuple(map(int, shape.split("x"))) for shape in shapes or ("16x16x32", "16x8x32")]
    rows = tuple(dataclasses.replace(ROW, m=m, n=n, k=k) for m, n, k in sizes)
    return doctored.capabilities(device, cooperative_matrices=rows, **{**dict.fromkeys(FEATURES, True), **LIMITS, **changes})


def emulate(device: vkq.Device, monkeypatch: pytest.MonkeyPatch, *shapes: str) -> None:
    """From now on the device has matrix units of these shapes."""
    make, dispatch = device.program, Recording.dispatch

    def program(variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0) -> Program:
        if "coopmat" not in variant.name:
            return make(variant, constants, subgroup_size)
        assert subgroup_size == 32
        assert not variant.missing(device.capabilities.facts)
        return Program(variant, variant.constants(constants or {}), None)

    def emulated(self: Recording, program: Program, buffers: Iterable[Buffer], push: Push, macs: int = 0) -> None:
        if program.native is not None:
            dispatch(self, program, buffers, push, macs)
            return
        program.variant.pack_push(first_group=0, **push)
        operations, device._operations = device._operations, 0  # so that what was asked for runs now
        x, w, channels, y = buffers
        words = [device.download(b, b.bytes) for b in (x, w, channels, y)]
        run(program, push, *words)
        device.upload(y, words[3])
        device._operations = operations

    monkeypatch.setattr(device, "capabilities", capabilities(device, *shapes))
    monkeypatch.setattr(device, "program", program)
    monkeypatch.setattr(Recording, "dispatch", emulated)


def run(program: Program, push: Push, x: Array, w: Array, channels: Array, y: Array) -> None:
    """One dispatch on the bytes of its buffers."""
    p: Any = type("Push", (), dict(push))
    d = {name: int(value) for name, value in program.variant.defines.items()}
    n_across = -(-p.n // 16) * 16
    weights = w.view(np.int8)[: w.size // 16 * 16].reshape(-1, 16)
    covered = 0
    products = _convolution if "TH" in d else _product
    for group, places, tiles, rows in products(p, d, program.constants, x.view(np.int8)[: x.size // 16 * 16].reshape(-1, 16)):
        sums = np.zeros((len(places), p.n))
        for run_of_w, x_rows in rows:
            w_rows = weights[run_of_w * n_across : run_of_w * n_across + p.n]
            sums += x_rows.astype(np.float64) @ w_rows.T.astype(np.float64)
        _store(p, d, group * p.n, places, sums.astype(np.int32), channels.view(np.int32).reshape(-1, 4, 4), y)
        covered += tiles
    assert covered * -(-p.n // d["BN"]) == program.variant.workgroups({"first_group": 0, **push}, program.constants)


Rows = Iterator[tuple[int, Array]]  # for each run of 16 k: its number in the weights, and those of every row of x


def _product(p: Any, d: dict[str, int], constants: Any, x: Array) -> Iterator[tuple[int, Array, int, Rows]]:
    row = np.arange(p.rows)
    image, pixel = row // p.pixels, row % p.pixels
    at = image * p.x_pixels + pixel // p.ow * p.stride_h * p.x_w + pixel % p.ow * p.stride_w
    runs = d["BK"] // 16
    assert p.steps % d["TURNS"] == 0
    assert p.steps * runs >= p.k16
    for group in range(p.groups):
        found = (
            (group * p.steps * runs + k, x[(group * p.k16 + min(k, p.k16 - 1)) * p.x_rows + at]) for k in range(p.steps * runs)
        )
        yield group, row, -(-p.rows // d["BM"]), found


def _convolution(p: Any, d: dict[str, int], constants: Any, x: Array) -> Iterator[tuple[int, Array, int, Rows]]:
    for group in range(p.groups):
        for image in range(p.rows // p.pixels):
            for tile in range(p.tiles_h * p.tiles_w):
                row = np.arange(d["TH"] * d["TW"])
                h, w = tile // p.tiles_w * d["TH"], tile % p.tiles_w * d["TW"]
                oh, ow = h + row // d["TW"], w + row % d["TW"]
                real = (oh < p.oh) & (ow < p.ow)
                places = np.where(real, image * p.pixels + oh * p.ow + ow, -1)
                yield group, places, 1, _taps(p, d, constants, x, group, image, h, w)


def _taps(p: Any, d: dict[str, int], c: Any, x: Array, group: int, image: int, tile_h: int, tile_w: int) -> Rows:
    runs, per_tap, w_runs = d["CH"] // 16, d["CH"] // d["BK"], d["BK"] // 16
    chunks, row = -(-p.k16 // runs), np.arange(d["TH"] * d["TW"])
    assert p.steps % d["TURNS"] == 0
    assert p.steps >= p.taps * per_tap
    lines, columns = np.divmod(np.arange(c["HALO_H"] * c["HALO_W"]), c["HALO_W"])
    assert lines.size * (runs + 1) <= d["HALO"]
    h, w = tile_h * c["STRIDE_H"] - p.pad_t + lines, tile_w * c["STRIDE_W"] - p.pad_l + columns
    real = (h >= 0) & (h < p.h) & (w >= 0) & (w < p.w)
    at = np.where(real, (image * p.h + h) * p.w + w, 0)
    for chunk in range(chunks):
        halo = np.full((runs, lines.size, 16), p.x_zero_point, np.int8)
        for r in range(runs):
            block = min(chunk * runs + r, p.k16 - 1) + group * p.k16
            if x.size:
                halo[r, real] = x[block * p.x_rows + at[real]]
        for t in range(p.steps):
            kh, kw = divmod(min(t // per_tap, p.taps - 1), c["KW"])
            line, column = row // d["TW"] * c["STRIDE_H"] + kh * p.dilation_h, row % d["TW"] * c["STRIDE_W"] + kw * p.dilation_w
            assert column.max() < c["HALO_W"]
            for r in range(w_runs):
                first = ((group * chunks + chunk) * p.steps + t) * w_runs + r
                yield first, halo[t % per_tap * w_runs + r, line * c["HALO_W"] + column]


def _store(p: Any, d: dict[str, int], n_group: int, places: Array, sums: Array, channels: Array, y: Array) -> None:
    channel = n_group + np.arange(p.n)
    offset, multiplier, bias = (channels[channel // 4, what, channel % 4] for what in (0, 2, 3))
    real = places >= 0
    places, acc = places[real, None], (sums[real] + offset).astype(np.float32)
    scaled = acc * multiplier.view(np.float32)
    if d["OUT"] == 1:
        rounded = np.clip(np.rint(scaled).astype(np.float64) + p.y_zero_point, p.y_min, p.y_max)
        y.view(np.int8)[(channel // 16 * p.rows + places) * 16 + channel % 16] = rounded
        return
    value = np.clip(scaled + bias.view(np.float32), np.float32(p.y_low), np.float32(p.y_high))
    at = (places // p.pixels * p.channels + channel) * p.pixels + places % p.pixels
    known = channel < p.channels
    y[: y.size // 4 * 4].view(np.float32)[at[:, known]] = value[:, known]
