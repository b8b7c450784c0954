"""Reads an ONNX model into nodes and constants. It executes no node, and reads no file outside the model's
folder."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Graph, Node, Spec, in_order
from ..graph.passes.constants import Rest, fold_constants, fold_known
from ..graph.passes.plain import RULES as REWRITTEN
from ..numerics.stored import owned
from .alone import is_graph
from .branches import branch
from .casts import with_conversions
from .formed import RULES as FORMED
from .formed import written
from .functions import Body, body
from .inline import inlined
from .operators import read_node
from .options import ModelMetadata
from .parsed import parsed
from .protobuf import BFLOAT16, NIBBLES, attribute_of, messages
from .reading import Reading
from .tensors import BROKEN, NEWEST, OLDEST, Argument, argument_of, array_of, dtype_of, results_of
from .unknown_operators import unknown

WIDENS = "DequantizeLinear", "GatherBlockQuantized", "Cast"  # operators that accept 4-bit constants
DOMAINS = {"": "", "ai.onnx": "", "com.microsoft": "com.microsoft"}


@dataclasses.dataclass(frozen=True)
class Model:
    """A model that was read from a file. Nodes of operators unknown to vkq have the operator ``foreign``
    (`unknown_operators`)."""

    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    nodes: tuple[Node, ...]
    constants: Mapping[str, Array]
    opset: int
    name: str = ""
    metadata: ModelMetadata = dataclasses.field(default_factory=ModelMetadata)
    # inputs with a default value in the model, which a run may replace
    overridable: tuple[Argument, ...] = ()

    def at(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        """Return the graph for the input shapes *shapes*. Errors name the node. Raises OpenShape if a shape
        depends on run-time values."""
        # `fold_constants` also infers the specs of all values
        return fold_constants(self._graph(shapes), _otherwise)

    def known(self, shapes: Mapping[str, Sequence[int]]) -> tuple[Graph, Rest]:
        """Return (graph, rest). *graph* is the part of the model's graph that can be planned for the input
        shapes *shapes* without run-time values; *rest* has all remaining nodes."""
        return fold_known(self._graph(shapes), _otherwise)

    @functools.cached_property
    def _specs(self) -> dict[str, Spec]:
        """The spec of each constant, by name."""
        return {name: Spec.of(array) for name, array in self.constants.items()}

    def _graph(self, shapes: Mapping[str, Sequence[int]]) -> Graph:
        specs = dict(self._specs)
        for argument in self.inputs:
            specs[argument.name] = Spec(
                argument.stored or argument.dtype, tuple(int(d) for d in shapes[argument.name])
            )
        inputs, outputs = ([a.name for a in arguments] for arguments in (self.inputs, self.outputs))
        return Graph(inputs, outputs, list(self.nodes), dict(self.constants), specs)


def _otherwise(node: Node, why: str) -> Node:
    return unknown(node, "", None, why)


def fixed(model: Model, given: Mapping[str, Array]) -> Model:
    """Return the model with the inputs in *given* as constants. The arrays are copied."""
    chosen = {a.name: owned(np.asarray(given[a.name])) for a in model.inputs if a.name in given}
    inputs = tuple(a for a in model.inputs if a.name not in chosen)
    return dataclasses.replace(model, inputs=inputs, constants={**model.constants, **chosen})


def read(model: Any, fed: Container[str] = ()) -> Model:
    """Read a model from a path, bytes, an onnx.ModelProto, or PyTorch's ONNXProgram or ExportedProgram.
    *fed*: names of initializers that become inputs.

    Raises ModelError for a file that is not a valid ONNX model, OSError for a file that cannot be read.
    """
    proto, folder = parsed(model)
    try:
        return _model(proto, folder, fed)
    except ModelError:
        raise
    except BROKEN as error:
        raise ModelError(f"the model is malformed: {type(error).__name__}: {error}") from error


def _model(proto: Any, folder: Path | None, fed: Container[str]) -> Model:
    opsets = {DOMAINS.get(o.domain, o.domain): o.version for o in proto.opset_import}
    opset = opsets.get("", 0)
    if not OLDEST <= opset <= NEWEST:
        raise ModelError(f"the model has opset {opset} of ai.onnx; {OLDEST} to {NEWEST} can be read")
    if proto.functions:
        proto = inlined(proto)
    graph = proto.graph
    constants = {t.name: array_of(t, folder) for t in graph.initializer if t.name not in fed}
    if graph.sparse_initializer:
        raise ModelError(f"{len(graph.sparse_initializer)} sparse initializers; store them as dense tensors")
    inputs = tuple(argument_of(v) for v in graph.input if v.name not in constants)
    outputs = results_of(proto)
    names = {name for node in graph.node for name in (*node.input, *node.output)}
    reading = Reading(opset, constants, names | {a.name for a in inputs} | set(constants))
    nodes = [_node(reading, node, i, folder) for i, node in enumerate(graph.node)]
    plain = [(node, domain) for node, domain in nodes if node is not None]
    _check_widened(graph, plain, outputs)
    ordered = in_order([node for node, _ in plain], {*(a.name for a in inputs), *reading.constants})
    domains = {id(node): domain for node, domain in plain}
    for node in needed(ordered, outputs):
        if not read_node(reading, node, domains[id(node)]):
            own = node.inputs[: len(node.inputs) - len(captured(node))]
            plainly = dataclasses.replace(node, inputs=own)
            unread = unknown(plainly, domains[id(node)], opset, _why(node, domains), opsets, captured(node))
            attributes = {**unread.attributes, "expand": _expanded}
            reading.nodes.append(dataclasses.replace(unread, attributes=attributes))
    _check_names(inputs, outputs, reading)
    overridable = tuple(argument_of(v) for v in graph.input if v.name in constants)
    nodes_, told = tuple(reading.nodes), _metadata(proto)
    inputs = with_conversions(inputs, nodes_, {a.name for a in outputs})
    return Model(inputs, outputs, nodes_, reading.constants, opset, graph.name, told, overridable)


def _why(node: Node, domains: Mapping[int, str]) -> str:
    """Return why the reader does not translate a node: vkq supports the operator, but not with these inputs
    or attributes. Return "" if vkq does not know the operator."""
    domain = domains[id(node)]
    known = (domain, node.op) in FORMED or (not domain and node.op in REWRITTEN)
    return f"vkq does not support this form of {domain or 'ai.onnx'}.{node.op}" if known else ""


def _metadata(proto: Any) -> ModelMetadata:
    own = {one.key: one.value for one in proto.metadata_props}
    graph = proto.graph
    return ModelMetadata(
        own, proto.doc_string, proto.domain, graph.doc_string, graph.name, proto.producer_name,
        proto.model_version,
    )  # fmt: skip


def _expanded(node: Node, specs: Sequence[Spec | None], arrays: Sequence[Array | None]) -> Body | None:
    """Return the nodes and constants that replace a ``foreign`` node. They come from a rule of `formed`, the
    branch that an If selects, the iterations of a Loop, or the operator's definition in ONNX."""
    found = written(node, specs, arrays) or branch(node, specs, arrays, read)
    return found or body(node, specs, read)


