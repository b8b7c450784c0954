"""A graph on a device: planned and recorded once, run any number of times.

Only this module turns a graph's nodes into device work. A model has an executable for each set of input
shapes. The executables of a model share the argument ``layers``, a cache of the objects made from
weights."""

from __future__ import annotations

import contextlib
import functools
import re
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ..errors import AccumulatorOverflowError, ArgumentError, DTypeError, UnsupportedModelError
from ..files import release_maps
from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.offsets import lower_bound
from ..runtime.plan import Resident
from ..runtime.programs import Progress
from ..runtime.recording import Recording
from ..runtime.tensor import Tensor
from ..turns import Turns, begun
from . import resident
from .device.context import Context
from .device.rows import ROWS, refusal
from .graph import Array, Graph, Node
from .stream import Lane, results_of

NAMED = 3  # maximum number of further nodes that a line of `listed` names
RELEASED_BYTES = 64 << 20  # `_upload` releases the pages of mapped files after packing this many bytes
PACKING_THREADS = 4  # more are not faster: packing holds the interpreter lock between copies


class RefusedNode(UnsupportedModelError):
    """Raised for a node that `refusals` accepts but planning refuses, for example because a loop of its
    kernel would be too long."""

    def __init__(self, node: Node, why: str):
        super().__init__(f"{node}: {why}", [f"{node}: {why}"])
        self.node, self.why = node, why


def refusals(graph: Graph) -> list[tuple[Node, str]]:
    """Return (node, reason) for every node that cannot run on a device."""
    found = [(node, refusal(graph, node)) for node in graph.nodes]
    return [(node, why) for node, why in found if why]


def listed(graph: Graph, refused: Sequence[tuple[Node, str]], total: int | None = None) -> str:
    """Return refusals as text, with one line for each pair of operator and reason. A line has the first of
    its nodes, and the names of up to `NAMED` others. Reasons that differ only in digits share a line.
    *total*: the number of nodes of the whole model, if *graph* is only a part of the model."""
    alike: dict[tuple[str, str], list[tuple[Node, str]]] = {}
    for node, why in refused:
        alike.setdefault((str(node).split()[0], re.sub(r"\d+", "", why)), []).append((node, why))
    lines = [f"{len(refused)} of {total or len(graph.nodes)} nodes cannot run on a device:"]
    for (node, why), *others in alike.values():
        names = [repr(other.source) for other, _ in others[:NAMED]] + ["..."] * (len(others) > NAMED)
        more = f"; the same for {len(others)} more: {', '.join(names)}" if others else ""
        lines.append(f"  {node}: {why}{more}")
    return "\n".join(lines)


def add_nodes(
    graph: Graph, builder: Builder, layers: dict[Hashable, Any], values: dict[str, Value]
) -> Context:
    """Add the steps of every node to *builder*. *values* maps names to values: the caller fills in the
    graph's inputs, and this function adds the results of each node. Return the planning state; its
    `Context.steps` lists each node's dispatches.

    Raises RefusedNode for a node that the device cannot run."""
    context = Context(graph, builder, layers, values)
    for node in graph.nodes:
        first = builder.dispatches
        try:
            context.made(node, ROWS[node.op].record(context, node))
        except (ArgumentError, DTypeError, AccumulatorOverflowError) as error:
            raise RefusedNode(node, str(error)) from error
        context.steps.append((node, first, builder.dispatches))
    return context


def _upload(residents: Sequence[Resident]) -> None:
    """Pack and upload constants in parallel. After every `RELEASED_BYTES`, release the pages of the mapped
    model files. Otherwise these pages would hold a second copy of all weights."""
    packed = 0
    with ThreadPoolExecutor(PACKING_THREADS, "vkq-packing") as packing:
        started = [(x, begun(packing, functools.partial(getattr, x, "buffer"))) for x in residents]
        for resident, one in started:
            one.result()
            packed += resident.bytes
            if packed >= RELEASED_BYTES:
                release_maps()
                packed = 0
    release_maps()


