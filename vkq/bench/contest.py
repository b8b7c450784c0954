"""Compare vkq with other libraries on a model: the device that each library uses, whether its results equal
vkq's, and the time of a call (NumPy arrays in and out). The calls of the libraries alternate."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import os
import shlex
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vkq.bench import ncnn_peer, nodes, stats, timer
from vkq.bench.arms import CallArm
from vkq.bench.feeds import random_inputs, ranges_of
from vkq.bench.network import at_batch
from vkq.bench.peers import library
from vkq.bench.result import Comparison, Failure, Result, Row
from vkq.bench.run import Progress, Request
from vkq.errors import ArgumentError, UnsupportedModelError, VkqError
from vkq.graph.graph import Array
from vkq.onnx.cpu import cpu_session, unequal
from vkq.onnx.inputs import shapes_of
from vkq.onnx.session import InferenceSession
from vkq.runtime.device import Device
from vkq.tflite.file import is_tflite

VKQ, CLOCK = "vkq", "call"
Call = Callable[[], list[Array]]


@dataclasses.dataclass(frozen=True)
class Side:
    """One library."""

    name: str
    call: Call  # returns the outputs in the model's order
    ran: str  # how the library runs the model


class Contest:
    """A model with its inputs, to be run by vkq and by other libraries. Nodes that the device cannot compute
    run in ONNX Runtime, on the CPU."""

    def __init__(
        self,
        path: str,
        batch: int | None,
        device: Device,
        device_option: str | None = None,
        shapes: Sequence[str] = (),
        ids: Sequence[str] = (),
    ):
        if is_tflite(path):
            raise ArgumentError(f"{path}: --peer is for ONNX models; leave it out")
        self.file, self.model, self.device = path, at_batch(path, batch), device
        try:
            self.session = InferenceSession(self.model, device)
        except UnsupportedModelError:
            self.session = InferenceSession(self.model, device, "onnxruntime")
        self.shapes = shapes_of(self.session.model, shapes)
        self.feed = random_inputs(self.session, self.shapes, ranges_of(ids))
        self.names = [argument.name for argument in self.session.model.outputs]
        sizes = ",".join(f"{name}={'x'.join(map(str, x.shape))}" for name, x in self.feed.items())
        self.name = f"{Path(path).name}[{sizes}]"
        words = ["vkq", "bench", path, *(["--batch", str(batch)] if batch else [])]
        words += [word for text in shapes for word in ("--shape", text)]
        words += [word for text in ids for word in ("--ids", text)]
        self._command = words + (["--device", device_option] if device_option else [])

    def command(self, peers: Sequence[str]) -> str:
        """Return the command line that repeats this measurement."""
        return shlex.join([*self._command, *(word for peer in peers for word in ("--peer", peer))])

    def own(self) -> Side:
        """Return vkq's side."""
        where = Counter(row.where for row in self.session.explain(self.shapes).rows)
        places = {
            "device": f"on {self.device.name}",
            "CPU": "on the CPU (ONNX Runtime)",
            "later": "planned when their shapes are known",
        }
        said = [
            f"{where[key]} operator{'s' * (where[key] != 1)} {place}"
            for key, place in places.items()
            if where[key]
        ] or ["no operator: all of it is computed on the host, as integers that count as constants"]
        return Side(VKQ, lambda: self.session.run(self.names, self.feed), ", ".join(said))

    @functools.cached_property
    def operations(self) -> int:
        """The number of operations on the device (two for each multiply-add); 0 if it is not known, because
        shapes of the model depend on values."""
        try:
            graph = self.session.lowered(self.shapes)
        except VkqError:
            return 0
        return sum(nodes.work_of(graph, node)[0] for node in graph.nodes if node.op != "foreign")


def onnx_runtime(contest: Contest) -> Side:
    """Return ONNX Runtime's side: on the CPU, with integer arithmetic for int8 activations."""
    session = cpu_session(contest.model, "--peer ort")
    threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    version = importlib.metadata.version("onnxruntime")
    return Side(
        "ort",
        lambda: list(session.run(contest.names, contest.feed)),
        f"ONNX Runtime {version} on the CPU, {threads} threads, session.qdqisint8allowed=1",
    )


