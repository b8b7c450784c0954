"""ONNX's operators that compute sums or extremes (convolutions, products, means, softmax, ArgMax), and
operators on shapes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...problem.conv2d import Conv2dProblem
from ...problem.transposed import TransposedConv2dProblem
from ..graph import Array, Node, Spec
from .images import padding, window
from .operator import Inputs, Operator, UnsupportedForm, axis_of, one, same, there
from .rows import along


def _images(node: Node, x_shape: Sequence[int], w_shape: Sequence[int]) -> None:
    if len(x_shape) != 4 or len(w_shape) != 4:
        error = UnsupportedForm if len(x_shape) == len(w_shape) > 2 else ModelError
        raise error(
            f"{node}: the input has {len(x_shape)} axes and the weight {len(w_shape)}; both must have 4"
        )


def conv_options(node: Node, x_shape: Sequence[int], w_shape: Sequence[int]) -> dict[str, Any]:
    """Return stride, padding, dilation and groups of a Conv or ConvInteger on images."""
    _images(node, x_shape, w_shape)
    a, kernel = node.attributes, tuple(w_shape[2:])
    if tuple(a.get("kernel_shape", kernel)) != kernel:
        raise ModelError(f"{node}: kernel_shape is {tuple(a['kernel_shape'])} and the weight has {kernel}")
    strides, dilations = tuple(a.get("strides", (1, 1))), tuple(a.get("dilations", (1, 1)))
    pads = padding(node, x_shape, kernel, strides, dilations)
    return {"stride": strides, "padding": pads, "dilation": dilations, "groups": int(a.get("group", 1))}


def transposed_options(node: Node, x_shape: Sequence[int], w_shape: Sequence[int]) -> dict[str, Any]:
    """Return stride, padding, output_padding, dilation and groups of a ConvTranspose."""
    _images(node, x_shape, w_shape)
    a, auto = node.attributes, node.attributes.get("auto_pad", "NOTSET")
    strides, dilations = tuple(a.get("strides", (1, 1))), tuple(a.get("dilations", (1, 1)))
    added = tuple(a.get("output_padding", (0, 0)))
    pads = tuple(int(p) for p in a.get("pads", (0, 0, 0, 0)))
    sizes = a.get("output_shape")
    if sizes is not None or auto in ("SAME_UPPER", "SAME_LOWER"):
        wanted = (
            list(sizes)[-2:]
            if sizes is not None
            else [d * s for d, s in zip(x_shape[2:], strides, strict=True)]
        )
        before, after = [], []
        for i, size in enumerate(x_shape[2:]):
            total = strides[i] * (size - 1) + added[i] + dilations[i] * (w_shape[2 + i] - 1) + 1 - wanted[i]
            if total < 0:
                raise UnsupportedForm(
                    f"{node}: its output_shape {tuple(wanted)} is larger than its inputs can fill"
                )
            less, more = total // 2, total - total // 2
            # with SAME_UPPER, the additional pixel of an odd padding is at the end, else at the start
            before.append(less if auto == "SAME_UPPER" else more)
            after.append(more if auto == "SAME_UPPER" else less)
        pads = (*before, *after)
    return {
        "stride": strides, "padding": pads, "output_padding": added, "dilation": dilations,
        "groups": int(a.get("group", 1)),
    }  # fmt: skip


def _conv_shape(x: Inputs) -> tuple[int, ...]:
    shapes = x.spec(0).shape, x.spec(1).shape
    return Conv2dProblem.of(*shapes, **conv_options(x.node, *shapes)).y_shape


def _conv(x: Inputs) -> list[Spec]:
    return [Spec(x.spec(0).dtype, _conv_shape(x))]


def _transposed(x: Inputs) -> list[Spec]:
    shapes = x.spec(0).shape, x.spec(1).shape
    problem = TransposedConv2dProblem.of(*shapes, **transposed_options(x.node, *shapes))
    return [Spec(x.spec(0).dtype, problem.y_shape)]


def _product_shape(x: Inputs, a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...]:
    if not a or not b or a[-1] != (b[-2] if len(b) > 1 else b[0]):
        raise ModelError(f"{x.node}: {a} and {b} cannot be multiplied; the inner dims must be equal")
    try:
        leading = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ModelError(f"{x.node}: {a} and {b} do not broadcast") from None
    return (*leading, *a[-2:-1], *(b[-1:] if len(b) > 1 else ()))


def _matmul(x: Inputs) -> list[Spec]:
    return [Spec(x.spec(0).dtype, _product_shape(x, x.spec(0).shape, x.spec(1).shape))]


def _matmul_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    product = np.matmul(there(x[0]).astype(np.float64), there(x[1]).astype(np.float64))
    return one(product.astype(there(x[0]).dtype))


def _gemm_shapes(x: Inputs) -> tuple[tuple[int, ...], tuple[int, ...]]:
    a, b = x.spec(0).shape, x.spec(1).shape
    if len(a) != 2 or len(b) != 2:
        raise ModelError(f"{x.node}: the inputs have shapes {a} and {b}; both must have 2 axes")
    return (a[::-1] if x.node.attributes.get("transA", 0) else a), (
        b[::-1] if x.node.attributes.get("transB", 0) else b
    )


def _gemm(x: Inputs) -> list[Spec]:
    return [Spec(x.spec(0).dtype, _product_shape(x, *_gemm_shapes(x)))]


def _gemm_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a, b, attributes = there(x[0]).astype(np.float64), there(x[1]).astype(np.float64), node.attributes
    product = (a.T if attributes.get("transA", 0) else a) @ (b.T if attributes.get("transB", 0) else b)
    product = product * attributes.get("alpha", 1.0)
    beta = attributes.get("beta", 1.0)
    if beta and len(x) > 2 and x[2] is not None:
        product = product + beta * there(x[2])
    return one(product.astype(there(x[0]).dtype))


def _average(x: Inputs) -> list[Spec]:
    return [Spec(x.spec(0).dtype, window(x.node, x.spec(0).shape).y_shape)]


def _global_average(x: Inputs) -> list[Spec]:
    spec = x.spec(0)
    return [Spec(spec.dtype, (*spec.shape[:2], *(1,) * (len(spec.shape) - 2)))]


def _global_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    axes = tuple(range(2, given.ndim))
    if node.op == "GlobalMaxPool":
        return one(given.max(axes, keepdims=True))
    return one(given.astype(np.float64).mean(axes, keepdims=True).astype(given.dtype))


# types whose softmax and reductions are computed with the rounding steps of `vkq.numerics.rows`
REAL = ("float32", "float16")


def reduced(node: Node, rank: int, axes: Sequence[int] | None) -> tuple[int, ...]:
    """Return the axes that a reduction removes, sorted and non-negative. If *axes* is empty, return all
    axes, or () with ``noop_with_empty_axes``."""
    if not axes:
        return () if node.attributes.get("noop_with_empty_axes", 0) else tuple(range(rank))
    if not all(-rank <= a < rank for a in axes):
        raise ModelError(f"{node}: axes are {list(axes)} and the input has {rank} axes")
    return tuple(sorted({a % rank for a in axes}))


def _reduce(x: Inputs) -> list[Spec]:
    spec = x.spec(0)
    axes, keep = reduced(x.node, len(spec.shape), x.numbers(1)), x.node.attributes.get("keepdims", 1)
    kept = [1 if i in axes else d for i, d in enumerate(spec.shape)]
    return [Spec(spec.dtype, tuple(d for i, d in enumerate(kept) if keep or i not in axes))]


def _reduce_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, listed = there(x[0]), x[1] if len(x) > 1 else None
    axes = reduced(node, given.ndim, None if listed is None else [int(a) for a in listed.reshape(-1)])
    keep = bool(node.attributes.get("keepdims", 1))
    if given.dtype.name in REAL and axes and given.size:
        found = along(given, node.op, axes)
        return one(np.expand_dims(found, axes) if keep else found)
    function: Any = {
        "ReduceMean": np.mean, "ReduceSum": np.sum, "ReduceMax": np.max, "ReduceMin": np.min,
        "ReduceProd": np.prod, "ReduceLogSum": lambda v, **a: np.log(np.sum(v, **a)),
        "ReduceLogSumExp": lambda v, **a: np.log(np.sum(np.exp(v), **a)),
    }[node.op]  # fmt: skip
    wide = given.astype(np.float64) if given.dtype.kind == "f" else given
    with np.errstate(all="ignore"):
        return one(np.asarray(function(wide, axis=axes, keepdims=keep)).astype(given.dtype))


def _extreme_index(dtype: str) -> Callable[[Inputs], list[Spec]]:
    """Return shape inference for ArgMax and ArgMin. *dtype* is the type of the returned indices."""

    def infer(x: Inputs) -> list[Spec]:
        shape = x.spec(0).shape
        axis, keep = axis_of(x.node, len(shape), 0), x.node.attributes.get("keepdims", 1)
        if not shape or not shape[axis]:
            raise ModelError(f"{x.node}: axis {axis} of {shape} is empty; it must have an element")
        return [Spec(dtype, (*shape[:axis], *((1,) if keep else ()), *shape[axis + 1 :]))]

    return infer


def _extreme_index_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    axis, last = axis_of(node, given.ndim, 0), node.attributes.get("select_last_index", 0)
    find: Any = np.argmax if node.op.lower() == "argmax" else np.argmin
    found = find(
        np.flip(given, axis) if last else given, axis, keepdims=bool(node.attributes.get("keepdims", 1))
    )
    found = given.shape[axis] - 1 - found if last else found
    return one(found.astype(np.int32 if node.op.islower() else np.int64))


def _softmax_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    axis = axis_of(node, given.ndim, -1)
    if given.dtype.name in REAL and given.size:
        return one(along(given, "softmax" if node.op == "Softmax" else "log_softmax", [axis]))
    e = np.exp(given.astype(np.float64) - given.max(axis, keepdims=True, initial=-np.inf))
    y = e / e.sum(axis, keepdims=True)
    return one((y if node.op == "Softmax" else np.log(y)).astype(given.dtype))


def _int32(shape: tuple[int, ...]) -> list[Spec]:
    return [Spec("int32", shape)]


def _shape_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    shape = there(x[0]).shape
    end = node.attributes.get("end")
    return one(np.array(shape[slice(node.attributes.get("start", 0), end)], np.int64))


def _shape(x: Inputs) -> list[Spec]:
    a = x.node.attributes
    return [Spec("int64", (len(x.spec(0).shape[slice(a.get("start", 0), a.get("end"))]),))]


def _filled(node: Node, x: Sequence[Array | None]) -> list[Array]:
    value = np.asarray(node.attributes.get("value", np.zeros(1, np.float32)))
    return one(np.full([int(d) for d in there(x[0])], value.reshape(-1)[0], value.dtype))


def _filled_shape(x: Inputs) -> list[Spec]:
    value = np.asarray(x.node.attributes.get("value", np.zeros(1, np.float32)))
    return [Spec(value.dtype.name, tuple(x.numbers(0) or ())).check(str(x.node))]


def _range(x: Inputs) -> list[Spec]:
    start, end, step = (x.array(i) for i in range(3))
    count = max(0, math.ceil((there(end).item() - there(start).item()) / there(step).item()))
    return [Spec(x.spec(0).dtype, (count,)).check(str(x.node))]


def _range_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    start, end, step = (there(v).item() for v in x)
    count = max(0, math.ceil((end - start) / step))
    return one((start + step * np.arange(count)).astype(there(x[0]).dtype))


REDUCTIONS = (
    "ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceLogSum", "ReduceLogSumExp",
)  # fmt: skip
OPERATORS: dict[str, Operator] = {
    "Conv": Operator("number", _conv),
    "ConvTranspose": Operator("number", _transposed),
    "MatMul": Operator("number", _matmul, _matmul_compute),
    "Gemm": Operator("number", _gemm, _gemm_compute),
    "AveragePool": Operator("number", _average),
    "GlobalAveragePool": Operator("number", _global_average, _global_compute),
    "GlobalMaxPool": Operator("number", _global_average, _global_compute),
    **{name: Operator("number", same, _softmax_compute) for name in ("Softmax", "LogSoftmax")},
    "ConvInteger": Operator("number", lambda x: _int32(_conv_shape(x))),
    "MatMulInteger": Operator(
        "number", lambda x: _int32(_product_shape(x, x.spec(0).shape, x.spec(1).shape))
    ),
    **{name: Operator("number", _reduce, _reduce_compute) for name in REDUCTIONS},
    # ArgMax and ArgMin are ONNX's operators; argmax and argmin are vkq's, for 8-bit values.
    **{
        name: Operator("number", _extreme_index("int64"), _extreme_index_compute)
        for name in ("ArgMax", "ArgMin")
    },
    **{
        name: Operator("number", _extreme_index("int32"), _extreme_index_compute)
        for name in ("argmax", "argmin")
    },
    "Shape": Operator("shape", _shape, _shape_compute),
    "Size": Operator(
        "shape", lambda x: [Spec("int64", ())], lambda node, x: one(np.array(there(x[0]).size, np.int64))
    ),
    "ConstantOfShape": Operator("shape", _filled_shape, _filled),
    "Range": Operator("shape", _range, _range_compute),
    # An operator unknown to vkq. Its attributes have the functions ``infer`` and ``compute``.
    "foreign": Operator(
        "number",
        lambda x: x.node.attributes["infer"](x),
        lambda node, x: node.attributes["compute"](node, x),
    ),
}
