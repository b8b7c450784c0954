"""Functions of rows (`vkq.numerics.rows`) on a device: some invocations of a workgroup share a row, whose
numbers may lie apart."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import numpy as np

from ..layout.extent import Spec
from ..numerics.rows import FUNCTIONS, IDENTITY, JOIN, MOST_LANES, finished, gathered, lanes_of, whole
from ..numerics.steps import Number, flushed, is_nan
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written

MOST_LENGTH = 65_000 * MOST_LANES  # a driver may let a loop have so many rounds


def rows_of(b: Builder, name: str, x: Value, axis: int, count: int, attributes: Mapping[str, float]) -> Value:
    """Adds a function of rows to a plan: of *count* axes of a float32 array from *axis* on, taken as one. The
    result is like x, or of a reduction without these axes."""
    shape = x.spec.shape
    length, inner = math.prod(shape[axis : axis + count]), math.prod(shape[axis + count :])
    each = FUNCTIONS[name].each is not None
    y = b.new(Spec(shape if each else (*shape[:axis], *shape[axis + count :]), "float32"))
    if y.spec.size:
        lanes, epsilon = lanes_of(length), float(np.float32(attributes.get("epsilon", 0.0)))
        program = b.device.program(written(name, lanes, epsilon, b.device.soft_float))
        rows = x.spec.size // length
        push: dict[str, int | float] = {
            "rows": rows,
            "length": length,
            "inner": inner,
            "count": float(length),
        }
        b.dispatch(program, [x, y], push, macs=x.spec.size * len(FUNCTIONS[name].passes) * 8)
    return y


@functools.lru_cache(1024)
def written(name: str, lanes: int, epsilon: float, soft: bool) -> Written:
    """The shader of a function of rows that so many invocations share."""
    words = (
        ("first_group", "uint"),
        ("rows", "uint"),
        ("length", "uint"),
        ("inner", "uint"),
        ("count", "float"),
    )
    push = tuple(PushConstant(word, kind, 4 * i) for i, (word, kind) in enumerate(words))
    bindings = Binding(0, "x", "read", "uint"), Binding(1, "y", "write", "uint")
    loops = len(FUNCTIONS[name].passes) + (FUNCTIONS[name].each is not None)
    return Written(
        "rows__group", f"rows__group:{name.lower()}.{lanes}", "a function of rows", bindings, push,
        MOST_LANES,
        Expression(f"(rows * {lanes} + {MOST_LANES - 1}) // {MOST_LANES}"), 4 * MOST_LANES,
        lambda: _module(name, lanes, epsilon, soft), f"{loops} * ((length + {lanes - 1}) // {lanes} + 1)",
    )  # fmt: skip


def _module(name: str, lanes: int, epsilon: float, soft: bool) -> bytes:
    function = FUNCTIONS[name]
    k = KernelWriter((False, True), 5, MOST_LANES, soft, MOST_LANES)
    lane, per = k.lane(), MOST_LANES // lanes
    own, row = lane & (lanes - 1), k.workgroup() * per + (lane >> (lanes.bit_length() - 1))
    rows, length, inner = k.word(1), k.word(2), k.word(3)
    last = rows - 1
    at = (row < rows).where(row, last)  # the workgroup's rows beyond the last do as it does, and keep nothing
    above = at.divided(inner)
    first = above * (inner * length) + (at - above * inner)
    step = k.constant(lanes, "u")
    a = {"epsilon": epsilon, "count": k.word(4).f}
    got: list[Number] = []

    def number(place: Number) -> Number:
        return flushed(k.load(0, first + place * inner).f)

    for op, f, then in function.passes:
        start = k.constant(IDENTITY[op], "f"), k.constant(0.0, "f")
        state = k.loop(
            own, length, step, start,
            lambda c, s, op=op, f=f: gathered(op, s, f(number(c), got)),  # type: ignore[misc]
        )  # fmt: skip
        got.append(then(_joined(k, op, whole(op, state), lane, own, lanes), a))  # type: ignore[arg-type]
    if function.each is None:
        result = finished(got)
        with k.when((row < rows) & own.equals(0)):
            k.store(1, row, is_nan(result).where(np.nan, result))
        return k.finish()
    each = function.each
    end = (row < rows).where(length, 0)

    def turn(c: Number, s: tuple[Number, ...]) -> tuple[Number, ...]:
        result = each(number(c), got)
        k.store(1, first + c * inner, is_nan(result).where(np.nan, result))
        return ()

    k.loop(own, end, step, (), turn)
    return k.finish()


def _joined(k: KernelWriter, op: str, value: Number, lane: Number, own: Number, lanes: int) -> Number:
    """What all invocations of a row have found, for each of them."""
    half = lanes // 2
    while half:
        value = JOIN[op](value, _other(k, value, lane, (lane + half) & (MOST_LANES - 1)))
        half //= 2
    return _other(k, value, lane, lane - own) if lanes > 1 else value


def _other(k: KernelWriter, value: Number, lane: Number, which: Number) -> Number:
    """The value of another invocation."""
    k.keep(lane, value)
    k.barrier()
    found = k.exchange(which)
    k.barrier()
    return found
