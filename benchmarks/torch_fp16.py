"""Compare the convolutions of a `vkq bench` result with PyTorch's fp16 conv2d (cuDNN) on the same GPU.

PyTorch runs in a CUDA graph of many calls over rotating inputs and weights. The graph removes the host's
time, so this is the minimum time that PyTorch can reach. PyTorch is timed in both memory formats, and vkq is
compared with the faster one. vkq's times are the `gpu` clock of the result: device timestamps around its
dispatches, int8 in and out with bias and requantization. PyTorch only adds its bias. Usage: torch_fp16.py
RESULT.json [--json FILE] [--md FILE]"""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.names import parse

CALLS, SAMPLES, WARM_S = 64, 15, 0.15
# Calls rotate among copies of x and w, to read them from memory and not from the GPU's cache: as many copies
# as CACHE bytes hold, but at least 2 and at most CALLS.
CACHE = 128 << 20
FORMATS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


def torch_us(p: Conv2dProblem, memory_format: torch.memory_format) -> float:
    """Return the median microseconds of one fp16 conv2d, from replays of a CUDA graph with CALLS calls."""
    sizes = p.x_shape, p.weight_shape
    sets = max(2, min(CALLS, CACHE // (2 * sum(math.prod(size) for size in sizes))))
    xs, ws = (
        [
            torch.randn(size, device="cuda", dtype=torch.float16).to(memory_format=memory_format)
            for _ in range(sets)
        ]
        for size in sizes
    )
    bias = torch.randn(p.oc, device="cuda", dtype=torch.float16)
    top, left, bottom, right = p.padding
    assert (top, left) == (bottom, right)

    def call(i: int) -> torch.Tensor:
        return torch.nn.functional.conv2d(
            xs[i % sets], ws[i % sets], bias, p.stride, (top, left), p.dilation, p.groups
        )

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for i in range(3):
            call(i)
    side.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(CALLS):
            call(i)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    samples, warm = [], 0.0
    while len(samples) < SAMPLES:
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        elapsed = begin.elapsed_time(end)
        warm += elapsed / 1e3
        if warm > WARM_S:
            samples.append(elapsed * 1e3 / CALLS)
    return statistics.median(samples)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--md", type=Path)
    arguments = parser.parse_args()
    torch.backends.cudnn.benchmark = True
    rows = list(beside(json.loads(arguments.result.read_text())["rows"]))
    lines = table(rows)
    print("\n".join(lines))
    about = {
        "torch": torch.__version__,
        "cudnn": torch.backends.cudnn.version(),
        "gpu": torch.cuda.get_device_name(),
    }
    if arguments.json:
        arguments.json.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    if arguments.md:
        arguments.md.write_text("\n".join(lines) + "\n")


def beside(rows: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the convolutions of a result, each with PyTorch's times."""
    for row in rows:
        wanted = row["case"].startswith("conv2d") and row["clock"] == "gpu" and row["arm"] == "vkq"
        p = parse(row["case"]) if wanted else None
        if not isinstance(p, Conv2dProblem):
            continue
        times = {name: torch_us(p, memory_format) for name, memory_format in FORMATS.items()}
        yield {
            "case": row["case"],
            "batch": p.n,
            "vkq_us": row["median_us"],
            "variant": row["variant"],
            **{f"torch_{name}_us": us for name, us in times.items()},
            "ratio": min(times.values()) / row["median_us"],
        }


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Return the lines of a Markdown table, with the number of layers in which vkq is faster, for each
    batch size."""
    lines = ["| case | vkq int8 | torch fp16 NCHW | NHWC | faster by |", "| --- | --- | --- | --- | --- |"]
    lines += [
        f"| {r['case']} | {r['vkq_us']:.1f} us | {r['torch_NCHW_us']:.1f} us | {r['torch_NHWC_us']:.1f} us |"
        f" {r['ratio']:.2f} |"
        for r in rows
    ]
    for batch in sorted({r["batch"] for r in rows}):
        ratios = [r["ratio"] for r in rows if r["batch"] == batch]
        faster = sum(ratio > 1 for ratio in ratios)
        mean = statistics.geometric_mean(ratios)
        lines.append(
            f"\nBatch {batch}: vkq is faster in {faster} of {len(ratios)}, geometric mean {mean:.2f}."
        )
    return lines


if __name__ == "__main__":
    main()