def needed(nodes: Sequence[Node], outputs: Sequence[Argument]) -> list[Node]:
    """Return the nodes on which a result of the model depends. All other nodes are not read."""
    needed, kept = {a.name for a in outputs}, []
    for node in reversed(nodes):
        if not needed.isdisjoint(node.outputs):
            kept.append(node)
            needed.update(name for name in node.inputs if name)
    return kept[::-1]


def captured(node: Node) -> tuple[str, ...]:
    """Return the names of outer values that the subgraphs of an If, Loop or Scan read. The reader appends
    them to the node's inputs."""
    graphs = [
        g for v in node.attributes.values() if is_graph(v) for g in (v if isinstance(v, tuple) else (v,))
    ]
    return tuple(dict.fromkeys(name for graph in graphs for name in _read_outside(graph)))


def _read_outside(graph: Any) -> list[str]:
    """Return the names of the values that a subgraph reads but does not define."""
    onnx = messages()
    kinds = onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS
    made = {v.name for v in (*graph.input, *graph.initializer)}
    found: list[str] = []
    for node in graph.node:
        inside = [a.g for a in node.attribute if a.type == kinds[0]]
        inside += [g for a in node.attribute if a.type == kinds[1] for g in a.graphs]
        read = [*node.input, *(name for one in inside for name in _read_outside(one))]
        found += [name for name in read if name and name not in made]
        made.update(node.output)
    return found + [v.name for v in graph.output if v.name not in made]


