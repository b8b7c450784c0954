"""Functions of rows (`vkq.numerics.rows`) on a device: some invocations of a workgroup share a row, whose
numbers may lie apart. A chain and the quantization of the result may follow in the same dispatch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..layout.extent import BLOCKED, MATRIX, Spec
from ..numerics.bytes import dequantized, quantized
from ..numerics.qparams import QParams
from ..numerics.rows import FUNCTIONS, IDENTITY, JOIN, MOST_LANES, finished, gathered, lanes_of, whole
from ..numerics.steps import Number, flushed, is_nan
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain import Chain, element

MOST_LENGTH = 65_000 * MOST_LANES  # a driver may let a loop have so many rounds
LAYOUTS = (MATRIX, BLOCKED)  # of 8-bit rows


@dataclasses.dataclass(frozen=True)
class Ends:
    """What a function of rows does at its ends: the parameters of 8-bit numbers that it reads, a chain that
    its results go through, and the parameters of 8-bit results. An operand of the chain is the result
    (RESULT), one number, a number for each place in a row, or an array like x."""

    x: QParams | None = None
    chain: Chain | None = None
    operands: tuple[int, ...] = ()
    y: QParams | None = None


RESULT, ONE, PLACES, LIKE = range(4)
PLAIN = Ends()


def rows_of(
    b: Builder, name: str, x: Value, axis: int, count: int, attributes: Mapping[str, float],
    ends: Ends = PLAIN, operands: Sequence[Value] = (), layout: str = MATRIX,
) -> Value:  # fmt: skip
    """Adds a function of rows to a plan: of *count* axes of an array from *axis* on, taken as one. The result
    is like x, or of a reduction without these axes. 8-bit numbers lie in one of LAYOUTS, and rows of them are
    the last axis; *operands* are those of the chain without its RESULT."""
    shape = x.spec.shape
    length, inner = math.prod(shape[axis : axis + count]), math.prod(shape[axis + count :])
    each = FUNCTIONS[name].each is not None
    kept = shape if each else (*shape[:axis], *shape[axis + count :])
    y = b.new(Spec(kept, "float32") if ends.y is None else Spec(kept, ends.y.dtype, layout, ends.y))
    if y.spec.size:
        lanes, epsilon = lanes_of(length), float(np.float32(attributes.get("epsilon", 0.0)))
        form = Form(name, lanes, epsilon, ends, x.spec.layout, y.spec.layout, b.device.soft_float)
        program = b.device.program(written(form))
        rows = x.spec.size // length
        push: dict[str, int | float] = {
            "rows": rows,
            "length": length,
            "inner": inner,
            "count": float(length),
        }
        macs = x.spec.size * len(FUNCTIONS[name].passes) * 8
        b.dispatch(program, [x, *operands, y], push, macs=macs)
    return y


@dataclasses.dataclass(frozen=True)
class Form:
    """What a kernel depends on: *lanes* invocations share a row; *soft*: sums are whole numbers'."""

    name: str
    lanes: int
    epsilon: float
    ends: Ends
    x: str
    y: str
    soft: bool


@functools.lru_cache(1024)
def written(form: Form) -> Written:
    """The shader of a function of rows."""
    words = (
        ("first_group", "uint"),
        ("rows", "uint"),
        ("length", "uint"),
        ("inner", "uint"),
        ("count", "float"),
    )
    push = tuple(PushConstant(word, kind, 4 * i) for i, (word, kind) in enumerate(words))
    name, lanes, ends = form.name, form.lanes, form.ends
    more = sum(operand != RESULT for operand in ends.operands)
    bindings = tuple(Binding(i, "x" if i == 0 else f"x{i}", "read", "uint") for i in range(1 + more))
    bindings += (Binding(1 + more, "y", "write", "uint"),)
    loops = len(FUNCTIONS[name].passes) + (FUNCTIONS[name].each is not None)
    ops = [name.lower(), *(link.op.lower() for link in (ends.chain.links if ends.chain else ())[:6])]
    ops = ["q8"] * (ends.x is not None) + ops + ["q8"] * (ends.y is not None)
    return Written(
        "rows__group", f"rows__group:{'.'.join(ops)}.{lanes}", "a function of rows", bindings, push,
        MOST_LANES,
        Expression(f"(rows * {lanes} + {MOST_LANES - 1}) // {MOST_LANES}"), 4 * MOST_LANES,
        lambda: _module(form), f"{loops} * ((length + {lanes - 1}) // {lanes} + 1)",
    )  # fmt: skip


def _module(form: Form) -> bytes:
    function, lanes, ends = FUNCTIONS[form.name], form.lanes, form.ends
    more = sum(operand != RESULT for operand in ends.operands)
    k = KernelWriter((*(False,) * (1 + more), True), 5, MOST_LANES, form.soft, MOST_LANES)
    lane, per = k.lane(), MOST_LANES // lanes
    own, row = lane & (lanes - 1), k.workgroup() * per + (lane >> (lanes.bit_length() - 1))
    rows, length, inner = k.word(1), k.word(2), k.word(3)
    last = rows - 1
    at = (row < rows).where(row, last)  # the workgroup's rows beyond the last do as it does, and keep nothing
    above = at.divided(inner)
    first = above * (inner * length) + (at - above * inner)
    step = k.constant(lanes, "u")
    a = {"epsilon": form.epsilon, "count": k.word(4).f}
    got: list[Number] = []

    def number(c: Number) -> Number:
        if ends.x is None:
            return flushed(k.load(0, first + c * inner).f)
        return dequantized(byte_of(k.load(0, word_of(form.x, at, c, rows, length)), c), ends.x)

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
    each, y = function.each, 1 + more

    def result_at(c: Number) -> Number:
        place = first + c * inner
        return _through(k, ends, each(number(c), got), {ONE: c.of(0), PLACES: c, LIKE: place})

    def turn(c: Number, s: tuple[Number, ...]) -> tuple[Number, ...]:
        if ends.y is None:
            result = result_at(c)
            k.store(y, first + c * inner, is_nan(result).where(np.nan, result))
            return ()
        word = c.of(0, "u")
        for j in range(4):
            word = word | ((quantized(result_at((c << 2) + j), ends.y).u & 0xFF) << (8 * j))
        k.store(y, word_of(form.y, at, c << 2, rows, length), word)
        return ()

    turns = length if ends.y is None else length >> 2
    k.loop(own, (row < rows).where(turns, 0), step, (), turn)
    return k.finish()


def _through(k: KernelWriter, ends: Ends, result: Number, places: Mapping[int, Number]) -> Number:
    """A result, or what the chain makes of it."""
    if ends.chain is None:
        return result
    buffers = iter(range(1, 1 + len(ends.operands)))
    inputs = [
        result if way == RESULT else element(k, next(buffers), dtype, places[way])
        for way, dtype in zip(ends.operands, ends.chain.inputs, strict=True)
    ]
    return ends.chain.values(inputs)[0]


def word_of(layout: str, row: Number, c: Number, rows: Number, length: Number) -> Number:
    """The word in which an element of a row lies; rows of MATRIX have a multiple of four."""
    if layout == BLOCKED:
        return (((c >> 4) * rows + row) << 2) + ((c >> 2) & 3)
    return (((row >> 2) * (length >> 2) + (c >> 2)) << 2) + (row & 3)


def byte_of(word: Number, c: Number) -> Number:
    """The byte of an element in its word, with its sign."""
    return (word.i << (c.of(24) - ((c & 3) << 3)).i) >> 24


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
