"""A SPIR-V module as a list of instructions: parsed with every length checked, and written again."""

from __future__ import annotations

import struct
from array import array
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import NamedTuple

from vkq.errors import CompileError
from vkq.shader.operations import OPERATIONS
from vkq.shader.spec import Value

MAGIC = 0x07230203

# Opcodes (section 3.49 of the SPIR-V specification) that vkq reads or writes; then decorations and other
# enumerants.
OP_NAME, OP_MEMBER_NAME, OP_EXTENSION, OP_ENTRY_POINT, OP_EXECUTION_MODE, OP_CAPABILITY = 5, 6, 10, 15, 16, 17
OP_BOOL, OP_INT, OP_FLOAT, OP_VECTOR, OP_ARRAY, OP_RUNTIME_ARRAY, OP_STRUCT, OP_POINTER = (
    20,
    21,
    22,
    23,
    28,
    29,
    30,
    32,
)
OP_IMAGE, OP_SAMPLED_IMAGE, DIM_BUFFER, SAMPLED = 25, 27, 5, 1
OP_TRUE, OP_FALSE, OP_CONSTANT, OP_COMPOSITE = 41, 42, 43, 44
OP_SPEC_TRUE, OP_SPEC_FALSE, OP_SPEC_CONSTANT, OP_SPEC_COMPOSITE = 48, 49, 50, 51
OP_SPEC_OP, OP_FUNCTION, OP_VARIABLE, OP_DECORATE, OP_MEMBER_DECORATE = 52, 54, 59, 71, 72
OP_IMPORT, OP_MEMORY_MODEL, OP_EXECUTION_MODE_ID = 11, 14, 331
OP_SELECT, OP_LOOP_MERGE, CONTROL_UNROLL = 169, 246, 1
OP_MATRIX, OP_MATRIX_LOAD, OP_MATRIX_STORE = 4456, 4457, 4458
SPEC_ID, BUILT_IN, NON_WRITABLE, NON_READABLE, BINDING, DESCRIPTOR_SET, OFFSET = 1, 11, 24, 25, 33, 34, 35
UNIFORM, WORKGROUP, PUSH_CONSTANT, STORAGE_BUFFER = 2, 4, 9, 12
CAPABILITY_DENORM_PRESERVE, CAPABILITY_ROUNDING_MODE_RTE = 4464, 4467
MODE_LOCAL_SIZE, MODE_DENORM_PRESERVE, MODE_ROUNDING_MODE_RTE = 17, 4459, 4462
BUILT_IN_WORKGROUP_SIZE = 25


class Instruction(NamedTuple):
    """An opcode and its operand words."""

    op: int
    words: tuple[int, ...]

    def text(self, start: int) -> str:
        """Return the literal string that begins at operand *start*."""
        return (
            struct.pack(f"<{len(self.words) - start}I", *self.words[start:])
            .split(b"\0")[0]
            .decode(errors="replace")
        )


def parse(
    spirv: bytes, wanted: Callable[[int], bool] = lambda op: True
) -> tuple[tuple[int, ...], list[Instruction], array[int]]:
    """Return the five words of the header, the instructions up to the first with an opcode that is not
    *wanted*, and the words from there on, in this machine's byte order.

    Raises:
        CompileError: the bytes are not a SPIR-V module.
    """
    words = words_of(spirv)
    instructions, at = [], 5
    while at < len(words) and wanted(words[at] & 0xFFFF):
        count = _length(words, at)
        instructions.append(Instruction(words[at] & 0xFFFF, tuple(words[at + 1 : at + count])))
        at += count
    return tuple(words[:5]), instructions, words[at:]


def words_of(spirv: bytes) -> array[int]:
    """Return the words of a module with its header, in this machine's byte order.

    Raises:
        CompileError: the bytes are not a SPIR-V module.
    """
    if len(spirv) < 20 or len(spirv) % 4:
        raise CompileError(
            f"{len(spirv)} bytes are not SPIR-V; a module has a header of 20 and whole words of 4."
        )
    words = array("I", spirv)
    if words[0] != MAGIC:
        words.byteswap()
    if words[0] != MAGIC:
        raise CompileError(f"the module begins with 0x{words[0]:08x}; SPIR-V begins with 0x{MAGIC:08x}.")
    return words