def ncnn(contest: Contest) -> Side:
    """Return ncnn's side. ncnn runs on vkq's device, and reads the files that pnnx (its converter) wrote
    next to the model."""
    return Side(
        "ncnn", *ncnn_peer.model_call(library("ncnn", "ncnn"), contest.file, contest.feed, contest.device)
    )


SIDES: Mapping[str, Callable[[Contest], Side]] = {"ort": onnx_runtime, "ncnn": ncnn}


def sides_of(words: Sequence[str]) -> tuple[str, ...]:
    """Return the libraries that the command line names; ``all`` means every library in `SIDES`."""
    found = [name for word in words for name in (SIDES if word == "all" else [word])]
    if unknown := [name for name in found if name not in SIDES]:
        raise ArgumentError(f"--peer {unknown[0]} does not run models; {', '.join(SIDES)} do")
    return tuple(dict.fromkeys(found))


def agreement(got: Sequence[Array], want: Sequence[Array]) -> str:
    """Return a text on whether a library's results (*got*) equal vkq's (*want*), and how much they differ."""
    for a, b in zip(got, want, strict=True):
        if a.shape != b.shape:
            return f"DIFFERS: its results have shapes {list(a.shape)} where vkq's have {list(b.shape)}"
    size = sum(x.size for x in want)
    wrong = sum(int(unequal(a, b).sum()) for a, b in zip(got, want, strict=True))
    if not wrong:
        return f"all {size:,} outputs equal vkq's"
    apart, largest = 0.0, 0.0
    for a, b in zip(got, want, strict=True):
        real = b.astype(np.float64)
        apart = max(apart, float(np.abs(np.nan_to_num(a.astype(np.float64) - real)).max(initial=0)))
        largest = max(largest, float(np.abs(np.nan_to_num(real)).max(initial=0)))
    return f"{wrong:,} of {size:,} outputs differ, at most {apart:.3g} where the largest is {largest:.3g}"


def measure(
    contest: Contest, peers: Sequence[str], request: Request, result: Result, progress: Progress
) -> None:
    """Time the model in vkq and in each of the *peers*. Add the times, and the ratio of each peer's time to
    vkq's, to *result*; add a failure for each library that cannot run the model."""
    sides: list[Side] = []
    for name, make in [(VKQ, Contest.own), *((peer, SIDES[peer]) for peer in peers)]:
        progress(f"{contest.name}: verifying {name}")
        try:
            side = make(contest)
            side.call()
            sides.append(side)
        except (VkqError, NotImplementedError) as error:
            skip(contest, result, str(error), name)
            if name == VKQ:
                return
    want = sides[0].call()
    said = [", ".join(contest.names)] + [agreement(side.call(), want) for side in sides[1:]]
    progress(f"{contest.name}: {', '.join(side.name for side in sides)} in turn")
    samples = timer.measure([CallArm(side.call) for side in sides], CLOCK, request.settings).times
    rows = [
        _row(contest, side, text, times, contest.command(peers))
        for side, text, times in zip(sides, said, samples, strict=True)
    ]
    result.rows += rows
    result.comparisons += [
        Comparison.of(row, rows[0], stats.paired_ratio(row.samples_us, rows[0].samples_us))
        for row in rows[1:]
    ]


def skip(contest: Contest, result: Result, reason: str, name: str = VKQ) -> None:
    """Add a failure to *result*: the library *name* did not run the model, for the given reason."""
    result.failures.append(Failure(contest.name, "model", "", name, "skipped", reason, contest.command([])))


def _row(contest: Contest, side: Side, said: str, samples: list[float], command: str) -> Row:
    found = stats.summarize(samples)
    verified = f"outputs {said}" if side.name == VKQ else said
    row: dict[str, Any] = {field.name: None for field in dataclasses.fields(Row)}
    row |= {
        "case": contest.name, "scheme": "model", "scale": "", "path": side.name, "clock": CLOCK,
        "arm": VKQ if side.name == VKQ else "peer", "variant": side.ran, "verified": verified,
        "median_us": found.median, "p20_us": found.p20, "p80_us": found.p80, "samples_us": samples,
        "dispatches": 0, "passes": 1, "sets": 1, "operations": contest.operations,
        "bytes": sum(x.nbytes for x in contest.feed.values()), "warnings": [], "command": command,
    }  # fmt: skip
    return Row(**row)
