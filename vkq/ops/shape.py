"""Operators that copy 8-bit elements: concatenation, padding, transposition."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..kernels.move import Moved, move, permuted, pixels_as_rows, strides
from ..kernels.repack import repacked, reshaped, rows_as_image
from ..layout.extent import BLOCKED, PIXELS, Spec
from ..numerics.qparams import QParams
from ..numerics.stored import shift
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from . import operand
from .operand import Operand
from .table import requantized


@checked
def concat(
    xs: Sequence[Operand],
    axis: int,
    y_qparams: QParams | None = None,
    *,
    x_qparams: Sequence[QParams | None] | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Concatenate the inputs along an axis. An input whose qparams differ from y_qparams is requantized.

    Args:
        xs: at least one int8 or uint8 operand, equal in rank and in all axes but *axis*.
        y_qparams: by default the qparams of the inputs, which must then be equal.

    The result is a NumPy array if all inputs are, else a Tensor in the layout of the first input. It has
    the same bytes as ONNX Runtime's com.microsoft.QLinearConcat.

    Raises ArgumentError for shapes that differ along other axes and for missing qparams, DTypeError for mixed
    types without y_qparams.

    >>> import numpy as np
    >>> a, b = np.array([[1, 2]], np.int8), np.array([[30]], np.int8)
    >>> concat([a, b], 1, QParams(1.0), x_qparams=[QParams(1.0), QParams(0.1)])
    array([[1, 2, 3]], dtype=int8)
    """
    if not xs:
        raise ArgumentError("concat: there are no inputs; give at least one")
    given = None if x_qparams is None else tuple(x_qparams)
    operands = {f"x[{i}]": x for i, x in enumerate(xs)}
    return operand.apply("concat", _concatenate, operands, (axis, y_qparams, given), device, out)


def _concatenate(b: Builder, *values: Any) -> Value:
    *xs, axis, y_qparams, x_qparams = values
    return concatenated(b, xs, axis, y_qparams, x_qparams)


def concatenated(
    b: Builder,
    xs: Sequence[Value],
    axis: int,
    y_qparams: QParams | None = None,
    x_qparams: Sequence[QParams | None] | None = None,
) -> Value:
    """Add `concat` to a plan. If all inputs are rows in kPackedInt8_16C, so is the result."""
    axis = operand.normal_axis("concat", axis, len(xs[0].spec.shape))
    _check_concat([x.spec for x in xs], axis)
    xs = _common_parameters(b, list(xs), y_qparams, x_qparams)
    first = xs[0].spec
    shape = list(first.shape)
    shape[axis] = sum(x.spec.shape[axis] for x in xs)
    if len(shape) in (2, 3) and all(x.spec.layout == BLOCKED for x in xs):
        channels = axis == len(shape) - 1
        images = [rows_as_image(b, x, 0 if channels else axis) for x in xs]
        whole = concatenated(b, images, 1 if channels else 2)
        return b.view(whole, Spec(shape, first.dtype, BLOCKED, first.qparams))
    y = b.new(Spec(shape, first.dtype, operand.axes_layout(first.layout, len(shape)), first.qparams))
    offset = 0
    for x in xs:
        before = [offset if i == axis else 0 for i in range(len(shape))]
        sizes = zip(shape, before, x.spec.shape, strides(x.spec.shape), strict=True)
        if x.spec.size:
            move(b, repacked(b, x, y.spec.layout), y, [Moved(*size) for size in sizes], 0, along=axis)
        offset += x.spec.shape[axis]
    return repacked(b, y, first.layout)


