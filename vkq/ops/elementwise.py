"""Addition, subtraction and multiplication of two 8-bit tensors with broadcasting, with exactly the results
of ONNX Runtime's QLinearAdd and QLinearMul."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..kernels.binary import BY_TABLE, BinaryFormula, arithmetic, stored_table
from ..kernels.divisor import divisors, of_pixels
from ..kernels.repack import repacked, reshaped, rows_as_image
from ..kernels.weights import ceil4
from ..layout.extent import BLOCKED, IMAGE, PIXELS, Spec, default_layout, layout_number
from ..layout.pack import layout
from ..numerics.elementwise import BinaryOp, swaps
from ..numerics.qparams import QParams
from ..numerics.requantize import Activation, activation_bounds
from ..numerics.stored import shift, signed, signed_zero_point
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from . import operand
from .operand import Operand


@checked
def add(
    a: Operand,
    b: Operand,
    y_qparams: QParams,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    activation: Activation = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``a + b`` in 8 bits: ``saturate(round_half_even(fma(a_q, ra, fma(b_q, rb, offset))))``.

    Args:
        a, b: int8 or uint8 of one type, NumPy arrays (with their qparams) or Tensors. Shapes broadcast as
            in NumPy (at most four axes, where neighbouring axes that broadcast alike count as one). The
            result is an array if both operands are arrays, else a Tensor.
        activation: None, "relu", "relu6" or (lo, hi).

    ``ra = a_scale / y_scale``, ``rb = b_scale / y_scale``, ``offset = y_zp - fma(ra, a_zp, rb * b_zp)``,
    each rounded to float32. The zero point is part of the offset, so it is added before rounding to an
    integer. If only a is broadcast along the innermost axis, the operands are swapped. The result has the
    same bytes as ONNX Runtime's com.microsoft.QLinearAdd on x86-64.

    Raises DTypeError for other types, ArgumentError for shapes that do not broadcast and missing qparams.

    >>> q = QParams(0.5)
    >>> add(np.array([1, 100], np.int8), np.array([2, 100], np.int8), q, a_qparams=q, b_qparams=q)
    array([  3, 127], dtype=int8)
    """
    return _binary("add", a, b, a_qparams, b_qparams, y_qparams, activation, device, out)


