"""Runs a part of a graph on the CPU in a session of ONNX Runtime."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Container, Hashable, Mapping
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.device.rows import refusal
from ..graph.executable import RefusedNode
from ..graph.graph import Array, Graph, Node
from ..graph.passes.constants import Rest
from .alone import OPSET, in_onnx, node_proto
from .cpu import cpu_session
from .operators import MICROSOFT
from .spelled import OPERATORS as SPELLED
from .spelled import spelled
from .tensors import NEWEST


def _since(op: str, opset: int = NEWEST) -> int:
    """Return the opset of ai.onnx that introduced the version of an operator that *opset* uses. Return 0 if
    *opset* lacks the operator."""
    from onnx import defs

    try:
        return int(defs.get_schema(op, opset, "").since_version)
    except defs.SchemaError:
        return 0


def opset_of(node: Node) -> int:
    """Return the opset of ai.onnx with which a node is passed to ONNX Runtime:

    - `OPSET` for most nodes
    - the model's opset for an operator whose version in `OPSET` differs from its version in the model's opset
    - a later opset for an operator that is newer than `OPSET`"""
    op, own = node.op, None
    if op == "foreign":
        op, own = node.attributes["op"], node.attributes["opset"]
    form = _since(op, OPSET)
    if not form:
        return own or _since(op) or OPSET
    return OPSET if own is None or _since(op, own) == form else int(own)


class CpuPart:
    """Runs nodes in ONNX Runtime, in one session for all input shapes.

    The session's dimensions are symbolic. int64 constants that shape inference computed are inputs of the
    session, because they may contain a size. The shapes of results may be unknown before a run."""

    def __init__(self, part: Graph, opset: int, layers: dict[Hashable, Any], own: Mapping[str, Array]):
        self.inputs, self.outputs = part.inputs, part.outputs
        held = {x for x, array in part.constants.items() if own.get(x) is array or array.dtype != np.int64}
        self.fed = {x: array for x, array in part.constants.items() if x not in held}
        proto = _proto(part, opset, held)
        folded = (part.constants[x] for x in sorted(held) if x not in own)
        theirs = (hashlib.sha256(array.tobytes()).digest() for array in folded)
        key = ("cpu", proto.SerializeToString(deterministic=True), *theirs)
        if key not in layers:
            constants = [onnx_array(part.constants[name], name) for name in sorted(held)]
            proto.graph.initializer.extend(constants)
            layers[key] = cpu_session(proto.SerializeToString(), "fallback='onnxruntime'")
        self.session = layers[key]

    @classmethod
    def open(
        cls, graph: Graph, nodes: list[Node], layers: dict[Hashable, Any], own: Mapping[str, Array]
    ) -> CpuPart:
        """Open a session for *nodes*. The nodes read results of *graph*; the shapes of their own results
        are known only at run time."""
        read = {name for node in nodes for name in node.inputs if name}
        made = {name for node in nodes for name in node.outputs if name}
        constants = {name: own[name] for name in read if name in own}
        inputs = sorted(read - made - constants.keys())
        specs = {name: graph.specs[name] for name in inputs}
        part = Graph(inputs, sorted(made), nodes, constants, specs)
        return cls(part, opset_of(nodes[0]), layers, own)

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        given = {name: inputs[name] for name in self.inputs} | self.fed
        try:
            results: list[Array] = self.session.run(self.outputs, given)
        except Exception as error:  # ONNX Runtime's errors have no common base class
            raise ModelError(f"ONNX Runtime cannot run its part of the model: {str(error)[:500]}") from error
        return dict(zip(self.outputs, results, strict=True))


def onnx_array(array: Array, name: str) -> Any:
    import onnx

    return onnx.numpy_helper.from_array(np.asarray(array, order="C"), name)


def _proto(part: Graph, opset: int, held: Container[str]) -> Any:
    """Return the part as a model. Constants in *held* are missing: the caller adds them as initializers. All
    other constants become inputs."""
    from onnx import helper

    def info(name: str) -> Any:
        spec = part.specs.get(name)
        if spec is None:
            return helper.make_empty_tensor_value_info(name)
        kind = helper.np_dtype_to_tensor_dtype(np.dtype(spec.dtype))
        return helper.make_tensor_value_info(name, kind, [None] * len(spec.shape))

    nodes = [one for node in part.nodes for one in _nodes(node, part, opset)]
    _name_once(nodes)
    domains = {"": opset}
    for node in part.nodes:
        domains |= dict(node.attributes["versions"]) if node.op == "foreign" else {}
    domains |= {node.domain: 1 for node in nodes if node.domain not in domains}
    inputs = [*part.inputs, *(name for name in sorted(part.constants) if name not in held)]
    graph = helper.make_graph(nodes, "part", [info(x) for x in inputs], [info(x) for x in part.outputs])
    opsets = [helper.make_opsetid(domain, version) for domain, version in sorted(domains.items())]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def _name_once(nodes: list[Any]) -> None:
    """Remove repeated node names: they occur if several nodes replace one node of the model. ONNX Runtime
    refuses repeated names, but accepts nodes without a name."""
    named: set[str] = set()
    for node in nodes:
        if node.name in named:
            node.name = ""
        named.add(node.name)


MICROSOFTS = ("QuickGelu", "MatMulNBits")  # the graph's operators that belong to the domain com.microsoft
LOGIC = ("And", "Or", "Xor", "Not")


def domain_of(node: Node) -> str:
    """Return the ONNX domain of an operator of the graph."""
    return MICROSOFT if node.op in MICROSOFTS else ""


def in_words(node: Node) -> bool:
    """Return True if ONNX or com.microsoft has the node's operator."""
    return node.op in MICROSOFTS or bool(_since(node.op))


