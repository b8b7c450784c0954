"""Add, subtract and multiply two 8-bit tensors with broadcasting, exactly as ONNX Runtime's QLinearAdd and
QLinearMul."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..kernels.gemm import ceil4
from ..layout.pack import layout
from ..numerics.elementwise import BinaryOp, binary_table, scale_of_product, scales_of_sum, swaps
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation, activation_bounds
from ..numerics.stored import signed, signed_zero_point
from ..runtime.buffer import Buffer
from ..runtime.device import Device
from ..runtime.tensor import Tensor, default_layout
from ..shader.catalog import catalog
from ..shader.spec import Value
from . import operand
from .operand import Operand
from .quantize import layout_number
from .repack import reshape, to_layout

TIE = 0.5
FLOAT_STEP = 2.0**-23  # the relative error of one float32 operation, rounded in any direction
LARGEST_PRODUCT = 255.0 * 255.0


def add(
    a: Operand,
    b: Operand,
    y_qparams: QParams,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    activation: Activation = None,
    device: Device | None = None,
) -> Any:
    """``a + b`` in 8 bits: ``saturate(round_half_even(fma(a_q, ra, fma(b_q, rb, offset))))``.

    a, b: int8 or uint8 of one type, NumPy arrays (with their qparams) or Tensors; shapes broadcast as NumPy's
    (at most four axes after joining those that broadcast alike). The result is an array where both are, else
    a Tensor. activation: None, "relu", "relu6" or (lo, hi). ``ra = a_scale / y_scale``, ``rb = b_scale /
    y_scale``, ``offset = y_zp - fma(ra, a_zp, rb * b_zp)``, each rounded to float32: the zero point is added
    before rounding. Where a alone is broadcast along the innermost axis, the operands swap their roles. That
    is ONNX Runtime's com.microsoft.QLinearAdd on x86-64, byte for byte.

    Raises DTypeError for other types, ArgumentError for shapes that do not broadcast and missing qparams.

    >>> q = QParams(0.5)
    >>> add(np.array([1, 100], np.int8), np.array([2, 100], np.int8), q, a_qparams=q, b_qparams=q)
    array([  3, 127], dtype=int8)
    """
    return _binary("add", a, b, a_qparams, b_qparams, y_qparams, activation, device)


def sub(
    a: Operand,
    b: Operand,
    y_qparams: QParams,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    activation: Activation = None,
    device: Device | None = None,
) -> Any:
    """``a - b`` in 8 bits: `add` with ``rb = -b_scale / y_scale``, and operands that never swap. Arguments as
    `add`.

    >>> q = QParams(0.5)
    >>> sub(np.array([1, 100], np.int8), np.array([2, -100], np.int8), q, a_qparams=q, b_qparams=q)
    array([ -1, 127], dtype=int8)
    """
    return _binary("sub", a, b, a_qparams, b_qparams, y_qparams, activation, device)


def mul(
    a: Operand,
    b: Operand,
    y_qparams: QParams,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    activation: Activation = None,
    device: Device | None = None,
) -> Any:
    """``a * b`` in 8 bits: ``saturate(round_half_even(float32((a_q - a_zp) * (b_q - b_zp)) * r + y_zp))``.

    ``r = (a_scale * b_scale) / y_scale``; every step is rounded to float32. Arguments as `add`. That is ONNX
    Runtime's com.microsoft.QLinearMul on x86-64, byte for byte.

    >>> q = QParams(0.5)
    >>> mul(np.array([3, 100], np.int8), np.array([2, 100], np.int8), q, a_qparams=q, b_qparams=q)
    array([  3, 127], dtype=int8)
    """
    return _binary("mul", a, b, a_qparams, b_qparams, y_qparams, activation, device)


@dataclasses.dataclass(frozen=True)
class Arithmetic:
    """How the shader computes ``op``: its variant and the numbers it needs. ``safe`` is how far from an
    integer it may round."""

    variant: str
    ra: float
    rb: float
    offset: float
    safe: float


@functools.lru_cache(maxsize=256)
def arithmetic(op: BinaryOp, a: QParams, b: QParams, y: QParams) -> Arithmetic:
    """The float formula on the stored int8 numbers, and a bound of its error against the exact result's own
    float32 steps."""
    moved_a, moved_b, moved_y = (operand.shift(q.dtype) for q in (a, b, y))
    if op == "mul":
        ra, rb, offset = scale_of_product(a, b, y), 0.0, float(y.zero_point - moved_y)
        # Only values inside the type matter (|value| < 2^10): a larger one saturates whatever its relative
        # error.
        variant, error, largest = "mul", 8 * FLOAT_STEP * 1024, ra * LARGEST_PRODUCT
    else:
        exact = scales_of_sum(a, b, y, op == "sub")
        ra, rb, offset = (float(value) for value in exact)
        offset += moved_a * ra + moved_b * rb - moved_y
        largest = 512 * (abs(ra) + abs(rb) + 1)
        variant, error = "add", 16 * FLOAT_STEP * largest
    if not (np.isfinite(largest) and largest < 2.0**100 and ra >= 2.0**-100 and error < TIE / 2):
        return Arithmetic("table", 0.0, 0.0, 0.0, 0.0)
    return Arithmetic(variant, ra, rb, offset, TIE - error)


def binary_tensor(
    op: BinaryOp,
    a: Tensor,
    b: Tensor,
    aq: QParams,
    bq: QParams,
    yq: QParams,
    activation: Activation = None,
    form: str = "auto",
) -> Tensor:
    """The operation on Tensors. *form* "table" makes the shader take every result from the table; the bits
    are the same."""
    shape = _broadcast_shape(op, a.shape, b.shape)
    if op != "sub" and swaps(a.shape, b.shape):
        a, b, aq, bq = b, a, bq, aq
    a, b = _alike(a, b, shape)
    y = Tensor(a.device, shape, yq.dtype, a.layout, yq)
    if y.size == 0:
        return y
    numbers = arithmetic(op, aq, bq, yq) if form == "auto" else Arithmetic("table", 0.0, 0.0, 0.0, 0.0)
    low, high = (bound - operand.shift(yq.dtype) for bound in activation_bounds(activation, yq))
    table = a.device.constant((op, aq, bq, yq, low, high), lambda: _stored_table(op, aq, bq, yq, activation))
    zeros: dict[str, int | float] = {"a_zero": signed_zero_point(aq), "b_zero": signed_zero_point(bq)}
    return _combine(op, numbers, a, b, y, table, zeros | {"y_min": low, "y_max": high})


def pairs_tensor(a: Tensor, b: Tensor, table: npt.NDArray[Any]) -> Tensor:
    """``table[a - qmin, b - qmin]`` of two Tensors of the table's type."""
    shape = _broadcast_shape("lookup_pair", a.shape, b.shape)
    a, b = _alike(a, b, shape)
    y = Tensor(a.device, shape, table.dtype.name, a.layout)
    if y.size == 0:
        return y
    stored = signed(np.ascontiguousarray(table.T))
    buffer = a.device.constant(("lookup_pair", stored.tobytes()), lambda: stored)
    numbers = Arithmetic("table", 0.0, 0.0, 0.0, 0.0)
    unused: dict[str, int | float] = {"a_zero": 0, "b_zero": 0, "y_min": 0, "y_max": 0}
    return _combine("lookup_pair", numbers, a, b, y, buffer, unused)


