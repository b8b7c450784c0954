"""Benchmark models: verify a model, then time it as a whole and node by node. The result of a node includes
the node's floor: its minimum possible time by the measured ceilings."""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from vkq.bench import nodes, stats, timer
from vkq.bench.arms import CapturedWork, WorkArm
from vkq.bench.ceilings import of_path, set_shares
from vkq.bench.feeds import random_inputs, ranges_of
from vkq.bench.result import Failure, NodeTime, Result, Row
from vkq.bench.run import Progress, Request
from vkq.check import graph as oracle
from vkq.errors import ArgumentError, VkqError
from vkq.graph.executable import Executable
from vkq.graph.graph import Array, Graph
from vkq.onnx.cpu import unequal
from vkq.onnx.inputs import held, shapes_of
from vkq.onnx.protobuf import package
from vkq.onnx.reader import read
from vkq.runtime.device import Device
from vkq.runtime.tensor import Tensor
from vkq.select.path import choose_path
from vkq.tflite.either import referee, session_of
from vkq.tflite.file import is_tflite

MOST_DISPATCHES = 4096  # maximum number of dispatches of a model that is timed node by node
NODE_RUNS = 20
SUMS = ("MatMulNBits",)  # operators that add floats in no fixed order: their results are compared within NEAR
NEAR = 1e-4  # allowed error of a model with an operator of SUMS, relative to the largest result


def at_batch(path: str, batch: int | None) -> str | bytes:
    """Return the model's path if *batch* is None. Else return the model's bytes with axis 0 of every input
    and output set to *batch*."""
    if batch is None:
        return path
    if is_tflite(path):
        raise ArgumentError(f"{path}: --batch is for ONNX models; a .tflite file has its own sizes")
    inputs = [argument.name for argument in read(path).inputs]  # raises a VkqError if the file is damaged
    model = package().load(path)
    for value in (*(v for v in model.graph.input if v.name in inputs), *model.graph.output):
        for dim in value.type.tensor_type.shape.dim[:1]:
            dim.dim_value = batch
    del model.graph.value_info[:]  # these entries have shapes with the old batch size
    return bytes(model.SerializeToString())


class Network:
    """A model that a device can run, and its inputs, which are random values from a fixed seed.

    The model uses no memory of the device before its first run.
    """

    def __init__(
        self,
        path: str,
        batch: int | None,
        device: Device,
        device_option: str | None = None,
        shapes: Sequence[str] = (),
        ids: Sequence[str] = (),
    ):
        self.model = at_batch(path, batch)
        session = session_of(self.model)(self.model, device)
        self.feed = random_inputs(session, shapes_of(session.model, shapes), ranges_of(ids))
        # The inputs, converted to the dtypes that the device uses.
        self.held = {name: held(name, x) for name, x in self.feed.items()}
        sizes = ",".join(f"{name}={'x'.join(map(str, x.shape))}" for name, x in self.feed.items())
        self.name = f"{Path(path).name}[{sizes}]"
        self.graph: Graph = session.lowered({name: x.shape for name, x in self.feed.items()})
        self.path = choose_path(device).path
        words = ["vkq", "bench", path, *(["--batch", str(batch)] if batch else [])]
        words += [word for text in shapes for word in ("--shape", text)]
        words += [word for text in ids for word in ("--ids", text)]
        self.command = shlex.join(words + (["--device", device_option] if device_option else []))
        self._device = device

    @functools.cached_property
    def executable(self) -> Executable:
        return Executable(self.graph, self._device, {})

    def run(self) -> Tensor:
        """Record the dispatches of the whole network. Return its first result."""
        e = self.executable
        inputs, outputs = ([x.buffer for x in some.values()] for some in (e.inputs, e.outputs))
        self._device.add(e.plan, inputs, outputs)
        return next(iter(e.outputs.values()))

    @property
    def rounds(self) -> bool:
        return any(node.op in SUMS for node in self.graph.nodes)

    def wrong(self, got: Mapping[str, Array], wanted: Mapping[str, Array]) -> int:
        """Return the number of elements of all outputs that are wrong."""
        pairs = [(got[name], want) for name, want in wanted.items()]
        differ = _far if self.rounds else unequal
        return sum(int(differ(*pair).sum()) for pair in pairs)

    def expected(self) -> tuple[Mapping[str, Array], str]:
        """Return (expected outputs, a text that names their source).

        The source is ONNX Runtime, or LiteRT for a .tflite file. It is the NumPy reference if that library is
        not installed, or if the model has an operator of `SUMS`.
        """
        if self.rounds:
            return oracle.run(self.graph, self.held), f"the NumPy reference's to {NEAR:g}"
        package = "ai_edge_litert" if is_tflite(self.model) else "onnxruntime"
        if not importlib.util.find_spec(package):
            return oracle.run(self.graph, self.held), "the NumPy reference's"
        found = referee(self.model, "bench").run(list(self.graph.outputs), self.feed)
        version = importlib.metadata.version(package)
        name = "LiteRT" if is_tflite(self.model) else "ONNX Runtime"
        return dict(zip(self.graph.outputs, found, strict=True)), f"{name} {version}'s"


