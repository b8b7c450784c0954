"""Functions of one 8-bit value by a table of 256 entries: activations, requantization, any function."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DTypeError
from ..kernels.weights import ceil4
from ..layout.extent import Spec
from ..numerics import tables
from ..numerics.qparams import QParams
from ..numerics.stored import signed
from ..numerics.tables import Function
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from . import operand
from .operand import Operand


@checked
def table_of(function: str | Function, x_qparams: QParams, y_qparams: QParams) -> npt.NDArray[Any]:
    """Return the 256 results of a function of one quantized value, for `lookup`. Entry i is the result for
    the input ``qmin + i``.

    Args:
        function: relu, relu6, sigmoid, tanh, silu, gelu, hardsigmoid, hardswish, exp, abs, neg, identity;
            or a callable that receives 256 float64 values and returns as many.

    An entry is computed by DequantizeLinear, the function in float64, rounding to float32, and
    QuantizeLinear (round half even).

    Raises ArgumentError for an unknown name or a result that is not 256 real numbers.

    >>> table_of(np.square, QParams(1.0), QParams(1.0))[[128, 131, 125, 255]]
    array([  0,   9,   9, 127], dtype=int8)
    """
    return tables.table_of(function, x_qparams, y_qparams)


@checked
def lookup(
    x: Operand,
    table: npt.ArrayLike,
    *,
    y_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``table[x - qmin]``, element by element.

    Args:
        x: int8 or uint8 of any shape, a NumPy array or a Tensor. The result has the same class and layout.
        table: 256 int8 or uint8 entries; the first is the result for -128 (0 for uint8). The result has the
            table's dtype.
        y_qparams: the quantization parameters of the result, stored if the result is a Tensor.

    Raises DTypeError if x is not 8-bit, ArgumentError if the table does not have 256 8-bit entries.

    >>> lookup(np.array([-128, 0, 127], np.int8), np.arange(256).astype(np.uint8))
    array([  0, 128, 255], dtype=uint8)
    """
    entries = np.asarray(table)
    if entries.shape != (256,) or entries.dtype.name not in ("int8", "uint8"):
        raise ArgumentError(
            f"lookup: table is {entries.dtype} {entries.shape}; it must be 256 int8 or uint8 numbers"
        )
    if y_qparams is not None and y_qparams.dtype != entries.dtype.name:
        raise DTypeError(
            f"lookup: table is {entries.dtype} and y_qparams are for {y_qparams.dtype}; make them the same"
        )
    return operand.apply("lookup", looked_up, {"x": x}, (entries, y_qparams), device, out)


def looked_up(b: Builder, x: Value, entries: npt.NDArray[Any], y_qparams: QParams | None) -> Value:
    """Add `lookup` to a plan: the result has the layout of x and the table's dtype."""
    y = b.new(Spec(x.spec.shape, entries.dtype.name, x.spec.layout, y_qparams))
    if x.spec.size:
        stored = signed(entries)
        table = b.device.constant(("lookup", stored.tobytes()), stored.nbytes, lambda: stored)
        program = b.device.program(catalog().find("lookup_q8__vector"))
        b.dispatch(program, [x, b.constant(table), y], {"vectors": ceil4(y.spec.nbytes // 4)})
    return y


@checked
def unary(
    function: str | Function,
    x: Operand,
    y_qparams: QParams | None = None,
    *,
    x_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``function(x)`` in 8 bits, from a table. `table_of` describes the functions and the rounding.

    Args:
        x: int8 or uint8, a NumPy array (with x_qparams) or a Tensor.
        y_qparams: the result's parameters, by default those of x.

    The results of a leaky ReLU equal those of ONNX Runtime's QLinearLeakyRelu. The results of "sigmoid" may
    differ by one from those of QLinearSigmoid, which approximates exp.

    >>> unary("relu", np.array([-5, 0, 7], np.int8), x_qparams=QParams(0.1))
    array([0, 0, 7], dtype=int8)
    """
    if isinstance(function, str):
        return operand.apply("unary", mapped, {"x": x}, (function, y_qparams, x_qparams), device, out)
    tensor = operand.take("unary", "x", x, operand.device_of("unary", [x, out], device))
    xq = operand.meaning("unary", "x", tensor.spec, x_qparams)
    yq = y_qparams or xq  # not cached: a callable may return other values later
    y = operand.apply("unary", looked_up, {"x": tensor}, (table_of(function, xq, yq), yq), None, out)
    return y if isinstance(x, Tensor) or out is not None else y.numpy()


def mapped(
    b: Builder, x: Value, function: str, y_qparams: QParams | None, x_qparams: QParams | None
) -> Value:
    """Add a lookup in the table of *function* (`table_of`) to a plan."""
    xq = operand.meaning("unary", "x", x.spec, x_qparams)
    yq = y_qparams or xq
    return looked_up(b, x, table_of(function, xq, yq), yq)


def requantized(b: Builder, x: Value, xq: QParams, yq: QParams) -> Value:
    """Return x requantized from xq to yq, or x itself if they are equal."""
    return x if xq == yq else looked_up(b, x, _identity(xq, yq), yq)


@checked
def requantize(
    x: Operand,
    y_qparams: QParams,
    *,
    x_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return the same real numbers with other parameters: DequantizeLinear, then QuantizeLinear.

    >>> requantize(np.array([10, 20], np.int8), QParams(1.0, 5), x_qparams=QParams(0.5))
    array([10, 15], dtype=int8)
    """
    return unary("identity", x, y_qparams, x_qparams=x_qparams, device=device, out=out)


@functools.lru_cache(maxsize=256)
def _identity(xq: QParams, yq: QParams) -> npt.NDArray[Any]:
    return tables.table_of("identity", xq, yq)
