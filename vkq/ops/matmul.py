"""Products of two 8-bit activations: batches of matrices, as in attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..kernels.gemm import SHIFTS
from ..kernels.repack import reshaped
from ..layout.extent import MATRIX, Spec
from ..numerics.qparams import QParams
from ..numerics.requantize import multipliers
from ..numerics.stored import signed_zero_point
from ..problem.heads import ONE_EACH, SWAPPED, Heads, apart, together
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..select.path import without_matrices
from ..shader.catalog import catalog
from ..shader.spec import Variant
from . import operand
from .operand import Operand
from .shape import permuted_as, transposed
from .take import gather, numbers

# a shader variant, and its push constants except the sizes
Kernel = tuple[Variant, Mapping[str, int | float]]
HEADS = ("A_HEADS", "B_HEADS", "Y_HEADS")
MOST_K = (2**31 - 1) // (255 * 255)  # largest K for which every sum of 8-bit products fits into int32


@checked
def matmul(
    a: Operand,
    b: Operand,
    y_qparams: QParams | None = None,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``a @ b`` of two 8-bit arrays. Sums are exact, and results have the bytes of ONNX QLinearMatMul.

    Args:
        a: (..., M, K), int8 or uint8, a NumPy array (with a_qparams) or a Tensor. K is at most 33,025.
        b: (..., K, N), likewise. A constant b is faster as the weight of a `Linear`.
        y_qparams: the parameters of an 8-bit result; None: the result is float32.

    The leading axes broadcast as in NumPy. The result is an array if both operands are arrays, else a
    Tensor.

    With ``acc = sum_k (a - a_zp)(b - b_zp)`` in int32, the result is

    - float32: ``float(acc) * (a_scale * b_scale)``
    - 8-bit: ``saturate(round_half_even(float(acc) * ((a_scale * b_scale) / y_scale)) + y_zp)``

    >>> q = QParams(0.5)
    >>> matmul(np.array([[2, 4]], np.int8), np.array([[1], [3]], np.int8), q, a_qparams=q, b_qparams=q)
    array([[7]], dtype=int8)
    """
    options = (y_qparams, a_qparams, b_qparams)
    return operand.apply("matmul", multiplied, {"a": a, "b": b}, options, device, out)


def multiplied(
    b: Builder,
    x: Value,
    z: Value,
    yq: QParams | None,
    x_qparams: QParams | None = None,
    z_qparams: QParams | None = None,
    overflow: str = "refuse",
    rows: bool = False,
    heads: Heads = ONE_EACH,
    layout: str | None = None,
) -> Value:
    """Add `matmul` to a plan.

    - *overflow*: with "wrap", K may have any size, and sums are modulo 2**32.
    - *rows*: z is the transpose of the operand b, (..., N, K).
    - *heads*: the number of heads of x, of z (only with *rows*) and of the result that are stored side by
      side. If it is above 1, the tensor (B, heads, rows, columns) is stored as (B, rows, heads * columns). A
      tensor that the kernel cannot read or write in this order is copied, possibly into another layout.
    - *layout*: the wanted layout of a result with heads."""
    if max(heads) > 1:
        whole = _whole_blocks(b.device, x.spec.shape, z.spec.shape, heads, yq)
        x, of_x = _apart(b, x, heads[0], whole)
        z, of_z = _apart(b, z, heads[1], whole)
        if heads[2] > 1 and not (whole and layout in (None, MATRIX)):
            y = multiplied(b, x, z, yq, x_qparams, z_qparams, overflow, rows, (of_x, of_z, 1))
            return permuted_as(b, y, y.spec.shape, SWAPPED, together(y.spec.shape, heads[2]), layout)
        heads = of_x, of_z, heads[2]
    if overflow == "refuse" and (k := math.prod(apart(x.spec.shape, heads[0])[-1:])) > MOST_K:
        raise ArgumentError(f"matmul: K is {k}; it must be at most {MOST_K}, so that int32 holds every sum")
    xq, zq = (
        operand.meaning("matmul", "a", x.spec, x_qparams),
        operand.meaning("matmul", "b", z.spec, z_qparams),
    )
    if yq is not None and yq.dtype != x.spec.dtype:
        raise DTypeError(f"matmul: a is {x.spec.dtype} and y_qparams are for {yq.dtype}; make them the same")
    push: dict[str, int | float] = {
        "y_zero": signed_zero_point(yq) if yq else 0,
        "multiplier": float(multipliers(xq.scale, zq.scale, yq.scale if yq else None)[0]),
    }
    zeros = signed_zero_point(xq), signed_zero_point(zq)

    def kernel(batch: int, m: int, n: int) -> Kernel:
        variant, shifts = _kernel(b.device, "q8" if yq else "f32", batch, m, n)
        return variant, {**push, "a_zero": zeros[0] + shifts[0], "b_zero": zeros[1] + shifts[1]}

    columns = z if rows else columns_of(b, z)
    return _product(b, x, columns, kernel, yq or "float32", [], heads)


def _whole_blocks(
    device: Device, x: tuple[int, ...], z: tuple[int, ...], heads: Heads, yq: QParams | None
) -> bool:
    """Return True if no block of four rows or columns belongs to two matrices, or to two heads side by
    side."""
    (*leading, m, k), (*others, n, _) = apart(x, heads[0]), apart(z, heads[1])
    halves = [many for many, size in zip(heads, (k, k, n), strict=True) if many > 1 and size % 4]
    same = leading == others and len(leading) == 2
    return same and not halves and yq is not None and _tiled(device, math.prod(leading), m, n)


