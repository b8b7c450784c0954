"""Softmax of 8-bit data along the last axis, the channels, or any other axis."""

from __future__ import annotations

from typing import Any

from ..arguments import checked
from ..errors import ArgumentError
from ..kernels.quantize import steps
from ..kernels.repack import repacked
from ..kernels.sharing import SHARERS, sharers, sharers_of_rows
from ..kernels.weights import ceil4
from ..layout.extent import BLOCKED, IMAGE, MATRIX, Spec, layout_number
from ..layout.pack import layout
from ..numerics.qparams import QParams
from ..numerics.stored import signed_zero_point
from ..numerics.tables import SoftmaxTerms, exponentials
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from . import operand
from .operand import Operand
from .shape import transposed
from .take import gather, numbers

INVOCATIONS = 128
LONGEST = 1 << 17  # minimum length of a row that gets twice the invocations of `sharers`
# Minimum length of rows whose results are looked up in a table: the table's 256 entries are then at most
# half of the row's elements.
LONG = 512
THREADS = 32  # maximum invocations for a row: a workgroup computes the four rows of a block
CHANNELS, COLUMNS = 1, 3  # axes of an extent along which a layout may pack its words
# Pairs (layout, axis): in a softmax along this axis, each vector of the layout has elements of four rows.
FOURS = ((MATRIX, COLUMNS), (IMAGE, CHANNELS))
KEPT = 8  # maximum number of vectors with elements of four rows that one invocation reads
MOST = 4 * KEPT * INVOCATIONS  # maximum length of a row for the kernel that reads these vectors


