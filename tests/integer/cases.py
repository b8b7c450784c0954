"""Seeded random integer correlations, and their comparison with NumPy's int64.

The tests take the first few; all of them: ``python -m tests.ops.integer_cases 1000``.
"""

from __future__ import annotations

import sys

import numpy as np

import vkq
from vkq.problem.conv2d import Conv2dProblem
from vkq.reference import integer as reference_integer

PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")
DTYPES = ("int8", "uint8", "int16", "uint16", "int32")
Operands = tuple[Conv2dProblem, np.ndarray, np.ndarray, np.ndarray]


def values(rng: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """Numbers of the whole dtype, or of a part of it, now and then the extremes alone."""
    info = np.iinfo(dtype)
    kind = rng.integers(4)
    if kind == 0:
        return rng.choice(np.array([info.min, info.max, 0], dtype), shape)
    if kind == 1:
        return rng.integers(max(info.min, -20), 21, shape).astype(dtype)
    return rng.integers(info.min, info.max, shape, dtype, endpoint=True)


def random_case(seed: int) -> Operands:
    """The problem, x, w and bias of a seed: shapes small, uneven and often degenerate; options all at
    once."""
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
        except vkq.ArgumentError:  # the window does not fit: draw again
            continue
        x_dtype, w_dtype = rng.choice(DTYPES, 2, p=[0.25, 0.2, 0.25, 0.2, 0.1])
        if x_dtype == w_dtype == "int32":  # whose sums may leave int64, and are refused
            w_dtype = "uint16"
        x, w = values(rng, str(x_dtype), x_shape), values(rng, str(w_dtype), w_shape)
        return p, x, w, rng.integers(-(2**20), 2**20, p.oc)


def check(device: vkq.Device, seed: int) -> str | None:
    """What differs from NumPy for a seed, on the path that the seed says; None: nothing."""
    p, x, w, bias = random_case(seed)
    path = PATHS[seed % len(PATHS)]
    options = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation, "groups": p.groups}
    accumulate = "auto" if seed % 2 else "int64"
    got = vkq.integer.conv2d(x, w, bias, **options, accumulate=accumulate, path=path, device=device)
    want = reference_integer.conv2d(x, w, bias, p)
    wrong = np.argwhere(got != want)
    if wrong.size == 0:
        return None
    at = tuple(wrong[0])
    return (
        f"seed {seed}: {p.name} {x.dtype} {w.dtype} {path} {got.dtype}: {len(wrong)} wrong, {at}: {got[at]},"
        f" must be {want[at]}"
    )


def main(count: int) -> int:
    failures = 0
    for driver in ("llvmpipe", "SwiftShader"):
        with vkq.Device(driver) as device:
            found = [text for text in (check(device, seed) for seed in range(count)) if text]
            print(
                f"{device.name}: {count - len(found)} of {count} random cases equal NumPy's int64",
                *found,
                sep="\n",
            )
            failures += len(found)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000))
