"""Write a SPIR-V module: its types, constants, buffers and entry point."""

from __future__ import annotations

import struct

import numpy as np

from ..numerics.steps import Kind
from .spirv import MAGIC

STORAGE, INPUT, PUSH, SHARED = 12, 1, 9, 4  # SPIR-V storage classes
BUILT_INS = {"group": 26, "groups": 24, "local": 27}


def put(to: list[int], op: int, *operands: int) -> None:
    """Append an instruction of SPIR-V to the words *to*."""
    to += [(len(operands) + 1) << 16 | op, *operands]


class ModuleWriter:
    """The writer of a 1-D compute shader.

    - *buffers*: for each buffer of 32-bit words, whether the shader writes it.
    - *words*: the number of push constants, of which first_group is the first.
    - *local*: the number of invocations of a workgroup.
    - *shared*: the number of floats in a workgroup's shared memory.
    - *fours*: the numbers of the buffers of vectors of four words."""

    def __init__(
        self,
        buffers: tuple[bool, ...],
        words: int,
        local: int,
        shared: int = 0,
        fours: frozenset[int] = frozenset(),
    ):
        self._next, self._local = 1, local
        self._decorations: list[int] = []
        self._globals: list[int] = []
        self._functions: list[int] = []
        self._body: list[int] = []
        self._known: dict[tuple[object, ...], int] = {}  # {type or constant: its id}
        self._buffers = [self._buffer(i, written, i in fours) for i, written in enumerate(buffers)]
        members = [self._type("u")] * words
        self._push = self._variable(self._struct(members, range(0, 4 * words, 4)), PUSH)
        self._ids = {name: self._builtin(code) for name, code in BUILT_INS.items()}
        if shared:
            array = self._new(28, self._type("f"), self.constant_id(shared, "u"))
            self._shared = self._variable(array, SHARED)

    def _fresh(self) -> int:
        self._next += 1
        return self._next - 1

    def _new(self, op: int, *operands: int) -> int:
        """Return the id of the type that an instruction defines: its first operand. Add the instruction if
        the module lacks it."""
        key = (op, *operands)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._fresh()
            put(self._globals, op, found, *operands)
        return found

    def _type(self, kind: Kind) -> int:
        return {
            "f": lambda: self._new(22, 32), "u": lambda: self._new(21, 32, 0),
            "i": lambda: self._new(21, 32, 1), "b": lambda: self._new(20),
        }[kind]()  # fmt: skip

    def _pointer(self, kind: int, storage: int) -> int:
        return self._new(32, storage, kind)

    def _variable(self, kind: int, storage: int) -> int:
        found = self._fresh()
        put(self._globals, 59, self._pointer(kind, storage), found, storage)
        return found

    def _struct(self, members: list[int], offsets: range) -> int:
        found = self._fresh()
        put(self._globals, 30, found, *members)
        put(self._decorations, 71, found, 2)
        for i, offset in enumerate(offsets):
            put(self._decorations, 72, found, i, 35, offset)
        return found

    def _extended(self) -> int:
        """Return the id of the instruction set GLSL.std.450."""
        if ("extended",) not in self._known:
            self._known["extended",] = self._fresh()
        return self._known["extended",]

    def _pair(self) -> int:
        """Return the id of the type "vector of two floats"."""
        return self._new(23, self._type("f"), 2)

    def _four(self) -> int:
        """Return the id of the type "vector of four uints"."""
        return self._new(23, self._type("u"), 4)

    def _buffer(self, number: int, written: bool, four: bool) -> int:
        array = self._known.get(("words", four))
        if array is None:
            element = self._four() if four else self._type("u")
            array = self._known["words", four] = self._fresh()
            put(self._globals, 29, array, element)
            put(self._decorations, 71, array, 6, 16 if four else 4)
        kind = self._struct([array], range(1))
        put(self._decorations, 72, kind, 0, 25 if written else 24)
        variable = self._variable(kind, STORAGE)
        put(self._decorations, 71, variable, 34, 0)
        put(self._decorations, 71, variable, 33, number)
        return variable

    def _builtin(self, code: int) -> int:
        vector = self._new(23, self._type("u"), 3)
        variable = self._variable(vector, INPUT)
        put(self._decorations, 71, variable, 11, code)
        return variable

    def constant_id(self, value: float | int | bool, kind: Kind) -> int:
        """Return the id of a constant; a float is rounded to float32."""
        if kind == "b":
            key: tuple[object, ...] = ("constant", bool(value))
            if key not in self._known:
                self._known[key] = self._fresh()
                put(self._globals, 41 if value else 42, self._type("b"), self._known[key])
            return self._known[key]
        bits = int(np.float32(value).view(np.uint32)) if kind == "f" else int(value) & 0xFFFFFFFF
        key = ("constant", kind, bits)
        if key not in self._known:
            self._known[key] = self._fresh()
            put(self._globals, 43, self._type(kind), self._known[key], bits)
        return self._known[key]

    def finish(self) -> bytes:
        """Return the bytes of the whole module."""
        void = self._new(19)
        signature, main = self._new(33, void), self._fresh()
        head: list[int] = []
        put(head, 17, 1)  # capability Shader
        if ("extended",) in self._known:
            put(head, 11, self._extended(), *struct.unpack("<4I", b"GLSL.std.450\0\0\0\0"))
        put(head, 14, 0, 1)  # addressing model Logical, memory model GLSL450
        interface = self._ids.values()
        put(head, 15, 5, main, *struct.unpack("<2I", b"main\0\0\0\0"), *interface)
        put(head, 16, main, 17, self._local, 1, 1)
        tail: list[int] = []
        put(tail, 54, void, main, 0, signature)
        tail += self._body
        put(tail, 253)
        put(tail, 56)
        words = [MAGIC, 0x10300, 0, self._next, 0, *head, *self._decorations, *self._globals]
        words += self._functions + tail
        return struct.pack(f"<{len(words)}I", *words)