def _combine(
    op: str, numbers: Arithmetic, a: Tensor, b: Tensor, y: Tensor, table: Buffer, push: dict[str, int | float]
) -> Tensor:
    """Records the dispatch for operands in one layout and of one rank."""
    same = a.shape == b.shape
    words = y.nbytes // 4
    push |= {
        "count": ceil4(words) if same else words, "ra": numbers.ra, "rb": numbers.rb,
        "offset": numbers.offset, "safe": numbers.safe,
    }  # fmt: skip
    for name, dims in zip("yab", _logical_dims(op, y.shape, a, b), strict=True):
        push |= operand.named(name, dims)
    variant = catalog().find("binary_q8__word", op=numbers.variant, shape="same" if same else "broadcast")
    packed = layout(y.layout)
    constants: dict[str, Value] = {
        "LAYOUT": layout_number(y.layout), "FOLDED": operand.folded(y), "LANE_AXIS": packed.lane.dim,
    }  # fmt: skip
    operand.dispatch(
        y.device.program(variant, constants), y.device, [a.buffer, b.buffer, table, y.buffer], push
    )
    return y


def _binary(
    op: BinaryOp,
    a: Operand,
    b: Operand,
    aq: QParams | None,
    bq: QParams | None,
    yq: QParams,
    activation: Activation,
    device: Device | None,
) -> Any:
    chosen = operand.device_of(op, [a, b], device)
    ta, tb = operand.take(op, "a", a, chosen), operand.take(op, "b", b, chosen)
    ma, mb = operand.meaning(op, "a", ta, aq), operand.meaning(op, "b", tb, bq)
    if not ma.dtype == mb.dtype == yq.dtype:
        raise DTypeError(f"{op}: a is {ma.dtype}, b {mb.dtype} and y {yq.dtype}; they must be of one type")
    return operand.give(binary_tensor(op, ta, tb, ma, mb, yq, activation), a, b)


def _stored_table(
    op: BinaryOp, a: QParams, b: QParams, y: QParams, activation: Activation
) -> npt.NDArray[np.int8]:
    return signed(binary_table(op, a, b, y, activation))


def _broadcast_shape(op: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        raise ArgumentError(
            f"{op}: a has shape {tuple(a)} and b {tuple(b)}; from the right, axes must be equal or one of"
            " them 1"
        ) from None


def _alike(a: Tensor, b: Tensor, shape: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Both with the rank of the result and in one layout: that of the operand which has the result's shape,
    if one has and if it can be broadcast."""
    whole = b if b.shape == shape and a.shape != shape else a
    name = whole.layout if len(whole.shape) == len(shape) else default_layout(a.dtype, len(shape))
    if a.shape != b.shape:
        name = operand.axes_layout(name, len(shape))

    def alike(x: Tensor) -> Tensor:
        missing = len(shape) - len(x.shape)
        return reshape(x, (*(1,) * missing, *x.shape), name) if missing else to_layout(x, name)

    return alike(a), alike(b)


def _logical_dims(op: str, shape: tuple[int, ...], a: Tensor, b: Tensor) -> tuple[tuple[int, ...], ...]:
    """Four dims each of y, a and b. Leading axes of a folded layout that broadcast alike are joined; the last
    axis stays."""
    columns = [list(column) for column in zip(shape, a.shape, b.shape, strict=True)]
    joined: list[list[int]] = []
    for i, column in enumerate(columns):
        inner = operand.folded(a) and 0 < i < len(columns) - 1
        if inner and [d == column[0] for d in column] == [d == joined[-1][0] for d in joined[-1]]:
            joined[-1] = [before * size for before, size in zip(joined[-1], column, strict=True)]
        else:
            joined.append(column)
    if len(joined) > 4:
        raise ArgumentError(
            f"{op}: shapes {a.shape} and {b.shape} broadcast along {len(joined)} separate axes; at most 4 can"
            " be: reshape them"
        )
    return tuple(operand.four(dims) for dims in zip(*joined, strict=True)) if joined else ((1, 1, 1, 1),) * 3
