"""Operators that vkq does not know: kept in the graph, so that the list of refusals is whole and a fallback
can run them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Node, Spec
from ..graph.operators.operator import Inputs
from .protobuf import package
from .tensors import NEWEST, Argument, argument_of

GRAPH = "a graph"  # what the reader makes of an attribute that is one
LIKE_X = ("GroupNormalization", "MeanVarianceNormalization")  # whose result onnx knows by its body alone


def unknown(node: Node, domain: str, opset: int | None, why: str = "") -> Node:
    """A node that the graph keeps without knowing what it computes; onnx may know its results' shapes. It is
    as in *opset* of ai.onnx, or in the newest form."""
    why = why or f"vkq does not know the operator {domain or 'ai.onnx'}.{node.op}"
    attributes = {
        "op": node.op, "domain": domain, "opset": None if domain else opset, "attributes": node.attributes,
        "infer": _foreign_specs, "why": why,
    }  # fmt: skip
    return Node("foreign", node.inputs, node.outputs, attributes, node.source)


def in_onnx(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """A node's attributes as ``onnx.helper.make_node`` takes them."""
    return {key: _attribute(key, value) for key, value in attributes.items()}


def _attribute(key: str, value: Any) -> Any:
    onnx = package()
    if key in ("to", "output_dtype") and isinstance(value, str):
        return onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value))
    if isinstance(value, np.ndarray):
        return onnx.numpy_helper.from_array(value)
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _check_graphs(node: Node) -> None:
    """Refuses branches and loops."""
    own, op = node.attributes["attributes"].items(), node.attributes["op"]
    if graphs := sorted(key for key, value in own if isinstance(value, str) and value == GRAPH):
        raise ModelError(
            f"{node}: {op} has graphs of its own ({', '.join(graphs)}), and vkq reads no such operator; fold"
            " it (a constant condition leaves one branch, a loop can be unrolled), or export the model"
            " without it"
        )


def _foreign_specs(x: Inputs) -> list[Spec]:
    onnx, a = package(), x.node.attributes
    if not a["domain"] and a["op"] in LIKE_X:
        return [x.spec(0)]
    _check_graphs(x.node)
    refusal, opset = f"{x.node}: {a['why']}", a["opset"] or NEWEST
    try:
        schema = onnx.defs.get_schema(a["op"], opset, a["domain"])
        types = {
            name: onnx.helper.make_tensor_type_proto(
                onnx.helper.np_dtype_to_tensor_dtype(np.dtype(s.dtype)), s.shape
            )
            for name, s in zip(x.node.inputs, x.specs, strict=True)
            if s is not None
        }
        data = {
            name: onnx.numpy_helper.from_array(array, name)
            for name, array in zip(x.node.inputs, x.arrays, strict=True)
            if array is not None
        }
        proto = onnx.helper.make_node(
            a["op"], x.node.inputs, x.node.outputs, domain=a["domain"], **in_onnx(a["attributes"])
        )
        found = onnx.shape_inference.infer_node_outputs(
            schema, proto, types, data, opset_imports=[onnx.helper.make_opsetid(a["domain"], opset)]
        )
        arguments = [
            argument_of(onnx.helper.make_value_info(name, found[name]))
            if name
            else Argument("", "float32", ())
            for name in x.node.outputs
        ]
        known = all(found[name].tensor_type.HasField("shape") for name in x.node.outputs if name)
        if not known or any(isinstance(d, str) for argument in arguments for d in argument.shape):
            raise ModelError(f"{refusal}, and its results have no fixed shape")
        return [Spec(argument.dtype, tuple(int(d) for d in argument.shape)) for argument in arguments]
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"{refusal}, nor does onnx know its results' shapes: {error}") from error