@checked
def softmax(
    x: Operand,
    axis: int = -1,
    y_qparams: QParams | None = None,
    *,
    x_qparams: QParams | None = None,
    onnxruntime: bool = False,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return ``exp(x) / sum(exp(x))`` along an axis.

    Args:
        x: int8 or uint8, a NumPy array (with x_qparams) or a Tensor. The result is of the same class.
        y_qparams: the parameters of an 8-bit result, QuantizeLinear of the float32 result. QParams(1 / 256,
            -128) uses the whole range of int8. None: the result is float32.
        onnxruntime: compute an 8-bit result with the bytes of ONNX Runtime's com.microsoft.QLinearSoftmax.
            Floats are added in the order of ONNX Runtime's plain kernel
            (`vkq.reference.softmax.softmax_onnxruntime`). Its kernels for AVX2 and AVX-512 add in other
            orders and multiply by a reciprocal. If a quotient is a tie, as in rows of equal elements, their
            results may differ by one from the plain kernel's and from each other.

    The result is computed from

        e = round(exp(-(max - x_q) * x_scale) * 2**30), from a table
        y = float32(e) * (1 / float32(sum(e)))

    The integer sum is exact and each float32 step is rounded, so all devices return the same bits. The
    error of the float32 result, against the real softmax of n numbers, is at most
    ``(n + 2) * 2**-31 + 4 * 2**-24 * y``.

    Raises ArgumentError for missing qparams and for an axis out of range.

    >>> import numpy as np
    >>> softmax(np.array([[20, 0, 20]], np.int8), y_qparams=QParams(1 / 256, -128), x_qparams=QParams(0.1))
    array([[  -8, -112,   -8]], dtype=int8)
    """
    options = (axis, y_qparams, x_qparams, onnxruntime)
    return operand.apply("softmax", softmaxed, {"x": x}, options, device, out)


def softmaxed(
    b: Builder,
    x: Value,
    axis: int,
    yq: QParams | None,
    x_qparams: QParams | None = None,
    onnxruntime: bool = False,
    litert: bool = False,
) -> Value:
    """Add `softmax` to a plan. 8-bit results keep the layout of x. litert: compute LiteRT's bytes
    (`vkq.reference.softmax.softmax_litert`), for an 8-bit result."""
    xq = operand.meaning("softmax", "x", x.spec, x_qparams)
    axis = operand.normal_axis("softmax", axis, max(len(x.spec.shape), 1))
    if onnxruntime and yq is None:
        raise ArgumentError("softmax: onnxruntime=True is for an 8-bit result; give y_qparams")
    return _along(b, x, axis, xq, yq, "onnxruntime" if onnxruntime else "litert" if litert else "")


def _along(b: Builder, x: Value, axis: int, xq: QParams, yq: QParams | None, steps_of: str) -> Value:
    last, s = len(x.spec.shape) - 1, x.spec

    def rows(x: Value, axis: int) -> Value:
        return _rows_of(b, x, axis, xq, yq, steps_of) if steps_of and yq else _rows(b, x, axis, xq, yq)

    if len(s.shape) == 4 and axis == 1:
        y = rows(repacked(b, x, s.image_layout), CHANNELS)
    elif axis == max(last, 0) and s.folded and s.layout == BLOCKED:
        y = rows(x, CHANNELS)
    elif axis == max(last, 0):
        ready = s.folded and layout(s.layout).lane.dim == COLUMNS
        y = rows(x if ready else repacked(b, x, MATRIX), COLUMNS)
    else:
        order = list(range(len(s.shape)))
        order[axis], order[last] = last, axis
        y = _along(b, transposed(b, x, order), last, xq, yq, steps_of)
        if yq is None:
            return gather(b, y, numbers(b, y.spec.shape, s.size).transpose(order))
        y = transposed(b, y, order)
    return y if yq is None else repacked(b, y, s.layout)


def _rows(b: Builder, x: Value, axis: int, xq: QParams, yq: QParams | None) -> Value:
    """Add a softmax along *axis* of the extent of x, whose words must have neighbouring elements of this
    axis."""
    s = x.spec
    y = b.new(Spec(s.shape, "float32") if yq is None else Spec(s.shape, yq.dtype, s.layout, yq))
    if s.size == 0:
        return y
    if yq is not None and (s.layout, axis) in FOURS and LONG <= s.extent[axis] <= MOST:
        _fours(b, x, y, s.extent[axis], xq, yq)
        return y
    threads = 1
    while threads < min(THREADS, ceil4(s.extent[axis])):
        threads *= 2
    constants: dict[str, Constant] = {
        "LAYOUT": layout_number(s.layout), "LOCAL_X": INVOCATIONS, "THREADS": threads, "AXIS": axis,
        "BY_TABLE": yq is not None and s.extent[axis] >= LONG,
    }  # fmt: skip
    n, c, h, w = s.extent
    push: dict[str, int | float] = {
        "rows": s.size // s.extent[axis], "n": n, "c": c, "h": h, "w": w, **steps(yq or QParams(1.0)),
    }  # fmt: skip
    table = b.device.constant(("softmax", xq.scale), 1024, lambda: exponentials(xq.scale))
    program = b.device.program(
        catalog().find("softmax_q8__row", out="f32" if yq is None else "q8"), constants
    )
    b.dispatch(program, [x, b.constant(table), y], push, 16 * s.size)
    return y


def _fours(b: Builder, x: Value, y: Value, size: int, xq: QParams, yq: QParams) -> None:
    """Add a softmax of rows of *size* elements. Each vector of x has elements of four rows."""
    vectors, threads = ceil4(size), THREADS
    while vectors > KEPT * threads:
        threads *= 2
    constants: dict[str, Constant] = {
        "LOCAL_X": max(2 * THREADS, threads), "THREADS": threads, "KEPT": -(-vectors // threads),
    }  # fmt: skip
    push = {"fours": x.spec.nbytes // (16 * vectors), "size": size, **steps(yq)}
    table = b.device.constant(("softmax", xq.scale), 1024, lambda: exponentials(xq.scale))
    program = b.device.program(catalog().find("softmax_rows_q8__four"), constants)
    b.dispatch(program, [x, b.constant(table), y], push, 16 * x.spec.size)


def _rows_of(b: Builder, x: Value, axis: int, xq: QParams, yq: QParams, steps_of: str) -> Value:
    """Add a softmax with the steps of ONNX Runtime or of LiteRT."""
    s = x.spec
    y = b.new(Spec(s.shape, yq.dtype, s.layout, yq))
    if s.size == 0:
        return y
    n, c, h, w = s.extent
    length, litert = s.extent[axis], steps_of == "litert"
    found = SoftmaxTerms.of(litert, xq.scale, yq.scale, length)
    push: dict[str, int | float] = {
        "rows": s.size // length, "n": n, "c": c, "h": h, "w": w,
        "steps": found.steps, "y_zero": signed_zero_point(yq),
    }  # fmt: skip
    key = (f"softmax_{steps_of}", xq.scale, 0 if litert else length)
    table = b.device.constant(key, 1024, lambda: found.terms)
    threads = sharers(length) * (2 if length >= LONGEST else 1)
    if threads == 1:
        threads = sharers_of_rows(b.device.capabilities, s.size // length, ceil4(length))
    constants: dict[str, Constant] = {
        "LAYOUT": layout_number(s.layout), "AXIS": axis, "THREADS": threads,
        "LOCAL_X": max(SHARERS, threads), "LITERT": litert,
        "NORMAL": found.normal,
    }  # fmt: skip
    program = b.device.program(catalog().find("softmax_onnxruntime_q8__row"), constants)
    b.dispatch(program, [x, b.constant(table), y], push, 64 * s.size)
    return y
