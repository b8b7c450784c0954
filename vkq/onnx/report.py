"""What a model's nodes become, and where they run: `InferenceSession.explain` and ``vkq inspect``."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

from ..graph.executable import NOT_QUANTIZED, Executable, in_floats, refusals
from ..graph.graph import Graph
from .fallback import Mixed


@dataclasses.dataclass(frozen=True)
class NodeRow:
    """A node: the model's name of it, vkq's operator, its result, where it runs ("device", "CPU" or
    "nowhere"), why so, and on the device its shaders and how the path was chosen."""

    source: str
    operator: str
    result: str
    where: str
    why: str = ""
    shaders: tuple[str, ...] = ()

    def __str__(self) -> str:
        line = f"{self.where:7} {self.operator:18} {self.result:24} {self.source}"
        details = [*self.shaders, *([self.why] if self.why else [])]
        return "\n".join([line, *(f"          {detail}" for detail in details)])


@dataclasses.dataclass(frozen=True)
class Report:
    """All nodes of a model for one set of input shapes."""

    title: str
    rows: tuple[NodeRow, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = Counter(row.where for row in self.rows)
        total = ", ".join(f"{n} {where}" for where, n in count.items())
        return "\n".join(
            [self.title, *map(str, self.rows), f"{len(self.rows)} operators: {total}", *self.notes]
        )


def inspect(graph: Graph, title: str, elsewhere: str = "nowhere") -> Report:
    """A lowered graph without a device."""
    refused = {id(node): why for node, why in refusals(graph)}
    rows = [
        NodeRow(
            node.source,
            str(node.attributes["op"]) if node.op == "foreign" else node.label,
            str(graph.specs[node.outputs[0]]) if node.outputs[0] else "",
            elsewhere if id(node) in refused else "device",
            refused.get(id(node), ""),
        )
        for node in graph.nodes
    ]
    weights = sum(array.nbytes for array in graph.constants.values())
    hint = (NOT_QUANTIZED,) if refused and in_floats(graph) else ()
    return Report(title, tuple(rows), (f"{weights} bytes of constants", *hint))


def explain(executable: Executable | Mixed, layers: dict[Any, Any], title: str) -> Report:
    """A graph that was recorded on a device: each operator with its shaders, and why they were chosen."""
    if isinstance(executable, Mixed):
        plain = inspect(executable.graph, title, "CPU")
        note = f"{executable.cpu_nodes} nodes on the CPU; {executable.crossing_bytes} bytes cross in each run"
        return dataclasses.replace(plain, notes=(*plain.notes, note))
    rows, repacks = [], 0
    for (node, _, _), names in zip(executable.steps, executable.shaders(), strict=True):
        repacks += sum(name.startswith("repack") for name in names)
        layer = next(
            (v for k, v in layers.items() if isinstance(k, tuple) and k[:2] == (node.op, node.outputs[0])),
            None,
        )
        why = ""
        if layer is not None and hasattr(layer, "explain"):
            told = layer.explain(executable.graph.specs[node.inputs[0]].shape)
            why = f"path {told.path}: {told.reason}" + (
                f"; {told.method}: {told.method_reason}" if told.method else ""
            )
        spec = str(executable.graph.specs[node.outputs[0]])
        rows.append(NodeRow(node.source, node.label, spec, "device", why, names))
    weights = sum(array.nbytes for array in executable.graph.constants.values())
    dispatches = sum(len(row.shaders) for row in rows)
    notes = (
        f"{dispatches} dispatches, {repacks} of them repacks; {weights} bytes of constants",
        f"on the device: {executable.plan.constant_bytes} bytes of weights, scales and tables",
        executable.memory(),
    )
    return Report(title, tuple(rows), notes)
