"""Functions of rows (`vkq.numerics.rows`) on a device. Several invocations of a workgroup share a row, whose
elements may be strided. A chain of operators and the quantization of the result may follow in the same
dispatch."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..layout.extent import BLOCKED, MATRIX, Spec
from ..numerics.bytes import Quantizer, dequantized, divides, reciprocal
from ..numerics.qparams import QParams
from ..numerics.rows import FUNCTIONS, IDENTITY, JOIN, MOST_LANES, finished, gathered, lane_result, lanes_of
from ..numerics.steps import Number, flushed, is_nan
from ..numerics.stored import signed_zero_point
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain_form import Chain
from .chain_shader import element

# Most elements of a row: drivers may stop a loop of more than 65,000 iterations.
MOST_LENGTH = 65_000 * MOST_LANES
# Most elements that an invocation loads once, before it computes; longer rows are loaded again in each pass.
AHEAD = 8
LAYOUTS = (MATRIX, BLOCKED)  # layouts of 8-bit rows


@dataclasses.dataclass(frozen=True)
class Ends:
    """The conversions before and after a function of rows: the parameters of 8-bit inputs, a chain applied to
    the results, and the parameters of 8-bit results. An operand of the chain is the result (RESULT), one
    element (ONE), one element for each position in a row (PLACES), or an array like x (LIKE)."""

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
    """Add a function of rows to a plan; a row spans *count* axes of an array from *axis* on. The result has
    the shape of x; a reduction removes these axes. 8-bit arrays are in one of LAYOUTS, and their rows are the
    last axis. *operands*: the chain's operands except RESULT."""
    shape = x.spec.shape
    length, inner = math.prod(shape[axis : axis + count]), math.prod(shape[axis + count :])
    each = FUNCTIONS[name].each is not None
    kept = shape if each else (*shape[:axis], *shape[axis + count :])
    y = b.new(Spec(kept, "float32") if ends.y is None else Spec(kept, ends.y.dtype, layout, ends.y))
    if y.spec.size:
        lanes, epsilon = lanes_of(length), float(np.float32(attributes.get("epsilon", 0.0)))
        turns = -(-length // lanes)
        form = RowForm(
            name, lanes, turns * (turns <= AHEAD), epsilon, ends.chain, ends.operands, ends.x is not None,
            ends.y is not None, ends.y is not None and divides(ends.y), x.spec.layout, y.spec.layout,
            b.device.soft_float,
        )  # fmt: skip
        program = b.device.program(written(form))
        rows = x.spec.size // length
        push: dict[str, int | float] = {
            "rows": rows, "length": length, "inner": inner, "count": float(length), **_numbers(ends),
        }  # fmt: skip
        macs = x.spec.size * len(FUNCTIONS[name].passes) * 8
        b.dispatch(program, [x, *operands, y], push, macs=macs)
    return y


WORDS = (
    ("first_group", "uint"), ("rows", "uint"), ("length", "uint"), ("inner", "uint"), ("count", "float"),
    ("x_scale", "float"), ("x_zero", "int"), ("y_scale", "float"), ("y_reciprocal", "float"),
    ("y_zero", "int"),
)  # fmt: skip
PLACE = {word: i for i, (word, _) in enumerate(WORDS)}


def _numbers(ends: Ends) -> dict[str, int | float]:
    """Return the push constants for 8-bit inputs and results; scale 1 and zero point 0 for floats."""
    x, y = ends.x or QParams(1.0), ends.y or QParams(1.0)
    return {
        "x_scale": x.scale, "x_zero": signed_zero_point(x), "y_scale": y.scale, "y_reciprocal": reciprocal(y),
        "y_zero": signed_zero_point(y),
    }  # fmt: skip


@dataclasses.dataclass(frozen=True)
class RowForm:
    """The properties that a kernel depends on; scales and zero points are push constants. *lanes*: how many
    invocations share a row. *ahead*: how many elements each invocation loads only once (0: it loads them in
    each pass). *x_bytes*, *y_bytes*: whether x and y have 8 bits. *divides*: see `Quantizer`. *soft*: the
    device needs float arithmetic in software."""

    name: str
    lanes: int
    ahead: int
    epsilon: float
    chain: Chain | None
    operands: tuple[int, ...]
    x_bytes: bool
    y_bytes: bool
    divides: bool
    x: str
    y: str
    soft: bool


@functools.lru_cache(1024)
def written(form: RowForm) -> Written:
    """Return the shader of a function of rows."""
    push = tuple(PushConstant(word, kind, 4 * i) for i, (word, kind) in enumerate(WORDS))
    name, lanes = form.name, form.lanes
    more = sum(operand != RESULT for operand in form.operands)
    bindings = tuple(Binding(i, "x" if i == 0 else f"x{i}", "read", "uint") for i in range(1 + more))
    bindings += (Binding(1 + more, "y", "write", "uint"),)
    each = FUNCTIONS[name].each is not None
    loops = int(each and form.y_bytes) if form.ahead else len(FUNCTIONS[name].passes) + each
    ops = [name.lower(), *(link.op.lower() for link in (form.chain.links if form.chain else ())[:6])]
    ops = ["q8"] * form.x_bytes + ops + ["q8"] * form.y_bytes
    size = f"{lanes}x{form.ahead}" if form.ahead else f"{lanes}"
    return Written(
        "rows__group", f"rows__group:{'.'.join(ops)}.{size}", "a function of rows", bindings, push,
        MOST_LANES,
        Expression(f"(rows * {lanes} + {MOST_LANES - 1}) // {MOST_LANES}"), 4 * MOST_LANES,
        lambda: _module(form), f"{loops} * ((length + {lanes - 1}) // {lanes} + 1)" if loops else "0",
    )  # fmt: skip


def _module(form: RowForm) -> bytes:
    more = sum(operand != RESULT for operand in form.operands)
    k = KernelWriter((*(False,) * (1 + more), True), len(WORDS), MOST_LANES, form.soft, MOST_LANES)
    r = _Row(k, form)
    a = {"epsilon": form.epsilon, "count": r.word("count").f}
    function = FUNCTIONS[form.name]
    got: list[Number] = []
    numbers = r.ahead()
    for op, f, then in function.passes:
        state: Any = (k.constant(IDENTITY[op], "f"), k.constant(0.0, "f"))
        if numbers:
            for _, number, there in numbers:
                after = gathered(op, state, f(number, got))
                state = there.where(after[0], state[0]), there.where(after[1], state[1])
        else:
            state = k.loop(
                r.own, r.length, r.step, state,
                lambda c, s, op=op, f=f: gathered(op, s, f(r.number(c), got)),  # type: ignore[misc]
            )  # fmt: skip
        change = functools.partial(then, a=a)  # type: ignore[call-arg]
        got.append(_joined(r, op, lane_result(op, state), change))
    each = function.each
    if each is None:
        result = finished(got)
        with k.when(r.inside & r.own.equals(0)):
            k.store(1, r.row, is_nan(result).where(np.nan, result))
    elif numbers and not form.y_bytes:
        for place, number, there in numbers:
            found = each(number, got)
            with k.when(r.inside & there):
                r.keep_number(1 + more, place, lambda _, found=found: found)  # type: ignore[misc]
    else:
        turns = r.length >> 2 if form.y_bytes else r.length
        write = r.keep_word if form.y_bytes else r.keep_number
        k.loop(
            r.own, r.inside.where(turns, 0), r.step, (),
            lambda c, s: write(1 + more, c, lambda c: each(r.number(c), got)),
        )  # fmt: skip
    return k.finish()


class _Row:
    """The writer of code that loads and stores the row of an invocation, ``at``."""

    def __init__(self, k: KernelWriter, form: RowForm):
        self.k, self.form = k, form
        self.lane, per = k.lane(), MOST_LANES // form.lanes
        self.own = self.lane & (form.lanes - 1)
        self.row = k.workgroup() * per + (self.lane >> (form.lanes.bit_length() - 1))
        self.rows, self.length, self.inner = (self.word(name) for name in ("rows", "length", "inner"))
        if form.y_bytes:
            scale, inverse, zero = (self.word(f"y_{name}") for name in ("scale", "reciprocal", "zero"))
            self.quantized = Quantizer(scale.f, inverse.f, zero.i, form.divides)
        self.step, self.inside, last = k.constant(form.lanes, "u"), self.row < self.rows, self.rows - 1
        # Invocations beyond the last row compute the last row and store nothing.
        self.at = self.inside.where(self.row, last)
        above = self.at.divided(self.inner)
        self.first = above * (self.inner * self.length) + (self.at - above * self.inner)

    def word(self, name: str) -> Number:
        return self.k.word(PLACE[name])

    def ahead(self) -> list[tuple[Number, Number, Number]]:
        """Return the elements that the invocation loads once: for each its position, its value, and whether
        it is inside the row. A device loads all of them in the time of one load."""
        places = [self.own + i * self.form.lanes for i in range(self.form.ahead)]
        there = [c < self.length for c in places]
        return [(c, self.number(t.where(c, self.own)), t) for c, t in zip(places, there, strict=True)]

    def number(self, c: Number) -> Number:
        if not self.form.x_bytes:
            return flushed(self.k.load(0, self.first + c * self.inner).f)
        word = self.k.load(0, word_of(self.form.x, self.at, c, self.rows, self.length))
        return dequantized(byte_of(word, c), self.word("x_scale").f, self.word("x_zero").i)

    def keep_number(self, y: int, c: Number, result: Callable[[Number], Number]) -> tuple[()]:
        found = self._through(result(c), c)
        self.k.store(y, self.first + c * self.inner, is_nan(found).where(np.nan, found))
        return ()

    def keep_word(self, y: int, c: Number, result: Callable[[Number], Number]) -> tuple[()]:
        """Store four neighbouring results, quantized, as one word."""
        word = c.of(0, "u")
        for j in range(4):
            place = (c << 2) + j
            byte = self.quantized(self._through(result(place), place))
            word = word | ((byte.u & 0xFF) << (8 * j))
        self.k.store(y, word_of(self.form.y, self.at, c << 2, self.rows, self.length), word)
        return ()

    def _through(self, result: Number, c: Number) -> Number:
        """Return the chain applied to a result, or the result itself if there is no chain."""
        if self.form.chain is None:
            return result
        places = {ONE: c.of(0), PLACES: c, LIKE: self.first + c * self.inner}
        buffers = iter(range(1, 1 + len(self.form.operands)))
        inputs = [
            result if way == RESULT else element(self.k, next(buffers), dtype, places[way])
            for way, dtype in zip(self.form.operands, self.form.chain.inputs, strict=True)
        ]
        return self.form.chain.values(inputs)[0]


def word_of(layout: str, row: Number, c: Number, rows: Number, length: Number) -> Number:
    """Return the index of the word that holds an element of a row; the length of MATRIX rows is a multiple of
    four."""
    if layout == BLOCKED:
        return (((c >> 4) * rows + row) << 2) + ((c >> 2) & 3)
    return (((row >> 2) * (length >> 2) + (c >> 2)) << 2) + (row & 3)


def byte_of(word: Number, c: Number) -> Number:
    """Return the byte of an element from its word, sign-extended."""
    return (word.i << (c.of(24) - ((c & 3) << 3)).i) >> 24


def _joined(r: _Row, op: str, value: Number, then: Callable[[Number], Number]) -> Number:
    """Reduce the values of all invocations of a row, apply *then* once, and return the result to every
    invocation."""
    k, half = r.k, r.form.lanes // 2
    if not half:
        return then(value)
    k.keep(r.lane, value)
    while half:
        k.barrier()
        with k.when(r.own < half):
            both = JOIN[op](k.exchange(r.lane), k.exchange(r.lane + half))
            k.keep(r.lane, both if half > 1 else then(both))
        half //= 2
    k.barrier()
    found = k.exchange(r.lane - r.own)
    k.barrier()  # every invocation must read the result before it is overwritten
    return found
