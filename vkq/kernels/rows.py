"""Add functions of rows (softmax, normalizations, reductions: `vkq.numerics.rows`) to a plan. `row_shader`
writes their shaders."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..device.profile_fields import FEW
from ..device.profiles import profile
from ..layout.extent import BLOCKED, CONTIGUOUS, MATRIX, Spec
from ..numerics.bytes import divides, reciprocal
from ..numerics.qparams import QParams
from ..numerics.rows import FUNCTIONS, MOST_LANES, RUN, always_normal, lanes_of
from ..numerics.stored import signed_zero_point
from ..runtime.builder import Builder, Value
from .chain_form import Chain
from .row_form import RowForm
from .row_shader import written

# Maximum number of elements of a row. Drivers may stop a loop after 65,000 iterations.
MOST_LENGTH = 65_000 * MOST_LANES
MOST_AHEAD = 4  # maximum number of runs of a lane that are loaded once, before the first pass
LEAST = 2.0**-50  # minimum scale of y for which `_normal` may return True
LAYOUTS = (MATRIX, BLOCKED)  # layouts of 8-bit rows


@dataclasses.dataclass(frozen=True)
class Ends:
    """The conversions and operators before and after a function of rows, in the same kernel."""

    x: QParams | None = None  # the quantization parameters of 8-bit inputs; None: inputs are floats
    chain: Chain | None = None  # a chain of element-wise operators that is applied to the results
    operands: tuple[int, ...] = ()  # the kind of each input of the chain (RESULT, ... of `row_form`)
    y: QParams | None = None  # the quantization parameters of 8-bit results; None: results are floats
    real: bool = False  # the 8-bit results are dequantized again, so the kernel stores float32
    prologue: Chain | None = None  # a chain whose first result is x (float32); a second result is stored
    reads: tuple[int, ...] = ()  # the kind of each input of the prologue


PLAIN = Ends()


def rows_of(
    b: Builder, name: str, x: Value, axis: int, count: int, attributes: Mapping[str, float],
    ends: Ends = PLAIN, operands: Sequence[Value] = (), layout: str = MATRIX,
) -> Value:  # fmt: skip
    """Add a function of rows to a plan, and return its result. A row is the elements along *count* axes of
    x from *axis* on. 8-bit arrays have one of LAYOUTS, and their rows are along the last axis. The result
    has the shape of x; a reduction removes the axes of the row.

    - *operands*: the inputs of the chain except the function's result.
    - *layout*: the layout of an 8-bit result."""
    return rows_after(b, name, [x, *operands], x.spec.shape, axis, count, attributes, ends, layout)[0]


def rows_after(
    b: Builder, name: str, inputs: Sequence[Value], shape: Sequence[int], axis: int, count: int,
    attributes: Mapping[str, float], ends: Ends, layout: str = MATRIX,
) -> list[Value]:  # fmt: skip
    """Add a function of rows of an array of this *shape*, as in `rows_of`. Return the result, and the
    second result of the prologue if there is one.

    *inputs*: the inputs of the prologue, or x if there is none; then the operands of `rows_of`. With a
    prologue or float16 results, rows must be along the last axis. With float16 results, their length must
    be a multiple of four."""
    length, inner = math.prod(shape[axis : axis + count]), math.prod(shape[axis + count :])
    kept = (*shape[:axis], *(shape[axis:] if FUNCTIONS[name].each else shape[axis + count :]))
    lanes, epsilon = lanes_of(length), float(np.float32(attributes.get("epsilon", 0.0)))
    whole, turns = length // max(lanes * RUN, 1), -(-length // (lanes * RUN))
    ahead = 0 if profile(b.device.capabilities).registers == FEW or turns > MOST_AHEAD else turns
    x, quantizes = inputs[0].spec.layout, ends.y is not None and not ends.real
    form = RowForm(
        name, lanes, ahead, min(ahead, whole), inner > 1, inner == 1 and length % RUN == 0, epsilon,
        ends.chain, ends.operands, ends.x is not None, ends.y is not None, ends.real,
        ends.y is not None and divides(ends.y), _normal(name, length, epsilon, ends), x,
        layout if quantizes else CONTIGUOUS, b.device.soft_float, b.device.converts, ends.prologue,
        ends.reads,
    )  # fmt: skip
    first = Spec(kept, ends.y.dtype, layout, ends.y) if quantizes and ends.y else Spec(kept, form.stores[0])
    results = [b.new(first), *(b.new(Spec(tuple(shape), dtype)) for dtype in form.stores[1:])]
    if first.size:
        size = math.prod(shape)
        push: dict[str, int | float] = {
            "rows": size // length, "length": length, "inner": inner, "count": float(length),
            **_numbers(ends),
        }  # fmt: skip
        macs = size * len(FUNCTIONS[name].passes) * 8
        b.dispatch(b.device.program(written(form)), [*inputs, *results], push, macs=macs)
    return results


def _normal(name: str, length: int, epsilon: float, ends: Ends) -> bool:
    """Return True if no subnormal float can occur outside of the chain: the kernel then need not flush
    floats."""
    if ends.x is None or (ends.y is not None and ends.y.scale < LEAST):
        return False
    return always_normal(name, length, epsilon, ends.x.scale)


def _numbers(ends: Ends) -> dict[str, int | float]:
    """Return the push constants of 8-bit inputs and results: scales and zero points. Floats have scale 1
    and zero point 0."""
    x, y = ends.x or QParams(1.0), ends.y or QParams(1.0)
    return {
        "x_scale": x.scale, "x_zero": signed_zero_point(x), "y_scale": y.scale, "y_reciprocal": reciprocal(y),
        "y_zero": signed_zero_point(y),
    }  # fmt: skip
