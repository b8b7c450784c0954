"""Write compute shaders as SPIR-V, operation by operation (the operations of `vkq.numerics.steps`).

A kernel for a chain of operators consists of the operators' distinct operations, each written once, in one
basic block. This needs no compiler, and no wheel contains these modules. Sums and products are decorated
with NoContraction. For devices that do not round to nearest even (*soft*), functions on integers compute
the sums and products (`vkq.numerics.software`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from ..numerics.software import soft_difference, soft_product, soft_sum
from ..numerics.steps import Kind, Number
from .module import INPUT, PUSH, SHARED, STORAGE, ModuleWriter, put

# The SPIR-V opcode of each operation of `vkq.numerics.steps.NUMPY`.
OPCODES = {
    "fadd": 129, "fsub": 131, "fmul": 133, "flt": 184, "itof": 111, "ftoi": 110, "bnot": 168, "band": 167,
    "bor": 166, "bxor": 165, "umod": 137, "udiv": 134, "ult": 176, "ilt": 177, "ushr": 194, "ishr": 195,
    **{f"{kind}{op}": code for kind in "ui" for op, code in {
        "add": 128, "sub": 130, "mul": 132, "and": 199, "or": 197, "xor": 198, "shl": 196, "eq": 170,
    }.items()},
    **{f"{kind}select": 169 for kind in "fuib"},
    **{f"{a}as{b}": 124 for a in "fui" for b in "fui" if a != b},
}  # fmt: skip
SOFT: dict[str, Callable[[Number, Number], Number]] = {
    "fadd": soft_sum, "fsub": soft_difference, "fmul": soft_product,
}  # fmt: skip
NO_CONTRACTION, MUL_EXTENDED, COMPOSE, EXTRACT, DONT_UNROLL = 42, 151, 80, 81, 2
# PackHalf2x16 and UnpackHalf2x16 of GLSL.std.450; for each operation, the component of the unpacked vector
PACK_HALVES, UNPACK_HALVES, HALVES = 58, 62, {"lowhalf": 0, "highhalf": 1}
WORKGROUP_SCOPE, SHARED_MEMORY = 2, 0x108  # semantics of a barrier: acquire and release of shared memory


class Emitted(Number):
    """A value in a kernel that is being written: the id and the type of an instruction's result."""

    __slots__ = ("id", "kernel", "kind")

    def __init__(self, kernel: KernelWriter, identifier: int, kind: Kind):
        self.kernel, self.id, self.kind = kernel, identifier, kind

    @property
    def flushes(self) -> bool:  # type: ignore[override]
        return self.kernel.flushes

    @property
    def converts(self) -> bool:  # type: ignore[override]
        return self.kernel.converts

    def emit(self, op: str, kind: Kind, *operands: Number) -> Number:
        return self.kernel.step(op, kind, *operands)

    def constant(self, value: float | int | bool, kind: Kind) -> Number:
        return self.kernel.constant(value, kind)


