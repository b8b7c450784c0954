"""Replaces an If or Loop by the nodes that it runs. The condition of the If, or the number of iterations of
the Loop, must be known as soon as the input shapes are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..graph.graph import Array, Node, Spec
from .alone import type_of
from .functions import Body
from .protobuf import package
from .tensors import NEWEST

# limits of an unrolled Loop: MOST_ROUNDS iterations, and MOST_NODES nodes in all iterations together
MOST_ROUNDS, MOST_NODES = 256, 4096
Read = Callable[[Any], Any]


def branch(
    node: Node, specs: Sequence[Spec | None], arrays: Sequence[Array | None], read: Read
) -> Body | None:
    """Return the nodes and constants that replace an If (those of the selected branch) or a Loop (those of
    all iterations). Return None for other operators, and if the condition or the number of iterations is
    computed at run time. *read*: the function that reads a model."""
    a = node.attributes
    if a["domain"] or a["op"] not in ("If", "Loop"):
        return None
    return (_chosen if a["op"] == "If" else _rounds)(_Inside(node, specs, read), node, arrays)


class _Inside:
    """The subgraphs of an If or Loop, inlined one after the other into ``nodes`` and ``constants``."""

    def __init__(self, node: Node, specs: Sequence[Spec | None], read: Read):
        self.node, self.specs, self.read = node, specs, read
        captured = node.attributes["captured"]
        self.count = len(node.inputs) - len(captured)
        outside = zip(captured, node.inputs[self.count :], specs[self.count :], strict=True)
        self.outside = {old: (name, spec) for old, name, spec in outside}
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}

    def model(self, graph: Any, given: Mapping[str, Spec]) -> Any:
        """Read a subgraph as a model. *given* has the specs of the subgraph's inputs."""
        onnx, a = package(), self.node.attributes
        specs = {**{old: spec for old, (_, spec) in self.outside.items() if spec is not None}, **given}
        made = {v.name for v in graph.initializer}
        infos = [
            onnx.helper.make_tensor_value_info(name, type_of(spec), spec.shape)
            for name, spec in specs.items()
            if name not in made
        ]
        alone = onnx.helper.make_graph(
            graph.node, "inside", infos, graph.output, graph.initializer,
            sparse_initializer=graph.sparse_initializer,
        )  # fmt: skip
        versions = {"": a["opset"] or NEWEST, **dict(a["versions"])}
        imports = [onnx.helper.make_opsetid(domain, version) for domain, version in versions.items()]
        return self.read(onnx.helper.make_model(alone, opset_imports=imports, ir_version=10))

    def place(self, model: Any, given: Mapping[str, str], number: int = 0) -> list[str]:
        """Add the nodes of a subgraph under new names, and return the new names of its results. *given* maps
        the subgraph's inputs to the values that replace them. *number* makes the names unique."""
        known = {"": "", **{old: name for old, (name, _) in self.outside.items()}, **given}
        prefix = f"{self.node.outputs[0] or self.node.source}/{self.node.attributes['op']}/{number}"

        def named(name: str) -> str:
            return known.get(name, f"{prefix}/{name}")

        for one in model.nodes:
            inputs, outputs = tuple(map(named, one.inputs)), tuple(map(named, one.outputs))
            self.nodes.append(Node(one.op, inputs, outputs, one.attributes, self.node.source))
        self.constants.update((named(name), array) for name, array in model.constants.items())
        return [named(argument.name) for argument in model.outputs]

    def emit(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(Node(op, tuple(inputs), (output,), attributes, self.node.source))
        return output

    def finish(self, results: Sequence[str]) -> Body:
        """Return the nodes and constants. *results* are the values that become the outputs of the If or
        Loop."""
        for name, output in zip(results, self.node.outputs, strict=False):
            if output and output != name:
                self.emit("Identity", [name], output)
        return self.nodes, self.constants


def _chosen(inside: _Inside, node: Node, arrays: Sequence[Array | None]) -> Body | None:
    condition = arrays[0]
    if condition is None or condition.size != 1:
        return None
    graph = node.attributes["attributes"]["then_branch" if bool(condition.item()) else "else_branch"]
    return inside.finish(inside.place(inside.model(graph, {}), {}))


def _rounds(inside: _Inside, node: Node, arrays: Sequence[Array | None]) -> Body | None:
    """Inline all iterations of a Loop. Return None in these cases:

    - the condition may become false
    - the number of iterations is unknown, 0, or above MOST_ROUNDS
    - all iterations together have more than MOST_NODES nodes"""
    graph, count = node.attributes["attributes"]["body"], arrays[0] if arrays else None
    names, first = [v.name for v in graph.input], node.inputs[2 : inside.count]
    if count is None or count.size != 1 or not 0 < (rounds := int(count.item())) <= MOST_ROUNDS:
        return None
    on = arrays[1] if len(arrays) > 1 and node.input(1) else np.True_
    if on is None or not on.all() or not _stays_true(graph) or len(names) != 2 + len(first):
        return None
    by_name = dict(zip(node.inputs, inside.specs, strict=True))
    specs = [Spec("int64", ()), Spec("bool", ()), *(by_name[name] for name in first)]
    if any(spec is None for spec in specs):
        return None
    model = inside.model(graph, {n: s for n, s in zip(names, specs, strict=True) if s is not None})
    if rounds * len(model.nodes) > MOST_NODES:
        return None
    prefix, carried = node.outputs[0] or node.source, list(first)
    inside.constants[f"{prefix}/Loop/on"] = np.asarray(True)
    kept: list[list[str]] = []
    for i in range(rounds):
        inside.constants[f"{prefix}/Loop/{i}"] = np.asarray(i, np.int64)
        given = [f"{prefix}/Loop/{i}", f"{prefix}/Loop/on", *carried]
        _, *found = inside.place(model, dict(zip(names, given, strict=True)), i)
        carried, scanned = found[: len(first)], found[len(first) :]
        kept.append(scanned)
    inside.constants[f"{prefix}/Loop/axes"] = np.zeros(1, np.int64)
    for n, output in enumerate(node.outputs[len(first) :]):
        if output:
            rows = [
                inside.emit("Unsqueeze", [one[n], f"{prefix}/Loop/axes"], f"{output}/Loop/row/{i}")
                for i, one in enumerate(kept)
            ]
            inside.emit("Concat", rows, output, axis=0)
    return inside.finish(carried)


def _stays_true(graph: Any) -> bool:
    """Return True if the condition that the body of a Loop returns is its input condition or a true
    constant."""
    name, mine = graph.output[0].name, graph.input[1].name
    makers = {output: one for one in graph.node for output in one.output}
    constants = {v.name: v for v in graph.initializer}
    constants |= {output: a.t for output, one in makers.items() for a in one.attribute if a.name == "value"}
    while name in makers and makers[name].op_type == "Identity":
        name = makers[name].input[0]
    array = package().numpy_helper.to_array(constants[name]) if name in constants else None
    return name == mine or (array is not None and bool(array.all()))
