"""Functions of rows (`vkq.numerics.rows`) on a device: steps of a plan. The shader is in `row_shader`."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence

import numpy as np

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

# Maximum number of elements of a row: drivers may stop a loop of more than 65,000 iterations.
MOST_LENGTH = 65_000 * MOST_LANES
LEAST = 2.0**-50  # minimum scale of y with which `RowForm.chain_flushes` may be False
LAYOUTS = (MATRIX, BLOCKED)  # layouts of 8-bit rows


@dataclasses.dataclass(frozen=True)
class Ends:
    """The conversions before and after a function of rows. x: the parameters of 8-bit inputs. chain: a chain
    applied to the results; operands: the kind of each of its inputs (see `row_form`). y: the parameters of
    8-bit results; real: these are dequantized again."""

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
    """Add a function of rows to a plan; a row spans *count* axes of an array from *axis* on. The result has
    the shape of x; a reduction removes these axes. 8-bit arrays are in one of LAYOUTS, and their rows are
    along the last axis. *operands*: the chain's inputs except the function's result."""
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
        ahead = 0 if known.rows_in_turn or turns > LANE_RUNS else turns
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
    """Return True if no floats need to be flushed, except perhaps in a chain."""
    if ends.x is None or (ends.y is not None and ends.y.scale < LEAST):
        return False
    return always_normal(name, length, epsilon, ends.x.scale)


def _numbers(ends: Ends) -> dict[str, int | float]:
    """Return the push constants for 8-bit inputs and results; scale 1 and zero point 0 for floats."""
    x, y = ends.x or QParams(1.0), ends.y or QParams(1.0)
    return {
        "x_scale": x.scale, "x_zero": signed_zero_point(x), "y_scale": y.scale, "y_reciprocal": reciprocal(y),
        "y_zero": signed_zero_point(y),
    }  # fmt: skip