def declarations(words: array[int], wanted: Container[int]) -> Iterator[tuple[int, int]]:
    """Yield (first word, length in words) of each instruction with a *wanted* opcode above the first
    function."""
    at, end = 5, len(words)
    while at < end:
        op, length = words[at] & 0xFFFF, words[at] >> 16
        if op == OP_FUNCTION:
            return
        if op in wanted or length == 0 or at + length > end:
            yield at, _length(words, at)
        at += length


def _length(words: array[int], at: int) -> int:
    """Return the length of the instruction at this word, with its first word."""
    count = words[at] >> 16
    if count == 0 or at + count > len(words):
        raise CompileError(
            f"the SPIR-V instruction at word {at} has length {count}; {len(words) - at} words are left."
        )
    return count


def assemble(header: tuple[int, ...], instructions: list[Instruction], rest: Sequence[int] = ()) -> bytes:
    """Return the bytes of a module in this machine's byte order. *rest*: the words after the instructions."""
    words = array("I", header)
    for instruction in instructions:
        words.append((len(instruction.words) + 1) << 16 | instruction.op)
        words.extend(instruction.words)
    words.extend(rest)
    return words.tobytes()


_VECTOR_PREFIX = {"float": "", "int": "i", "uint": "u", "bool": "b", "float16_t": "f16", "float64_t": "d"}
_VECTOR_PREFIX |= {f"{name}{bits}_t": f"{name[0]}{bits}" for name in ("int", "uint") for bits in (8, 16, 64)}


