"""Replaces a node whose operator vkq does not know by the operator's definition. ONNX defines many operators
by simpler operators: losses, Attention, window functions and more."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..graph.graph import Array, Node, Spec
from .alone import in_onnx, type_of
from .protobuf import package
from .tensors import NEWEST
from .unknown_operators import RANDOM, has_graphs

DOMAIN = "vkq.body"
Body = tuple[Sequence[Node], Mapping[str, Array]]


def body(node: Node, specs: Sequence[Spec | None], read: Callable[[Any], Any]) -> Body | None:
    """Return the nodes and constants that replace *node* by the definition of its operator, for inputs with
    these *specs*. Return None if ONNX has no definition of the operator, or if the node or the definition
    contains subgraphs. *read*: the function that reads a model."""
    a = node.attributes
    if a["domain"] or a["op"] in RANDOM or has_graphs(node) or a["captured"]:
        return None
    try:
        proto = _model(node, specs)
    except Exception:  # onnx's errors have no common base class
        return None
    if proto is None:
        return None
    model = read(proto)
    if any(one.op == "foreign" and has_graphs(one) for one in model.nodes):
        return None
    return _renamed(node, model.nodes, model.constants)


def _model(node: Node, specs: Sequence[Spec | None]) -> Any:
    """Return a model with one node, which calls the definition of the operator as a function, or None if ONNX
    has no definition."""
    onnx, a = package(), node.attributes
    helper, opset = onnx.helper, a["opset"] or NEWEST
    schema = onnx.defs.get_schema(a["op"], opset, "")
    attributes = in_onnx(a["attributes"])
    for name, known in schema.attributes.items():
        if name not in attributes and known.default_value.name:
            attributes[name] = helper.get_attribute_value(known.default_value)
    call = helper.make_node(a["op"], node.inputs, node.outputs, **attributes)
    types = [
        (helper.make_tensor_type_proto(type_of(spec), spec.shape) if spec else onnx.TypeProto())
        for spec in specs
    ]
    if schema.has_function:
        found = schema.get_function_with_opset_version(max(schema.function_opset_versions))
    elif schema.has_context_dependent_function:
        version = max(schema.context_dependent_function_opset_versions)
        made = [kind.SerializeToString() for kind in types]
        found = schema.get_context_dependent_function_with_opset_version(
            version, call.SerializeToString(), made
        )
    else:
        return None
    function = onnx.FunctionProto.FromString(found)
    function.domain = call.domain = DOMAIN
    pairs = {name: kind for name, kind in zip(node.inputs, types, strict=True) if name}
    infos = [helper.make_value_info(name, kind) for name, kind in pairs.items()]
    results = [helper.make_empty_tensor_value_info(name) for name in node.outputs if name]
    imports = [*function.opset_import, helper.make_opsetid(DOMAIN, 1)]
    graph = helper.make_graph([call], "call", infos, results)
    return helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=10)


def _renamed(node: Node, nodes: Sequence[Node], constants: Mapping[str, Array]) -> Body:
    """Return the nodes and constants with new names for all values except the inputs and results of *node*,
    the replaced node."""
    known = {*node.inputs, *node.outputs, ""}

    def named(name: str) -> str:
        return name if name in known else f"{node.outputs[0]}/{node.attributes['op']}/{name}"

    moved = [
        Node(
            one.op, tuple(map(named, one.inputs)), tuple(map(named, one.outputs)), one.attributes, node.source
        )
        for one in nodes
    ]
    return moved, {named(name): array for name, array in constants.items() if name not in known}
