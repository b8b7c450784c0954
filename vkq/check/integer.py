"""Compare random integer convolutions with NumPy's int64 arithmetic: ``vkq check integer --count 1000``. The
seed determines the case."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError
from ..integer import conv2d
from ..problem.conv2d import Conv2dProblem
from ..reference import integer as reference
from ..runtime.device import Device

DTYPES = ("int8", "uint8", "int16", "uint16", "int32")
ROOM = 64 << 20  # bytes of device memory that a call may use in addition to its inputs and outputs
Array = npt.NDArray[Any]


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return random values: from the whole range of the dtype, or small values, or only the dtype's extremes
    and 0."""
    info = np.iinfo(dtype)
    kind = rng.integers(4)
    if kind == 0:
        return rng.choice(np.array([info.min, info.max, 0], dtype), shape)
    if kind == 1:
        return rng.integers(max(info.min, -20), 21, shape).astype(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def random_case(seed: int) -> tuple[Conv2dProblem, Array, Array, Array]:
    """Return (problem, x, w, bias) of a seed. Shapes are small; many are degenerate, or not multiples of a
    tile. All options are random."""
    rng = np.random.default_rng(seed)
    while True:
        groups, channels = int(rng.choice([1, 1, 1, 2, 3])), int(rng.choice([1, 1, 2, 3, 6]))
        templates = int(rng.choice([1, 2, 3, 5, 8, 9, 17]))
        kernel = (int(rng.integers(1, 12)), int(rng.choice([*range(1, 14), 33])))
        size = (int(rng.integers(1, 30)), int(rng.choice([*range(1, 30), 70])))
        stride, dilation = (
            (int(rng.choice([1, 1, 1, 2, 3])), int(rng.choice([1, 1, 1, 2, 4]))) for _ in range(2)
        )
        padding = tuple(int(v) for v in rng.integers(0, 1 + int(rng.choice([1, 3, 12])), 4))
        x_shape = (int(rng.choice([1, 1, 2, 3])), channels * groups, *size)
        w_shape = (templates * groups, channels, *kernel)
        try:
            p = Conv2dProblem.of(x_shape, w_shape, stride, padding, dilation, groups)
        except ArgumentError:  # the window does not fit the image: draw another problem
            continue
        x_dtype, w_dtype = rng.choice(DTYPES, 2, p=[0.25, 0.2, 0.25, 0.2, 0.1])
        if x_dtype == w_dtype == "int32":  # vkq refuses these dtypes, because the sums may exceed int64
            w_dtype = "uint16"
        x, w = values(rng, str(x_dtype), x_shape), values(rng, str(w_dtype), w_shape)
        return p, x, w, rng.integers(-(2**20), 2**20, p.oc)


def check(device: Device, seed: int, path: str) -> str | None:
    """Run the case of a seed. Return a text if the result differs from NumPy's, or if the call used too much
    device memory; else None."""
    p, x, w, bias = random_case(seed)
    options: dict[str, Any] = {
        "stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups,
        "accumulate": "auto" if seed % 2 else "int64",
    }  # fmt: skip
    device.reset_memory_peak()
    before = device.memory_used_bytes
    got = conv2d(x, w, bias, **options, path=path, device=device)
    used = device.memory_peak_bytes - before
    want = reference.conv2d(x, w, bias, p)
    what = f"seed {seed}: {p.name} {x.dtype} {w.dtype} {path} {got.dtype}"
    wrong = np.argwhere(got != want)
    if wrong.size:
        at = tuple(wrong[0])
        return f"{what}: {len(wrong)} wrong, {at}: {got[at]}, must be {want[at]}"
    room = x.nbytes + w.nbytes + got.nbytes + ROOM
    return f"{what}: {used} bytes of device memory, above {room}" if used > room else None