class Module:
    """The tables of a module: {id: instruction that defines it}, names and decorations."""

    def __init__(self, spirv: bytes, specialization: Mapping[int, Value]):
        _, self.instructions, functions = parse(spirv, lambda op: op != OP_FUNCTION)
        at = self.loops = 0  # number of loops without an unroll hint
        while at < len(functions):  # check all lengths
            length = _length(functions, at)
            if functions[at] & 0xFFFF == OP_LOOP_MERGE:
                self.loops += not functions[at + length - 1] & CONTROL_UNROLL
            at += length
        self.values = specialization
        self._known: dict[int, int] = {}  # cache of `evaluate`; `_sizes` is the cache of `size`
        self._sizes: dict[int, tuple[int, int]] = {}
        self.defined: dict[int, Instruction] = {}
        self.names: dict[int | tuple[int, int], str] = {}
        self.decorations: dict[int | tuple[int, int], dict[int, int]] = {}
        for instruction in self.instructions:
            op, words = instruction.op, instruction.words
            if op == OP_NAME:
                self.names[words[0]] = instruction.text(1)
            elif op == OP_MEMBER_NAME:
                self.names[words[0], words[1]] = instruction.text(2)
            elif op == OP_DECORATE:
                self.decorations.setdefault(words[0], {})[words[1]] = words[2] if len(words) > 2 else 0
            elif op == OP_MEMBER_DECORATE:
                self.decorations.setdefault((words[0], words[1]), {})[words[2]] = (
                    words[3] if len(words) > 3 else 0
                )
            elif OP_BOOL - 1 <= op <= OP_POINTER:
                self.defined[words[0]] = instruction
            elif OP_TRUE <= op <= OP_SPEC_OP or op == OP_VARIABLE:
                self.defined[words[1]] = instruction

    def of(self, op: int) -> Iterator[Instruction]:
        return (instruction for instruction in self.instructions if instruction.op == op)

    def type_name(self, identifier: int) -> str:
        """Return the GLSL name of a scalar or vector type; ``?`` for any other."""
        instruction = self.defined.get(identifier)
        if instruction is None:
            return "?"
        words = instruction.words
        if instruction.op == OP_BOOL:
            return "bool"
        if instruction.op in (OP_INT, OP_FLOAT):
            name = "float" if instruction.op == OP_FLOAT else ("int" if words[2] else "uint")
            return name if words[1] == 32 else f"{name}{words[1]}_t"
        if instruction.op == OP_VECTOR:
            return f"{_VECTOR_PREFIX.get(self.type_name(words[1]), '?')}vec{words[2]}"
        return "?"

    def texels_name(self, identifier: int) -> str:
        """Return the GLSL name of a uniform texel buffer (``isamplerBuffer``); ``?`` for any other image."""
        image = self.defined[identifier]
        if image.op == OP_SAMPLED_IMAGE:
            image = self.defined[image.words[1]]
        _, of, dim, _, arrayed, multisampled, sampled, *_ = image.words
        if (dim, arrayed, multisampled, sampled) != (DIM_BUFFER, 0, 0, SAMPLED):
            return "?"
        return f"{_VECTOR_PREFIX.get(self.type_name(of), '?')}samplerBuffer"

    def evaluate(self, identifier: int) -> int:
        """Return the value of an integer or bool constant under the specialization."""
        if identifier not in self._known:
            value = self._evaluated(identifier)
            if abs(value) >= 1 << 63:
                raise CompileError(f"the SPIR-V computes a size of {value.bit_length()} bits.")
            self._known[identifier] = value
        return self._known[identifier]

    def _evaluated(self, identifier: int) -> int:
        instruction = self.defined[identifier]
        words, number = instruction.words, self.decorations.get(identifier, {}).get(SPEC_ID)
        if number is not None and number in self.values:
            return int(self.values[number])
        if instruction.op in (OP_TRUE, OP_FALSE, OP_SPEC_TRUE, OP_SPEC_FALSE):
            return int(instruction.op in (OP_TRUE, OP_SPEC_TRUE))
        if instruction.op in (OP_CONSTANT, OP_SPEC_CONSTANT):
            return int(self.literal(instruction))
        if instruction.op == OP_SPEC_OP and words[2] in OPERATIONS:
            return int(OPERATIONS[words[2]](*(self.evaluate(operand) for operand in words[3:])))
        raise CompileError(f"the SPIR-V computes a size with opcode {words[2:3]}, which vkq cannot evaluate.")

    def literal(self, instruction: Instruction) -> Value:
        """Return the value in an OpConstant or OpSpecConstant of 32 bits."""
        name = self.type_name(instruction.words[0])
        code = {"int": "<i", "float": "<f"}.get(name, "<I")
        value: Value = struct.unpack(code, struct.pack("<I", instruction.words[2]))[0]
        return value

    def size(self, identifier: int) -> tuple[int, int]:
        """Return size and alignment of a type in shared memory, in bytes, by the rules of std430."""
        if identifier not in self._sizes:
            self._sizes[identifier] = self._sized(identifier)
        return self._sizes[identifier]

    def _sized(self, identifier: int) -> tuple[int, int]:
        instruction = self.defined.get(identifier)
        words = instruction.words if instruction else ()
        if instruction and instruction.op in (OP_BOOL, OP_INT, OP_FLOAT):
            size = 4 if instruction.op == OP_BOOL else words[1] // 8
            return size, size
        if instruction and instruction.op == OP_VECTOR:
            size, _ = self.size(words[1])
            return size * words[2], size * (4 if words[2] == 3 else words[2])
        if instruction and instruction.op == OP_ARRAY:
            size, align = self.size(words[1])
            return _round_up(size, align) * self.evaluate(words[2]), align
        if instruction and instruction.op == OP_STRUCT:
            return self.packed(words[1:])
        raise CompileError("the SPIR-V keeps a type in shared memory whose size vkq cannot compute.")

    def packed(self, types: tuple[int, ...]) -> tuple[int, int]:
        """Return size and alignment of contiguous members of these types."""
        at, largest = 0, 1
        for size, align in map(self.size, types):
            at, largest = _round_up(at, align) + size, max(largest, align)
        return at, largest

    def variables(self, *storage: int) -> Iterator[tuple[int, int]]:
        """Yield (id, id of the type pointed to) of the module's variables in these storage classes."""
        for instruction in self.of(OP_VARIABLE):
            pointer, identifier, kind = instruction.words[:3]
            if kind in storage:
                yield identifier, self.defined[pointer].words[2]


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
