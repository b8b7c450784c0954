"""The bytes of a model's file, which native/file.cpp reads. All numbers are little-endian.

| offset | content |
| --- | --- |
| 0 | ``VKQFILE5`` |
| 8 | size of the head in bytes |
| 16 | size of the file in bytes, a multiple of 8 |
| 24 | checksum of all bytes from 40 on |
| 32 | 0 |
| 40 | the head: producer, blobs (`BLOB`), and for each set of shapes inputs, outputs, plans (`Head`) |
| multiples of 64 | the blobs: shaders, weights, the known answer |

A text is stored as its length in bytes (uint32) and its UTF-8, a list as its length (uint32) and its items. A
constant is a blob, or the words of a blob read in another order (`vkq.player.order`). Shaders are compressed
(`vkq.player.packed`), and so are other parts that shrink to less than half. Uncompressed parts, such as most
weights, are read in place.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from . import order
from .packed import AS_IT_IS, in_columns, packed

MAGIC, HEAD_AT, BLOB_ALIGNMENT = b"VKQFILE5", 40, 64
BLOB = "QQQI"  # a blob in the head: offset, stored bytes, unpacked bytes, compression
TYPES = {"int8": 1, "uint8": 2, "int32": 3, "float32": 4, "float16": 5}
GOLDEN, MIXER = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
INT32 = np.iinfo(np.int32)


@dataclasses.dataclass(frozen=True)
class Array:
    """A row-major input or output. bounds: the smallest and the largest allowed value of an int32 input.
    answer: the bytes of an input in the known answer. It is empty for an output, whose bytes are in
    `FilePlan.answers`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    answer: bytes = b""
    bounds: tuple[int, int] = (int(INT32.min), int(INT32.max))


@dataclasses.dataclass(frozen=True)
class FileProgram:
    """A compute shader: SPIR-V, specialization constants (id, bits), and a bit mask of the bindings that are
    texel buffers."""

    name: str
    spirv: bytes
    bindings: int
    texels: int
    push_bytes: int
    subgroup_size: int
    constants: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class FileStep:
    """A dispatch of a program, or (program None) a fill of the only slot with *value*.

    - program: the program's index in the plan
    - push: the bytes of the push constants
    - first_group_at: the offset in *push* of the first workgroup's index; -1 if the program does not read it
    - grids: (first workgroup, x, y) of each dispatch; together they run all workgroups
    - busy_ns: the estimated time on a device that also drives a screen. libvkq begins a new submission when
      the sum of these times gets too large."""

    program: int | None
    slots: tuple[tuple[int, int], ...]  # (slot, access) of each binding; access: 1 reads, 2 writes
    push: bytes
    first_group_at: int
    grids: tuple[tuple[int, int, int], ...]
    value: int
    busy_ns: int = 0


@dataclasses.dataclass(frozen=True)
class FilePlan:
    """A plan for one kind of device. A slot is the index of a buffer range, which holds an input, a constant,
    a result or scratch memory.

    - kind: the kind's name, such as "this" or "portable"
    - about: a line of text for people
    - needs: what a device must have: (a feature, 1), (a limit, its minimum), or ("=" and a property, its
      exact value)
    - slots: the number of slots; inputs come first
    - alignment: the alignment of arrays in a buffer, in bytes
    - results: for each output its slot, or its bytes if they are the same for all inputs
    - answers: the bytes of each output in the known answer. Each plan has its own, because float sums depend
      on the kernels.
    - scratch: (slot, offset, bytes)
    - constants: (slot, data)"""

    kind: str
    about: str
    needs: tuple[tuple[str, int], ...]
    programs: tuple[FileProgram, ...]
    slots: int
    alignment: int
    results: tuple[int | bytes, ...]
    answers: tuple[bytes, ...]
    scratch_bytes: int
    scratch: tuple[tuple[int, int, int], ...]
    constants: tuple[tuple[int, bytes], ...]
    steps: tuple[FileStep, ...]


@dataclasses.dataclass(frozen=True)
class Shaped:
    """A model for one set of input shapes. Names, types and ranks are the same for all sets of shapes in a
    file."""

    inputs: Sequence[Array]
    outputs: Sequence[Array]
    plans: Sequence[FilePlan]


Packer = Callable[[bytes], tuple[int, bytes]]


def as_it_is(data: bytes) -> tuple[int, bytes]:
    """Store data uncompressed, so that libvkq can read it in place."""
    return AS_IT_IS, data