class KernelWriter(ModuleWriter):
    """The writer of a kernel's SPIR-V module, operation by operation. *soft*: compute float sums and
    products with integers. *converts*: convert between float16 and float32 with the device's instructions."""

    def __init__(
        self,
        buffers: tuple[bool, ...],
        words: int,
        local: int,
        soft: bool,
        shared: int = 0,
        fours: frozenset[int] = frozenset(),
        converts: bool = False,
    ):
        super().__init__(buffers, words, local, shared, fours)
        self.flushes, self.converts = True, converts
        self._soft, self._current = soft, 0  # _current: the label of the current block
        self._block: dict[tuple[object, ...], Number] = {}  # operations of the current block
        self._label()

    def constant(self, value: float | int | bool, kind: Kind) -> Emitted:
        """Return a constant; a float is rounded to float32."""
        return Emitted(self, self.constant_id(value, kind), kind)

    # ------------------------------------------------------------------------------------------------- steps

    def step(self, op: str, kind: Kind, *operands: Number) -> Number:
        """Add an operation, and return its result of type *kind*. If the current basic block has the same
        operation on these operands, return that result."""
        ids = tuple(self._id(operand) for operand in operands)
        key = (op, *ids)
        found = self._block.get(key)
        if found is None:
            found = self._block[key] = Emitted(self, self._written(op, kind, ids), kind)
        return found

    @staticmethod
    def _id(operand: Number) -> int:
        assert isinstance(operand, Emitted)
        return operand.id

    def _written(self, op: str, kind: Kind, ids: tuple[int, ...]) -> int:
        result_type = self._type(kind)
        if op in SOFT and self._soft:
            return self._op(57, result_type, self._function(op), *ids)
        if op == "uhigh":
            pair = self._op(MUL_EXTENDED, self._new(30, result_type, result_type), *ids)
            return self._op(EXTRACT, result_type, pair, 1)
        if op in HALVES:
            return self._op(EXTRACT, result_type, self._unpacked(*ids), HALVES[op])
        if op == "tohalves":
            pair = self._op(COMPOSE, self._pair(), *ids)
            return self._op(12, result_type, self._extended(), PACK_HALVES, pair)
        result = self._op(OPCODES[op], result_type, *ids)
        if op in SOFT:
            put(self._decorations, 71, result, NO_CONTRACTION)
        return result

    def _unpacked(self, word: int) -> int:
        """Return the id of the two float16 values of a word, as a vector of two float32."""
        key = ("unpacked", word)
        if key not in self._block:
            pair = self._op(12, self._pair(), self._extended(), UNPACK_HALVES, word)
            self._block[key] = Emitted(self, pair, "f")
        return self._id(self._block[key])

    def _op(self, op: int, kind: int, *operands: int) -> int:
        result = self._fresh()
        put(self._body, op, kind, result, *operands)
        return result

    def _function(self, op: str) -> int:
        """Return the id of the module's function that computes a float operation with integers."""
        known = self._known.get(("function", op))
        if known is not None:
            return known
        kind = self._type("f")
        signature, name = self._new(33, kind, kind, kind), self._fresh()
        before, self._body, block, self._block = self._body, [], self._block, {}
        soft, self._soft, current = self._soft, False, self._current
        put(self._body, 54, kind, name, 0, signature)
        a, b = (Emitted(self, self._op(55, kind), "f") for _ in range(2))
        self._label()
        put(self._body, 254, self._id(SOFT[op](a, b)))
        put(self._body, 56)
        self._functions += self._body
        self._body, self._block, self._soft, self._current = before, block, soft, current
        self._known["function", op] = name
        return name

    # ----------------------------------------------------------------------------------- memory and the flow

    def word(self, number: int) -> Number:
        """Return the push constant with this word number, as a uint ("u")."""
        return self._block.get(("word", number)) or self._block.setdefault(
            ("word", number), self._load(self._push, PUSH, "u", self.constant(number, "u"))
        )

    def workgroup(self) -> Number:
        """Return the index of the workgroup (shaders/common/workgroup.glslh)."""
        x, y = self._of("group", 0), self._of("group", 1)
        return self.word(0) + y * self._of("groups", 0) + x

    def lane(self) -> Number:
        """Return the index of the invocation in its workgroup."""
        return self._of("local", 0)

    def _of(self, name: str, index: int) -> Number:
        return self._load(self._ids[name], INPUT, "u", self.constant(index, "u"))

    def load(self, buffer: int, index: Number) -> Number:
        """Load a word of a buffer as a uint ("u")."""
        return self._load(self._buffers[buffer], STORAGE, "u", self.constant(0, "u"), index)

    def store(self, buffer: int, index: Number, word: Number) -> None:
        at = self._at(self._buffers[buffer], STORAGE, "u", self.constant(0, "u"), index)
        put(self._body, 62, at, self._id(word.u))

    def load_four(self, buffer: int, index: Number) -> list[Number]:
        """Load the four words of a vector from a buffer of vectors (*fours*)."""
        four = self._op(61, self._four(), self._four_at(buffer, index))
        return [Emitted(self, self._op(EXTRACT, self._type("u"), four, i), "u") for i in range(4)]

    def store_four(self, buffer: int, index: Number, words: Sequence[Number]) -> None:
        four = self._op(COMPOSE, self._four(), *(self._id(word.u) for word in words))
        put(self._body, 62, self._four_at(buffer, index), four)

    def _four_at(self, buffer: int, index: Number) -> int:
        pointer = self._pointer(self._four(), STORAGE)
        return self._op(65, pointer, self._buffers[buffer], self.constant(0, "u").id, self._id(index))

    def exchange(self, index: Number) -> Number:
        """Load a float ("f") from shared memory; any invocation of the workgroup may have stored it."""
        return self._load(self._shared, SHARED, "f", index)

    def keep(self, index: Number, value: Number) -> None:
        put(self._body, 62, self._at(self._shared, SHARED, "f", index), self._id(value))

    def barrier(self) -> None:
        scope, memory = self.constant(WORKGROUP_SCOPE, "u").id, self.constant(SHARED_MEMORY, "u").id
        put(self._body, 224, scope, scope, memory)

    def _at(self, base: int, storage: int, kind: Kind, *indices: Number) -> int:
        pointer = self._pointer(self._type(kind), storage)
        return self._op(65, pointer, base, *(self._id(index) for index in indices))

    def _load(self, base: int, storage: int, kind: Kind, *indices: Number) -> Number:
        at = self._at(base, storage, kind, *indices)
        return Emitted(self, self._op(61, self._type(kind), at), kind)

    def _label(self, label: int | None = None) -> int:
        found = self._fresh() if label is None else label
        put(self._body, 248, found)
        self._current, self._block = found, {}
        return found

    @contextlib.contextmanager
    def flushing(self, flushes: bool) -> Iterator[None]:
        """Context manager: set whether operations written inside the block replace subnormal float results
        by 0."""
        before, self.flushes = self.flushes, flushes
        yield
        self.flushes = before

    @contextlib.contextmanager
    def when(self, condition: Number) -> Iterator[None]:
        """Context manager: invocations execute the operations written inside the block only if the
        condition holds."""
        inside, after = self._fresh(), self._fresh()
        put(self._body, 247, after, 0)
        put(self._body, 250, self._id(condition), inside, after)
        self._label(inside)
        yield
        put(self._body, 249, after)
        self._label(after)

    def loop(
        self, first: Number, end: Number, step: Number, values: tuple[Number, ...],
        turn: Callable[[Number, tuple[Number, ...]], tuple[Number, ...]], rolled: bool = False,
    ) -> tuple[Number, ...]:  # fmt: skip
        """Write a loop over the indices from *first* up to, not including, *end*, in steps of *step* ("u").
        Return the values of the last iteration. *turn* gets an index and the values of the previous
        iteration (*values* in the first), and returns the new values. *rolled*: ask the driver not to
        unroll the loop."""
        before, head, test, body, again, after = (self._current, *(self._fresh() for _ in range(5)))
        put(self._body, 249, head)
        self._label(head)
        phis = [Emitted(self, self._fresh(), v.kind) for v in (first, *values)]
        at = len(self._body)
        put(self._body, 246, after, again, DONT_UNROLL if rolled else 0)
        put(self._body, 249, test)
        self._label(test)
        put(self._body, 250, self._id(phis[0] < end), body, after)
        self._label(body)
        results = turn(phis[0], tuple(phis[1:]))
        last = self._current
        put(self._body, 249, again)
        self._label(again)
        following = phis[0] + step
        put(self._body, 249, head)
        written: list[int] = []
        for phi, start, result in zip(phis, (first, *values), (following, *results), strict=True):
            edges = (self._id(start), before, self._id(result), again)
            put(written, 245, self._type(phi.kind), phi.id, *edges)
        assert last
        self._body[at:at] = written
        self._label(after)
        return tuple(phis[1:])
