"""Adds functions of rows (softmax, normalizations, reductions: `vkq.numerics.rows`) to a plan. `row_shader`
writes the shader."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..device.profile_fields import FEW
from ..device.profiles import profile
from ..layout.extent import BLOCKED, MATRIX, Spec
from ..numerics.bytes import divides, reciprocal
from ..numerics.qparams import QParams
from ..numerics.rows import FUNCTIONS, LANE_RUNS, MOST_LANES, RUN, always_normal, lanes_of
from ..numerics.stored import signed_zero_point
from ..runtime.builder import Builder, Value
from .chain_form import Chain
from .row_form import RowForm
from .row_shader import written

# Maximum number of elements of a row. Drivers may stop a loop after 65,000 iterations.
MOST_LENGTH = 65_000 * MOST_LANES
LEAST = 2.0**-50  # minimum scale of y for which `_normal` may return True
LAYOUTS = (MATRIX, BLOCKED)  # layouts of 8-bit rows


@dataclasses.dataclass(frozen=True)
class Ends:
    """The dtype conversions and operators that a kernel applies before and after a function of rows. x: the
    parameters of 8-bit inputs. chain: a chain of elementwise operators for the results; operands: the kind of
    each input of the chain (RESULT, ... of `row_form`). y: the parameters of 8-bit results. real: True if the
    8-bit results are dequantized again, so that the kernel stores float32."""

    x: QParams | None = None
    chain: Chain | None = None
    operands: tuple[int, ...] = ()
    y: QParams | None = None
    real: bool = False


PLAIN = Ends()


def rows_of(
    b: Builder, name: str, x: Value, axis: int, count: int, attributes: Mapping[str, float],
    ends: Ends = PLAIN, operands: Sequence[Value] = (), layout: str = MATRIX,
) -> Value:  # fmt: skip
    """Add a function of rows to a plan and return its result. A row is the elements of *count* axes of x,
    from *axis* on. The result has the shape of x; a reduction removes the axes of the row. 8-bit arrays have
    one of LAYOUTS, and their rows are along the last axis. *operands*: the inputs of the chain except the
    function's result. *layout*: the layout of an 8-bit result."""
    shape = x.spec.shape
    length, inner = math.prod(shape[axis : axis + count]), math.prod(shape[axis + count :])
    each = FUNCTIONS[name].each is not None
    kept = shape if each else (*shape[:axis], *shape[axis + count :])
    y = b.new(
        Spec(kept, "float32") if ends.y is None or ends.real else Spec(kept, ends.y.dtype, layout, ends.y)
    )
    if y.spec.size:
        lanes, epsilon = lanes_of(length), float(np.float32(attributes.get("epsilon", 0.0)))
        whole, turns = length // (lanes * RUN), -(-length // (lanes * RUN))
        known = profile(b.device.capabilities)
        ahead = 0 if known.registers == FEW or turns > LANE_RUNS else turns
        form = RowForm(
            name, lanes, ahead, min(ahead, whole), inner > 1, inner == 1 and length % RUN == 0, epsilon,
            ends.chain, ends.operands, ends.x is not None, ends.y is not None, ends.real,
            ends.y is not None and divides(ends.y), _normal(name, length, epsilon, ends), x.spec.layout,
            y.spec.layout, b.device.soft_float,
        )  # fmt: skip
        program = b.device.program(written(form))
        rows = x.spec.size // length
        push: dict[str, int | float] = {
            "rows": rows, "length": length, "inner": inner, "count": float(length), **_numbers(ends),
        }  # fmt: skip
        macs = x.spec.size * len(FUNCTIONS[name].passes) * 8
        b.dispatch(program, [x, *operands, y], push, macs=macs)
    return y


def _normal(name: str, length: int, epsilon: float, ends: Ends) -> bool:
    """Return True if no subnormal float can occur outside the chain, so that the kernel need not flush
    floats."""
    if ends.x is None or (ends.y is not None and ends.y.scale < LEAST):
        return False
    return always_normal(name, length, epsilon, ends.x.scale)


def _numbers(ends: Ends) -> dict[str, int | float]:
    """Return the push constants with the scales and zero points of 8-bit inputs and results. Floats have
    scale 1 and zero point 0."""
    x, y = ends.x or QParams(1.0), ends.y or QParams(1.0)
    return {
        "x_scale": x.scale, "x_zero": signed_zero_point(x), "y_scale": y.scale, "y_reciprocal": reciprocal(y),
        "y_zero": signed_zero_point(y),
    }  # fmt: skip