def _required_types(part: Graph, node: Node) -> dict[str, str]:
    """Map a node's inputs to the types that ONNX requires, where these differ from the types in the graph."""
    if node.op == "foreign":
        pairs = zip(node.inputs, node.attributes.get("takes", ()), strict=False)
        return {x: to for x, to in pairs if x and x in part.specs and part.specs[x].dtype != to}
    flags = node.inputs if node.op in LOGIC else node.inputs[:1] if node.op in ("Where", "where") else ()
    return {x: "bool" for x in flags if part.specs[x].dtype == "uint8"}


def _graph_types(part: Graph, node: Node) -> dict[str, str]:
    """Map a node's results to their types in the graph, where these differ from the types in ONNX."""
    if node.op != "foreign":
        return {}
    pairs = zip(node.outputs, node.attributes.get("gives", ()), strict=False)
    return {
        x: part.specs[x].dtype for x, spec in pairs if x in part.specs and part.specs[x].dtype != spec.dtype
    }


def _nodes(node: Node, part: Graph, opset: int) -> list[Any]:
    """Return a node of the graph as ONNX nodes. Casts before and after the node convert types that ONNX does
    not allow for its operator."""
    taken, given = _required_types(part, node), _graph_types(part, node)
    inputs = {x: f"{node.outputs[0]}/{x}/{to}" for x, to in taken.items()}
    outputs = {x: f"{x}/given" for x in given}
    plain = dataclasses.replace(
        node,
        inputs=tuple(inputs.get(x, x) for x in node.inputs),
        outputs=tuple(outputs.get(x, x) for x in node.outputs),
    )
    if node.op == "foreign":
        made = node_proto(plain)
    else:
        made = spelled(plain) if node.op in SPELLED else [_proto_of(plain, part, opset)]
    before = [_cast(x, inputs[x], to) for x, to in taken.items()]
    return [*before, *made, *(_cast(outputs[x], x, to) for x, to in given.items())]


def _cast(x: str, y: str, to: str) -> Any:
    from onnx import helper

    return helper.make_node("Cast", [x], [y], to=helper.np_dtype_to_tensor_dtype(np.dtype(to)))


def _proto_of(node: Node, part: Graph, opset: int) -> Any:
    from onnx import defs, helper

    op, domain, attributes = node.op, domain_of(node), node.attributes
    if not domain and not _since(op, opset):  # not an ONNX operator; `left_alone` handles the error
        raise RefusedNode(node, str(refusal(part, node)))
    if not domain:
        known = defs.get_schema(op, opset, domain).attributes
        attributes = {key: value for key, value in attributes.items() if key in known}
    given = in_onnx(attributes)
    return helper.make_node(op, node.inputs, node.outputs, name=node.source, domain=domain, **given)


def split(rest: Rest) -> tuple[list[Node], list[Node]]:
    """Return (the nodes that run on the CPU next, as one part; the remaining nodes).

    All nodes of the part have the same opset. The part contains nodes whose result shapes are known only at
    run time, and ``foreign`` nodes that read no result of a remaining node."""
    if not rest.found:
        return [], rest.later
    opset, found, later = opset_of(rest.found[0]), [], []
    waiting = {name for node in rest.later for name in node.outputs}
    for i, node in enumerate((*rest.found, *rest.later)):
        blocked = i >= len(rest.found) and not waiting.isdisjoint(node.inputs)
        if node.op == "foreign" and opset_of(node) == opset and not blocked:
            found.append(node)
            waiting.difference_update(node.outputs)
        else:
            later.append(node)
            waiting.update(node.outputs)
    return found, later
