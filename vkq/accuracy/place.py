"""Inserts QDQ nodes for given ranges into a float model, with onnxruntime.quantization. Outputs and chosen
layers stay float."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from ..onnx.protobuf import package
from ..onnx.quantize import quantizer
from .observe import LAYERS
from .ranges import Range
from .walk import in_order, read_by
from .weights import WeightReplacement

ELEMENTWISE = {
    "Add", "BatchNormalization", "Div", "Elu", "Erf", "Gelu", "HardSigmoid", "HardSwish", "Mish", "Mul",
    "Pow", "Sigmoid", "Softmax", "Softplus", "Sqrt", "Sub", "Tanh",
}  # fmt: skip
Q, DQ = "QuantizeLinear", "DequantizeLinear"


@dataclasses.dataclass(frozen=True)
class QuantPlan:
    """How to quantize a model. ranges: the range of each value, by name. floats: the names of nodes that stay
    float. only_weights: the names of nodes in *floats* whose weights become int8."""

    ranges: Mapping[str, Range]
    floats: frozenset[str] = frozenset()
    only_weights: frozenset[str] = frozenset()
    symmetric: bool = False
    activations: str = "int8"
    per_channel: bool = True


def placed(proto: Any, plan: QuantPlan) -> Any:
    """Return the quantized form of a prepared float model (`prepared`). *proto* is not changed."""
    onnx, quantization = package(), quantizer()
    from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
    from onnxruntime.quantization.registry import QDQRegistry

    copy = onnx.ModelProto.FromString(proto.SerializeToString())
    kinds = quantization.QuantType
    ranges = {name: (np.float32(low), np.float32(high)) for name, (low, high) in plan.ranges.items()}
    made = QDQQuantizer(
        copy, plan.per_channel, False, kinds.QInt8,
        kinds.QInt8 if plan.activations == "int8" else kinds.QUInt8,
        TensorsData(CalibrationMethod.MinMax, ranges), [], sorted(plan.floats), list(QDQRegistry),
        {"ActivationSymmetric": plan.symmetric},
    )  # fmt: skip
    made.quantize_model()
    model = made.model.model
    _float_outputs(model, plan.floats)
    _read_floats(model, plan.floats, {name: node for node in proto.graph.node for name in node.output})
    if plan.only_weights:
        rest = {node.name for node in model.graph.node} - plan.only_weights
        WeightReplacement(model, 8, 32, rest).rows()
    nodes = in_order(model.graph.node)
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    return model


def tail(proto: Any) -> list[str]:
    """Return the names of the nodes after the last layers (`LAYERS`): from each of these nodes, a path
    without a layer leads to an output."""
    maker = {name: node for node in proto.graph.node for name in node.output}
    found: dict[str, None] = {}
    ahead = [value.name for value in proto.graph.output]
    while ahead:
        node = maker.get(ahead.pop())
        if node is not None and node.op_type not in LAYERS and node.name not in found:
            found[node.name] = None
            ahead += read_by(node)
    return list(found)


def elementwise(proto: Any) -> list[str]:
    """Return the names of the nodes with an operator in ELEMENTWISE. Relu and Clip are not in ELEMENTWISE,
    because they become bounds of a layer's result."""
    return [node.name for node in proto.graph.node if node.op_type in ELEMENTWISE]


def blocks(proto: Any) -> dict[str, list[str]]:
    """Map the name of each layer with a constant weight to its block: the nodes that become float with the
    layer. These are the layer's node and the nodes after it, up to the next layers. A node after several
    layers is in the block of the last of them."""
    constants = {tensor.name for tensor in proto.graph.initializer}
    owner: dict[str, str] = {}
    order: dict[str, int] = {}
    found: dict[str, list[str]] = {}
    for node in proto.graph.node:
        before = [owner[name] for name in read_by(node) if name in owner]
        mine = max(before, key=lambda name: order[name], default="")
        if node.op_type in LAYERS and constants & set(node.input[:2]):
            mine = node.name
            order[mine], found[mine] = len(order), []
        if mine:
            found[mine].append(node.name)
            owner.update(dict.fromkeys(node.output, mine))
    return found


def _float_outputs(model: Any, floats: Collection[str]) -> None:
    """Remove the quantization of the model's outputs. Quantized nodes that read an output still read its
    8-bit form."""
    maker = {name: node for node in model.graph.node for name in node.output}
    for value in model.graph.output:
        last = maker.get(value.name)
        if last is None or last.op_type != DQ or last.input[0] not in maker:
            continue
        first = maker[last.input[0]]
        if first.op_type != Q or first.input[0] not in maker:
            continue
        real, again = first.input[0], f"{value.name}_dequantized"
        for node in model.graph.node:
            quantized = node.name not in floats
            node.input[:] = [
                value.name if n == real else again if n == value.name and quantized else n for n in node.input
            ]
            node.output[:] = [value.name if n == real else n for n in node.output]
        last.output[0] = again
    _drop_unread(model)


def _read_floats(model: Any, floats: Collection[str], before: Mapping[str, Any]) -> None:
    """Let the nodes named in *floats* read the values from before quantization. If such a node read the
    result of a Relu or Clip that a quantization range has replaced, insert the Relu or Clip again. *before*
    maps the name of each value to the node of the float model that computes the value."""
    maker = {name: node for node in model.graph.node for name in node.output}
    names = {node.name for node in model.graph.node}
    again: dict[str, str] = {}
    for node in model.graph.node:
        if node.name not in floats:
            continue
        for i, name in enumerate(node.input):
            last = maker.get(name)
            first = maker.get(last.input[0]) if last is not None and last.op_type == DQ else None
            if first is None or first.op_type != Q:
                continue
            real = first.input[0]
            removed = before.get(real)
            if removed is not None and removed.op_type in ("Relu", "Clip") and removed.name not in names:
                again[real] = f"{real}_activated"
            node.input[i] = again.get(real, real)
    for real, name in again.items():
        node = package().NodeProto.FromString(before[real].SerializeToString())
        node.input[0], node.output[0] = real, name
        at = next(i for i, other in enumerate(model.graph.node) if real in other.output)
        model.graph.node.insert(at + 1, node)
    _drop_unread(model)


def _drop_unread(model: Any) -> None:
    """Remove quantization nodes whose result has no reader, and constants without readers."""
    kept = {value.name for value in model.graph.output}
    while True:
        read: dict[str, int] = defaultdict(int)
        for node in model.graph.node:
            for name in read_by(node):
                read[name] += 1
        idle = [
            n
            for n in model.graph.node
            if n.op_type in (Q, DQ) and not (read[n.output[0]] or n.output[0] in kept)
        ]
        if not idle:
            break
        for node in idle:
            model.graph.node.remove(node)
    for tensor in [t for t in model.graph.initializer if not read[t.name] and t.name not in kept]:
        model.graph.initializer.remove(tensor)
