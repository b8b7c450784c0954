"""The fallback: nodes that the device cannot run are computed by ONNX Runtime on the CPU. Users must
request it, and a warning states the number of these nodes."""

from __future__ import annotations

import dataclasses
import itertools
import sys
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.executable import Executable, RefusedNode, refusals
from ..graph.graph import Array, Graph, Node, Spec
from ..log import LOG
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.programs import Progress
from ..turns import Turns
from .part import CpuPart, domain_of, in_words, opset_of
from .reader import Model
from .unknown_operators import unknown


class FallbackWarning(UserWarning):
    """Warning: nodes of a model run on the CPU."""


class OtherShapeError(ModelError):
    """Raised if a result of a part on the CPU has a shape for which the next parts are not planned."""


class Mixed:
    """A graph divided into parts that run on the device and on the CPU. Its interface is that of
    `Executable`.

    own: the model's constants by name. Each session of ONNX Runtime contains the constants that its nodes
    read. layers: the cache of the sessions; a session serves all input shapes. whole: called with an
    OtherShapeError; returns the model on the CPU, which then replaces all parts.
    """

    def __init__(
        self,
        graph: Graph,
        device: Device,
        layers: dict[Hashable, Any],
        own: Mapping[str, Array],
        progress: Progress | None = None,
        whole: Callable[[ModelError], Any] | None = None,
    ):
        refused = {id(node): _kind_of(node) for node, _ in refusals(graph)}
        self.graph = graph
        self.executables: list[Executable] = []
        self.parts: list[tuple[bool, Graph, Callable[[Mapping[str, Array]], dict[str, Array]]]] = []
        for opset, part in partitions(graph, refused):
            if opset:
                made = part.nodes[0].attributes.get("part")
                run = made(part).run if made else CpuPart(part, opset, layers, own).run
            else:
                part = _with_flags(part)
                self.executables.append(Executable(part, device, layers, progress=progress))
                run = self.executables[-1].run
            self.parts.append((opset > 0, part, run))
        self.cpu_nodes = len(refused)
        crossing = {name for cpu, part, _ in self.parts if cpu for name in (*part.inputs, *part.outputs)}
        self.crossing_bytes = sum(graph.specs[name].nbytes for name in crossing)
        self._lock = Turns("running a model")
        self._results: dict[str, Array] = {}
        self._whole = whole
        self._instead: Any = None  # the model on the CPU, after an OtherShapeError
        ops = sorted({str(node.attributes.get("op", node.op)) for node in graph.nodes if id(node) in refused})
        where = "LiteRT" if any("part" in node.attributes for node in graph.nodes) else "ONNX Runtime"
        warn(
            f"{self.cpu_nodes} of {len(graph.nodes)} nodes run on the CPU through {where}"
            f" ({', '.join(ops)});"
            f" {self.crossing_bytes} bytes cross in each run"
        )

    def memory_of_its_own(self) -> tuple[int, list[Resident]]:
        """Return (bytes, constants) for all parts on the device: the bytes that only this model uses, and the
        constants that other models may share."""
        found = [one.memory_of_its_own() for one in self.executables]
        return sum(size for size, _ in found), [x for _, residents in found for x in residents]

    def start(self, inputs: Mapping[str, Array]) -> None:
        """Run all parts one after the other, and wait for each."""
        try:
            self._results = self._instead.run(inputs) if self._instead else self._of_parts(inputs)
        except OtherShapeError as error:
            if self._whole is None:
                raise
            self._instead = self._whole(error)
            self._results = self._instead.run(inputs)

    def _of_parts(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        self.graph.check_bounds(inputs)
        given = {**self.graph.constants, **inputs}
        values = dict(given)
        for _, part, run in self.parts:
            values.update(run({name: _given(values[name], part.specs[name]) for name in part.inputs}))
        # A caller may write to the results, so copy results that are constants or inputs of the model.
        return {name: values[name].copy() if name in given else values[name] for name in self.graph.outputs}

    def finish(self) -> dict[str, Array]:
        """Return the results of the last `start`."""
        return self._results

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the results by name. Calls from several threads run one after another."""
        with self._lock:
            self.start(inputs)
            return self.finish()


def _kind_of(node: Node) -> int:
    """Return the opset of a refused node. Return 1 for a node with the attribute ``part``, which LiteRT
    runs."""
    return 1 if "part" in node.attributes else opset_of(node)


def alone(graph: Graph, node: Node) -> Graph:
    """Return a graph with *node* as its only node."""
    return _part(graph, [node])


def _with_flags(part: Graph) -> Graph:
    """Return a part for the device with uint8 in place of bool inputs."""
    held = {x: Spec("uint8", part.specs[x].shape) for x in part.inputs if part.specs[x].dtype == "bool"}
    return dataclasses.replace(part, specs=part.specs | held) if held else part


def _given(value: Array, spec: Spec) -> Array:
    """Convert a value that another part computed to the dtype in which this part reads it (*spec*): bool
    becomes uint8."""
    return value.view(np.uint8) if value.dtype == np.bool_ and spec.dtype == "uint8" else value


def warn(message: str) -> None:
    """Issue a FallbackWarning at the line that called vkq."""
    caller_warned(message, FallbackWarning)


def caller_warned(message: str, kind: type[Warning]) -> None:
    """Issue a warning at the line that called vkq, and write it to the log."""
    LOG.warning("%s", message)
    warnings.warn(message, kind, stacklevel=_callers())


def _callers() -> int:
    """Return the ``stacklevel`` of the line outside vkq that called vkq."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back and str(frame.f_globals.get("__name__", "")).partition(".")[0] == "vkq":
        level, frame = level + 1, frame.f_back
    return level


def left_alone(model: Model, refused: RefusedNode) -> Model:
    """Return the model with the refused node as a ``foreign`` node, which ONNX Runtime runs
    (`vkq.onnx.unknown_operators`). Raise *refused* if neither ONNX nor com.microsoft has the node's
    operator."""

    def unread(node: Node) -> Node:
        if node.op == "foreign" or node.source != refused.node.source or not in_words(node):
            return node
        return unknown(node, domain_of(node), None, refused.why)

    nodes = tuple(map(unread, model.nodes)) if model.opset else model.nodes
    if nodes == model.nodes:
        raise refused
    return dataclasses.replace(model, nodes=nodes)


def partitions(graph: Graph, refused: Mapping[int, int]) -> list[tuple[int, Graph]]:
    """Divide a graph into parts, which can run in the returned order. Return pairs (kind, part).

    The kind is 0 for the device, and the opset for ONNX Runtime. *refused* maps the id() of each node that
    cannot run on the device to its opset. A part has all remaining nodes of its kind whose inputs are
    computed by then. Each kind is tried as the first; the division with the fewest parts is chosen."""
    kinds = [0, *sorted(set(refused.values()))]
    found = [_groups(graph, refused, [*kinds[i:], *kinds[:i]]) for i in range(len(kinds))]
    return [(kind, _part(graph, group)) for kind, group in min(found, key=len)]


def _groups(graph: Graph, refused: Mapping[int, int], order: Sequence[int]) -> list[tuple[int, list[Node]]]:
    left, have = list(graph.nodes), {*graph.inputs, *graph.constants}
    groups: list[tuple[int, list[Node]]] = []
    kinds = itertools.cycle(order)
    while left:
        group: list[Node] = []
        rest = []
        kind = next(kinds)
        for node in left:
            if refused.get(id(node), 0) == kind and all(name in have for name in node.inputs if name):
                group.append(node)
                have.update(node.outputs)
            else:
                rest.append(node)
        if group:
            groups.append((kind, group))
        left = rest
    return groups


def _part(graph: Graph, nodes: list[Node]) -> Graph:
    """Return a graph of the nodes *nodes*. Its outputs are the values that other nodes of *graph* read, and
    the outputs of *graph* that *nodes* compute."""
    made = {name for node in nodes for name in node.outputs if name}
    read = {name for node in nodes for name in node.inputs if name}
    own = {id(node) for node in nodes}
    elsewhere = {name for node in graph.nodes if id(node) not in own for name in node.inputs} | {
        *graph.outputs
    }
    constants = {name: graph.constants[name] for name in read if name in graph.constants}
    inputs = sorted(read - made - set(constants))
    outputs = sorted(made & elsewhere)
    specs = {name: graph.specs[name] for name in (*inputs, *constants, *made)}
    return Graph(inputs, outputs, nodes, constants, specs)
