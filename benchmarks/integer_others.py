"""The libraries that `integer_peers.py` compares with vkq.integer (SciPy, OpenCV and PyTorch, if
installed), and the check of results that vkq and these libraries must pass."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from vkq.problem.conv2d import Conv2dProblem

SAMPLES = 10
LARGE = 1 << 30  # if a correlation has more multiply-adds, only some rows of its result are compared
LINES = 8
Measure = tuple[str, str, "tuple[float | None, float | None]", bool, str]


@dataclass
class Work:
    """The operands of a correlation, and some rows of its exact result in NumPy's int64."""

    x: np.ndarray
    w: np.ndarray
    pad: int

    def __post_init__(self) -> None:
        self.p = Conv2dProblem.of(self.x.shape, self.w.shape, padding=self.pad)
        count = self.p.oh if self.p.macs < 100 * LARGE else LINES
        self.lines = np.unique(np.linspace(0, self.p.oh - 1, count).astype(int))
        self.want = self._lines()

    def _lines(self) -> np.ndarray:
        """Compute the rows `lines` of the exact result by float64 matrix products. They are exact here
        because every partial sum is below 2**53."""
        x, w = self.x.astype(np.float64), self.w.astype(np.float64)
        assert float(np.abs(x).max() * np.abs(w).sum(axis=(1, 2, 3)).max()) < 2**53
        padded, flat = np.pad(x[0, 0], self.pad), np.ascontiguousarray(w.reshape(len(w), -1).T)
        windows = np.lib.stride_tricks.sliding_window_view(padded, w.shape[2:])
        found = [(windows[i].reshape(self.p.ow, -1) @ flat).T for i in self.lines]
        return np.stack(found, axis=1)[None].astype(np.int64)

    def judged(self, got: np.ndarray, templates: int | None = None) -> tuple[bool, str]:
        """Return (whether all results are exact, a text with the largest error)."""
        want = self.want[:, :templates]
        error = np.abs(got[:, :, self.lines].astype(np.float64) - want)
        wrong = int((error != 0).sum())  # NaN and infinities also count as wrong
        worst = "not finite" if not np.isfinite(error).all() else f"up to {error.max():g} off"
        return wrong == 0, "exact" if wrong == 0 else f"{100 * wrong / want.size:.1f} % wrong, {worst}"


def timed(body: Callable[[int], float], seconds: float) -> tuple[float, float]:
    """Return (median, spread) of the time of one call in microseconds; the spread is from the 20th to the
    80th percentile. body(n) returns the time of n calls."""
    body(1)
    n = max(1, min(1000, int(seconds * 1e6 / SAMPLES / max(body(1), 1e-3))))
    samples = sorted(body(n) / n for _ in range(SAMPLES if n > 1 else 3))
    return statistics.median(samples), samples[-1 - len(samples) // 5] - samples[len(samples) // 5]


def clocked(call: Callable[[], Any]) -> Callable[[int], float]:
    def body(n: int) -> float:
        start = time.perf_counter()
        for _ in range(n):
            call()
        return 1e6 * (time.perf_counter() - start)

    return body


def scipy_rows(work: Work, seconds: float) -> Iterator[Measure]:
    try:
        import scipy.signal
    except ImportError:
        return
    image = np.pad(work.x[0, 0], work.pad)
    for what, method, dtype, most in (
        ("scipy correlate direct, int64", "direct", np.int64, 2),  # SciPy takes a second for each template
        ("scipy correlate FFT, float64", "fft", np.float64, None),
        ("scipy correlate FFT, float32", "fft", np.float32, None),
    ):
        if work.p.macs > 20 * LARGE and (method == "direct" or len(work.w) > 1):
            continue
        a, t = image.astype(dtype), work.w[:most, 0].astype(dtype)

        def run(a: np.ndarray = a, t: np.ndarray = t, method: str = method) -> np.ndarray:
            return np.stack([scipy.signal.correlate(a, one, "valid", method) for one in t])[None]

        exact, note = work.judged(run(), len(t))
        if method == "fft" and not exact:
            rounded, after = work.judged(np.rint(run()), len(t))
            note += f"; after rounding: {after if not rounded else 'exact'}"
        median, spread = timed(clocked(run), min(seconds, 0.2))
        factor = len(work.w) / len(t)
        note += f"; timed with {len(t)} templates" if factor > 1 else ""
        yield what, "call", (median * factor, spread * factor), exact, note


def opencv_rows(work: Work, seconds: float) -> Iterator[Measure]:
    """Measure OpenCV's matchTemplate. It accepts uint8 and float32, handles one template at a time, and
    adds in float32 or with an FFT."""
    try:
        import cv2
    except ImportError:
        return
    if work.p.macs > 20 * LARGE and len(work.w) > 1:
        return
    dtype = np.uint8 if work.x.dtype == np.uint8 else np.float32
    image, templates = np.pad(work.x[0, 0], work.pad).astype(dtype), work.w[:, 0].astype(dtype)

    def run() -> np.ndarray:
        return np.stack([cv2.matchTemplate(image, one, cv2.TM_CCORR) for one in templates])[None]

    exact, note = work.judged(run())
    yield f"cv2.matchTemplate {np.dtype(dtype)}, TM_CCORR", "call", timed(clocked(run), seconds), exact, note


def torch_rows(work: Work, seconds: float) -> Iterator[Measure]:
    try:
        import torch
    except ImportError:
        return
    if torch.cuda.is_available():
        yield from cuda_rows(torch, work, seconds)
    elif work.p.macs < 20 * LARGE:
        conv = torch.nn.functional.conv2d
        a, t = (torch.from_numpy(v.astype(np.float32)) for v in (work.x, work.w))
        exact, note = work.judged(conv(a, t, padding=work.pad).numpy())
        took = timed(clocked(lambda: conv(a, t, padding=work.pad)), seconds)
        yield "torch conv2d float32, CPU", "call", took, exact, note


def cuda_rows(torch: Any, work: Work, seconds: float) -> Iterator[Measure]:
    """Measure PyTorch on CUDA. cuDNN searches for its fastest algorithm. A CUDA graph is used if the call
    can be captured."""
    for kind, dtype, tf32 in (
        ("float32", torch.float32, False),
        ("TF32", torch.float32, True),
        ("float16", torch.float16, False),
        ("float64", torch.float64, False),
        ("int8", torch.int8, False),
    ):
        torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = tf32, True
        what = f"torch conv2d {kind}, CUDA"
        a, t = (torch.from_numpy(v.astype(np.int32)).to("cuda", dtype) for v in (work.x, work.w))
        try:
            got = torch.nn.functional.conv2d(a, t, padding=work.pad)
            torch.cuda.synchronize()
        except RuntimeError as error:
            yield what, "gpu", (None, None), False, f"refused: {str(error).splitlines()[0][:90]}"
            continue
        lines = torch.zeros(got.shape, dtype=torch.float64)
        at = torch.from_numpy(work.lines)
        lines[:, :, at] = got[:, :, at.cuda()].cpu().double()
        exact, note = work.judged(lines.numpy())
        del got, lines
        yield what, "gpu", timed(cuda_clock(torch, a, t, work.pad), seconds), exact, note


def cuda_clock(torch: Any, a: Any, t: Any, pad: int) -> Callable[[int], float]:
    for _ in range(3):
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
