"""Integer template correlation: vkq beside SciPy and PyTorch in the same run; where each is exact, and what
it costs.

Every result is compared with NumPy first. A vkq result that differs prints no time and ends with exit code 1;
a peer that is not exact says at how many places and by how much. Clocks: `gpu` (device timestamps, CUDA
events: kernels alone, inputs and result on the device) and `call` (arrays in, arrays out). Usage:
integer_peers.py [--device NAME] [--json FILE] [--seconds S] [--only CASE]   (S: the least time of a
measurement)
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

import vkq
from vkq.integer import correlation as op
from vkq.integer.api import accumulator
from vkq.integer.digits import digits_for
from vkq.integer.work import Arithmetic, arithmetic
from vkq.problem.conv2d import Conv2dProblem
from vkq.select.path import choose

CASES = {  # (image, templates, padding)
    "30 x 100x100, padding 30": ((1, 1, 100, 100), (30, 1, 100, 100), 30),
    "500 x 50x50": ((1, 1, 100, 100), (500, 1, 50, 50), 0),
}
SAMPLES = 10


@dataclass
class Row:
    """One measurement, or the reason why there is none."""

    case: str
    data: str
    what: str
    clock: str
    median_us: float | None
    spread_us: float | None
    exact: bool
    note: str


def oracle(x: np.ndarray, w: np.ndarray, pad: int) -> np.ndarray:
    """int64 through float64 matrix products, which are exact here: every partial sum is below 2**53."""
    assert float(np.abs(x.astype(float)).max() * np.abs(w.astype(float)).sum(axis=(1, 2, 3)).max()) < 2**53
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x[0, 0].astype(np.float64), pad), w.shape[2:])
    flat = np.ascontiguousarray(w.reshape(len(w), -1).astype(np.float64).T)
    return np.stack([(line.reshape(len(line), -1) @ flat).T for line in windows], axis=1)[None].astype(
        np.int64
    )


def judged(got: np.ndarray, want: np.ndarray) -> tuple[bool, str]:
    """Whether all results are the whole numbers they must be, and how far off they are."""
    error = np.abs(got.astype(np.float64) - want)
    wrong = int((error != 0).sum())  # NaN and infinities count
    worst = "not finite" if not np.isfinite(error).all() else f"up to {error.max():g} off"
    return wrong == 0, "exact" if wrong == 0 else f"{100 * wrong / want.size:.1f} % wrong, {worst}"


def timed(body: Callable[[int], float], seconds: float) -> tuple[float, float]:
    """(median, spread p80 - p20) of one repetition in us; body(n) runs n and returns their time in us."""
    n = 1
    while (taken := body(n)) < 1e6 * seconds / SAMPLES and n < 256:
        n = max(n + 1, min(256, int(n * 1e6 * seconds / SAMPLES / max(taken, 1))))
    samples = sorted(body(n) / n for _ in range(SAMPLES if taken < 2e6 else 2))
    spread = samples[int(0.8 * (len(samples) - 1))] - samples[int(0.2 * (len(samples) - 1))]
    return statistics.median(samples), spread


def clocked(run: Callable[[], Any]) -> Callable[[int], float]:
    """The host's clock around n runs."""

    def body(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            run()
        return 1e6 * (time.perf_counter() - start)

    return body


def vkq_rows(
    device: vkq.Device, x: np.ndarray, w: np.ndarray, pad: int, want: np.ndarray, seconds: float
) -> Iterator[tuple]:
    """(what, clock, median, spread, exact, note) of each path, on the device's clock; and the whole call."""
    p = Conv2dProblem.of(x.shape, w.shape, padding=pad)
    ranges = [(min(int(v.min()), 0), max(int(v.max()), 0)) for v in (x, w)]
    bias = np.zeros(len(w), np.int64)
    wide = accumulator("", ranges[0], w, bias, "auto") == np.int64
    ways = {path: arithmetic(*ranges, wide, choose(device, path).form) for path in ("auto", "portable")}
    if x.dtype.itemsize == 2 and not wide:
        ways["mul32"] = Arithmetic(
            "mul32", digits_for(*ranges[0], bits=16), digits_for(*ranges[1], bits=16), False
        )
    for name, how in ways.items():
        rows, columns = op.axes(p)
        job = op.Correlation(device, w, bias, how, 1, rows, columns).load(x, rows)
        got = np.empty(want.shape, np.int64 if how.wide else np.int32)
        with device.operation() as recording:
            job.record(recording)
        job.read(got)
        exact, note = judged(got, want)
        what = f"vkq {name} ({how.form}{', 64-bit sums' if how.wide else ''})"
        yield (what, "gpu", *(timed(gpu_clock(device, job), seconds) if exact else (None, None)), exact, note)

    def call() -> np.ndarray:
        return vkq.integer.conv2d(x, w, padding=pad, accumulate="auto", device=device)

    exact, note = judged(call(), want)
    yield (
        "vkq.integer.conv2d",
        "call",
        *(timed(clocked(call), seconds) if exact else (None, None)),
        exact,
        note,
    )


def gpu_clock(device: vkq.Device, job: op.Job) -> Callable[[int], float]:
    """From the first dispatch's start to the last one's end, with what stands between them: barriers and
    clearing."""

    def body(n: int) -> float:
        with device.record(timestamps=n) as recording:
            for _ in range(n):
                job.record(recording)
        recording.run()
        ticks = recording._native.timestamps()
        c = device.capabilities
        return (
            float((ticks[-1] - ticks[0]) & ((1 << c.timestamp_valid_bits) - 1)) * c.timestamp_period_ns / 1000
        )

    return body


def scipy_rows(x: np.ndarray, w: np.ndarray, pad: int, want: np.ndarray, seconds: float) -> Iterator[tuple]:
    try:
        import scipy.signal
    except ImportError:
        return
    image = np.pad(x[0, 0], pad)
    direct = w[:2]  # it takes a second for each
    for what, method, dtype, templates in (
        ("scipy correlate direct, int64", "direct", np.int64, direct),
        ("scipy correlate FFT, float64", "fft", np.float64, w),
        ("scipy correlate FFT, float32", "fft", np.float32, w),
    ):
        a, t = image.astype(dtype), templates[:, 0].astype(dtype)

        def run(a: np.ndarray = a, t: np.ndarray = t, method: str = method) -> np.ndarray:
            return np.stack([scipy.signal.correlate(a, one, "valid", method) for one in t])[None]

        exact, note = judged(run(), want[:, : len(t)])
        if method == "fft" and dtype == np.float64 and not exact:
            rounded, after = judged(np.rint(run()), want)
            note += f"; after rounding: {after if not rounded else 'exact'}"
        median, spread = timed(clocked(run), min(seconds, 0.2))
        factor = len(w) / len(t)
        note += f"; timed with {len(t)} templates" if factor > 1 else ""
        yield (what, "call", median * factor, spread * factor, exact, note)


def torch_rows(x: np.ndarray, w: np.ndarray, pad: int, want: np.ndarray, seconds: float) -> Iterator[tuple]:
    try:
        import torch
    except ImportError:
        return
    conv = torch.nn.functional.conv2d
    a, t = (torch.from_numpy(v.astype(np.float32)) for v in (x, w))
    if torch.cuda.is_available():
        yield from cuda_rows(torch, x, w, pad, want, seconds)
    else:
        exact, note = judged(conv(a, t, padding=pad).numpy(), want)
        yield (
            "torch conv2d float32, CPU",
            "call",
            *timed(clocked(lambda: conv(a, t, padding=pad)), seconds),
            exact,
            note,
        )


def cuda_rows(
    torch: Any, x: np.ndarray, w: np.ndarray, pad: int, want: np.ndarray, seconds: float
) -> Iterator[tuple]:
    """PyTorch on CUDA with and without cuDNN's search for the fastest algorithm, in a CUDA graph where it can
    be captured."""
    for kind, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("TF32", torch.float32, True),
        ("float16", torch.float16, False),
        ("float64", torch.float64, False),
        ("int32", torch.int32, False),
        ("int8", torch.int8, False),
    ):
        for search in (False, True):
            torch.backends.cudnn.allow_tf32 = tf32
            torch.backends.cudnn.benchmark = search
            what = f"torch conv2d {kind}, CUDA{', cudnn.benchmark' if search else ''}"
            a, t = (torch.from_numpy(v.astype(np.int32)).to("cuda", dtype) for v in (x, w))
            try:
                got = torch.nn.functional.conv2d(a, t, padding=pad)
                torch.cuda.synchronize()
            except RuntimeError as error:
                yield (what, "gpu", None, None, False, f"refused: {str(error).splitlines()[0][:90]}")
                break
            exact, note = judged(got.cpu().double().numpy(), want)
            yield (what, "gpu", *timed(cuda_clock(torch, a, t, pad), seconds), exact, note)


