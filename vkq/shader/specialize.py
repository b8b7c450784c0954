"""Replace the specialization constants of a SPIR-V module that are sizes or choices by literals.

Sizes: some drivers (SwiftShader, VideoCore) decide which loops to unroll and which arrays to keep in
registers before they fold specialization constants. Every driver compiles literals well, and variants that
differ in sizes still share a SPIR-V module.

Choices between parts of a shader's code: SwiftShader compiles all branches on specialization constants,
which takes five to ten times as long.

Parameters of a problem (such as a kernel's height) stay specialization constants: SwiftShader unrolls every
loop with a literal trip count, which takes up to a minute.

An array length that depends on an OpSelect always becomes a literal: an Adreno 840's driver gets such
lengths wrong in shared memory (Tencent/ncnn PR 6972, its observation A).
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping

from vkq.errors import CompileError
from vkq.shader.operations import OPERATIONS
from vkq.shader.spec import Constant, Variant
from vkq.shader.spirv import (
    OP_ARRAY,
    OP_BOOL,
    OP_COMPOSITE,
    OP_CONSTANT,
    OP_DECORATE,
    OP_FALSE,
    OP_INT,
    OP_SELECT,
    OP_SPEC_COMPOSITE,
    OP_SPEC_CONSTANT,
    OP_SPEC_FALSE,
    OP_SPEC_OP,
    OP_SPEC_TRUE,
    OP_TRUE,
    SPEC_ID,
    declarations,
    words_of,
)

# trip counts of loops; they depend on the problem, and stay specialization constants
COUNTS = ("TRIPS", "CHUNKS")
# Names of uint constants that become literals, as all bool and int constants do. Other uint constants are
# parameters of a problem.
CHOICES = ("AFTER",)
_READ = {  # {instruction: minimum number of words, with the opcode's}
    OP_DECORATE: 3, OP_INT: 4, OP_BOOL: 2, OP_TRUE: 3, OP_FALSE: 3, OP_CONSTANT: 4, OP_SPEC_TRUE: 3,
    OP_SPEC_FALSE: 3, OP_SPEC_CONSTANT: 4, OP_SPEC_COMPOSITE: 3, OP_SPEC_OP: 4,
}  # fmt: skip
_SPEC_ID = array("I", [SPEC_ID])
_SCALARS = {OP_TRUE, OP_FALSE, OP_CONSTANT, OP_SPEC_TRUE, OP_SPEC_FALSE, OP_SPEC_CONSTANT}


def literals_of(variant: Variant, matrix_literals: bool) -> set[int]:
    """Return the ids of the specialization constants that become literals: sizes and choices.
    *matrix_literals*: in shaders for matrix units, all constants except trip counts; if False, only sizes."""
    matrices = "cooperativeMatrix" in variant.requires

    def literal(name: str, constant: Constant) -> bool:
        if constant.declared is not None:
            return True
        if matrices:
            return matrix_literals and name not in COUNTS
        return constant.type in ("bool", "int") or name in CHOICES

    return {constant.id for name, constant in variant.specialization.items() if literal(name, constant)}


def specialized(spirv: bytes, given: Mapping[int, int], known: Mapping[int, int] | None = None) -> bytes:
    """Return the module with the specialization constants in *given* ({``constant_id``: 32 bits}) replaced
    by constants. Integers and bools that depend only on them become constants, too.

    *known*: the bits of other constants, which stay specialization constants. With these bits, array
    lengths that an OpSelect among specialization constants chooses become constants.

    Raises:
        CompileError: the bytes are not a SPIR-V module.
    """
    words = words_of(spirv)
    folding = _Folding(words, given, known or {})
    parts, copied = [words[:5]], 5
    for at, length in declarations(words, _READ):
        new = folding.instruction(at, length)
        if new is not None:
            parts += [words[copied:at], array("I", new)]
            copied = at + length
    return b"".join(part.tobytes() for part in [*parts, words[copied:]])


class _Folding:
    """Folds the constants of a module, instruction by instruction."""

    def __init__(self, words: array[int], given: Mapping[int, int], known: Mapping[int, int]):
        self._words, self._given, self._known = words, given, known
        self._lengths = {words[at + 3] for at, length in declarations(words, {OP_ARRAY}) if length == 4}
        self._bits: dict[int, int] = {}  # {id: bits of a given or known value}
        self._open: set[int] = set()  # ids of specialization constants that remain
        self._chosen: set[int] = set()  # ids of constants whose value depends on an OpSelect
        self._signed: dict[int, bool] = {}  # {id of a 32-bit integer type: whether it is signed}
        self._bools: set[int] = set()  # ids of bool types
        self._values: dict[int, int] = {}  # values of integers and bools

    def instruction(self, at: int, length: int) -> list[int] | None:
        """Return the replacement of the instruction at this word, or None if it stays."""
        op, operands = self._words[at] & 0xFFFF, self._words[at + 1 : at + length]
        if length < _READ[op] + (op == OP_DECORATE and operands[1:2] == _SPEC_ID):
            raise CompileError(
                f"the SPIR-V instruction at word {at} has length {length}; its opcode needs more words."
            )
        if op == OP_DECORATE and operands[1] == SPEC_ID:
            stays = operands[2] not in self._given
            if stays:
                self._open.add(operands[0])
            bits = (self._known if stays else self._given).get(operands[2])
            if bits is not None:
                self._bits[operands[0]] = bits
            return None if stays else []
        if op == OP_INT and operands[1] == 32:
            self._signed[operands[0]] = operands[2] == 1
        elif op == OP_BOOL:
            self._bools.add(operands[0])
        elif op == OP_SPEC_COMPOSITE:
            return None if self._open.intersection(operands) else [length << 16 | OP_COMPOSITE, *operands]
        elif op in _SCALARS:
            return self._scalar(op, list(operands))
        elif op == OP_SPEC_OP:
            return self._computed(operands)
        return None

    def _scalar(self, op: int, operands: list[int]) -> list[int] | None:
        kind, identifier, *literal = operands
        stays = identifier in self._open
        if stays and identifier not in self._bits:
            return None
        if op in (OP_CONSTANT, OP_SPEC_CONSTANT) and len(literal) != 1:  # a 64-bit constant cannot be a size
            return None if stays else [3 + len(literal) << 16 | OP_CONSTANT, *operands]
        default = literal[0] if literal else int(op in (OP_TRUE, OP_SPEC_TRUE))
        constant = self._constant(kind, identifier, self._bits.get(identifier, default))
        return None if stays else constant

    def _constant(self, kind: int, identifier: int, bits: int) -> list[int]:
        if kind in self._bools:
            self._values[identifier] = int(bits != 0)
            return [3 << 16 | (OP_TRUE if bits else OP_FALSE), kind, identifier]
        if kind in self._signed:
            self._values[identifier] = bits - (bits >> 31 << 32) if self._signed[kind] else bits
        return [4 << 16 | OP_CONSTANT, kind, identifier, bits]

    def _computed(self, operands: array[int]) -> list[int] | None:
        """Return a constant computed from others, or None (the instruction stays) in three cases:

        - the result is no scalar;
        - an operand stays a specialization constant, and no OpSelect chooses the result as an array length;
        - there is no value (a division by zero in a branch that is not taken)."""
        kind, identifier, operation, *arguments = operands
        stays = not self._open.isdisjoint(arguments)
        self._open.add(identifier)
        if stays and (operation == OP_SELECT or not self._chosen.isdisjoint(arguments)):
            self._chosen.add(identifier)
            stays = identifier not in self._lengths
        compute = OPERATIONS.get(operation)
        if compute is None or not (kind in self._signed or kind in self._bools):
            return None
        try:
            value = compute(*(self._values[argument] for argument in arguments))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            return None
        constant = self._constant(kind, identifier, int(value) & 0xFFFFFFFF)
        if stays:
            return None
        self._open.discard(identifier)
        return constant
