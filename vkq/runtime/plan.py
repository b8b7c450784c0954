"""Plans: what an operator does on a device, decided once and kept; making one runs nothing and needs no data.

A plan is made by a `vkq.runtime.builder.Builder` and never changed. ``Recording.add`` records it on buffers,
as often as wished: for an eager call, inside ``Device.record``, or as a part of a network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.extension import native_module
from ..errors import ArgumentError
from ..layout.extent import Spec
from ..shader.spec import TEXEL_BYTES
from .buffer import Buffer
from .program import Program


@dataclass(frozen=True)
class Step:
    """One dispatch on slots (``program`` set), or a fill of the only slot with the word ``value``.

    ``push`` are the packed push constants with first_group = 0; ``grids`` the (first workgroup, x, y) of the
    dispatches that together run all workgroups; ``macs`` the multiply-adds; ``busy_ns`` how long it is
    estimated to take, 0 where no submission is split (`vkq.device.watchdog`).
    """

    slots: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    program: Program | None = None
    push: bytes = b""
    grids: tuple[tuple[int, int, int], ...] = ()
    macs: int = 0
    value: int = 0
    busy_ns: int = 0


class Memory(Protocol):
    """What a `Resident` needs of its device."""

    def allocate(self, size: int) -> Buffer: ...
    def upload(self, target: Buffer, data: npt.NDArray[Any]) -> None: ...


class Facts(Protocol):
    """What `step_of` needs of a device."""

    @property
    def capabilities(self) -> Capabilities: ...
    def groups_per_dispatch(self, total: int, macs: int, size: int) -> int: ...
    def seconds_of(self, macs: int, size: int) -> float: ...


def step_of(
    device: Facts,
    program: Program,
    sizes: Sequence[int],
    push: Mapping[str, int | float],
    macs: int = 0,
    slots: Sequence[int] | None = None,
    in_place: bool = False,
) -> Step:
    """A dispatch of a program on buffers of these *sizes* in bytes, in the order of its bindings. *in_place*:
    what it overwrites in bindings of that mark is read, too.

    Raises ArgumentError where one is larger than the device's maxStorageBufferRange, or has more texels than
    its maxTexelBufferElements.
    """
    variant, limits = program.variant, device.capabilities
    numbers = tuple(range(len(sizes)) if slots is None else slots)
    for size, binding in zip(sizes, variant.bindings, strict=True):
        limit, used, unit = "maxStorageBufferRange", size, "bytes"
        if binding.texels:
            limit, used, unit = "maxTexelBufferElements", size // TEXEL_BYTES, "texels"
        most = limits.properties[limit]
        if used > most:
            raise ArgumentError(
                f"{variant.name}: buffer {binding.name} has {used} {unit}, above this device's "
                f"{limit} of {most}; use a smaller batch or split the tensor"
            )
    total = program.workgroups(push)
    return Step(
        numbers,
        tuple(
            n
            for n, b in zip(numbers, variant.bindings, strict=True)
            if "read" in b.access or (in_place and b.in_place)
        ),
        tuple(n for n, b in zip(numbers, variant.bindings, strict=True) if "write" in b.access),
        program,
        variant.pack_push(first_group=0, **push),
        tuple(grids(total, limits.max_workgroups, device.groups_per_dispatch(total, macs, sum(sizes)))),
        macs,
        busy_ns=round(1e9 * device.seconds_of(macs, sum(sizes))),
    )


class Resident:
    """Data that a plan reads and that outlives it: packed and uploaded when it is first used, and again where
    its upload was lost."""

    __slots__ = ("_buffer", "_device", "_make", "bytes")

    def __init__(self, device: Memory, size: int, make: Callable[[], npt.NDArray[Any]]):
        self._device = device
        self._make = make
        self._buffer: Buffer | None = None
        self.bytes = size

    @property
    def buffer(self) -> Buffer:
        """Where it is on the device."""
        found = self._buffer
        return found if found is not None and found.failure is None else self._upload()

    @property
    def uploaded(self) -> bool:
        """Whether it is on the device."""
        return self._buffer is not None and self._buffer.failure is None

    def data(self) -> npt.NDArray[Any]:
        """What is uploaded, packed anew."""
        data = np.ascontiguousarray(self._make())
        if data.nbytes != self.bytes:
            raise RuntimeError(f"{data.nbytes} bytes were packed where {self.bytes} were planned")
        return data

    def _upload(self) -> Buffer:
        # No lock: a thread that holds the device's queue may come here. Two that come at once both upload it.
        data = self.data()
        buffer = self._device.allocate(self.bytes)
        self._device.upload(buffer, data)
        self._buffer = buffer
        return buffer


@dataclass(frozen=True)
class Plan:
    """What an operator, or a whole network, does with inputs of known `Spec`. Slots: the inputs, then
    everything else.

    ``inputs``: what each input must be. ``results``: what comes out, each in its slot of ``outputs`` (an
    input's own slot where nothing needs to be done but to name it anew). ``constants``: slot -> what lies
    there; a step that writes there leaves it as it was.
    ``scratch``: slot -> (offset, bytes) in ``scratch_bytes`` of memory that nothing else uses
    meanwhile. ``reasons``: why it was chosen so, by topic ("path", "method", ...).
    """

    inputs: tuple[Spec, ...]
    results: tuple[Spec, ...]
    outputs: tuple[int, ...]
    steps: tuple[Step, ...]
    constants: Mapping[int, Resident]
    scratch: Mapping[int, tuple[int, int]]
    scratch_bytes: int
    slots: int
    reasons: Mapping[str, str] = field(default_factory=dict)

    @functools.cached_property
    def native(self) -> Any:
        """The plan as the extension records it, with its constants on the device."""
        native = native_plan(
            self.steps, self.slots, len(self.inputs), self.outputs, self.scratch, self.scratch_bytes
        )
        for slot, resident in self.constants.items():
            native.bind(slot, resident.buffer)
        return native

    @property
    def result(self) -> Spec:
        """What an operator gives: the only result."""
        return self.results[0]

    @property
    def variants(self) -> tuple[str, ...]:
        """The shader variants by name, in order of dispatch."""
        return tuple(step.program.variant.name for step in self.steps if step.program is not None)

    @property
    def constant_bytes(self) -> int:
        """Of all that it reads beside its inputs: weights, scales, tables."""
        return sum(one.bytes for one in dict.fromkeys(self.constants.values()))

    @property
    def traffic(self) -> tuple[int, int]:
        """Bytes of what lies between its steps that they read, and that they write: of each array all, once
        for each step that has it."""
        size = {slot: size for slot, (_, size) in self.scratch.items()}
        read = sum(size.get(slot, 0) for step in self.steps for slot in step.reads)
        return read, sum(size.get(slot, 0) for step in self.steps for slot in step.writes)

    @property
    def macs(self) -> int:
        """The multiply-adds of all dispatches, padding included."""
        return sum(step.macs for step in self.steps)


READ, WRITE = 1, 2  # a slot's access, as the extension takes it


def native_plan(
    steps: Sequence[Step],
    slots: int,
    inputs: int,
    outputs: Sequence[int],
    scratch: Mapping[int, tuple[int, int]],
    scratch_bytes: int,
) -> Any:
    """Steps as the extension records them."""
    return native_module().Plan(
        [
            (
                step.program and step.program.native,
                step.slots,
                [READ * (slot in step.reads) + WRITE * (slot in step.writes) for slot in step.slots],
                step.push,
                step.program.first_group_at if step.program else -1,
                step.grids,
                step.value,
                step.busy_ns,
            )
            for step in steps
        ],
        slots,
        inputs,
        outputs,
        [(slot, offset, size) for slot, (offset, size) in scratch.items()],
        scratch_bytes,
    )


def grids(total: int, limits: tuple[int, int, int], most: int) -> Iterator[tuple[int, int, int]]:
    """(first workgroup, x, y) of the dispatches that together run exactly *total* workgroups.

    x is at most the device's limit; more than that is folded into y, a remainder gets a dispatch of its own;
    no dispatch has more than *most* workgroups, so that none runs into a watchdog.
    """
    most = max(1, min(most, limits[0] * limits[1]))
    first = 0
    while first < total:
        count = min(most, total - first)
        x = min(count, limits[0])
        y = count // x
        yield first, x, y
        first += x * y
