"""Means over axes of 8-bit arrays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError
from ..kernels.repack import repacked, reshaped
from ..kernels.weights import ceil4
from ..layout.extent import PIXELS, Spec, layout_number
from ..numerics.qparams import QParams
from ..numerics.stored import signed_zero_point
from ..numerics.tables import fixed_point, mean_multiplier
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from . import operand
from .operand import Operand
from .pool import MOST_PIXELS, globally_averaged
from .shape import transposed

# Maximum number of pixels for a mean by a table. The sum of the entries' upper bits and that of their lower
# bits must fit into int32.
MOST_TABLE_PIXELS = (1 << 16) - 1


@checked
def reduce_mean(
    x: Operand,
    axes: Sequence[int] | None = None,
    *,
    keepdims: bool = True,
    y_qparams: QParams | None = None,
    x_qparams: QParams | None = None,
    device: Device | int | str | None = None,
    out: Tensor | None = None,
) -> Any:
    """Return the mean over some axes, by the formula of `global_avg_pool2d`, with an exact integer sum.

    Args:
        x: int8 or uint8 of any shape, a NumPy array or a Tensor. The result is of the same class.
        axes: the reduced axes; None: all. Negative axes count from the end.
        keepdims: keep the reduced axes with length 1.
        y_qparams: by default the parameters of x.

    n, the product of the reduced axes' lengths, is at most 2**23:

        y_q = saturate(round_half_even(float32(sum(x_q - x_zp)) * m) + y_zp),  m = x_scale / (y_scale * n)

    The ONNX form is ReduceMean between DequantizeLinear and QuantizeLinear
    (https://onnx.ai/onnx/operators/onnx__ReduceMean.html); ONNX Runtime adds floats there.

    Raises ArgumentError for an axis out of range, for no elements or too many, and for missing qparams;
    DTypeError for another type.

    >>> import numpy as np
    >>> reduce_mean(np.array([[1, 3], [5, 7]], np.int8), [0], keepdims=False, x_qparams=QParams(1.0)).tolist()
    [3, 5]
    """
    options = (None if axes is None else tuple(axes), keepdims, y_qparams, x_qparams)
    return operand.apply("reduce_mean", mean_over_axes, {"x": x}, options, device, out)


def mean_over_axes(
    b: Builder,
    x: Value,
    axes: Sequence[int] | None,
    keepdims: bool,
    y_qparams: QParams | None,
    x_qparams: QParams | None,
) -> Value:
    """Add `reduce_mean` to a plan. The kept axes become the channels of an image of one row, and the
    reduced axes its pixels."""
    shape = x.spec.shape
    rank = len(shape)
    gone = {operand.normal_axis("reduce_mean", a, rank) for a in (range(rank) if axes is None else axes)}
    kept = [a for a in range(rank) if a not in gone]
    count = math.prod(shape[a] for a in gone)
    if not 0 < count <= MOST_PIXELS:
        raise ArgumentError(
            f"reduce_mean: axes {sorted(gone)} of x {shape} hold {count} elements; there must be 1 to"
            f" {MOST_PIXELS}, so that their sum fits int32"
        )
    if not (rank == 4 and sorted(gone) == [2, 3]):
        order = [*kept, *sorted(gone)]
        x = transposed(b, x, order) if order != sorted(order) else x
        x = reshaped(b, x, (1, math.prod(shape[a] for a in kept), 1, count))
    y = globally_averaged(b, x, y_qparams, x_qparams)
    return reshaped(b, y, [1 if a in gone else shape[a] for a in range(rank) if keepdims or a not in gone])


def averaged_by_table(
    b: Builder, x: Value, table: npt.NDArray[np.float32], yq: QParams, layout: str | None = None
) -> Value:
    """Add the mean of a function of 8-bit x over each channel's pixels, (N, C, 1, 1), to a plan.

    - *table*: the function's float32 values, (256,) or (C, 256), as in
      `vkq.reference.operators.mean_of_table`.
    - *layout*: see `vkq.ops.pool.globally_averaged`."""
    operand.check_image("mean", x.spec.shape)
    n, c, h, w = x.spec.shape
    if not 0 < h * w <= MOST_TABLE_PIXELS or table.shape not in ((256,), (c, 256)):
        raise ArgumentError(
            f"mean: x is {x.spec.shape} and the table {table.shape}; there must be 1 to"
            f" {MOST_TABLE_PIXELS} pixels, and one table or one for each channel"
        )
    numbers, exponent = fixed_point(table)
    key = ("mean", numbers.shape, numbers.tobytes())
    x = repacked(b, x, x.spec.image_layout)
    y = b.new(Spec((n, c, 1, 1), yq.dtype, layout if layout in PIXELS else x.spec.layout, yq))
    if y.spec.size:
        layouts = {"LAYOUT": layout_number(x.spec.layout), "Y_LAYOUT": layout_number(y.spec.layout)}
        program = b.device.program(catalog().find("mean_table_q8__reduce"), layouts)
        push: dict[str, int | float] = {
            "n": n, "c": c, "h": h, "w": w, "c4": ceil4(c), "count": numbers.size // 256,
            "y_zero": signed_zero_point(yq), "multiplier": mean_multiplier(exponent, h * w, yq),
        }  # fmt: skip
        resident = b.device.constant(key, numbers.nbytes, lambda: numbers)
        b.dispatch(program, [x, b.constant(resident), y], push, x.spec.size)
    return y