class Executable:
    """A lowered graph that has been planned for a device and recorded on it."""

    def __init__(
        self,
        graph: Graph,
        device: Device,
        layers: dict[Hashable, Any],
        timestamps: bool = False,
        progress: Progress | None = None,
    ):
        if refused := refusals(graph):
            raise UnsupportedModelError(listed(graph, refused), [f"{node}: {why}" for node, why in refused])
        self.graph, self.device = graph, device
        self._timestamps = 4096 if timestamps else 0
        self._lock = Turns("running a model")
        self._idle: dict[tuple[str, ...], deque[Lane]] = {}
        with device.programs.together(progress):
            builder = Builder(device)
            specs = graph.specs
            values = {x: builder.input(Spec(specs[x].shape, specs[x].dtype)) for x in graph.inputs}
            planned = add_nodes(graph, builder, layers, values)
            self.steps, self.reasons = planned.steps, planned.reasons
            constants = graph.constants
            self.known = {name: constants[name] for name in graph.outputs if name in constants}
            # A model may name a result twice, but the plan returns it once.
            self.results = [name for name in dict.fromkeys(graph.outputs) if name not in constants]
            self.plan = builder.plan(*(values[name] for name in self.results))
            # The first and last step that use each value in scratch memory. Values with disjoint lifetimes
            # share addresses.
            self.lifetimes = builder.lifetimes(tuple(self.plan.scratch))
            new = [x for x in self.plan.constants.values() if not x.uploaded]
            # Pack only after planning, because packing threads compete with the planning for the interpreter
            # lock.
            if new:
                _upload(new)

    @functools.cached_property
    def inputs(self) -> dict[str, Tensor]:
        """The input tensors by name; `start` writes to them."""
        return {
            name: Tensor.of(self.device, spec)
            for name, spec in zip(self.graph.inputs, self.plan.inputs, strict=True)
        }

    @functools.cached_property
    def outputs(self) -> dict[str, Tensor]:
        """The result tensors by name; `finish` reads them."""
        found = results_of(self.device, self.plan, list(self.inputs.values()))
        return dict(zip(self.results, found, strict=True))

    @functools.cached_property
    def recording(self) -> Recording:
        """The plan, recorded with the tensors of ``inputs`` and ``outputs``."""
        given, results = ([x.buffer for x in tensors.values()] for tensors in (self.inputs, self.outputs))
        with self.device.record(timestamps=self._timestamps) as recording:
            recording.add(self.plan, given, results)
        return recording

    def lane(self, outputs: tuple[str, ...]) -> Lane | None:
        """Return a `Lane`, which computes the results *outputs* for one batch. Lanes can run in parallel.
        Return None if only `run` can compute these results."""
        if not set(outputs) <= set(self.results) or not Lane.can(self.device, self.plan):
            return None
        idle = self._idle.setdefault(outputs, deque())
        with contextlib.suppress(IndexError):
            return idle.pop()
        return Lane(self.device, self.plan, [self.results.index(name) for name in outputs], idle)

    def shaders(self) -> list[tuple[str, ...]]:
        """Return the names of the shader variants of each node, in the order of the node's dispatches."""
        names = self.plan.variants
        return [names[first:end] for _, first, end in self.steps]

    def times_us(self) -> list[float]:
        """Return each node's time on the device in the last run, in microseconds. The executable must be
        made with ``timestamps=True``."""
        times = self.recording.gpu_times_us() if self.plan.steps else []
        return [sum(times[first:end]) for _, first, end in self.steps]

    def memory(self) -> str:
        """Return a text with four byte counts: the sum of all intermediate values; the scratch memory that
        they share; the maximum in use at one step, which is a lower bound of the scratch memory; and the
        bytes that all dispatches read and write."""
        total, shared = sum(life.bytes for life in self.lifetimes), self.plan.scratch_bytes
        read, written = self.plan.traffic
        return (
            f"intermediate values: {total} bytes, in {shared} bytes of scratch memory; at least"
            f" {lower_bound(self.lifetimes)} bytes are in use at one step; dispatches read {read} bytes of"
            f" these values and write {written} bytes"
        )

    def memory_of_its_own(self) -> tuple[int, list[Resident]]:
        """Return (own, constants). own: the bytes of the scratch memory, the inputs and the results, which
        only this executable uses. constants: the executable's constants, which other executables may
        share."""
        plan = self.plan
        values = sum(spec.nbytes for spec in (*plan.inputs, *plan.results))
        return plan.scratch_bytes + values, list(plan.constants.values())

    def start(self, inputs: Mapping[str, Array]) -> None:
        """Upload the inputs and submit the work, without waiting for it."""
        self.graph.check_bounds(inputs)
        for name, tensor in self.inputs.items():
            tensor.write(inputs[name])
        if self.plan.steps:
            self.recording.submit()

    def finish(self) -> dict[str, Array]:
        """Wait for the work of the last `start`; return the results by name."""
        if self.plan.steps:
            self.recording.wait()
        known = {name: array.copy() for name, array in self.known.items()}
        return known | {name: tensor.numpy() for name, tensor in self.outputs.items()}

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the results by name. Calls from several threads run one after another."""
        # Raises an error in a forked child, where a thread that the child lacks may hold a lock forever.
        self.device.queue.check_between()
        with self._lock:
            self.start(inputs)
            return self.finish()

    def on_device(
        self,
        inputs: Mapping[str, Array | Tensor],
        targets: Mapping[str, Tensor] | None = None,
        repeated: resident.Repeated | None = None,
    ) -> dict[str, Tensor]:
        """Submit the work, and return the result tensors by name without waiting.

        - targets: by the name of a result, the tensor to write it to, which may also be an input. Other
          results get new memory.
        - repeated: keeps the recording for a caller that gives the same tensors to several runs. It is
          ignored in a `Device.record` block.

        Input tensors stay on the device. Only inputs in `Graph.bounds` are also copied to the host, which
        checks their values.

        Raises ArgumentError or DTypeError if a target cannot hold its result."""
        graph, into = self.graph, dict(targets or {})
        graph.check_bounds({name: np.asarray(inputs[name]) for name in graph.bounds if name in inputs})
        specs = dict(zip(self.results, self.plan.results, strict=True))
        specs |= {name: Spec(array.shape, array.dtype.name) for name, array in self.known.items()}
        for name, target in into.items():
            resident.check_target(name, self.device, specs[name], target)
        if self.device.recording().replays:  # a `Device.record` block records the run itself
            repeated = None
        planned = zip(graph.inputs, self.plan.inputs, strict=True)
        own = [resident.placed(name, self.device, spec, inputs[name], repeated) for name, spec in planned]
        made = resident.run(self.device, self.plan, own, [into.get(name) for name in self.results], repeated)
        for name, array in self.known.items():
            into.setdefault(name, Tensor.of(self.device, specs[name])).write(array)
        return into | dict(zip(self.results, made, strict=True))