def _check_widened(graph: Any, nodes: Sequence[tuple[Node, str]], outputs: Sequence[Argument]) -> None:
    """Raise ModelError if an operator would compute with a 4-bit or bfloat16 constant in this type. vkq reads
    such constants as 8-bit and float32 arrays."""
    types = {t.name: NIBBLES[t.data_type][0] for t in graph.initializer if t.data_type in NIBBLES}
    types |= {t.name: "bfloat16" for t in graph.initializer if t.data_type == BFLOAT16}
    readers = [(str(node), node.op, node.inputs) for node, _ in nodes] if types else []
    for reader, op, names in (*readers, ("the model's results", "", [a.name for a in outputs])):
        for name in names:
            accept = ("Cast",) if types.get(name) == "bfloat16" else WIDENS
            if name in types and op not in accept:
                raise ModelError(
                    f"{reader}: {name!r} has type {types[name]}; only {' and '.join(accept)} accept it"
                )


def _check_names(inputs: Sequence[Argument], outputs: Sequence[Argument], reading: Reading) -> None:
    made = [name for node in reading.nodes for name in node.outputs if name]
    every = [*(a.name for a in inputs), *reading.constants, *made]
    if len(set(every)) < len(every):
        twice = next(name for name in every if every.count(name) > 1)
        raise ModelError(f"the value {twice!r} is made twice; each value must be made once")
    missing = [a.name for a in outputs if a.name not in set(every)]
    if missing:
        raise ModelError(f"no node makes the model's results {missing}")
    if not outputs:
        raise ModelError("the model has no results")


def _node(reading: Reading, proto: Any, index: int, folder: Path | None) -> tuple[Node | None, str]:
    """Return (the file's node, its domain). For a Constant, store its value in ``reading.constants`` and
    return None instead of the node."""
    onnx = messages()
    source = proto.name or f"#{index} ({proto.op_type})"
    domain = DOMAINS.get(proto.domain, proto.domain)
    attributes: dict[str, Any] = {}
    for attribute in proto.attribute:
        if attribute.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS):
            found = (attribute.g,) if attribute.HasField("g") else tuple(attribute.graphs)
            attributes[attribute.name] = found[0] if attribute.HasField("g") else found
            continue
        attributes[attribute.name] = _value(attribute_of(attribute), folder)
    for key in ("to", "output_dtype"):
        if isinstance(attributes.get(key), int) and domain == "":
            number = attributes.pop(key)
            if number:
                attributes[key] = dtype_of(number, source)
    outputs = tuple(proto.output)
    while len(outputs) > 1 and not outputs[-1]:
        outputs = outputs[:-1]
    if not any(outputs):
        raise ModelError(f"node {source}: it has no results")
    node = Node(proto.op_type, tuple(proto.input), outputs, attributes, source)
    if outside := captured(node):
        node = dataclasses.replace(node, inputs=(*node.inputs, *outside))
    if domain == "" and node.op == "Constant":
        reading.constants[outputs[0]] = _constant(node)
        return None, domain
    return node, domain


def _value(value: Any, folder: Path | None) -> Any:
    if isinstance(value, bytes):
        return value.decode("utf-8", "replace")
    if isinstance(value, messages().TensorProto):
        # raises an error for 4-bit types, which are supported only for initializers
        dtype_of(value.data_type, value.name)
        return array_of(value, folder)
    if isinstance(value, (list, tuple)) or (hasattr(value, "__iter__") and not isinstance(value, str)):
        return tuple(_value(v, folder) for v in value)
    return value


def _constant(node: Node) -> Array:
    for key, value in node.attributes.items():
        if key == "value" and isinstance(value, np.ndarray):
            return value
        if key in ("value_float", "value_floats"):
            return np.asarray(value, np.float32)
        if key in ("value_int", "value_ints"):
            return np.asarray(value, np.int64)
    raise ModelError(f"{node}: has {sorted(node.attributes)}; only dense numbers are supported")
