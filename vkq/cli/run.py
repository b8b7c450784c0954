"""``vkq run``: run a model, compare its outputs with those of ONNX Runtime or LiteRT, and report the times of
its nodes."""

from __future__ import annotations

import argparse
import json
import statistics
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkq import files
from vkq.bench.fitted import above, distinct
from vkq.cli.common import (
    Parsers,
    add_command,
    columns,
    counted,
    device_argument,
    folded,
    integer_option,
    output_file,
    status_line,
)
from vkq.cli.inputs import feed_of, input_arguments
from vkq.schemes.base import COMPUTE

BEFORE_NAME = 25  # number of characters before the node's name in a line of the profile
SHOWN = 5  # number of the largest scores that are printed for an output
NODES = 20  # maximum number of nodes in a profile's table
REFEREES = ("onnxruntime", "litert")  # the reference library for ONNX files, and the one for .tflite files
COMPARED = {
    "onnxruntime": "ONNX Runtime's CPU provider, session.qdqisint8allowed=1 (int8 activations in integers on"
    " x86 too)",
    "litert": "LiteRT with XNNPACK",
}


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "run",
        run,
        "run a model (ONNX or TFLite); with --compare exit code 1 if an output differs",
        [
            "vkq run model.onnx -i x=photo.png",
            "vkq run model.onnx --random --compare onnxruntime",
            "vkq run model.tflite -i photo.png",
            "vkq run model.onnx -i inputs.npz -o outputs.npz --repeat 100",
            "vkq run model.onnx --random --profile --trace trace.json",
        ],
    )
    parser.add_argument("model", metavar="MODEL")
    input_arguments(parser)
    parser.add_argument("--random", action="store_true", help="use random numbers for inputs without a file")
    parser.add_argument(
        "-o", "--output", type=output_file, metavar="FILE.npz", help="the file of the outputs"
    )
    device_argument(parser)
    parser.add_argument("--fallback", choices=REFEREES, help="the library for nodes that no device can run")
    parser.add_argument("--compare", choices=REFEREES, help="the library to compare all output bytes with")
    parser.add_argument(
        "--compute", choices=COMPUTE, default=COMPUTE[0],
        help="the arithmetic of products of float activations and weights (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--repeat", type=integer_option(1), default=1, metavar="N", help="run N times, and print the times"
    )
    parser.add_argument(
        "--profile",
        action="store_true",
        help="print each node's time on the device: the median of --repeat runs",
    )
    parser.add_argument(
        "--trace", type=output_file, metavar="FILE.json", help="write the profile in Chrome's trace format"
    )
    parser.add_argument("--explain", action="store_true", help="print each node's shaders, with the reasons")


def run(options: argparse.Namespace) -> int:
    from vkq.tflite.either import check_referee, session_of

    check_referee(options.model, options.compare, "--compare")
    check_referee(options.model, options.fallback, "--fallback")
    with status_line() as show:  # the status line is visible only during the first run
        session = session_of(options.model)(
            options.model, options.device, options.fallback, compute=options.compute,
            progress=lambda made, count: show("" if made == count else f"{made} of {count} pipelines"),
        )  # fmt: skip
        return run_session(options, session)


def run_session(options: argparse.Namespace, session: Any) -> int:
    """Run the model of a session, and print what the options ask for. Return the exit code."""
    from vkq.tflite.either import referee

    feed = feed_of(session.model, options)
    beside = referee(options.model, f"--compare {options.compare}") if options.compare else None
    if options.explain:
        print(session.explain({name: array.shape for name, array in feed.items()}))
    times = []
    for _ in range(options.repeat):
        start = time.perf_counter()
        results = dict(zip([a.name for a in session.model.outputs], session.run(None, feed), strict=True))
        times.append(1e3 * (time.perf_counter() - start))
    print(f"device  {session.device.name}")
    for name, array in results.items():
        print(folded(f"output  {name}: {array.dtype}{list(array.shape)} {summary(array)}", 8))
    if options.repeat > 1:
        print(
            f"time    median {statistics.median(times):.3f} ms, least {min(times):.3f} ms of"
            f" {options.repeat} runs"
        )
    if options.output:
        save(options.output, results)
    if options.profile or options.trace:
        profile(session, feed, options.trace, options.repeat)
    return compare(beside, feed, results, COMPARED[options.compare]) if beside else 0


