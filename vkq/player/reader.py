"""Reads a model's file (`vkq.player.file`) in Python, for `vkq inspect`."""

from __future__ import annotations

import dataclasses
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ModelError, VkqError
from ..files import read_start
from . import order
from .file import (
    BLOB,
    BLOB_ALIGNMENT,
    HEAD_AT,
    MAGIC,
    TYPES,
    Array,
    FilePlan,
    FileProgram,
    FileStep,
    Shaped,
    checksum,
)
from .packed import IN_COLUMNS, MOST_TIMES, unpacked

ROLES = SHADERS, WEIGHTS, ANSWER = "shaders", "weights", "known answer"
MOST_AXES = 5  # maximum number of axes of the order in which a constant is read
# Maximum unpacked bytes of all parts together beyond the file's own size, so that a small file cannot fill
# the memory.
MOST_UNPACKED = 1 << 32
NAMES = {number: name for name, number in TYPES.items()}


class _Cursor:
    """Reads integers and texts from the head in order, and checks that each is inside the head."""

    def __init__(self, data: bytes):
        self.data, self.at = data, 0

    def take(self, layout: str) -> tuple[Any, ...]:
        size = struct.calcsize("<" + layout)
        if size > len(self.data) - self.at:
            raise ModelError("the file is damaged: its head ends early")
        self.at += size
        return struct.unpack_from("<" + layout, self.data, self.at - size)

    def count(self, least: int) -> int:
        """Read a count of items that take at least *least* bytes each."""
        n = int(self.take("I")[0])
        if n * least > len(self.data) - self.at:
            raise ModelError("the file is damaged: a count in its head is too large")
        return n

    def raw(self) -> bytes:
        n = self.count(1)
        self.at += n
        return self.data[self.at - n : self.at]

    def text(self) -> str:
        return self.raw().decode(errors="replace")


class _Body(_Cursor):
    """Reads the part of the head after the list of blobs."""

    def __init__(self, data: bytes):
        super().__init__(data)
        self.blobs: list[bytes] = []
        # Index of a blob -> its role: weights, shader or known answer.
        self.roles: dict[int, str] = {}

    def blob(self, role: str) -> bytes:
        i = int(self.take("I")[0])
        if i >= len(self.blobs):
            raise ModelError("the file is damaged: a blob's number is too large")
        self.roles.setdefault(i, role)
        return self.blobs[i]

    def arrays(self, inputs: bool) -> list[Array]:
        found = []
        for _ in range(self.count(32)):
            name = self.text()
            (kind,) = self.take("I")
            shape = self.take(f"{self.count(8)}Q")
            low, high = self.take("qq")
            if kind not in NAMES:
                raise ModelError(f"the file is damaged: {name!r} has type {kind}")
            found.append(Array(name, NAMES[kind], shape, self.blob(ANSWER) if inputs else b"", (low, high)))
        return found

    def shaped(self) -> Shaped:
        inputs, outputs = self.arrays(True), self.arrays(False)
        return Shaped(inputs, outputs, [self.plan(len(outputs)) for _ in range(self.count(40))])

    def plan(self, outputs: int) -> FilePlan:
        kind, about = self.text(), self.text()
        needs = tuple((self.text(), *self.take("Q")) for _ in range(self.count(12)))
        programs = tuple(self.program() for _ in range(self.count(28)))
        slots, alignment = self.take("IQ")
        results: list[int | bytes] = []
        for _ in range(outputs):
            (slot,) = self.take("I")
            results.append(slot - 1 if slot else self.blob(WEIGHTS))
        answers = tuple(self.blob(ANSWER) for _ in range(outputs))
        (scratch_bytes,) = self.take("Q")
        scratch = tuple(self.take("IQQ") for _ in range(self.count(20)))
        constants = tuple((*self.take("I"), self.constant()) for _ in range(self.count(12)))
        steps = tuple(self.step() for _ in range(self.count(32)))
        return FilePlan(
            kind, about, needs, programs, slots, alignment, tuple(results), answers, scratch_bytes,
            scratch, constants, steps,
        )  # fmt: skip

    def constant(self) -> bytes:
        data, rank = self.blob(WEIGHTS), self.count(8)
        if not rank:
            return data
        sizes, strides = self.take(f"{rank}I"), self.take(f"{rank}I")
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        if rank > MOST_AXES or len(data) % 4 or 4 * math.prod(sizes) != len(data) or 4 * last >= len(data):
            raise ModelError("the file is damaged: a constant's order reads beyond its blob")
        return order.reordered(np.frombuffer(data, np.uint32), (sizes, strides)).tobytes()

    def program(self) -> FileProgram:
        name, code = self.text(), self.blob(SHADERS)
        bindings, texels, push_bytes, subgroup_size = self.take("4I")
        constants = tuple(self.take("II") for _ in range(self.count(8)))
        return FileProgram(name, code, bindings, texels, push_bytes, subgroup_size, constants)

    def step(self) -> FileStep:
        (program,) = self.take("I")
        slots = tuple(self.take("IB") for _ in range(self.count(5)))
        push = self.raw()
        (at,) = self.take("i")
        grids = tuple(self.take("3I") for _ in range(self.count(12)))
        return FileStep(program - 1 if program else None, slots, push, at, grids, *self.take("IQ"))


