"""Translates convolutions and matrix products. On 8-bit values, these operators become vkq's layers, with
XNNPACK's arithmetic. On floats, they become the graph's float operators."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array
from ..numerics.qparams import QParams, are_scales
from .arithmetic import bounds_of, fixed_multiplier
from .file import FileOperator
from .fixed import fixed_dense, fixed_layer, in_vectors, scaled
from .lowering import Lowering, Unsupported
from .schema import SAME

BYTES = ("int8", "uint8")
LARGEST_MULTIPLIER = 256.0  # x_scale * w_scale / y_scale must be below this number in XNNPACK
RANGES = {"": (-np.inf, np.inf), "RELU": (0.0, np.inf), "RELU6": (0.0, 6.0), "RELU_N1_TO_1": (-1.0, 1.0)}


def real_range(operator: FileOperator, activation: str) -> tuple[float, float]:
    """Return the bounds of the fused activation *activation* as real numbers."""
    if activation not in RANGES:
        raise Unsupported(f"its fused activation is {activation}; it must be one of {', '.join(RANGES)[2:]}")
    return RANGES[activation]


def activated(low: Lowering, name: str, limits: tuple[float, float]) -> str:
    """Clip *name* to the bounds of a fused activation, if it has bounds. Return the result's name."""
    if limits == RANGES[""]:
        return name
    if limits == RANGES["RELU"]:
        return low.emit("Relu", [name])
    pair = [low.constant(np.float32(v), "bound") for v in limits]
    return low.emit("Clip", [name, *pair])


