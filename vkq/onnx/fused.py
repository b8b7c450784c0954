"""Replaces operators of com.microsoft by ONNX's operators. ONNX Runtime's optimizer fuses parts of
transformers into these operators
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..graph.graph import Node
from .normal import normal
from .reading import Reading, Spelling
from .unknown_operators import unknown

EPSILON = 1e-12  # default ``epsilon`` of the fused normalizations


def _cast(reading: Reading, node: Node, x: str) -> str:
    return reading.emit(node, "Cast", [x], to="float32")


def _summed(reading: Reading, node: Node, names: Sequence[str]) -> str:
    """Emit the sum of values in float32, added from left to right. Omitted values ("") are skipped."""
    total, *rest = (_cast(reading, node, name) for name in names if name)
    for one in rest:
        total = reading.emit(node, "Add", [total, one])
    return total


def _scaled(reading: Reading, node: Node, total: str, like: str, scale: str, bias: str, root: bool) -> None:
    """Emit the node's first result in the type of *like*: *total* is normalized along its last axis,
    multiplied by the scale, and added to the bias."""
    function = "normalize_root" if root else "normalize"
    y = normal(reading, node, total, -1, function, EPSILON)
    y = reading.emit(node, "Mul", [y, _cast(reading, node, scale)])
    if bias:
        y = reading.emit(node, "Add", [y, _cast(reading, node, bias)])
    reading.emit(node, "CastLike", [y, like], node.outputs[0])


def _unread(reading: Reading, node: Node, why: str) -> None:
    reading.nodes.append(unknown(node, "com.microsoft", reading.opset, why))


def skip_normalization(root: bool) -> Spelling:
    """Return a rewrite rule for SkipLayerNormalization, or with *root* for SkipSimplifiedLayerNormalization.
    The operator normalizes the sum x + skip (+ bias) in float32, also for float16 inputs. The fourth result
    of the node is this sum."""

    def rule(reading: Reading, node: Node) -> None:
        x, skip, scale = node.inputs[:3]
        outputs = (*node.outputs, "", "", "")
        if any(outputs[1:3]):
            _unread(reading, node, "it also returns mean and deviation")
            return
        bias, own = ("", node.input(3)) if root else (node.input(3), node.input(4))
        total = _summed(reading, node, (x, skip, own))
        if outputs[3]:
            reading.emit(node, "CastLike", [total, x], outputs[3])
        _scaled(reading, node, total, x, scale, bias, root)

    return rule


def embed_normalization(reading: Reading, node: Node) -> None:
    """Rewrite EmbedLayerNormalization, which adds the embeddings of a token, of its position and of its
    segment, and normalizes the sum. The second result of the node is the number of unmasked tokens, and the
    third is the sum before normalization."""
    ids, segments, tokens, places, kinds, scale, bias = node.inputs[:7]
    mask, positions, y = node.input(7), node.input(8), node.outputs[0]
    outputs = (*node.outputs, "", "")
    if positions:
        placed = reading.emit(node, "Gather", [places, positions], axis=0)
    else:
        zero = reading.constant(np.array([0]), f"{y}/zero")
        length = reading.emit(node, "Shape", [ids], start=1, end=2)
        placed = reading.emit(node, "Slice", [places, zero, length, zero])
    parts = [reading.emit(node, "Gather", [tokens, ids], axis=0), placed]
    if segments:
        parts.append(reading.emit(node, "Gather", [kinds, segments], axis=0))
    total = _summed(reading, node, parts)
    if outputs[1] and not mask:  # ONNX Runtime counts none
        batch = reading.emit(node, "Shape", [ids], start=0, end=1)
        reading.emit(node, "ConstantOfShape", [batch], outputs[1], value=np.zeros(1, np.int32))
    elif outputs[1]:
        one, axes = (reading.constant(n, f"{y}/one") for n in (np.int32(1), np.array([1])))
        shown = reading.emit(node, "Cast", [reading.emit(node, "Equal", [mask, one])], to="int32")
        reading.emit(node, "ReduceSum", [shown, axes], outputs[1], keepdims=0)
    if outputs[2]:
        reading.emit(node, "CastLike", [total, tokens], outputs[2])
    _scaled(reading, node, total, tokens, scale, bias, root=False)


def gelu(approximate: str) -> Spelling:
    """Return a rewrite rule for BiasGelu and FastGelu: Gelu of x (+ bias)."""

    def rule(reading: Reading, node: Node) -> None:
        x, bias = node.inputs[0], node.input(1)
        total = reading.emit(node, "Add", [x, bias]) if bias else x
        reading.emit(node, "Gelu", [total], node.outputs[0], approximate=approximate)

    return rule


def matmul_integer_to_float(reading: Reading, node: Node) -> None:
    """Rewrite MatMulIntegerToFloat. Its inputs are a, b, the scales of a and b, their zero points, and a
    bias."""
    a, b, *scales = node.inputs[:4]
    _real_product(reading, node, (a, b, node.input(4), node.input(5)), scales, node.input(6))


def dynamic_quantize_matmul(reading: Reading, node: Node) -> None:
    """Rewrite DynamicQuantizeMatMul. Its inputs are a, b, the scale and zero point of b, and a bias. a is
    float; it is quantized to uint8 by its own range at run time."""
    names = tuple(reading.fresh(f"{node.outputs[0]}/{part}") for part in ("quantized", "scale", "zero_point"))
    reading.nodes.append(Node("DynamicQuantizeLinear", node.inputs[:1], names, {}, node.source))
    operands = (names[0], node.inputs[1], names[2], node.input(3))
    _real_product(reading, node, operands, [names[1], node.inputs[2]], node.input(4))


def _real_product(
    reading: Reading, node: Node, operands: Sequence[str], scales: Sequence[str], bias: str
) -> None:
    """Emit scale_a * scale_b * (the int32 product of a and b) + bias. *operands* are a, b and their zero
    points."""
    sums = _cast(reading, node, reading.emit(node, "MatMulInteger", operands))
    scale = reading.emit(node, "Mul", scales)
    result = reading.emit(node, "Mul", [sums, scale], "" if bias else node.outputs[0])
    if bias:
        reading.emit(node, "Add", [result, bias], node.outputs[0])


def fused_matmul(reading: Reading, node: Node) -> None:
    """Rewrite FusedMatMul: alpha * a @ b. Attributes may transpose the last two axes of a and of b."""
    a = node.attributes
    if a.get("transBatchA", 0) or a.get("transBatchB", 0):
        _unread(reading, node, "its first axis is not the batch")
        return
    if a.get("transA", 0) or a.get("transB", 0):
        left, right = ("...km" if a.get("transA", 0) else "...mk", "...nk" if a.get("transB", 0) else "...kn")
        product = reading.emit(node, "Einsum", node.inputs, equation=f"{left},{right}->...mn")
    else:
        product = reading.emit(node, "MatMul", node.inputs)
    alpha = reading.constant(np.float32(a.get("alpha", 1.0)), f"{node.outputs[0]}/alpha")
    factor = reading.emit(node, "CastLike", [alpha, node.inputs[0]])
    reading.emit(node, "Mul", [product, factor], node.outputs[0])