def save(path: Path, arrays: dict[str, Any]) -> None:
    """Write arrays to an .npz file. numpy.savez is not used, because it refuses an array named "file" and may
    append a suffix to the path."""
    with files.output(path) as beside, zipfile.ZipFile(beside, "w") as packed:
        for name, array in arrays.items():
            with packed.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def summary(array: Any) -> str:
    """Return a text that describes an output: its largest elements if its shape is (1, N), as scores have;
    else its smallest and largest element."""
    if array.ndim == 2 and array.shape[0] == 1 and array.size > 1:
        best = np.argsort(-array[0].astype(np.float64), kind="stable")[:SHOWN]
        return "largest " + ", ".join(f"[{i}] {array[0, i]:.6g}" for i in best)
    known = array[array == array]
    missing = f", {array.size - known.size} NaN" if known.size < array.size else ""
    if not known.size:
        return missing.removeprefix(", ") or "empty"
    return f"from {known.min():.6g} to {known.max():.6g}{missing}"


def profile(session: Any, feed: dict[str, Any], trace: Path | None, runs: int) -> None:
    """Print the slowest nodes, with their median times on the device over *runs* runs.

    *trace*: a file to which the times of all nodes are written, in the format of chrome://tracing.
    """
    steps = session.profile(feed, runs)
    total = sum(us for _, _, us in steps)
    print(f"profile {total:.1f} us on the device, {len(steps)} nodes, medians of {counted(runs, 'run')}")
    print("\n".join(_longest(steps, total, columns())))
    if len(steps) > NODES:
        print(f"  {len(steps) - NODES} shorter nodes are left out; --trace writes all")
    if trace:
        events, at = [], 0.0
        for source, operator, us in steps:
            events.append(
                {
                    "name": source or operator,
                    "cat": operator,
                    "ph": "X",
                    "ts": at,
                    "dur": us,
                    "pid": 0,
                    "tid": 0,
                }
            )
            at += us
        with files.output(trace) as file:
            file.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))


def _longest(steps: Sequence[tuple[str, str, float]], total: float, width: int | None) -> Iterator[str]:
    """Yield a line for each of the slowest nodes: its time, name and operator. If a line is longer than
    *width*, the operator is left out, and the name is shortened. If two shortened names would be equal, the
    full name is on a line above."""
    shown = sorted(steps, key=lambda step: -step[2])[:NODES]
    room = max(20, width - BEFORE_NAME) if width else max(len(source) for source, _, _ in shown)
    names = distinct([source for source, _, _ in shown], room)
    for source, operator, us in shown:
        time_us = f"  {us:10.1f} us {100 * us / max(total, 1e-9):5.1f} %  "
        name = names[source]
        if name is None:
            yield above(source, width)
        line = f"{time_us}{name}: {operator}" if name else f"{time_us}{operator}"
        yield line if width is None or len(line) <= width else f"{time_us}{name}"


def compare(session: Any, feed: dict[str, Any], results: dict[str, Any], what: str) -> int:
    """Run the model in the other library (ONNX Runtime or LiteRT), compare its results with vkq's, and print
    the differences. Return the exit code. *session*: the other library's session. *what*: the other library's
    description."""
    from vkq.onnx.cpu import unequal

    print(folded(f"compare {what}", 8))
    different = 0
    for name, want in zip(results, session.run(list(results), feed), strict=True):
        got = results[name]
        where = unequal(got, want)
        wrong = int(where.sum())
        different += wrong
        apart = np.abs(got.astype(np.float64) - want.astype(np.float64))[where]
        worst = float(apart.max(initial=0))
        print(
            f"  {name}: {want.size - wrong} of {want.size} equal"
            + (f", largest difference {worst:.6g}" if wrong else "")
        )
    return 1 if different else 0