def window_padding(
    padding: int, size: Sequence[int], kernel: Sequence[int], stride: Sequence[int],
    dilation: Sequence[int] = (1, 1),
) -> tuple[int, int, int, int]:  # fmt: skip
    """Return the padding (top, left, bottom, right) of a window. SAME padding gives the result the size
    ``ceil(size / stride)``. If the padding along an axis is odd, the additional element is at the end."""
    before, after = [], []
    for s, k, step, d in zip(size, kernel, stride, dilation, strict=True):
        reach = (k - 1) * d + 1
        total = max((-(-s // step) - 1) * step + reach - s, 0) if padding == SAME else 0
        before.append(total // 2)
        after.append(total - total // 2)
    return (before[0], before[1], after[0], after[1])


def strides(operator: FileOperator) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return (stride, dilation), each as (vertical, horizontal)."""
    o = operator.options
    found = (o["stride_h"], o["stride_w"]), (o.get("dilation_h_factor", 1), o.get("dilation_w_factor", 1))
    if min(*found[0], *found[1]) < 1:
        raise ModelError(f"{operator}: stride {found[0]} and dilation {found[1]} must be at least 1")
    return found


def conv(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower CONV_2D. The weight is (OC, KH, KW, IC / groups)."""
    x, w = operator.inputs[:2]
    weight = low.array(w, "weight")
    channels = low.shape(x)[3] if len(low.shape(x)) == 4 else 0
    if weight.ndim != 4 or not channels or not weight.shape[3] or channels % weight.shape[3]:
        raise ModelError(
            f"{operator}: x {low.shape(x)} must be (N, H, W, groups * IC), w {weight.shape} (OC, KH, KW, IC)"
        )
    _convolution(low, operator, activation, weight.transpose(0, 3, 1, 2), channels // weight.shape[3], 0)


def depthwise(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower DEPTHWISE_CONV_2D. The weight is (1, KH, KW, IC * multiplier)."""
    x, w = operator.inputs[:2]
    weight = low.array(w, "weight")
    channels = low.shape(x)[3] if len(low.shape(x)) == 4 else 0
    if weight.ndim != 4 or weight.shape[0] != 1 or not channels or weight.shape[3] % channels:
        raise ModelError(
            f"{operator}: x {low.shape(x)} must be (N, H, W, IC), w {weight.shape} (1, KH, KW, n * IC)"
        )
    _convolution(low, operator, activation, weight.transpose(3, 0, 1, 2), channels, 3)


def _convolution(
    low: Lowering, operator: FileOperator, activation: str, weight: Array, groups: int, axis: int
) -> None:
    x, y = operator.inputs[0], operator.outputs[0]
    stride, dilation = strides(operator)
    kernel, size = weight.shape[2:], low.shape(x)[1:3]
    padding = window_padding(operator.options["padding"], size, kernel, stride, dilation)
    inputs = [low.first_of(x), low.constant(weight, f"{low.names[operator.inputs[1]]}/OIHW")]
    if low.dtype(x) in BYTES:
        more = _quantized(low, operator, activation, inputs, weight, axis)
        window: dict[str, Any] = {
            "stride": stride, "padding": padding, "dilation": dilation, "groups": groups,
        }  # fmt: skip
        narrow = low.tensor(operator.inputs[1]).narrow
        if narrow or (axis == 3 and weight.dtype == np.uint8):  # XNNPACK supports neither case
            up = in_vectors((1, 1, 1, len(weight)), False) if axis else groups == 1
            limits = real_range(operator, activation)
            name = fixed_layer(low, "conv2d", inputs, weight, more, limits, narrow and up, **window)
        else:
            name = low.emit("conv2d", inputs, **more, **window)
    else:
        inputs[1] = _real_weight(low, operator, weight, inputs[1], (-1, 1, 1, 1))
        name = low.emit(
            "Conv", [*inputs, *_real_bias(low, operator, 2)], kernel_shape=kernel, strides=stride,
            dilations=dilation, pads=padding, group=groups,
        )  # fmt: skip
        name = activated(low, name, real_range(operator, activation))
    low.give(y, name, first=True)


def weight_scales(low: Lowering, number: int, channels: int, axis: int) -> tuple[Array, Array | None]:
    """Return (scales, zero points) of the weight with tensor number *number*: one scale, or one for each
    output channel along *axis*. The zero points are None if all are 0."""
    tensor = low.tensor(number)
    scales, points = tensor.scales, tensor.zero_points
    if tensor.dtype not in BYTES or scales.size not in (1, channels) or not are_scales(scales).all():
        raise Unsupported(
            f"its weight {tensor.name!r} is {tensor.dtype} with {scales.size} scales; it must be 8-bit with 1"
            f" or {channels} positive normal scales"
        )
    if scales.size > 1 and tensor.axis != axis:
        raise Unsupported(f"its weight {tensor.name!r} is quantized along axis {tensor.axis}, not {axis}")
    info = np.iinfo(tensor.dtype)
    if points.min() < info.min or points.max() > info.max:
        raise ModelError(f"{low.source}: a zero point of {tensor.name!r} is outside {tensor.dtype}")
    return scales, points.astype(tensor.dtype) if points.any() else None


def _quantized(
    low: Lowering, operator: FileOperator, activation: str, inputs: list[str], weight: Array, axis: int
) -> dict[str, Any]:
    """Return the attributes of a layer on 8-bit values. Append the layer's bias to *inputs*."""
    x, y = low.q(operator.inputs[0]), low.q(operator.outputs[0])
    if x.dtype != y.dtype or weight.dtype.name != x.dtype:
        raise Unsupported(f"x is {x.dtype}, w {weight.dtype} and y {y.dtype}; the types must be equal")
    scales, points = weight_scales(low, operator.inputs[1], channels := weight.shape[0], axis)
    with np.errstate(all="ignore"):
        multiplier = np.float32(x.scale) * scales / np.float32(y.scale)
    if not (multiplier < LARGEST_MULTIPLIER).all():
        raise Unsupported(f"x_scale * w_scale / y_scale is {multiplier.max()}; XNNPACK takes less than 256")
    if len(operator.inputs) > 2 and operator.inputs[2] >= 0:
        bias = low.array(operator.inputs[2], "bias")
        if bias.dtype != np.int32 or bias.shape != (channels,):
            raise Unsupported(f"its bias is {bias.dtype}{list(bias.shape)}; it must be int32 [{channels}]")
        inputs.append(low.constant(bias, low.names[operator.inputs[2]]))
    limits = bounds_of(real_range(operator, activation), y)
    return {"x": x, "y": y, "w_scale": scales, "w_zero_point": points, "activation": limits}


def _real_weight(
    low: Lowering, operator: FileOperator, weight: Array, name: str, along: tuple[int, ...]
) -> str:
    """Return the name of a weight in float32. A hybrid layer's 8-bit weight is dequantized."""
    if weight.dtype in (np.float32, np.float16):
        return name if weight.dtype == np.float32 else low.emit("Cast", [name], to="float32")
    axis = along.index(-1)
    tensor = low.tensor(operator.inputs[1])
    scales, points = weight_scales(low, operator.inputs[1], weight.shape[axis], tensor.axis)
    pair = [low.constant(scales.reshape(-1) if scales.size > 1 else scales.reshape(()), "scale")]
    zeros = np.zeros(scales.shape, weight.dtype) if points is None else points
    pair.append(low.constant(zeros.reshape(-1) if scales.size > 1 else zeros.reshape(()), "zero_point"))
    return low.emit("DequantizeLinear", [name, *pair], axis=axis)


def _real_bias(low: Lowering, operator: FileOperator, index: int) -> list[str]:
    if len(operator.inputs) <= index or operator.inputs[index] < 0:
        return []
    bias = low.array(operator.inputs[index], "bias")
    if bias.dtype not in (np.float32, np.float16):
        raise Unsupported(f"its bias is {bias.dtype}; with float activations it must be float32")
    return [low.constant(bias.astype(np.float32), low.names[operator.inputs[index]])]


def transpose_conv(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower TRANSPOSE_CONV. Its first input is the result's shape; its weight is (OC, KH, KW, IC)."""
    size, w, x, y = *operator.inputs[:3], operator.outputs[0]
    weight, shape = low.array(w, "weight"), low.shape(x)
    if weight.ndim != 4 or len(shape) != 4 or weight.shape[3] != shape[3]:
        raise ModelError(f"{operator}: x {shape} must be (N, H, W, IC), w {weight.shape} (OC, KH, KW, IC)")
    (stride, _), kernel = strides(operator), weight.shape[1:3]
    wanted = low.numbers(size, "size")
    if len(wanted) != 4 or wanted[0] != shape[0] or wanted[3] != weight.shape[0]:
        raise ModelError(f"{operator}: the size is {wanted}; it must be (N, OH, OW, OC)")
    padding, added = _transposed_padding(operator, shape[1:3], wanted[1:3], kernel, stride)
    image = FileOperator(
        operator.op, (x, w, *operator.inputs[3:4]), operator.outputs, operator.options, operator.place
    )
    inputs = [low.first_of(x), low.constant(weight.transpose(3, 0, 1, 2), f"{low.names[w]}/IOHW")]
    if low.dtype(x) in BYTES:
        more = _quantized(low, image, activation, inputs, weight, 0)
        window: dict[str, Any] = {
            "stride": stride, "padding": padding, "output_padding": added, "dilation": (1, 1), "groups": 1,
        }  # fmt: skip
        short = any(k < s for k, s in zip(kernel, stride, strict=True))
        if operator.options["padding"] == SAME and short:  # XNNPACK refuses kernels smaller than the stride
            limits, up = real_range(operator, activation), in_vectors(wanted, weight.dtype == np.uint8)
            data = weight.transpose(0, 3, 1, 2)
            name = fixed_layer(low, "conv_transpose2d", inputs, data, more, limits, up, **window)
        else:
            name = low.emit("conv_transpose2d", inputs, **more, **window)
    else:
        inputs[1] = _real_weight(low, image, weight.transpose(3, 0, 1, 2), inputs[1], (1, -1, 1, 1))
        name = low.emit(
            "ConvTranspose", [*inputs, *_real_bias(low, image, 2)], kernel_shape=kernel, strides=stride,
            pads=padding, output_padding=added,
        )  # fmt: skip
        name = activated(low, name, real_range(operator, activation))
    low.give(y, name, first=True)


def _transposed_padding(
    operator: FileOperator, size: Sequence[int], wanted: Sequence[int], kernel: Sequence[int],
    stride: Sequence[int],
) -> tuple[tuple[int, int, int, int], tuple[int, int]]:  # fmt: skip
    """Return (top, left, bottom, right) to crop from the result of a transposed convolution, and the numbers
    of rows and columns to add at its end. *size*, *wanted*: (rows, columns) of input and result."""
    before, after, added = [], [], []
    for given, out, k, step in zip(size, wanted, kernel, stride, strict=True):
        whole = (given - 1) * step + k
        total = max(whole - out, 0)
        if operator.options["padding"] == SAME:
            total = max((given - 1) * step + k - out, 0)
        before.append(total // 2)
        after.append(total - total // 2)
        added.append(out - (whole - total))
    if min(added) < 0 or any(a >= s for a, s in zip(added, stride, strict=True)):
        raise ModelError(f"{operator}: the size {tuple(size)} cannot become {tuple(wanted)} with this kernel")
    return (before[0], before[1], after[0], after[1]), (added[0], added[1])


def batch_matmul(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower BATCH_MATMUL. If the zero point of the right operand is not 0, XNNPACK refuses the operator, and
    LiteRT's own kernel is reproduced."""
    numbers, y, names = operator.inputs[:2], operator.outputs[0], []
    for number, turned in zip(numbers, ("adj_x", "adj_y"), strict=True):
        rank = len(low.shape(number))
        perm = (*range(rank - 2), rank - 1, rank - 2)
        name = low.last_of(number)
        names.append(low.emit("Transpose", [name], perm=perm) if operator.options[turned] else name)
    if low.dtype(numbers[0]) not in BYTES:
        return low.give(y, low.emit("MatMul", names))
    a, b, q = quantized_pair(low, (numbers[0], numbers[1]), y)
    if b.zero_point == 0:
        return low.give(y, low.emit("matmul", names, a=a, b=b, y=q))
    points = [low.constant(np.array(v.zero_point, v.dtype), "zero_point") for v in (a, b)]
    factor = fixed_multiplier(float(np.float32(a.scale) * np.float32(b.scale)) / float(q.scale))
    sums = low.emit("MatMulInteger", [*names, *points])
    return low.give(y, scaled(low, sums, [factor], False, q, real_range(operator, activation)))


def fully_connected(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower FULLY_CONNECTED. Its weight is (N, K), and the elements of x form rows of K."""
    x, w, y = *operator.inputs[:2], operator.outputs[0]
    weight, shape = low.array(w, "weight"), low.shape(x)
    if operator.options.get("weights_format", 0):
        raise Unsupported("its weights are shuffled; they must be in the default format")
    k = weight.shape[-1] if weight.ndim == 2 else 0
    size = int(np.prod(shape))
    if not k or size % k or (operator.options.get("keep_num_dims") and shape[-1] != k):
        raise ModelError(f"{operator}: x {shape} must consist of rows of K, and w {weight.shape} be (N, K)")
    name, keep = low.last_of(x), operator.options.get("keep_num_dims")
    wanted = shape if keep and len(shape) > 1 else (size // k, k)
    inputs = [low.reshape(name, wanted), low.constant(weight, low.names[w])]
    if low.dtype(x) in BYTES:
        more = _quantized(low, operator, activation, inputs, weight, 0)
        if low.tensor(w).narrow and k % 2:  # XNNPACK refuses 4-bit weights with an odd K
            name = fixed_dense(low, inputs, weight, more, real_range(operator, activation), wanted)
        else:
            name = low.emit("linear", inputs, **more)
    else:
        name = _real_product(low, operator, inputs, weight)
        name = activated(low, name, real_range(operator, activation))
    low.give(y, low.reshape(name, (*shape[:-1], weight.shape[0])) if keep else name)


def _real_product(low: Lowering, operator: FileOperator, inputs: list[str], weight: Array) -> str:
    right = _real_weight(low, operator, weight, inputs[1], (-1, 1))
    bias = _real_bias(low, operator, 2)
    if len(low.specs[inputs[0]].shape) == 2:
        return low.emit("Gemm", [inputs[0], right, *bias], transB=1)
    turned = low.emit("Transpose", [right], perm=(1, 0))
    name = low.emit("MatMul", [inputs[0], turned])
    return low.emit("Add", [name, *bias]) if bias else name


def quantized_pair(low: Lowering, numbers: tuple[int, int], y: int) -> tuple[QParams, QParams, QParams]:
    """Return the parameters of two operands and their result. Raises Unsupported if their types differ."""
    a, b, result = low.q(numbers[0]), low.q(numbers[1]), low.q(y)
    if not a.dtype == b.dtype == result.dtype:
        raise Unsupported(f"operands are {a.dtype} and {b.dtype}, y {result.dtype}; types must be equal")
    return a, b, result