def _apart(b: Builder, x: Value, heads: int, whole: bool) -> tuple[Value, int]:
    """Return (operand, number of its heads that are side by side). If *whole* (each head consists of whole
    blocks) and x is a matrix in memory, the operand is x with all *heads*. Otherwise the heads are copied
    into separate matrices, and the number is 1."""
    if heads == 1 or (whole and x.spec.layout == MATRIX):
        return x, heads
    n, rows, columns = x.spec.shape
    split = (n, rows, heads, columns // heads)
    return permuted_as(b, x, split, SWAPPED, apart(x.spec.shape, heads), MATRIX), 1


def summed(b: Builder, x: Value, z: Value, x_zero: Value, z_zero: Value) -> Value:
    """Add the int32 sums of a product, modulo 2**32, to a plan: ONNX MatMulInteger.

    The zero points are on the device and have the types of the operands.

    - z_zero: one element, or one for each column of z.
    - x_zero: one element, one for each row of a matrix of x, or one for each row of all matrices of x."""
    zeros = [reshaped(b, zero, (zero.spec.size,), MATRIX) for zero in (x_zero, z_zero)]
    push = {"a_zeros": x_zero.spec.size, "b_zeros": z_zero.spec.size}
    kernel = catalog().find("matmul_q8_int32__row"), push
    return _product(b, x, columns_of(b, z), lambda *sizes: kernel, "int32", zeros)


def columns_of(b: Builder, z: Value) -> Value:
    """Return z (..., K, N) transposed to (..., N, K)."""
    axes = list(range(len(z.spec.shape)))
    axes[-2:] = axes[:-3:-1]
    return transposed(b, z, axes)


def _kernel(device: Device, out: str, batch: int, m: int, n: int) -> tuple[Variant, tuple[int, int]]:
    """Return (shader variant, the offsets that its dot form adds to the two operands)."""
    form = without_matrices(device).form
    if not _tiled(device, batch, m, n):
        return catalog().find("matmul_q8__row", out=out), (0, 0)
    return catalog().find("matmul_q8__tile", dot=form, out=out), SHIFTS[form]


def _tiled(device: Device, batch: int, m: int, n: int) -> bool:
    """Return True if no block of four rows or four columns belongs to two matrices, and the device has a
    packed dot product."""
    return without_matrices(device).form != "float" and (batch == 1 or m % 4 == n % 4 == 0)


def _product(
    b: Builder,
    x: Value,
    z: Value,
    kernel: Callable[[int, int, int], Kernel],
    to: QParams | Literal["float32", "int32"],
    more: Sequence[Value],
    heads: Heads = ONE_EACH,
) -> Value:
    """Add the product of x (..., M, K) and z (..., N, K) to a plan. 8-bit arrays are in kPackedInt8_4H4W.
    *kernel* returns the shader for (batch, m, n). *more*: further bindings, after the operands and the
    result."""
    columns = apart(z.spec.shape, heads[1])
    leading, m, n, k = _sizes(apart(x.spec.shape, heads[0]), (*columns[:-2], *columns[:-3:-1]))
    shape = together((*leading, m, n), heads[2])
    if len(z.spec.shape) == 2:  # one right matrix for all left matrices: stack the rows of the left
        leading, m = (), math.prod(leading) * m
    batch = math.prod(leading)
    x = reshaped(b, x, (m, k), MATRIX) if not leading else _rows(b, x, leading, (m, k), heads[0])
    z = _rows(b, z, leading, (n, k), heads[1])
    rows = (batch // heads[2] * m, heads[2] * n)
    y = b.new(Spec(rows, to.dtype, MATRIX, to) if isinstance(to, QParams) else Spec(rows, to))
    if y.spec.size:
        variant, push = kernel(batch, m, n)
        push = {"batch": batch, "m": m, "n": n, "k": k, **push}
        constants = dict(zip(HEADS, heads, strict=True)) if max(heads) > 1 else {}
        b.dispatch(b.device.program(variant, constants), [x, z, y, *more], push, y.spec.size * k)
    return reshaped(b, y, shape, MATRIX)


def _sizes(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[tuple[int, ...], int, int, int]:
    """Return (leading axes of the result, M, N, K). Raises ArgumentError for shapes that do not match."""
    if len(a) < 2 or len(b) < 2 or a[-1] != b[-2]:
        raise ArgumentError(
            f"matmul: a has shape {a} and b {b}; a's last axis must be as long as b's last but one"
        )
    (m, k), n = a[-2:], b[-1]
    try:
        leading = np.broadcast_shapes(a[:-2], b[:-2])
    except ValueError:
        raise ArgumentError(f"matmul: the leading axes of {a} and {b} do not broadcast") from None
    if k == 0 and math.prod(leading) * m * n:
        raise ArgumentError(f"matmul: a has shape {a}: there is nothing to sum; K must be at least 1")
    return leading, m, n, k


def _rows(b: Builder, x: Value, leading: tuple[int, ...], last: tuple[int, int], heads: int = 1) -> Value:
    """Return x as (batch * rows, K) in kPackedInt8_4H4W; *last* is (rows, K). Matrices are copied if they
    broadcast along leading axes. If *heads* heads are stored side by side, return x as (batch / heads * rows,
    heads * K)."""
    shape = x.spec.shape
    if heads > 1:
        return reshaped(b, x, (shape[0] * shape[1], shape[2]), MATRIX)
    if shape[:-2] != leading and math.prod(shape[:-2]) != math.prod(leading):
        wide = (*leading, *last)
        x = gather(b, x, np.broadcast_to(numbers(b, shape, math.prod(wide)), wide))
    return reshaped(b, x, (math.prod(leading) * last[0], last[1]), MATRIX)