def _far(got: Array, want: Array) -> npt.NDArray[np.bool_]:
    """Return a mask of the elements that differ too much: floats by more than `NEAR` times the largest
    finite magnitude in *want*, integers by more than 1."""
    largest = float(np.abs(want[np.isfinite(want)]).max(initial=0))
    step = NEAR * largest if want.dtype.kind == "f" else 1
    return np.asarray(unequal(got, want) & ~(np.abs(got.astype(np.float64) - want) <= step))


def measure(network: Network, device: Device, request: Request, result: Result, progress: Progress) -> None:
    """Measure a model. Add its rows and the times of its nodes to *result*, or a failure if it cannot be
    measured."""
    try:
        _measure(network, device, request, result, progress)
    except VkqError as error:  # rows that were added before the error stay in the result
        skip(network, result, str(error))
    finally:
        vars(network).pop("executable", None)  # frees this model's memory: the next model may need it


def skip(network: Network, result: Result, reason: str) -> None:
    """Add a failure to *result*: the model was not measured, for the given reason."""
    _fail(network, result, "skipped", reason)


def _fail(network: Network, result: Result, kind: str, reason: str) -> None:
    result.failures.append(Failure(network.name, "model", "", network.path, kind, reason, network.command))


def _measure(network: Network, device: Device, request: Request, result: Result, progress: Progress) -> None:
    progress(f"{network.name}: verifying")
    wanted, whose = network.expected()
    if not network.executable.plan.steps:
        raise ArgumentError("no part of it runs on a device, because its results do not depend on its inputs")
    progress(f"{network.name}: {network.executable.memory()}")
    got = network.executable.run(network.held)
    wrong = network.wrong(got, wanted)
    size = sum(want.size for want in wanted.values())
    if wrong:
        _fail(network, result, "mismatch", f"{wrong} of {size} outputs are not {whose}")
        return
    work = CapturedWork(device, network.run, 0, rotate=False)
    arm = WorkArm(work, request.settings, lambda: network.executable.run(network.held))
    floors = [nodes.work_of(network.graph, node) for node, _, _ in network.executable.steps]
    for clock in (clock for clock in request.clocks if clock in arm.clocks):
        progress(f"{network.name}: {clock}")
        samples = timer.measure([arm], clock, request.settings).times[0]
        row = _row(network, clock, samples, arm, floors, result)
        row.verified, row.command = f"{size} of {size} outputs are {whose}", network.command
        result.rows.append(row)
    if device.capabilities.timestamp_valid_bits:
        progress(f"{network.name}: node by node")
        result.nodes += _nodes(network, device, floors, result)


def _row(
    network: Network, clock: str, samples: list[float], arm: WorkArm,
    floors: list[tuple[int, int]], result: Result,
) -> Row:  # fmt: skip
    found = stats.summarize(samples)
    row = Row(
        case=network.name, scheme="model", scale="", method=None, path=network.path, arm="vkq", variant="",
        clock=clock, verified="", median_us=found.median, p20_us=found.p20, p80_us=found.p80,
        samples_us=samples, dispatches=arm.work.dispatches, sets=1,
        passes=arm.passes if clock == "gpu" else 1,
        operations=sum(operations for operations, _ in floors), bytes=sum(size for _, size in floors),
        compute_ceiling=None, compute_share=None, copy_share=None, overhead_us=None, warnings=[], command="",
    )  # fmt: skip
    set_shares(row, result.ceilings)
    return row


def _nodes(network: Network, device: Device, floors: list[tuple[int, int]], result: Result) -> list[NodeTime]:
    """Return the median times of the dispatches, grouped by node. Timestamps surround each dispatch."""
    with device.record(timestamps=MOST_DISPATCHES) as recording:
        network.run()
    taken: list[Any] = []
    for _ in range(NODE_RUNS):
        recording.run()
        taken.append(recording.gpu_times_us())
    # The first quarter of the runs warms the caches, and is left out of the median.
    times = np.median(np.asarray(taken[len(taken) // 4 :]), axis=0)
    graph, names = network.graph, network.executable.plan.variants
    ceiling, copy = of_path(network.path, result.ceilings), result.ceilings.get("copy")
    found = []
    for (node, first, end), (operations, size) in zip(network.executable.steps, floors, strict=True):
        if first == end:
            continue  # the node has no dispatch: its result is a view, or an earlier node computed it
        shapes = (graph.specs[name] for name in (node.inputs[0], node.outputs[0]))
        found.append(
            NodeTime(
                network.name, node.source or node.outputs[0], node.label, " -> ".join(map(str, shapes)),
                list(names[first:end]), [float(us) for us in times[first:end]],
                max(operations / ceiling[1] if ceiling else 0.0, size / copy if copy else 0.0) / 1e3,
                operations, size,
            )
        )  # fmt: skip
    return found
