"""Operators unknown to vkq. They stay in the graph, so that the list of refused nodes is complete and a
fallback can run them. onnx or ONNX Runtime infers the specs of their results. If all inputs of such an
operator are constants, onnx or ONNX Runtime also computes its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Node, Spec
from ..graph.operators.operator import Inputs, OpenShape
from ..graph.passes.sizes import axes_of
from .alone import computed, in_onnx, is_graph, runtime_specs, type_of
from .protobuf import package
from .tensors import NEWEST, Argument, argument_of

# Operators whose result has the spec of their first input. Without this list, onnx would infer this spec
# only from the operators' definitions.
LIKE_X = ("GroupNormalization", "MeanVarianceNormalization")
# Operators with random results must not be folded, because each run has other results.
RANDOM = (
    "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike", "Multinomial", "Bernoulli",
)  # fmt: skip


def unknown(
    node: Node,
    domain: str,
    opset: int | None,
    why: str = "",
    versions: Mapping[str, int] | None = None,
    captured: Sequence[str] = (),
) -> Node:
    """Return a graph node with the operator ``foreign`` in place of *node*, whose operator vkq does not know.

    opset: the node's opset of ai.onnx; None: the newest one. why: the reason why a device refuses the node.
    versions: the versions of the model's other domains. captured: outer values that the subgraphs of an If,
    Loop or Scan read; they become additional inputs.
    """
    why = why or f"vkq does not know the operator {domain or 'ai.onnx'}.{node.op}"
    domains = {**({domain: 1} if domain else {}), **(versions or {})}
    attributes = {
        "op": node.op, "domain": domain, "opset": None if domain else opset, "attributes": node.attributes,
        "infer": _foreign_specs, "compute": _foreign_arrays, "why": why, "captured": tuple(captured),
        "versions": tuple(sorted((key, version) for key, version in domains.items() if key)),
    }  # fmt: skip
    return Node("foreign", (*node.inputs, *captured), node.outputs, attributes, node.source)


def has_graphs(node: Node) -> bool:
    """Return True if a ``foreign`` node has subgraphs (If, Loop, Scan)."""
    return any(map(is_graph, node.attributes["attributes"].values()))


def _foreign_arrays(node: Node, arrays: Sequence[Array | None]) -> list[Array] | None:
    return None if node.attributes["op"] in RANDOM else computed(node, arrays)


def _foreign_specs(x: Inputs) -> list[Spec]:
    """Infer the specs of a node's results with onnx; if onnx cannot, with ONNX Runtime."""
    a = x.node.attributes
    if not a["domain"] and a["op"] in LIKE_X:
        return [x.spec(0)]
    if not a["domain"] and a["op"] == "Resize":
        return [_resized(x)]
    refusal = f"{x.node}: {a['why']}"
    try:
        found, why = None if has_graphs(x.node) else _inferred(x), ""
    except Exception as error:  # onnx's errors have no common base class
        found, why = None, f", nor does onnx know its results' shapes: {str(error)[:200]}"
    if found is not None:
        return found
    try:
        return runtime_specs(x.node, x.specs, x.arrays)
    except OpenShape as error:
        raise OpenShape(f"{refusal}, and {error}") from error
    except ModelError as error:
        raise ModelError(f"{refusal}{why}; {error}") from error


def _resized(x: Inputs) -> Spec:
    """Return the spec of the result of a Resize. The product of a scale and a size is rounded to float32, as
    in ONNX Runtime; onnx does not round it, and so may infer a size less by one."""
    shape = list(x.spec(0).shape)
    given = [None, x.array(2), x.array(3)]  # the sizes do not depend on roi
    for i, axis in axes_of(x.node, x.node.attributes["attributes"], shape, given).items():
        shape[i] = axis.size
    return Spec(x.spec(0).dtype, tuple(shape))


def _inferred(x: Inputs) -> list[Spec] | None:
    """Return the specs that onnx infers for a node's results; None if onnx does not infer all sizes."""
    onnx, a = package(), x.node.attributes
    schema = onnx.defs.get_schema(a["op"], a["opset"] or NEWEST, a["domain"])
    pairs = list(zip(x.node.inputs, x.specs, x.arrays, strict=True))
    types = {
        name: onnx.helper.make_tensor_type_proto(type_of(spec), spec.shape)
        for name, spec, _ in pairs
        if spec is not None
    }
    data = {name: onnx.numpy_helper.from_array(np.asarray(v), name) for name, _, v in pairs if v is not None}
    proto = onnx.helper.make_node(
        a["op"], x.node.inputs, x.node.outputs, domain=a["domain"], **in_onnx(a["attributes"])
    )
    imports = [onnx.helper.make_opsetid(a["domain"], a["opset"] or NEWEST)]
    found = onnx.shape_inference.infer_node_outputs(schema, proto, types, data, opset_imports=imports)
    if not all(found[name].tensor_type.HasField("shape") for name in x.node.outputs if name):
        return None
    arguments = [
        argument_of(onnx.helper.make_value_info(name, found[name])) if name else Argument("", "float32", ())
        for name in x.node.outputs
    ]
    if any(isinstance(dim, str) for argument in arguments for dim in argument.shape):
        return None
    return [Spec(argument.dtype, tuple(int(d) for d in argument.shape)) for argument in arguments]