@dataclasses.dataclass(frozen=True)
class Contents:
    """The content of a file."""

    producer: str
    sets: Sequence[Shaped]
    parts: Mapping[str, tuple[int, int, int]]  # for each role: number of blobs, stored bytes, unpacked bytes


def is_played(path: str) -> bool:
    """Return True if a file begins like a file of `vkq export`, of any version."""
    try:
        return read_start(Path(path), len(MAGIC))[:7] == MAGIC[:7]
    except (OSError, VkqError):
        return False


def contents(data: bytes) -> Contents:
    """Read a file. Raises ModelError if it is damaged or not an exported model."""
    if len(data) >= HEAD_AT and data[:7] == MAGIC[:7] and data[:8] != MAGIC:
        raise ModelError("the file was written by another version of vkq: export the model again")
    if len(data) < HEAD_AT or data[:8] != MAGIC:
        raise ModelError(f"this is not a file of vkq export ({MAGIC.decode()})")
    head, size, seal, zero = struct.unpack_from("<QQQQ", data, 8)
    if size != len(data) or size % 8 or head > size - HEAD_AT or zero:
        raise ModelError(f"the file is damaged: it has {len(data)} bytes, but its head says {size}")
    if checksum(np.frombuffer(data, np.uint8)[HEAD_AT:]) != seal:
        raise ModelError("the file is damaged: its checksum differs")
    body = _Body(data[HEAD_AT : HEAD_AT + head])
    producer, sizes, after, total = body.text(), list[tuple[int, int]](), HEAD_AT + head, 0
    for _ in range(body.count(struct.calcsize("<" + BLOB))):
        at, stored, length, packing = body.take(BLOB)
        if at % BLOB_ALIGNMENT or at < after or at + stored > size:
            raise ModelError("the file is damaged: a blob lies outside of it, or on another")
        after = at + stored
        most = stored * MOST_TIMES if packing else stored
        if packing > IN_COLUMNS or length > most or (not packing and length != stored):
            raise ModelError("the file is damaged: a blob cannot have its recorded size")
        sizes.append((stored, length))
        total += length
        if total > size + MOST_UNPACKED:
            raise ModelError(f"the file unpacks to {total} bytes; at most {size + MOST_UNPACKED} are allowed")
        body.blobs.append(unpacked(data[at : at + stored], length, packing))
    sets = [body.shaped() for _ in range(body.count(12))]
    if len({_signature(one) for one in sets}) != 1:
        raise ModelError("the file is damaged: its sets of shapes are of different models, or none")
    of_roles = {role: [sizes[i] for i, its in body.roles.items() if its == role] for role in ROLES}
    parts = {
        role: (len(some), sum(stored for stored, _ in some), sum(length for _, length in some))
        for role, some in of_roles.items()
    }
    return Contents(producer, sets, parts)


def _signature(one: Shaped) -> tuple[object, ...]:
    """Return names, types and ranks, which all sets of a file must share."""
    return tuple(tuple((a.name, a.dtype, len(a.shape)) for a in some) for some in (one.inputs, one.outputs))
