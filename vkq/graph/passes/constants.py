"""Constant folding: nodes that depend only on constants and shapes are computed in advance.

DequantizeLinear of a constant stays, because quantized operators need its integers. This pass is the first
in which all shapes are known, so it also rewrites 1-D operators as image operators (`lines`)."""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Sequence

import numpy as np

from ...errors import ModelError
from ..graph import Array, Graph, Node, Spec
from ..operators.operator import Inputs, OpenShape, UnsupportedForm
from ..operators.table import TABLE, compute, infer
from .lines import as_image
from .plain import in_plain_words
from .sweep import Sweep, alive

LARGEST_FOLDED_BYTES = 1 << 28  # a node whose results have more bytes is not folded
HELD = {"bool": "uint8"}  # maps a type to the type in which a device stores it
Otherwise = Callable[[Node, str], Node]


@dataclasses.dataclass
class Rest:
    """The nodes of a graph that cannot be planned yet. ``found``: nodes that must run before the shapes of
    their results are known. ``later``: nodes that depend on results of ``found``, or on the elements of the
    values ``needed``."""

    found: list[Node] = dataclasses.field(default_factory=list)
    later: list[Node] = dataclasses.field(default_factory=list)
    needed: set[str] = dataclasses.field(default_factory=set)
    why: str = ""  # the reason why the first of these nodes cannot be planned

    @property
    def nodes(self) -> list[Node]:
        return [*self.found, *self.later]


def fold_constants(graph: Graph, otherwise: Otherwise | None = None) -> Graph:
    """Compute Shape, Size and all nodes with only constant inputs; remove them from the graph.

    ``otherwise(node, reason)`` returns the replacement for a node in an unsupported form. Raises OpenShape
    if a shape depends on values that exist only at run time."""
    sweep = Sweep(_alive(graph))
    return sweep.run(lambda sweep, node: _visit(sweep, node, otherwise))


def fold_known(graph: Graph, otherwise: Otherwise | None = None) -> tuple[Graph, Rest]:
    """Fold the part of the graph that can be planned now. Return this part and the rest. The results of the
    part include the inputs of the rest."""
    graph = _alive(graph)
    sweep, rest, unknown = Sweep(graph), Rest(), set[str]()

    def visit(sweep: Sweep, node: Node) -> bool:
        if not unknown.isdisjoint(node.inputs):
            rest.later.append(node)
        else:
            try:
                return _visit(sweep, node, otherwise)
            except OpenShape as error:
                rest.why = rest.why or str(error)
                # Subgraphs read outer values by their names, so these values must not be converted.
                typed = node if node.attributes.get("captured") else _with_types(sweep, node)
                (rest.later if error.needed else rest.found).append(typed)
                rest.needed |= {error.needed} - {""}
        unknown.update(name for name in node.outputs if name)
        return True

    sweep.walk(visit)
    read = read_by(rest.later)
    # If the rest reads the result of a DequantizeLinear, copy this node into the rest. The rest then reads
    # the integers.
    again = [n for n in graph.nodes if n.op == "DequantizeLinear" and not read.isdisjoint(n.outputs)]
    rest.later = [*(node for node in again if unknown.isdisjoint(node.outputs)), *rest.later]
    made, found = {name for node in rest.nodes for name in node.outputs}, read_by(rest.found)
    results = dict.fromkeys(name for name in graph.outputs if name not in unknown)
    for name in (name for node in rest.nodes for name in node.inputs if name):
        if name not in graph.constants and (name not in made or name in found):
            results[name] = None
    return sweep.finish([name for name in results if name not in unknown]), rest


def _alive(graph: Graph) -> Graph:
    """Return the graph without nodes that no result needs, so that their results are not computed."""
    return dataclasses.replace(graph, nodes=alive(graph.nodes, graph.outputs)[0])


def read_by(nodes: Sequence[Node]) -> set[str]:
    """Return the names of all values that nodes read."""
    return {name for node in nodes for name in node.inputs if name}


def _visit(sweep: Sweep, node: Node, otherwise: Otherwise | None) -> bool:
    if node.op == "CastLike":
        to = sweep.specs[node.inputs[1]].dtype
        node = Node("Cast", node.inputs[:1], node.outputs, {"to": to}, node.source)
    if node.op != "foreign" and _reads_nothing(sweep, node) and _without_elements(sweep, node):
        return True
    refused: UnsupportedForm | None = None

    def visit(one: Node) -> bool:
        return _visit(sweep, one, otherwise)

    try:
        if node.op != "DequantizeLinear" and (_fold(sweep, node) or as_image(sweep, node, visit)):
            return True
    # `as_image` refuses this form, but a rule of `_in_others` may accept it.
    except UnsupportedForm as error:
        refused = error
    if _in_others(sweep, node, otherwise):
        return True
    if node.op == "foreign" and (flag := _condition(sweep, node)):
        raise OpenShape(f"{node}: its condition {flag!r} must be known, to choose the branch", flag)
    try:
        if refused:
            raise refused
        sweep.keep(node)
    except UnsupportedForm as error:
        if otherwise is None:
            raise
        sweep.keep(otherwise(node, str(error).removeprefix(f"{node}: ")))
    if any(0 in sweep.specs[x].shape for x in node.outputs if x) and _without_elements(
        sweep, sweep.nodes[-1]
    ):
        sweep.nodes.pop()
        return True
    if sweep.nodes[-1].op == "foreign":
        sweep.keep(_settled(sweep, sweep.nodes.pop()))
    return True


