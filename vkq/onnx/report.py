"""The report on a model's nodes: their operators in vkq, and the place where each runs
(`InferenceSession.explain` and ``vkq inspect``)."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence, Set
from typing import Any

from ..graph.executable import refusals
from ..graph.graph import Graph, Node
from ..graph.passes import lower
from .constant import ON_DEVICE, blamed
from .cpu_model import CpuModel
from .fallback import Mixed
from .prepared import Prepared, Staged
from .reader import Model
from .remedies import remedies
from .shared import Layers

CANNOT = "cannot run"  # ``where`` of a node that cannot run
LAYERS = "conv2d", "conv_transpose2d", "linear"
ROUNDED = "its float bias is rounded to int32 steps of x_scale * w_scale"


@dataclasses.dataclass(frozen=True)
class NodeRow:
    """A node in a report.

    - source: the node's name in the model
    - operator: vkq's operator
    - result: the dtype and shape of the first result; "" if unknown
    - where: where the node runs: "device", "CPU", "host", "later" or "cannot run"
    - why: the reason
    - shaders: the shaders of a node on the device"""

    source: str
    operator: str
    result: str
    where: str
    why: str = ""
    shaders: tuple[str, ...] = ()

    def line(self, width: int) -> str:
        """Return the row as lines of text. The first column, ``where``, is *width* characters wide."""
        line = f"{self.where:{width}} {self.operator:18} {self.result:24} {self.source}"
        details = [*self.shaders, *([self.why] if self.why else [])]
        return "\n".join([line, *(f"          {detail}" for detail in details)])


@dataclasses.dataclass(frozen=True)
class Report:
    """The nodes of a model for one set of input shapes, and notes on the model. ``str()`` is a text."""

    title: str
    rows: tuple[NodeRow, ...]
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        count = Counter(row.where for row in self.rows)
        total = ", ".join(f"{n} {where}" for where, n in count.items())
        width = max(7, *(len(row.where) for row in self.rows), 0)
        lines = [row.line(width) for row in self.rows]
        return "\n".join([self.title, *lines, f"{len(self.rows)} operators: {total}", *self.notes])


def inspect(graph: Graph, title: str, elsewhere: str = CANNOT) -> Report:
    """Report on a lowered graph without a device. *elsewhere*: the ``where`` of the nodes that the device
    refuses."""
    refused = {id(node): why for node, why in refusals(graph)}
    dequantized = {name for node in graph.nodes if node.op == "dequantize" for name in node.outputs}
    rows = [
        NodeRow(
            node.source,
            _operator(node),
            str(graph.specs[node.outputs[0]]) if node.outputs[0] else "",
            elsewhere if id(node) in refused else "device",
            refused.get(id(node)) or _why_floats(graph, node, dequantized),
        )
        for node in graph.nodes
    ]
    weights = sum(array.nbytes for array in graph.constants.values())
    return Report(title, tuple(rows), (f"{weights} bytes of constants",))


def _why_floats(graph: Graph, node: Node, dequantized: Set[str]) -> str:
    """Return a text for a layer that computes in floats because its weight is float, although its input is
    dequantized. Return "" for other nodes."""
    weight = graph.constants.get(node.inputs[1]) if len(node.inputs) > 1 else None
    if node.op not in LAYERS or weight is None or node.inputs[0] not in dequantized:
        return ""
    dtype = weight.dtype.name
    return f"computes in floats: its weight is {dtype}; with an 8-bit weight it is int8" * ("float" in dtype)


def ahead(model: Model, shapes: Mapping[str, Sequence[int]], title: str) -> Report:
    """Report how a session without a fallback would run a model, without opening a device. Inputs of types
    that a device cannot compute with may count as constants. Nodes whose shapes depend on run-time values
    are planned later."""
    graph, rest = model.known(shapes)
    graph = lower(graph)
    plain = inspect(graph, title)
    names = {
        *blamed(model, graph, rest),
        *(a.name for a in model.inputs if (a.stored or a.dtype) not in ON_DEVICE),
    }
    cannot = any(row.where == CANNOT for row in plain.rows) or rest.found
    constant = names if cannot else rest.needed & {a.name for a in model.inputs}
    on_host = _hosted(model, constant)
    rows = [
        dataclasses.replace(row, where="host") if row.where == CANNOT and row.source in on_host else row
        for row in plain.rows
    ]
    rows += [
        NodeRow(node.source, _operator(node), "", CANNOT, rest.why.removeprefix(f"{node}: "))
        for node in rest.found
    ]
    rows += [
        NodeRow(node.source, _operator(node), "", "host" if node.source in on_host else "later")
        for node in rest.later
    ]
    refused = [(node, why) for node, why in refusals(graph) if node.source not in on_host]
    refused += [(node, rest.why) for node in rest.found]
    notes = [*plain.notes, *host_notes(model, constant)]
    notes += remedies(model, graph, refused) if refused else []
    return Report(title, tuple(rows), tuple(notes))


def _hosted(model: Model, names: Container[str]) -> set[str]:
    """Return the names of the nodes that depend only on inputs in *names* and on constants. If these inputs
    count as constants, the host computes the nodes again for each new value."""
    made, found = set[str](), set[str]()
    for node in model.nodes:
        read = [name for name in node.inputs if name]
        decided = [x for x in read if x in made or x in names]
        if decided and all(x in model.constants for x in set(read) - set(decided)):
            made.update(node.outputs)
            found.add(node.source)
    return found


def host_notes(model: Model, constant: Collection[str]) -> list[str]:
    """Return a note on the nodes that the host computes because the inputs *constant* count as constants;
    [] if there are none."""
    count = len(_hosted(model, constant))
    note = (
        f"{count} nodes depend on {sorted(constant)} alone, which count as constants: the host computes them,"
        " again for each new value"
    )
    return [note] if count else []


def explain(executable: Prepared, layers: Layers, title: str) -> Report:
    """Report on a prepared model: each node with its shaders, and the reason why they were chosen."""
    if isinstance(executable, CpuModel):
        return Report(title, (), (executable.note,))
    if isinstance(executable, Staged):
        return _staged(executable, layers, title)
    if isinstance(executable, Mixed):
        plain = inspect(executable.graph, title, "CPU")
        note = f"{executable.cpu_nodes} nodes on the CPU; {executable.crossing_bytes} bytes cross in each run"
        return dataclasses.replace(plain, notes=(*plain.notes, note))
    rows, repacks = [], 0
    known: dict[Any, Any] = {}
    for key, layer in layers.items():
        if isinstance(key, tuple):
            known.setdefault(key[:2], layer)
    for (node, _, _), names in zip(executable.steps, executable.shaders(), strict=True):
        repacks += sum(name.startswith("repack") for name in names)
        layer = known.get((node.op, node.outputs[0]))
        why = executable.reasons.get(node.outputs[0], str(node.attributes.get("fused", "")))
        if layer is not None and hasattr(layer, "explain"):
            told = layer.explain(executable.graph.specs[node.inputs[0]].shape)
            method = f"{told.method}: {told.method_reason}" if told.method else ""
            bias = ROUNDED if node.attributes.get("float_bias") else ""
            method = executable.reasons.get(node.outputs[0], method)
            why = "; ".join(filter(None, (f"path {told.path}: {told.reason}", method, told.wrapping, bias)))
        spec = str(executable.graph.specs[node.outputs[0]])
        rows.append(NodeRow(node.source, node.label, spec, "device", why, names))
    weights = sum(array.nbytes for array in executable.graph.constants.values())
    dispatches = sum(len(row.shaders) for row in rows)
    notes = (
        f"{dispatches} dispatches, {repacks} of them repacks; {weights} bytes of constants",
        f"on the device: {executable.plan.constant_bytes} bytes of weights, scales and tables"
        + (f", which {len(layers.users)} sessions share" if len(layers.users) > 1 else ""),
        executable.memory(),
    )
    return Report(title, tuple(rows), notes)


def _staged(staged: Staged, layers: Layers, title: str) -> Report:
    """Report on a model in stages. Nodes of stages that are not planned yet run "later"."""
    first = explain(staged.first, layers, title) if staged.first else Report(title, ())
    why = staged.rest.why
    rows = [NodeRow(node.source, str(node.attributes["op"]), "", "CPU", why) for node in staged.found]
    rows += [NodeRow(node.source, _operator(node), "", "later") for node in staged.later]
    note = f"{len(staged.later)} nodes are planned when their shapes are known: {why}"
    return dataclasses.replace(first, rows=(*first.rows, *rows), notes=(*first.notes, note))


def _operator(node: Node) -> str:
    return str(node.attributes["op"]) if node.op == "foreign" else node.label