@checked
def sub(
    a: Operand,
    b: Operand,
    y_qparams: QParams,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    activation: Activation = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``a - b`` in 8 bits: the formula of `add` with ``rb = -b_scale / y_scale``. Unlike `add`, `sub`
    never swaps its operands. The arguments are those of `add`.

    >>> q = QParams(0.5)
    >>> sub(np.array([1, 100], np.int8), np.array([2, -100], np.int8), q, a_qparams=q, b_qparams=q)
    array([ -1, 127], dtype=int8)
    """
    return _binary("sub", a, b, a_qparams, b_qparams, y_qparams, activation, device, out)


@checked
def mul(
    a: Operand,
    b: Operand,
    y_qparams: QParams,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    activation: Activation = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``a * b`` in 8 bits, computed by this formula:
    ``saturate(round_half_even(float32((a_q - a_zp) * (b_q - b_zp)) * r + y_zp))``.

    ``r = (a_scale * b_scale) / y_scale``; every step is rounded to float32. The arguments are those of `add`.
    The result equals ONNX Runtime's com.microsoft.QLinearMul on x86-64, byte for byte.

    >>> q = QParams(0.5)
    >>> mul(np.array([3, 100], np.int8), np.array([2, 100], np.int8), q, a_qparams=q, b_qparams=q)
    array([  3, 127], dtype=int8)
    """
    return _binary("mul", a, b, a_qparams, b_qparams, y_qparams, activation, device, out)


def combined(
    b: Builder,
    x: Value,
    z: Value,
    op: BinaryOp,
    x_qparams: QParams | None,
    z_qparams: QParams | None,
    yq: QParams,
    activation: Activation = None,
    form: str = "auto",
) -> Value:
    """Add ``op(x, z)`` to a plan. If *form* is "table", the shader looks up every result in a table of the
    float formula's results."""
    xq, zq = operand.meaning(op, "a", x.spec, x_qparams), operand.meaning(op, "b", z.spec, z_qparams)
    if not xq.dtype == zq.dtype == yq.dtype:
        raise DTypeError(f"{op}: a is {xq.dtype}, b {zq.dtype} and y {yq.dtype}; they must be of one type")
    shape = _broadcast_shape(op, x.spec.shape, z.spec.shape)
    if op != "sub" and swaps(x.spec.shape, z.spec.shape):
        x, z, xq, zq = z, x, zq, xq
    if _are_rows(x.spec, z.spec, shape):
        one, two = (rows_as_image(b, repacked(b, value, BLOCKED), 1) for value in (x, z))
        y = combined(b, one, two, op, xq, zq, yq, activation, form)
        return b.view(y, Spec(shape, yq.dtype, BLOCKED, yq))
    x, z = _alike(b, x, z, shape)
    y = b.new(Spec(shape, yq.dtype, x.spec.layout, yq))
    if y.spec.size:
        numbers, table, push = formula(b, op, xq, zq, yq, activation, form)
        _combine(b, op, numbers, (x, z, y), table, push)
    return y


def formula(
    b: Builder, op: BinaryOp, xq: QParams, zq: QParams, yq: QParams, activation: Activation = None,
    form: str = "auto",
) -> tuple[BinaryFormula, Resident, dict[str, int | float]]:  # fmt: skip
    """Return (the float formula of an operator, the table of its results, push constants of combine.glslh).
    If *form* is not "auto", all results are read from the table."""
    numbers = arithmetic(op, xq, zq, yq) if form == "auto" else BY_TABLE
    low, high = (bound - shift(yq.dtype) for bound in activation_bounds(activation, yq))
    key = (op, xq, zq, yq, low, high)
    table = b.device.constant(key, 1 << 16, lambda: stored_table(op, xq, zq, yq, activation))
    return numbers, table, {
        "a_zero": signed_zero_point(xq), "b_zero": signed_zero_point(zq), "y_min": low, "y_max": high,
    }  # fmt: skip


def numbers_of(b: Builder, numbers: BinaryFormula, dtype: str) -> dict[str, int | float]:
    """Return the push constants of combine.glslh that depend on the float formula."""
    return {
        "ra": numbers.ra, "rb": numbers.rb, "offset": numbers.offset,
        "safe": numbers.safe if b.device.soft_float else numbers.exact,
        "y_shift": shift(dtype) if numbers.variant == "mul" else 0,
    }  # fmt: skip


def paired(b: Builder, x: Value, z: Value, entries: npt.NDArray[Any]) -> Value:
    """Add ``entries[x - qmin, z - qmin]`` to a plan; x and z have the table's type."""
    shape = _broadcast_shape("lookup_pair", x.spec.shape, z.spec.shape)
    x, z = _alike(b, x, z, shape)
    y = b.new(Spec(shape, entries.dtype.name, x.spec.layout))
    if y.spec.size:
        stored = signed(np.ascontiguousarray(entries.T))
        table = b.device.constant(("lookup_pair", stored.tobytes()), stored.nbytes, lambda: stored)
        unused: dict[str, int | float] = {"a_zero": 0, "b_zero": 0, "y_min": 0, "y_max": 0}
        _combine(b, "lookup_pair", BY_TABLE, (x, z, y), table, unused)
    return y


def _combine(
    b: Builder,
    op: str,
    numbers: BinaryFormula,
    operands: tuple[Value, Value, Value],
    table: Resident,
    push: dict[str, int | float],
) -> None:
    """Add the dispatch. The operands have the same layout and the same rank."""
    x, z, y = operands
    shape = "same" if x.spec.shape == z.spec.shape else PIXELS.get(y.spec.layout, "broadcast")
    repeated = shape == "broadcast" and all(repeats(one.spec, y.spec) for one in (x, z))
    shape = "same" if repeated else shape
    words = y.spec.nbytes // 4
    push |= {
        "count": words if shape == "broadcast" else ceil4(words),
        **numbers_of(b, numbers, y.spec.dtype),
    }
    for name, dims in zip("yab", _logical_dims(op, y.spec.shape, x.spec, z.spec), strict=True):
        push |= operand.named(name, dims)
    push |= {"a_n": x.spec.nbytes // 16, "b_n": z.spec.nbytes // 16} if repeated else {}
    one_pixel = x.spec.shape == y.spec.shape and z.spec.shape[2:] == (1, 1)
    push |= of_pixels(y.spec, one_pixel) if shape in PIXELS.values() else divisors()
    constants: dict[str, Constant] = {
        "LAYOUT": layout_number(y.spec.layout), "FOLDED": y.spec.folded,
        "LANE_AXIS": layout(y.spec.layout).lane.dim, "GATE": _gates(x.spec, z.spec),
        "ONE_PIXEL": one_pixel, "SURE": numbers.sure(b.device.soft_float),
        "REPEATED": repeated,
    }  # fmt: skip
    variant = catalog().find("binary_q8__word", op=numbers.variant, shape=shape)
    b.dispatch(b.device.program(variant, constants), [x, z, b.constant(table), y], push)


def _binary(
    op: BinaryOp,
    a: Operand,
    b: Operand,
    aq: QParams | None,
    bq: QParams | None,
    yq: QParams,
    activation: Activation,
    device: Device | int | str | None,
    out: Tensor | None,
) -> Any:
    return operand.apply(op, combined, {"a": a, "b": b}, (op, aq, bq, yq, activation), device, out)


def _broadcast_shape(op: str, a: Sequence[int], b: Sequence[int]) -> tuple[int, ...]:
    try:
        return np.broadcast_shapes(tuple(a), tuple(b))
    except ValueError:
        raise ArgumentError(
            f"{op}: a has shape {tuple(a)} and b {tuple(b)}; counted from the right, two sizes must be equal,"
            " or one of them must be 1"
        ) from None


def _gates(x: Spec, z: Spec) -> bool:
    """Return True if the kernel reads z without a copy: z has one value for each channel of x, z is in
    kPackedInt8_4W4C and x is in kPackedInt8_16C."""
    gate = z.shape[:1] in (x.shape[:1], (1,)) and z.shape[1:] == (*x.shape[1:2], 1, 1)
    return gate and x.shape != z.shape and (x.layout, z.layout) == (BLOCKED, IMAGE)


def _are_rows(x: Spec, z: Spec, shape: Sequence[int]) -> bool:
    """Return True if x is a matrix or a batch of matrices in kPackedInt8_16C, and z broadcasts to x along
    axes other than the last. The kernel then treats both as images, whose channels are the last axis."""
    same = len(x.shape) == len(z.shape) in (2, 3) and x.shape[-1] == z.shape[-1]
    return same and x.shape == tuple(shape) != z.shape and x.layout == BLOCKED


def repeats(x: Spec, y: Spec) -> bool:
    """Return True if y repeats x in memory, in whole vectors of 16 bytes: x has the shape of y, or
    broadcasts along leading axes only and has whole blocks of four rows."""
    lead = next((i for i, d in enumerate(x.shape) if d != 1), len(x.shape))
    rows = math.prod(x.shape[:-1])
    return x.shape == y.shape or (rows % 4 == 0 and bool(x.shape) and x.shape[lead:] == y.shape[lead:])


def _alike(b: Builder, x: Value, z: Value, shape: tuple[int, ...]) -> tuple[Value, Value]:
    """Return both operands with the rank of the result and in one layout: that of the operand with the
    result's shape, if this layout allows broadcasting. Return both unchanged if z is a gate (`_gates`)."""
    whole = (z if z.spec.shape == shape and x.spec.shape != shape else x).spec
    name = whole.layout if len(whole.shape) == len(shape) else default_layout(whole.dtype, len(shape))
    if x.spec.shape != z.spec.shape:
        name = operand.axes_layout(name, len(shape))
    if _gates(x.spec, z.spec):
        return x, z

    def alike(one: Value) -> Value:
        missing = len(shape) - len(one.spec.shape)
        return (
            reshaped(b, one, (*(1,) * missing, *one.spec.shape), name) if missing else repacked(b, one, name)
        )

    return alike(x), alike(z)


def _logical_dims(op: str, shape: tuple[int, ...], a: Spec, b: Spec) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of y, a and b with four dims each. In a folded layout, neighbouring leading axes
    along which the same operands broadcast are merged; the last axis stays separate."""
    columns = [list(column) for column in zip(shape, a.shape, b.shape, strict=True)]
    joined: list[list[int]] = []
    for i, column in enumerate(columns):
        inner = a.folded and 0 < i < len(columns) - 1
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
