"""Products of two 8-bit activations: batches of matrices, as attention has them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..errors import ArgumentError, DTypeError
from ..numerics.qparams import QParams
from ..numerics.requantize import multipliers
from ..numerics.stored import signed_zero_point
from ..probe import selftest
from ..runtime.device import Device
from ..runtime.tensor import MATRIX, Tensor
from ..shader.catalog import catalog
from . import operand
from .operand import Operand
from .repack import reshape, to_layout
from .shape import transpose
from .take import take_tensor

MOST_K = (2**31 - 1) // (255 * 255)  # of an accumulator that int32 holds whatever the numbers


def matmul(
    a: Operand,
    b: Operand,
    y_qparams: QParams | None = None,
    *,
    a_qparams: QParams | None = None,
    b_qparams: QParams | None = None,
    device: Device | None = None,
) -> Any:
    """``a @ b`` of two 8-bit arrays, exactly; as ONNX QLinearMatMul, byte for byte.

    a: (..., M, K), b: (..., K, N), int8 or uint8, NumPy arrays (with their qparams) or Tensors; the leading
    axes broadcast as NumPy's. The result is an array where both are, else a Tensor: 8-bit with y_qparams,
    else float32. K is at most 33,025. A constant b is faster as the weight of a `Linear`.

    ``acc = sum_k (a - a_zp)(b - b_zp)`` in int32, then ``float(acc) * (a_scale * b_scale)``, or
    ``saturate(round_half_even(float(acc) * ((a_scale * b_scale) / y_scale)) + y_zp)``.

    >>> q = QParams(0.5)
    >>> matmul(np.array([[2, 4]], np.int8), np.array([[1], [3]], np.int8), q, a_qparams=q, b_qparams=q)
    array([[7]], dtype=int8)
    """
    chosen = operand.device_of("matmul", [a, b], device)
    ta, tb = operand.take("matmul", "a", a, chosen), operand.take("matmul", "b", b, chosen)
    aq, bq = operand.meaning("matmul", "a", ta, a_qparams), operand.meaning("matmul", "b", tb, b_qparams)
    if y_qparams is not None and y_qparams.dtype != ta.dtype:
        raise DTypeError(
            f"matmul: a is {ta.dtype} and y_qparams are for {y_qparams.dtype}; make them the same"
        )
    return operand.give(matmul_tensor(ta, tb, aq, bq, y_qparams), a, b)


def matmul_tensor(a: Tensor, b: Tensor, aq: QParams, bq: QParams, yq: QParams | None) -> Tensor:
    """The operation on Tensors."""
    if len(a.shape) < 2 or len(b.shape) < 2 or a.shape[-1] != b.shape[-2]:
        raise ArgumentError(
            f"matmul: a has shape {a.shape} and b {b.shape}; a's last axis must be as long as b's last"
            " but one"
        )
    (m, k), n = a.shape[-2:], b.shape[-1]
    if k > MOST_K:
        raise ArgumentError(f"matmul: K is {k}; at most {MOST_K}, so that int32 holds every sum")
    try:
        leading = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError:
        raise ArgumentError(f"matmul: the leading axes of {a.shape} and {b.shape} do not broadcast") from None
    multiplier = float(multipliers(aq.scale, bq.scale, yq.scale if yq else None)[0])
    batch = math.prod(leading)
    columns = list(range(len(b.shape)))
    columns[-2:] = columns[:-3:-1]
    a, b = _rows(a, leading, (m, k)), _rows(transpose(b, columns), leading, (n, k))
    y = Tensor(a.device, (batch * m, n), yq.dtype if yq else "float32", MATRIX if yq else None, yq)
    if y.size and k:
        push: dict[str, int | float] = {
            "batch": batch, "m": m, "n": n, "k": k, "a_zero": signed_zero_point(aq),
            "b_zero": signed_zero_point(bq), "y_zero": signed_zero_point(yq) if yq else 0,
            "multiplier": multiplier,
        }  # fmt: skip
        variant = catalog().find("matmul_q8__row", out="q8" if yq else "f32")
        program = a.device.program(variant, {"SOFT_FLOAT": selftest.report(a.device).soft_float})
        operand.dispatch(program, a.device, [a.buffer, b.buffer, y.buffer], push, y.size * k)
    elif y.size:
        raise ArgumentError(f"matmul: a has shape {a.shape}: there is nothing to sum; K must be at least 1")
    return reshape(y, (*leading, m, n))


def _rows(x: Tensor, leading: tuple[int, ...], last: tuple[int, int]) -> Tensor:
    """(batch * rows, K) in the layout of matrices, repeated where the leading axes broadcast."""
    if x.shape[:-2] != leading and math.prod(x.shape[:-2]) != math.prod(leading):
        places = np.arange(x.size, dtype=np.int32).reshape(x.shape)
        x = take_tensor(x, np.broadcast_to(places, (*leading, *last)))
    return to_layout(reshape(x, (math.prod(leading) * last[0], last[1]), MATRIX), MATRIX)