class Head:
    """Writes the head. Blobs with equal bytes are stored once."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.blobs: dict[tuple[Packer, bytes], int] = {}
        self._weights: dict[tuple[int, int], list[bytes]] = {}  # unpacked blobs of constants, by `order.key`

    def pack(self, layout: str, *numbers: int) -> None:
        self.parts.append(struct.pack("<" + layout, *numbers))

    def text(self, value: str | bytes) -> None:
        data = value.encode() if isinstance(value, str) else value
        self.pack("I", len(data))
        self.parts.append(data)

    def blob(self, data: bytes, packer: Packer = packed) -> None:
        self.pack("I", self.blobs.setdefault((packer, data), len(self.blobs)))

    def constant(self, data: bytes) -> None:
        alike = self._weights.setdefault(order.key(data), [])
        for other in alike:
            if how := order.found(data, other):
                self.blob(other)
                self.pack(f"{1 + 2 * len(how[0])}I", len(how[0]), *how[0], *how[1])
                return
        alike.append(data)
        self.blob(data)
        self.pack("I", 0)

    def arrays(self, arrays: Sequence[Array], inputs: bool) -> None:
        self.pack("I", len(arrays))
        for one in arrays:
            self.text(one.name)
            self.pack(f"II{len(one.shape)}Qqq", TYPES[one.dtype], len(one.shape), *one.shape, *one.bounds)
            if inputs:
                self.blob(one.answer)

    def shaped(self, one: Shaped) -> None:
        self.arrays(one.inputs, True)
        self.arrays(one.outputs, False)
        self.pack("I", len(one.plans))
        for plan in one.plans:
            self.plan(plan)

    def plan(self, plan: FilePlan) -> None:
        self.text(plan.kind)
        self.text(plan.about)
        self.pack("I", len(plan.needs))
        for name, value in plan.needs:
            self.text(name)
            self.pack("Q", value)
        self.pack("I", len(plan.programs))
        for one in plan.programs:
            self.text(one.name)
            self.blob(one.spirv, in_columns)
            flat = [n for pair in one.constants for n in pair]
            numbers = one.bindings, one.texels, one.push_bytes, one.subgroup_size, len(one.constants)
            self.pack(f"5I{len(flat)}I", *numbers, *flat)
        self.pack("IQ", plan.slots, plan.alignment)
        for result in plan.results:
            if isinstance(result, bytes):
                self.pack("I", 0)
                self.blob(result, as_it_is)
            else:
                self.pack("I", result + 1)
        for answer in plan.answers:
            self.blob(answer)
        self.pack("QI", plan.scratch_bytes, len(plan.scratch))
        for slot, offset, size in plan.scratch:
            self.pack("IQQ", slot, offset, size)
        self.pack("I", len(plan.constants))
        for slot, data in plan.constants:
            self.pack("I", slot)
            self.constant(data)
        self.pack("I", len(plan.steps))
        for step in plan.steps:
            self.step(step)

    def step(self, step: FileStep) -> None:
        self.pack("II", 0 if step.program is None else step.program + 1, len(step.slots))
        for slot, access in step.slots:
            self.pack("IB", slot, access)
        self.text(step.push)
        self.pack("iI", step.first_group_at, len(step.grids))
        for grid in step.grids:
            self.pack("3I", *grid)
        self.pack("IQ", step.value, step.busy_ns)


def checksum(data: npt.NDArray[np.uint8]) -> int:
    """Return the sum modulo 2^64 of all 64-bit words. Each word is mixed with its index first, so that
    changes of several words do not cancel.

    Mixing starts from word[i] + (i + 1) * GOLDEN and multiplies by MIXER twice. Before each multiplication,
    and at the end, the lower half is xored with the upper half."""
    words = data.view("<u8")
    mixed = words + np.arange(1, words.size + 1, dtype=np.uint64) * GOLDEN
    half = np.uint64(32)
    for _ in range(2):
        mixed = (mixed ^ (mixed >> half)) * MIXER
    return int(np.sum(mixed ^ (mixed >> half), dtype=np.uint64))


def written(producer: str, sets: Sequence[Shaped]) -> bytes:
    """Return the bytes of the file. Equal arguments give equal bytes."""
    body = Head()
    body.pack("I", len(sets))
    for one in sets:
        body.shaped(one)
    front = Head()
    front.text(producer)
    front.pack("I", len(body.blobs))
    rest = b"".join(body.parts)
    size = sum(map(len, front.parts)) + struct.calcsize("<" + BLOB) * len(body.blobs) + len(rest)
    at, places = _aligned(HEAD_AT + size), []
    for packer, data in body.blobs:
        packing, stored = packer(data)
        places.append((at, stored))
        front.pack(BLOB, at, len(stored), len(data), packing)
        at = _aligned(at + len(stored))
    out = np.zeros(at, np.uint8)
    for place, stored in places:
        out[place : place + len(stored)] = np.frombuffer(stored, np.uint8)
    head = np.frombuffer(b"".join(front.parts) + rest, np.uint8)
    out[HEAD_AT : HEAD_AT + head.size] = head
    out[:HEAD_AT] = np.frombuffer(
        MAGIC + struct.pack("<QQQQ", size, at, checksum(out[HEAD_AT:]), 0), np.uint8
    )
    return out.tobytes()


def _aligned(n: int) -> int:
    return -(-n // BLOB_ALIGNMENT) * BLOB_ALIGNMENT