@checked
def pad(
    x: Operand,
    pads: Sequence[Sequence[int]],
    value: int | None = None,
    *,
    x_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Pad x with elements of one value.

    Args:
        pads: (before, after) for each axis, each 0 or more, as in numpy.pad.
        value: an integer of x's type; by default the zero point, the code of 0.0 (from x_qparams or a
            Tensor's qparams).

    The result equals that of ONNX Pad with the mode "constant".

    >>> import numpy as np
    >>> pad(np.array([[1, 2]], np.int8), [(0, 1), (2, 0)], -7)
    array([[-7, -7,  1,  2],
           [-7, -7, -7, -7]], dtype=int8)
    """
    return operand.apply("pad", padded, {"x": x}, (pads, value, x_qparams), device, out)


def padded(
    b: Builder, x: Value, pads: Sequence[Sequence[int]], value: int | None, x_qparams: QParams | None
) -> Value:
    """Add `pad` to a plan."""
    s = x.spec
    qparams = s.qparams if x_qparams is None else operand.meaning("pad", "x", s, x_qparams)
    around = _checked_pads(pads, len(s.shape))
    if value is None:
        value = operand.meaning("pad", "x", s, qparams).zero_point
    moved = shift(s.dtype)
    stored = operator.index(value) - moved
    if not -128 <= stored <= 127:
        raise ArgumentError(f"pad: value is {value}; {s.dtype} holds {moved - 128} to {moved + 127}")
    shape = [size + before + after for size, (before, after) in zip(s.shape, around, strict=True)]
    y = b.new(Spec(shape, s.dtype, operand.axes_layout(s.layout, len(shape)), qparams))
    if y.spec.size:
        sizes = zip(shape, [before for before, _ in around], s.shape, strides(s.shape), strict=True)
        move(b, repacked(b, x, y.spec.layout), y, [Moved(*size) for size in sizes], stored)
    return repacked(b, y, s.layout)


@checked
def transpose(
    x: Operand,
    axes: Sequence[int] | None = None,
    *,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Permute the axes: axis i of the result is axis ``axes[i]`` of x. By default, the axes are reversed.

    x: int8 or uint8, a NumPy array or a Tensor (the result has the same layout). The result equals those of
    ONNX Transpose and numpy.transpose.

    >>> import numpy as np
    >>> transpose(np.array([[1, 2, 3]], np.int8)).tolist()
    [[1], [2], [3]]
    """
    return operand.apply("transpose", transposed, {"x": x}, (axes,), device, out)


def transposed(b: Builder, x: Value, axes: Sequence[int] | None) -> Value:
    """Add `transpose` to a plan."""
    s = x.spec
    rank = len(s.shape)
    order = (
        tuple(reversed(range(rank)))
        if axes is None
        else tuple(operand.normal_axis("transpose", a, rank) for a in axes)
    )
    if sorted(order) != list(range(rank)):
        raise ArgumentError(
            f"transpose: axes are {tuple(axes or ())} and x has {rank}; they must list each axis once"
        )
    steps = strides(s.shape)
    y = b.new(Spec([s.shape[a] for a in order], s.dtype, operand.axes_layout(s.layout, rank), s.qparams))
    if y.spec.size:
        moved = [Moved(s.shape[a], 0, s.shape[a], steps[a]) for a in order]
        move(b, repacked(b, x, y.spec.layout), y, moved, 0, order=order)
    return repacked(b, y, s.layout)


def permuted_as(
    b: Builder, x: Value, shape: Sequence[int], axes: Sequence[int], to: Sequence[int], layout: str | None
) -> Value:
    """Add a copy to the plan that reshapes x to *shape*, transposes it by *axes* and reshapes it to *to*.
    *layout*: the layout of the result; None: the default layout for its shape.

    Pixels in kPackedInt8_16C that become rows of channels are copied only if *layout* is another layout; by
    default the result stays in kPackedInt8_16C. Any other permutation of images takes several steps."""
    if x.spec.layout == BLOCKED and pixels_as_rows(x.spec.shape, shape, axes, to):
        rows = b.view(x, Spec(to, x.spec.dtype, BLOCKED, x.spec.qparams))
        return repacked(b, rows, layout or BLOCKED)
    if x.spec.layout in PIXELS and not x.spec.folded:  # images have kernels of their own
        return reshaped(b, transposed(b, reshaped(b, x, shape), axes), to, layout)
    return permuted(b, x, shape, axes, to, layout)


def _check_concat(xs: Sequence[Spec], axis: int) -> None:
    first = xs[0].shape
    for i, x in enumerate(xs):
        others = [j for j in range(len(x.shape)) if j != axis]
        if len(x.shape) != len(first) or any(x.shape[j] != first[j] for j in others):
            raise ArgumentError(
                f"concat: x[0] has shape {first} and x[{i}] {x.shape}; all axes but {axis} must be equal"
            )


def _common_parameters(
    b: Builder, xs: list[Value], yq: QParams | None, given: Sequence[QParams | None] | None
) -> list[Value]:
    """Return the inputs requantized to yq. If yq is None, return them unchanged; they must then have equal
    parameters, or none at all."""
    if given is not None and len(given) != len(xs):
        raise ArgumentError(
            f"concat: there are {len(xs)} inputs and {len(given)} x_qparams; give one for each"
        )
    own = [q if q is not None else x.spec.qparams for x, q in zip(xs, given or [None] * len(xs), strict=True)]
    if yq is not None:
        meant = [
            operand.meaning("concat", f"x[{i}]", x.spec, q)
            for i, (x, q) in enumerate(zip(xs, own, strict=True))
        ]
        return [requantized(b, _named(b, x, q), q, yq) for x, q in zip(xs, meant, strict=True)]
    if len({x.spec.dtype for x in xs}) > 1:
        dtypes = ", ".join(x.spec.dtype for x in xs)
        raise DTypeError(f"concat: the inputs are {dtypes}; give y_qparams, or make them one type")
    if len(set(own)) > 1:
        raise ArgumentError(
            f"concat: the inputs have different qparams ({', '.join(map(str, own))}); give y_qparams"
        )
    return [_named(b, x, own[0]) for x in xs]


def _named(b: Builder, x: Value, q: QParams | None) -> Value:
    """Return x with the quantization parameters *q* instead of its own."""
    s = x.spec
    return x if s.qparams == q else b.view(x, Spec(s.shape, s.dtype, s.layout, q))


def _checked_pads(pads: Sequence[Sequence[int]], rank: int) -> list[tuple[int, int]]:
    pairs = [tuple(operator.index(v) for v in pair) for pair in pads]
    if len(pairs) != rank or any(len(pair) != 2 or min(pair) < 0 for pair in pairs):
        raise ArgumentError(
            f"pad: pads are {list(pads)!r} and x has {rank} axes; give (before, after) for each, 0 or more"
        )
    return [(pair[0], pair[1]) for pair in pairs]