def _reads_nothing(sweep: Sweep, node: Node) -> bool:
    """Return True if an input of the node has no elements."""
    return any(name and 0 in sweep.specs[name].shape for name in node.inputs)


def _without_elements(sweep: Sweep, node: Node) -> bool:
    """Fold the results of a node if none of them has an element, as those of an empty batch."""
    specs = [sweep.specs[name] if name else None for name in node.inputs]
    try:
        found = infer(node, specs, [sweep.array(name) for name in node.inputs])
    except (UnsupportedForm, OpenShape):
        return False
    made = zip(node.outputs, found, strict=False)
    if not all(0 in spec.shape for name, spec in made if name):
        return False
    return _make(sweep, node, [np.zeros(spec.shape, spec.dtype) for spec in found])


def _in_others(sweep: Sweep, node: Node, otherwise: Otherwise | None) -> bool:
    """Replace a node by simpler nodes, with a rule of `plain` or with the definition of its operator. If the
    result of a simpler node has a shape that is not known yet (OpenShape), return False and keep the node."""
    count = len(sweep.nodes)
    try:
        plain = in_plain_words(sweep, node, lambda one: _visit(sweep, one, otherwise))
        return plain or (node.op == "foreign" and _defined(sweep, node, otherwise))
    except OpenShape:
        del sweep.nodes[count:]
        return False


def _condition(sweep: Sweep, node: Node) -> str:
    """Return the name of the condition of an If, if it is one flag computed at run time; else ""."""
    if node.attributes["domain"] or node.attributes["op"] != "If":
        return ""
    name = node.inputs[0]
    return name if name not in sweep.constants and math.prod(sweep.specs[name].shape) == 1 else ""


def _defined(sweep: Sweep, node: Node, otherwise: Otherwise | None) -> bool:
    """Replace an operator by its definition. The attribute ``expand`` is a function that returns the nodes of
    the definition for given input shapes. Return False if the operator has no definition."""
    expand = node.attributes.get("expand")
    if expand is None:
        return False
    specs, arrays = ([of(x) if x else None for x in node.inputs] for of in (sweep.specs.get, sweep.array))
    found = expand(node, specs, arrays)
    if found is None:
        return False
    nodes, constants = found
    for name, array in constants.items():
        sweep.fold(name, array)
    for one in nodes:
        _visit(sweep, one, otherwise)
    return True


def _settled(sweep: Sweep, node: Node) -> Node:
    """Return the node of an unknown operator with two more attributes: the types that its inputs and results
    have in the model. A device may store these values in other types."""
    if "gives" in node.attributes:
        return node
    gives = tuple(sweep.specs[name] if name else Spec("float32", ()) for name in node.outputs)
    node = _with_types(sweep, node)
    return dataclasses.replace(node, attributes={**node.attributes, "gives": gives, "infer": _given})


def _with_types(sweep: Sweep, node: Node) -> Node:
    """Return the node of an unknown operator with the types of its inputs as an attribute. Return any other
    node unchanged."""
    if node.op != "foreign":
        return node
    takes = tuple(sweep.specs[name].dtype if name else "" for name in node.inputs)
    return dataclasses.replace(node, attributes={**node.attributes, "takes": takes})


def _given(x: Inputs) -> list[Spec]:
    return [Spec(HELD.get(spec.dtype, spec.dtype), spec.shape) for spec in x.node.attributes["gives"]]


def fold_weights(graph: Graph) -> Graph:
    """Fold all constants, now also each DequantizeLinear of a constant. Run this pass after all passes that
    need the integers of dequantized constants."""
    return Sweep(graph).run(_fold)


def _fold(sweep: Sweep, node: Node) -> bool:
    if node.op in ("Shape", "Size"):
        shape = sweep.specs[node.inputs[0]].shape
        return _make(sweep, node, compute(node, [np.broadcast_to(np.zeros((), np.int8), shape)]))
    constants = sweep.constants
    for name in node.inputs:
        if name and name not in constants:
            return False
    arrays = [constants[name] if name else None for name in node.inputs]
    if node.op == "foreign":
        return _fold_foreign(sweep, node, arrays)
    if node.op in TABLE and TABLE[node.op].compute is None:
        return False
    sweep.keep(node)  # check the node and compute the sizes of its results before the computation
    size = sum(sweep.specs[name].nbytes for name in node.outputs if name)
    if size > min(LARGEST_FOLDED_BYTES, sweep.room_bytes):
        return True
    sweep.room_bytes -= size
    sweep.nodes.pop()
    return _make(sweep, node, compute(node, arrays))


def _fold_foreign(sweep: Sweep, node: Node, arrays: Sequence[Array | None]) -> bool:
    """Compute an unknown operator with the function in its attribute ``compute``. Return False without
    computing it if the results are known to be too large."""
    specs = [sweep.specs[name] if name else None for name in node.inputs]
    with contextlib.suppress(ModelError):  # a rule may know an operator that onnx and ONNX Runtime do not
        if sum(spec.nbytes for spec in infer(node, specs, arrays)) > LARGEST_FOLDED_BYTES:
            return False
    results = node.attributes["compute"](node, arrays)
    return results is not None and _make(sweep, node, results)


def _make(sweep: Sweep, node: Node, results: Sequence[Array]) -> bool:
    for name, array in zip(node.outputs, results, strict=False):
        if name:
            sweep.fold(name, array)
    return True
