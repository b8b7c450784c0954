"""Compare vkq's integer template correlation with SciPy, OpenCV and PyTorch in one run.

The output says which results are exact, and the times. Every result is first compared with NumPy's (for a
large image, only eight rows of each map). If a vkq result differs, no time is printed and the exit code is
1. If another library's result differs, the output gives the share of wrong elements and the largest error.

There are three clocks. `gpu`: device timestamps or CUDA events around packing and kernels; images and
results stay on the device. `call`: a call with arrays as inputs and results. `best`: a call of an existing
vkq.integer.Templates that returns only the best positions. Usage: integer_peers.py [--device NAME] [--json
FILE] [--seconds S] [--only CASE], where S is the minimum time of one measurement."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from integer_others import LARGE, Measure, Work, clocked, opencv_rows, scipy_rows, timed, torch_rows

import vkq
from vkq.integer import correlation as op
from vkq.integer.checks import accumulator, range_of
from vkq.integer.chunks import numbers
from vkq.integer.images import Images, words
from vkq.problem.conv2d import Conv2dProblem
from vkq.select.path import choose_path

CASES = {  # name -> (shape of the image, shape of the templates, padding, kinds of data)
    "30 x 100x100, padding 30": (
        (1, 1, 100, 100),
        (30, 1, 100, 100),
        30,
        ("int8", "uint8", "12 bits", "int16"),
    ),
    "500 x 50x50": ((1, 1, 100, 100), (500, 1, 50, 50), 0, ("int8", "uint8", "12 bits", "int16")),
    "1 x 100x100 in 2048x2048": ((1, 1, 2048, 2048), (1, 1, 100, 100), 0, ("uint8",)),
    "64 x 64x64 in 4096x4096": ((1, 1, 4096, 4096), (64, 1, 64, 64), 0, ("uint8",)),
}


@dataclass
class Row:
    """One measurement, or the reason why it is missing."""

    case: str
    data: str
    what: str
    clock: str
    median_us: float | None
    spread_us: float | None
    exact: bool
    note: str


def vkq_rows(device: vkq.Device, work: Work, seconds: float) -> Iterator[Measure]:
    """Measure each possible path by the device's clock, then whole calls, then the search for the best
    positions."""
    x, w, p = work.x, work.w, work.p
    bias = np.zeros(len(w), np.int64)
    wide = accumulator("", range_of(x), w, bias, "auto") == np.int64
    sums = op.Sums.of(range_of(x), w, wide)
    image, images, axes = vkq.Tensor.from_numpy(words(x), device), Images.of_array(x), op.axes(p)
    for path in dict.fromkeys(("auto", choose_path(device).path, "dot", "portable", op.TRANSFORM)):
        if p.macs > 100 * LARGE and path in ("dot", "portable"):
            continue  # these paths take seconds on a GPU and an hour on a CPU
        owner = op.Correlation(device, path, p, w, bias, sums)
        y, plan = owner.run(image, images, *axes), owner.plan(images, *axes)
        exact, note = work.judged(numbers(y, wide))
        took = timed(gpu_clock(device, plan, image, y), seconds) if exact else (None, None)
        yield (
            f"vkq {path}{', 64-bit sums' if wide else ''}",
            "gpu",
            took,
            exact,
            f"{note}; {plan.reasons['kernel']}",
        )
        del y
    if p.macs > 100 * LARGE:
        return

    def call() -> np.ndarray:
        return vkq.integer.conv2d(x, w, padding=work.pad, accumulate="auto", device=device)

    exact, note = work.judged(call())
    yield "vkq.integer.conv2d", "call", timed(clocked(call), seconds) if exact else (None, None), exact, note
    kept = vkq.integer.Templates(
        w, padding=work.pad, x_dtype=x.dtype.name, x_range=range_of(x), device=device
    )
    flat = work.want.reshape(1, len(w), -1)
    best = kept.best(x)
    places = best.place[..., 0] * p.ow + best.place[..., 1]
    exact = bool((best.score == flat.max(axis=2)).all() and (places == flat.argmax(axis=2)).all())
    took = timed(clocked(lambda: kept.best(x)), seconds) if exact else (None, None)
    yield "vkq.integer.Templates.best", "best", took, exact, "exact" if exact else "wrong"


def gpu_clock(device: vkq.Device, plan: Any, x: vkq.Tensor, y: vkq.Tensor) -> Callable[[int], float]:
    """Return a function that runs n dispatches with barriers, and returns the time between two device
    timestamps."""

    def body(n: int) -> float:
        with device.record(marks=2) as recording:
            recording.mark()
            for _ in range(n):
                recording.add(plan, [x.buffer], [y.buffer])
                recording.barrier()
            recording.mark()
        recording.run()
        return recording.mark_times_us()[0]

    return body


def operands(dtype: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return random operands over the whole range of a type. "12 bits" gives the image of a camera, and
    templates of 6 bits."""
    rng = np.random.default_rng(1)
    low, high = (0, 4096) if dtype == "12 bits" else (np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
    kind = "int16" if dtype == "12 bits" else dtype
    x, w = (rng.integers(low, high, s).astype(kind) for s in (x_shape, w_shape))
    return (x, w // 64) if dtype == "12 bits" else (x, w)


def measure(device: vkq.Device, seconds: float, only: str) -> list[Row]:
    rows = []
    for case, (x_shape, w_shape, pad, kinds) in CASES.items():
        if only not in case:
            continue
        macs = Conv2dProblem.of(x_shape, w_shape, padding=pad).macs
        print(f"\n{case}: {macs / 1e9:.2f} billion multiply-adds")
        for kind in kinds:
            work = Work(*operands(kind, x_shape, w_shape), pad)
            peers = (source(work, seconds) for source in (scipy_rows, opencv_rows, torch_rows))
            for source in (vkq_rows(device, work, seconds), *peers):
                for what, clock, (median, spread), exact, note in source:
                    rows.append(Row(case, kind, what, clock, median, spread, exact, note))
                    took = f"{median:11.1f} us +- {spread:8.1f}" if median is not None else f"{'no time':>23}"
                    print(f"{kind:8} {what:36} {clock:4} {took}  {note}", flush=True)
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", help="a part of the Vulkan device's name")
    parser.add_argument("--json", help="write the rows to this file")
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    options = parser.parse_args()
    with vkq.Device(options.device) as device:
        c = device.capabilities
        print(f"{device.name}, {c.driver}; vkq {vkq.__version__}; path {choose_path(device).path}")
        if c.device_type == "cpu":
            print("This is a software device: its times rank nothing on a GPU.")
        rows = measure(device, options.seconds, options.only)
        facts = {"schema": 2, "device": device.name, "driver": c.driver, "vkq": vkq.__version__}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**facts, "rows": [asdict(row) for row in rows]}, file, indent=1)
    return int(any(row.what.startswith("vkq") and not row.exact for row in rows))


if __name__ == "__main__":
    sys.exit(main())
