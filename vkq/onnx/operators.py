"""The ONNX operators that the reader knows, and their translation to the graph's operators.

A node of an older opset is converted to the newest opset, in which some attributes are inputs. A quantized
operator of ONNX or com.microsoft becomes DequantizeLinear, a float operator and QuantizeLinear (QDQ). Later,
passes fuse these nodes into vkq's quantized operators, as they do in QDQ models.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Node
from ..graph.operators import elementwise, movement, number, scatter
from .attributes import check_attributes
from .fused import (
    dynamic_quantize_matmul,
    embed_normalization,
    fused_matmul,
    gelu,
    matmul_integer_to_float,
    skip_normalization,
)
from .normal import group_normalization, instance_normalization, layer_normalization, norm
from .reading import Reading, Spelling, attributes_as_inputs
from .unknown_operators import unknown

MICROSOFT = "com.microsoft"


def read_node(reading: Reading, node: Node, domain: str) -> bool:
    """Translate a node of the model and add the result to *reading*. Return False for an unknown operator."""
    rule = RULES.get((domain, node.op))
    if rule is None:
        return False
    check_attributes(node)
    rule(reading, node)
    return True


def _as_it_is(reading: Reading, node: Node) -> None:
    reading.nodes.append(node)


def _pad(reading: Reading, node: Node) -> None:
    """Read Pad. Before opset 11 the margins and the fill value are attributes."""
    a = dict(node.attributes)
    if "pads" in a:
        pads = reading.constant(np.asarray(a.pop("pads"), np.int64), f"{node.outputs[0]}/pads")
        value = reading.constant(np.float32(a.pop("value", 0.0)), f"{node.outputs[0]}/value")
        node = Node("Pad", (node.inputs[0], pads, value), node.outputs, a, node.source)
    reading.nodes.append(node)


def _softmax(reading: Reading, node: Node) -> None:
    """Read Softmax. Before opset 13 the softmax runs over all axes from ``axis`` on."""
    if reading.opset >= 13:
        reading.nodes.append(node)
        return
    shape = reading.emit(node, "Shape", node.inputs[:1])
    flat = reading.emit(node, "Flatten", node.inputs[:1], axis=int(node.attributes.get("axis", 1)))
    result = reading.emit(node, node.op, [flat], axis=-1)
    reading.emit(node, "Reshape", [result, shape], node.outputs[0], allowzero=1)


def _resize(reading: Reading, node: Node) -> None:
    """Read Resize and Upsample. Upsample, and Resize of opset 10, have two inputs, and always use
    "asymmetric" coordinates, with "floor" as the rounding of the mode "nearest"."""
    if len(node.inputs) == 2:
        attributes = {
            "mode": node.attributes.get("mode", "nearest"),
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        inputs = (node.inputs[0], "", node.inputs[1])
        reading.nodes.append(Node("Resize", inputs, node.outputs, attributes, node.source))
    else:
        attributes = dict(node.attributes)
        if attributes.get("mode") == "nearest":
            attributes.setdefault("nearest_mode", "round_prefer_floor")
        reading.nodes.append(Node("Resize", node.inputs, node.outputs, attributes, node.source))


def _normalization(reading: Reading, node: Node) -> None:
    """Read BatchNormalization. Drop its results other than the first, which exist only in training, and the
    inputs that training mode ignores."""
    inputs = node.inputs[:3] if node.attributes.get("training_mode", 0) else node.inputs
    reading.nodes.append(Node(node.op, inputs, node.outputs[:1], node.attributes, node.source))


# ------------------------------------------------------------------------------ quantized operators as QDQ


def _real(reading: Reading, node: Node, x: str, scale: str, zero: str, **attributes: Any) -> str:
    # The conversion of a float16 scale to float32 is exact.
    single = reading.emit(node, "Cast", [scale], to="float32")
    return reading.emit(node, "DequantizeLinear", [x, single, zero], **attributes)


def _stored(reading: Reading, node: Node, x: str, scale: str, zero: str, **attributes: Any) -> None:
    single = reading.emit(node, "Cast", [scale], to="float32")
    reading.emit(node, "QuantizeLinear", [x, single, zero], node.outputs[0], **attributes)


def _channels_first(rule: Spelling) -> Spelling:
    """Return a rewrite rule that also accepts ``channels_last``. In that case, it emits a Transpose to (N, C,
    ...), the nodes of *rule*, and a Transpose back."""

    def both(reading: Reading, node: Node) -> None:
        if not node.attributes.get("channels_last", 0):
            return rule(reading, node)
        rank = 2 + len(node.attributes.get("kernel_shape", (1, 1)))
        first, last = (0, rank - 1, *range(1, rank - 1)), (0, *range(2, rank), 1)
        x = reading.emit(node, "Transpose", node.inputs[:1], perm=first)
        name = reading.fresh(f"{node.outputs[0]}/first")
        inner = {key: value for key, value in node.attributes.items() if key != "channels_last"}
        rule(reading, Node(node.op, (x, *node.inputs[1:]), (name,), inner, node.source))
        reading.emit(node, "Transpose", [name], node.outputs[0], perm=last)

    return both


def _bias(reading: Reading, node: Node, bias: str, x_scale: str, w_scale: str) -> str:
    """Dequantize an int32 bias with the scale x_scale * w_scale. Raises ModelError if one of the two scales
    is not a constant."""
    scales = [reading.constants.get(name) for name in (x_scale, w_scale)]
    if scales[0] is None or scales[1] is None:
        raise ModelError(f"{node}: with a bias, the scales must be constants")
    with np.errstate(all="ignore"):
        product = np.asarray(scales[0], np.float32).reshape(()) * np.asarray(scales[1], np.float32)
    scale = reading.constant(product, f"{bias}/scale")
    return reading.emit(node, "DequantizeLinear", [bias, scale], axis=0)


def _qlinear_conv(reading: Reading, node: Node) -> None:
    i = node.inputs
    inputs = [_real(reading, node, *i[0:3]), _real(reading, node, *i[3:6], axis=0)]
    if node.input(8):
        inputs.append(_bias(reading, node, i[8], i[1], i[4]))
    _stored(reading, node, reading.emit(node, "Conv", inputs, **node.attributes), i[6], i[7])


def _qlinear_matmul(reading: Reading, node: Node) -> None:
    """Read QLinearMatMul. Scales and zero points of a and y may have one element for each row; scales and
    zero points of b may have one for each column. If b is a constant batch of matrices, each with its own
    scales and zero points, each matrix becomes a separate product."""
    i = node.inputs
    known = [reading.constants.get(i[k]) for k in (1, 2, 4, 5, 6, 7)]
    if any(array is not None and array.ndim > 1 and array.size > 1 for array in known):
        b, scales, points = (reading.constants.get(name) for name in i[3:6])
        single = all(array is not None and array.size == 1 for array in (*known[:2], *known[4:]))
        if single and b is not None and scales is not None and points is not None and b.ndim == 3:
            _products(reading, node, b, scales, points)
            return
        why = "each matrix of its batch has scales or zero points of its own"
        reading.nodes.append(unknown(node, "", reading.opset, why))
        return
    pair = [_real(reading, node, *i[0:3], axis=-2), _real(reading, node, *i[3:6], axis=-1)]
    _stored(reading, node, reading.emit(node, "MatMul", pair), i[6], i[7], axis=-2)


def _products(reading: Reading, node: Node, b: Array, scales: Array, points: Array) -> None:
    """Emit QLinearMatMul as one product for each matrix of b (D, K, N). *scales* and *points* broadcast to
    (D, 1, N)."""
    i, count, y = node.inputs, len(b), node.outputs[0]
    try:
        each = [np.broadcast_to(array, (count, 1, b.shape[2]))[:, 0] for array in (scales, points)]
    except ValueError:
        given = f"b is {b.shape}, its scales {scales.shape} and zero points {points.shape}"
        raise ModelError(f"{node}: {given}; these must broadcast to {(count, 1, b.shape[2])}") from None
    axis = reading.constant(np.array([-3]), f"{y}/axis")
    whole = reading.emit(node, "Expand", [i[0], reading.constant(np.array([count, 1, 1]), f"{y}/shape")])
    made = []
    for k, (matrix, scale, zero) in enumerate(zip(b, *each, strict=True)):
        x = reading.emit(node, "Gather", [whole, reading.constant(np.array(k), f"{y}/{k}")], axis=-3)
        own = [reading.constant(np.ascontiguousarray(v), f"{y}/b{k}") for v in (matrix, scale, zero)]
        pair = [_real(reading, node, x, *i[1:3]), _real(reading, node, *own, axis=1)]
        result = reading.emit(node, "MatMul", pair)
        single = reading.emit(node, "Cast", [i[6]], to="float32")
        stored = reading.emit(node, "QuantizeLinear", [result, single, i[7]])
        made.append(reading.emit(node, "Unsqueeze", [stored, axis]))
    reading.emit(node, "Concat", made, y, axis=-3)


def _qgemm(reading: Reading, node: Node) -> None:
    i, a = node.inputs, {k: v for k, v in node.attributes.items() if k in ("alpha", "transA", "transB")}
    pair = [_real(reading, node, *i[0:3]), _real(reading, node, *i[3:6], axis=0 if a.get("transB", 0) else 1)]
    if node.input(6):
        pair.append(_bias(reading, node, i[6], i[1], i[4]))
    if node.input(7):
        _stored(reading, node, reading.emit(node, "Gemm", pair, **a), i[7], node.input(8))
    else:
        reading.emit(node, "Gemm", pair, node.outputs[0], **a)


def _qlinear_binary(op: str) -> Spelling:
    def rule(reading: Reading, node: Node) -> None:
        i = node.inputs
        pair = [_real(reading, node, *i[0:3]), _real(reading, node, *i[3:6])]
        _stored(reading, node, reading.emit(node, op, pair), i[6], node.input(7))

    return rule


def _qlinear_unary(op: str) -> Spelling:
    def rule(reading: Reading, node: Node) -> None:
        i, a = node.inputs, {k: v for k, v in node.attributes.items() if k not in ("channels_last", "opset")}
        real = _real(reading, node, *i[0:3])
        if op == "Softmax":
            inner = Node(op, (real,), (reading.fresh(f"{node.outputs[0]}/{op}"),), a, node.source)
            before, reading.opset = reading.opset, int(node.attributes.get("opset", 13))
            _softmax(reading, inner)
            reading.opset, result = before, inner.outputs[0]
        else:
            result = reading.emit(node, op, [real], **a)
        _stored(reading, node, result, i[3], node.input(4))

    return rule


def _qlinear_concat(reading: Reading, node: Node) -> None:
    i = node.inputs
    real = [_real(reading, node, *i[k : k + 3]) for k in range(2, len(i), 3)]
    _stored(reading, node, reading.emit(node, "Concat", real, axis=node.attributes["axis"]), i[0], i[1])


def _qlinear_where(reading: Reading, node: Node) -> None:
    i = node.inputs
    pair = [_real(reading, node, *i[1:4]), _real(reading, node, *i[4:7])]
    _stored(reading, node, reading.emit(node, "Where", [i[0], *pair]), i[7], node.input(8))


_REDUCED = attributes_as_inputs("axes")
_ONNX: dict[str, Spelling] = {
    **{
        op: _as_it_is
        for op in (*elementwise.OPERATORS, *movement.OPERATORS, *number.OPERATORS, *scatter.OPERATORS)
        # names in lower case are vkq's operators, which no model contains
        if op not in ("QuickGelu", "foreign") and not op.islower()
    },
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear"), _as_it_is),
    **dict.fromkeys((*number.REDUCTIONS, "Squeeze", "Unsqueeze"), _REDUCED),
    "Clip": attributes_as_inputs("min", "max", integers=False),
    "Split": attributes_as_inputs("split"),
    "Slice": attributes_as_inputs("starts", "ends", "axes"),
    "Pad": _pad,
    "Softmax": _softmax,
    "LogSoftmax": _softmax,
    "Resize": _resize,
    "Upsample": _resize,
    "BatchNormalization": _normalization,
    "LayerNormalization": layer_normalization,
    "RMSNormalization": layer_normalization,
    "SimplifiedLayerNormalization": layer_normalization,  # ONNX Runtime's operator, but in ONNX's domain
    "InstanceNormalization": instance_normalization,
    "GroupNormalization": group_normalization,
    "ReduceL1": norm(square=False, root=False),
    "ReduceL2": norm(square=True, root=True),
    "ReduceSumSquare": norm(square=True, root=False),
    "QLinearConv": _qlinear_conv,
    "QLinearMatMul": _qlinear_matmul,
}
_MICROSOFT: dict[str, Spelling] = {
    "QLinearConv": _channels_first(_qlinear_conv),
    "QGemm": _qgemm,
    "QLinearAdd": _qlinear_binary("Add"),
    "QLinearMul": _qlinear_binary("Mul"),
    "QLinearAveragePool": _channels_first(_qlinear_unary("AveragePool")),
    "QLinearGlobalAveragePool": _channels_first(_qlinear_unary("GlobalAveragePool")),
    "QLinearLeakyRelu": _qlinear_unary("LeakyRelu"),
    "QLinearSigmoid": _qlinear_unary("Sigmoid"),
    "QLinearSoftmax": _qlinear_unary("Softmax"),
    "QLinearConcat": _qlinear_concat,
    "QLinearWhere": _qlinear_where,
    "QuantizeLinear": _as_it_is,
    "DequantizeLinear": _as_it_is,
    "Gelu": _as_it_is,
    "QuickGelu": _as_it_is,
    "MatMulNBits": _as_it_is,
    "BiasGelu": gelu("none"),
    "FastGelu": gelu("tanh"),
    "SkipLayerNormalization": skip_normalization(root=False),
    "SkipSimplifiedLayerNormalization": skip_normalization(root=True),
    "EmbedLayerNormalization": embed_normalization,
    "FusedMatMul": fused_matmul,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
}
RULES: dict[tuple[str, str], Spelling] = {
    **{("", op): rule for op, rule in _ONNX.items()},
    **{(MICROSOFT, op): rule for op, rule in _MICROSOFT.items()},
}