def cuda_clock(torch: Any, a: Any, t: Any, pad: int) -> Callable[[int], float]:
    for _ in range(5):
        torch.nn.functional.conv2d(a, t, padding=pad)
    torch.cuda.synchronize()
    run = lambda: torch.nn.functional.conv2d(a, t, padding=pad)  # noqa: E731
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            run()
        run = graph.replay
    except RuntimeError:
        torch.cuda.synchronize()

    def body(n: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(n):
            run()
        end.record()
        end.synchronize()
        return float(1000 * start.elapsed_time(end))

    return body


def operands(dtype: str, x_shape: tuple[int, ...], w_shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Seeded numbers over the whole 8-bit range; 16-bit data is a 12-bit camera's, so that float64 can be the
    oracle's."""
    rng = np.random.default_rng(1)
    low, high = {"int8": (-128, 128), "uint8": (0, 256), "int16": (-32768, 32768), "12-bit int16": (0, 4096)}[
        dtype
    ]
    kind = dtype.split()[-1]
    x, w = (rng.integers(low, high, s).astype(kind) for s in (x_shape, w_shape))
    return (x, (w // 64).astype(kind)) if dtype.startswith("12") else (x, w)


def measure(device: vkq.Device, seconds: float, only: str) -> list[Row]:
    rows = []
    for case, (x_shape, w_shape, pad) in CASES.items():
        if only not in case:
            continue
        print(
            f"\n{case}: {Conv2dProblem.of(x_shape, w_shape, padding=pad).macs / 1e9:.2f} billion"
            " multiply-adds"
        )
        for kind in ("int8", "uint8", "12-bit int16", "int16"):
            x, w = operands(kind, x_shape, w_shape)
            want = oracle(x, w, pad)
            for source in (
                vkq_rows(device, x, w, pad, want, seconds),
                *(f(x, w, pad, want, seconds) for f in (scipy_rows, torch_rows)),
            ):
                for what, clock, median, spread, exact, note in source:
                    rows.append(Row(case, kind, what, clock, median, spread, exact, note))
                    took = f"{median:11.1f} us +- {spread:8.1f}" if median is not None else f"{'no time':>23}"
                    print(f"{kind:12} {what:46} {clock:4} {took}  {note}", flush=True)
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
        print(
            f"{device.name}, {c.driver}; vkq {vkq.__version__}; {choose(device).path}:"
            f" {choose(device).reason}"
        )
        if c.device_type == "cpu":
            print("This is a software device: its times rank nothing on a GPU.")
        rows = measure(device, options.seconds, options.only)
        facts = {"schema": 1, "device": device.name, "driver": c.driver, "vkq": vkq.__version__}
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump({**facts, "rows": [asdict(row) for row in rows]}, file, indent=1)
    return int(any(row.what.startswith("vkq") and not row.exact for row in rows))


if __name__ == "__main__":
    sys.exit(main())
