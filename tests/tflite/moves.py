"""Models of operators that move, resize, multiply and reduce, with random attributes."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operators import SAME, Case, One, Random, all_numbers, conv


def transpose_conv(rng: Random, dtype: str, short: bool = False) -> Case:
    """Return a model of a TRANSPOSE_CONV. *short*: the kernel is shorter than the stride. LiteRT computes
    this form without XNNPACK."""
    one = One(rng, dtype)
    x_shape, kernel = one.shape(2, 7), [int(k) for k in rng.integers(1, 5, 2)]
    stride, padding = [int(s) for s in rng.integers(1, 4, 2)], int(rng.integers(0, 2))
    channels, sizes = int(rng.integers(1, 9)), []
    if short:
        padding, channels = SAME, int(rng.integers(9, 21))
        stride = [k + 1 if i else s for i, (k, s) in enumerate(zip(kernel, stride, strict=True))]
    for i in (0, 1):
        same, valid = x_shape[1 + i] * stride[i], (x_shape[1 + i] - 1) * stride[i] + max(kernel[i], stride[i])
        sizes.append(same if padding == SAME else valid)
    x_scale, w_shape = one.scale(), (channels, *kernel, x_shape[3])
    scales = np.float32(10 ** rng.uniform(-3, -1, channels if dtype == "int8" else 1))
    spread = (kernel[0] * kernel[1] * x_shape[3]) ** 0.5
    x = one.input(x_shape, x_scale, one.zero())
    zero = 0 if dtype == "int8" else int(rng.integers(0, 256))
    weight = one.w.tensor(w_shape, dtype, scales, zero, 0, one.numbers(w_shape))
    inputs = [one.w.constant(np.array([x_shape[0], *sizes, channels], np.int32)), weight, x]
    if rng.integers(0, 2):
        bias = rng.integers(-5000, 5000, channels).astype(np.int32)
        inputs.append(one.w.constant(bias, scales * np.float32(x_scale)))
    y_scale = float(np.float32(x_scale * scales.mean() * 40 * spread))
    y = one.output((x_shape[0], *sizes, channels), y_scale, one.zero())
    one.w.operator(
        "TRANSPOSE_CONV", inputs, [y], "TransposeConvOptions", 3, padding=padding, stride_h=stride[0],
        stride_w=stride[1],
    )  # fmt: skip
    return one.case(y)


def _resize(op: str, kind: str) -> Callable[[Random, str], Case]:
    def make(rng: Random, dtype: str) -> Case:
        one = One(rng, dtype)
        shape, size, scale, zero = (
            one.shape(),
            rng.integers(1, 20, 2).astype(np.int32),
            one.scale(),
            one.zero(),
        )
        corners = int(rng.integers(0, 3))
        x, y = one.input(shape, scale, zero), one.output((shape[0], *map(int, size), shape[3]), scale, zero)
        one.w.operator(
            op, [x, one.w.constant(size)], [y], kind, 3, align_corners=int(corners == 1),
            half_pixel_centers=int(corners == 2),
        )  # fmt: skip
        return one.case(y)

    return make


def strided_slice(rng: Random, dtype: str) -> Case:
    """Return a model of a STRIDED_SLICE whose bounds may lie outside x, with negative steps, masks and
    removed axes."""
    one = One(rng, dtype)
    shape, scale, zero = one.shape(2, 9), one.scale(), one.zero()
    begin_mask, end_mask = (int(v) for v in rng.integers(0, 16, 2))
    shrink, lists, sizes = int(rng.choice([0, 0, 1, 2, 9])), [], []
    for i, d in enumerate(shape):
        stride = int(rng.choice([1, 1, 2, -1]))
        ends = sorted(int(v) for v in rng.integers(-d, d + 1, 2))[:: 1 if stride > 0 else -1]
        if shrink >> i & 1:
            lists.append((at := int(rng.integers(0, d)), at + 1, 1))
            continue
        part = slice(None if begin_mask >> i & 1 else ends[0], None if end_mask >> i & 1 else ends[1], stride)
        if not range(*part.indices(d)):
            begin_mask, end_mask, part = begin_mask | 1 << i, end_mask | 1 << i, slice(None, None, stride)
        lists.append((*ends, stride))
        sizes.append(len(range(*part.indices(d))))
    constants = [one.w.constant(np.array(v, np.int32)) for v in zip(*lists, strict=True)]
    x, y = one.input(shape, scale, zero), one.output(tuple(sizes), scale, zero)
    one.w.operator(
        "STRIDED_SLICE", [x, *constants], [y], "StridedSliceOptions", 2, shrink_axis_mask=shrink,
        begin_mask=begin_mask, end_mask=end_mask,
    )  # fmt: skip
    return one.case(y)


def _taken(rng: Random, dtype: str) -> tuple[One, int, tuple[int, ...], float, int, int]:
    """Return (model, input, shape of the input (all sizes even), scale of the input, its zero point, an
    axis)."""
    one = One(rng, dtype)
    scale, zero, axis = one.scale(), one.zero(), int(rng.integers(0, 4))
    shape = tuple(int(d) for d in rng.integers(1, 5, 4) * 2)
    return one, one.input(shape, scale, zero), shape, scale, zero, axis


def _with(shape: tuple[int, ...], axis: int, *sizes: int) -> tuple[int, ...]:
    """Return the shape with *sizes* in place of the size of the axis."""
    return (*shape[:axis], *sizes, *shape[axis + 1 :])


def slice_(rng: Random, dtype: str) -> Case:
    one, x, shape, scale, zero, _ = _taken(rng, dtype)
    begin = [int(rng.integers(0, d)) for d in shape]
    sizes = [int(rng.choice([-1, rng.integers(1, d - b + 1)])) for d, b in zip(shape, begin, strict=True)]
    lists = [one.w.constant(np.array(v, np.int32)) for v in (begin, sizes)]
    y_shape = tuple(d - b if n == -1 else n for d, b, n in zip(shape, begin, sizes, strict=True))
    y = one.output(y_shape, scale, zero)
    one.w.operator("SLICE", [x, *lists], [y], "", 2)
    return one.case(y)


def split(rng: Random, dtype: str) -> Case:
    one, x, shape, scale, zero, axis = _taken(rng, dtype)
    ys = [one.output(_with(shape, axis, shape[axis] // 2), scale, zero) for _ in range(2)]
    one.w.operator("SPLIT", [one.w.constant(np.int32(axis)), x], ys, "SplitOptions", 2, num_splits=2)
    return one.case(*ys)


def split_v(rng: Random, dtype: str) -> Case:
    one, x, shape, scale, zero, axis = _taken(rng, dtype)
    ys = [one.output(_with(shape, axis, n), scale, zero) for n in (1, shape[axis] - 1)]
    lists = [one.w.constant(np.array(v, np.int32)) for v in ([1, -1], axis - 4)]
    one.w.operator("SPLIT_V", [x, *lists], ys, "SplitVOptions", 2, num_splits=2)
    return one.case(*ys)


def pack(rng: Random, dtype: str) -> Case:
    one, x, shape, scale, zero, axis = _taken(rng, dtype)
    xs = [x, one.input(shape, scale, zero)]
    y = one.output((*shape[:axis], 2, *shape[axis:]), scale, zero)
    one.w.operator("PACK", xs, [y], "PackOptions", 2, axis=axis, values_count=2)
    return one.case(y)


def unpack(rng: Random, dtype: str) -> Case:
    one, x, shape, scale, zero, axis = _taken(rng, dtype)
    ys = [one.output(_with(shape, axis), scale, zero) for _ in range(shape[axis])]
    one.w.operator("UNPACK", [x], ys, "UnpackOptions", 2, axis=axis, num=shape[axis])
    return one.case(*ys)


def gather(rng: Random, dtype: str) -> Case:
    one, x, shape, scale, zero, axis = _taken(rng, dtype)
    places = one.w.constant(rng.integers(0, shape[axis], 3).astype(np.int32))
    y = one.output(_with(shape, axis, 3), scale, zero)
    one.w.operator("GATHER", [x, places], [y], "GatherOptions", 2, axis=axis)
    return one.case(y)


def depth_to_space(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    (n, h, w, c), scale, zero = one.shape(), one.scale(), one.zero()
    x, y = one.input((n, h, w, 4 * c), scale, zero), one.output((n, 2 * h, 2 * w, c), scale, zero)
    one.w.operator("DEPTH_TO_SPACE", [x], [y], "DepthToSpaceOptions", 2, block_size=2)
    return one.case(y)


def space_to_depth(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    (n, h, w, c), scale, zero = one.shape(), one.scale(), one.zero()
    x, y = one.input((n, 3 * h, 3 * w, c), scale, zero), one.output((n, h, w, 9 * c), scale, zero)
    one.w.operator("SPACE_TO_DEPTH", [x], [y], "SpaceToDepthOptions", 2, block_size=3)
    return one.case(y)


def place(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, axis, least = one.shape(), int(rng.integers(0, 4)), int(rng.integers(0, 2))
    x = one.input(shape, one.scale(), one.zero())
    y, number = one.w.tensor(_with(shape, axis), "int32"), one.w.constant(np.int32(axis))
    op, kind = ("ARG_MIN", "ArgMinOptions") if least else ("ARG_MAX", "ArgMaxOptions")
    one.w.operator(op, [x, number], [y], kind, 2, output_type=2)
    return one.case(y)


def prelu(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale = one.shape(), one.scale(-2.5, 0)
    slope = (1, 1, shape[3])
    x = one.input(shape, scale, one.zero())
    alpha = one.w.tensor(slope, dtype, one.scale(-3, -1), one.zero(), data=one.numbers(slope))
    y = one.output(shape, float(np.float32(scale * 2 ** rng.uniform(-2, 3))), one.zero())
    one.w.operator("PRELU", [x, alpha], [y])
    return one.case(y)


def greatest(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale, zero = one.shape(), one.scale(), one.zero()
    xs = [one.input(shape, scale, zero), one.input((1, 1, 1, shape[3]), scale, zero)]
    y = one.output(shape, scale, zero)
    one.w.operator(str(rng.choice(["MAXIMUM", "MINIMUM"])), xs, [y], "", 2)
    return one.case(y)


def mean_along(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, keep, scale = one.shape(2), int(rng.integers(0, 2)), one.scale()
    axes = [[3], [1], [2, 3], [1, 2, 3], [-1, 1]][rng.integers(0, 5)]
    gone = {a % 4 for a in axes}
    x, constant = one.input(shape, scale, one.zero()), one.w.constant(np.array(axes, np.int32))
    y_shape = tuple(1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone)
    y = one.output(y_shape, float(np.float32(scale * 2 ** rng.uniform(-3, 2))), one.zero())
    one.w.operator("MEAN", [x, constant], [y], "ReducerOptions", 2, keep_dims=keep)
    return one.case(y)


def symmetric_batch_matmul(rng: Random, dtype: str) -> Case:
    return batch_matmul(rng, dtype, symmetric=True)


def batch_matmul(rng: Random, dtype: str, symmetric: bool = False) -> Case:
    """Return a model of a BATCH_MATMUL. *symmetric*: the second operand's zero point is 0, which XNNPACK
    requires."""
    one = One(rng, "int8")
    n, m, k, o = (int(v) for v in rng.integers(1, 20, 4))
    a_scale, b_scale, turn = one.scale(), one.scale(), [int(v) for v in rng.integers(0, 2, 2)]
    a = one.input((n, k, m) if turn[0] else (n, m, k), a_scale, one.zero())
    b = one.input((n, o, k) if turn[1] else (n, k, o), b_scale, 0 if symmetric else one.zero())
    y = one.output((n, m, o), float(np.float32(a_scale * b_scale * 100 * k**0.5)), one.zero())
    one.w.operator("BATCH_MATMUL", [a, b], [y], "BatchMatMulOptions", 2, adj_x=turn[0], adj_y=turn[1])
    return one.case(y)


def unsigned_depthwise(rng: Random, dtype: str) -> Case:
    return conv(rng, "uint8", depthwise=True)


def short_transpose_conv(rng: Random, dtype: str) -> Case:
    return transpose_conv(rng, dtype, short=True)


def large_depthwise(rng: Random, dtype: str) -> Case:
    """Return a model of a depthwise convolution with sums beyond 2^24, which float32 cannot hold exactly."""
    one, kernel = One(rng, "uint8"), (17, int(rng.integers(17, 20)))
    x = one.input((1, 19, 20, 2), 0.01, 0, rng.integers(250, 256, (1, 19, 20, 2)).astype(np.uint8))
    w_shape = (1, *kernel, 2)
    weight = one.w.tensor(w_shape, "uint8", 0.01, 0, 3, rng.integers(250, 256, w_shape).astype(np.uint8))
    y = one.output((1, 3, 21 - kernel[1], 2), 12.0, one.zero())
    inputs = [x, weight, one.w.constant(rng.integers(-9000, 9000, 2).astype(np.int32), 0.0001)]
    one.w.operator(
        "DEPTHWISE_CONV_2D", inputs, [y], "DepthwiseConv2DOptions", 3, padding=1, stride_h=1, stride_w=1,
        dilation_h_factor=1, dilation_w_factor=1, depth_multiplier=1,
    )  # fmt: skip
    return one.case(y)


def other_type(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    scale, to, count = one.scale(), "int8" if dtype == "uint8" else "uint8", int(rng.integers(1, 300))
    x = one.input((1, count), scale, one.zero(), np.resize(all_numbers(one).reshape(-1)[::-1], (1, count)))
    y = one.output((1, count), float(np.float32(scale * 2 ** rng.uniform(-3, 5))), one.zero(to), to)
    one.w.operator("QUANTIZE", [x], [y], "", 2)
    return one.case(y)


def reduction(rng: Random, dtype: str) -> Case:
    """Return a model of a REDUCE_MAX and a REDUCE_MIN."""
    one = One(rng, dtype)
    shape, keep, scale, zero = one.shape(2), int(rng.integers(0, 2)), one.scale(), one.zero()
    axes = [[3], [1, 2], [0, 3]][rng.integers(0, 3)]
    x, constant = one.input(shape, scale, zero), one.w.constant(np.array(axes, np.int32))
    y_shape = tuple(1 if i in axes else d for i, d in enumerate(shape) if keep or i not in axes)
    ys = [one.output(y_shape, scale, zero) for _ in range(2)]
    for op, y in zip(("REDUCE_MAX", "REDUCE_MIN"), ys, strict=True):
        one.w.operator(op, [x, constant], [y], "ReducerOptions", 2, keep_dims=keep)
    return one.case(*ys)


def total(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale, axes = one.shape(2), one.scale(), [[3], [1, 2], [1, 3]][rng.integers(0, 3)]
    x, constant = one.input(shape, scale, one.zero()), one.w.constant(np.array(axes, np.int32))
    y_shape = tuple(d for i, d in enumerate(shape) if i not in axes)
    y = one.output(y_shape, float(np.float32(scale * 2 ** rng.uniform(2, 5))), one.zero())
    one.w.operator("SUM", [x, constant], [y], "ReducerOptions", 2)
    return one.case(y)


def squared_difference(rng: Random, dtype: str) -> Case:
    one = One(rng, "int8")
    shape, scale = one.shape(), one.scale(-2, 0)
    a = one.input(shape, scale, one.zero())
    b = one.input((*shape[:3], 1), float(np.float32(scale * 2 ** rng.uniform(-2, 2))), one.zero())
    y = one.output(shape, float(np.float32(scale * scale * 2 ** rng.uniform(3, 8))), one.zero())
    one.w.operator("SQUARED_DIFFERENCE", [a, b], [y], "", 2)
    return one.case(y)


def reciprocal_root(rng: Random, dtype: str) -> Case:
    """Return a model of an RSQRT of positive values; LiteRT refuses other values at run time."""
    one = One(rng, "int8")
    scale = one.scale(-3, 0)
    numbers = np.arange(-127, 129).clip(-127, 127).astype(np.int8).reshape(1, 4, 16, 4)
    x = one.input((1, 4, 16, 4), scale, -128, numbers)
    y = one.output((1, 4, 16, 4), float(np.float32(2 ** rng.uniform(-7, -1) / scale**0.5)), one.zero())
    one.w.operator("RSQRT", [x], [y], "", 2)
    return one.case(y)


def space_to_batch(rng: Random, dtype: str) -> Case:
    """Return a model of a SPACE_TO_BATCH_ND and its inverse, which older converters write around a
    convolution for dilation."""
    one = One(rng, dtype)
    (n, h, w, c), scale, zero = one.shape(), one.scale(), one.zero()
    h, w = 2 * h, 3 * w
    block, margins = one.w.constant(np.array([2, 3], np.int32)), np.array([[2, 4], [3, 0]], np.int32)
    x = one.input((n, h, w, c), scale, zero)
    middle = one.output((6 * n, (h + 6) // 2, (w + 3) // 3, c), scale, zero)
    one.w.operator("SPACE_TO_BATCH_ND", [x, block, one.w.constant(margins)], [middle], "", 2)
    crops = np.array([[1, 4], [0, 2]], np.int32)
    y = one.output((n, h + 1, w + 1, c), scale, zero)
    one.w.operator("BATCH_TO_SPACE_ND", [middle, block, one.w.constant(crops)], [y], "", 2)
    return one.case(middle, y)


def mirror_pad(rng: Random, dtype: str) -> Case:
    one = One(rng, dtype)
    shape, scale, zero, symmetric = one.shape(2), one.scale(), one.zero(), int(rng.integers(0, 2))
    shape = (shape[0] + 1, *shape[1:3], shape[3] + 1)
    margins = rng.integers(0, 2, (4, 2)).astype(np.int32)
    x, y = one.input(shape, scale, zero), one.output(tuple(map(int, shape + margins.sum(1))), scale, zero)
    one.w.operator("MIRROR_PAD", [x, one.w.constant(margins)], [y], "MirrorPadOptions", 2, mode=symmetric)
    return one.case(y)


def reverse(rng: Random, dtype: str) -> Case:
    one, x, shape, scale, zero, axis = _taken(rng, "uint8")
    y = one.output(shape, scale, zero)
    one.w.operator("REVERSE_V2", [x, one.w.constant(np.array([axis], np.int32))], [y], "", 2)
    return one.case(y)


MORE: dict[str, Callable[[Random, str], Case]] = {
    "MEAN-other-axes": mean_along, "PRELU": prelu, "MAXIMUM": greatest, "TRANSPOSE_CONV": transpose_conv,
    "ARG_MAX": place, "RESIZE_BILINEAR": _resize("RESIZE_BILINEAR", "ResizeBilinearOptions"),
    "RESIZE_NEAREST_NEIGHBOR": _resize("RESIZE_NEAREST_NEIGHBOR", "ResizeNearestNeighborOptions"),
    "STRIDED_SLICE": strided_slice, "SLICE": slice_, "SPLIT": split, "SPLIT_V": split_v, "PACK": pack,
    "UNPACK": unpack, "GATHER": gather, "DEPTH_TO_SPACE": depth_to_space, "SPACE_TO_DEPTH": space_to_depth,
    "REDUCE_MAX": reduction, "SUM": total, "SQUARED_DIFFERENCE": squared_difference,
    "RSQRT": reciprocal_root, "BATCH_MATMUL": batch_matmul, "BATCH_MATMUL-symmetric": symmetric_batch_matmul,
    "SPACE_TO_BATCH_ND": space_to_batch,
    "MIRROR_PAD": mirror_pad, "REVERSE_V2": reverse,
    "DEPTHWISE_CONV_2D-uint8": unsigned_depthwise, "QUANTIZE-types": other_type,
    "TRANSPOSE_CONV-short": short_transpose_conv, "DEPTHWISE_CONV_2D-large": large_depthwise,
}  # fmt: skip
