"""Plans: the steps of an operator on a device, made once and cached. Making a plan needs no data, and runs
nothing.

`vkq.runtime.builder.Builder` makes plans, which never change. ``Recording.add`` records a plan on buffers,
any number of times: for an eager call, inside ``Device.record``, or as part of a network.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
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
    """A dispatch on slots, or (without ``program``) a fill of the only slot with the word ``value``."""

    slots: tuple[int, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    program: Program | None = None
    push: bytes = b""  # the packed push constants, with first_group = 0
    grids: tuple[tuple[int, int, int], ...] = ()  # (first workgroup, x, y) of each vkCmdDispatch
    macs: int = 0  # the multiply-adds
    value: int = 0
    busy_ns: int = 0  # the estimated time; 0 if submissions need not be split (`vkq.device.watchdog`)


class Memory(Protocol):
    """The part of a device's interface that `Resident` uses."""

    def allocate(self, size: int) -> Buffer: ...
    def upload(self, target: Buffer, data: npt.NDArray[Any]) -> None: ...


class Facts(Protocol):
    """The part of a device's interface that `step_of` uses."""

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
    """Return a dispatch of a program on buffers of these *sizes* in bytes, in the order of its bindings.
    *in_place*: whether the dispatch also reads the bindings that the shader's YAML file marks ``in_place``.

    Raises ArgumentError if a buffer exceeds the device's maxStorageBufferRange, or has more texels than its
    maxTexelBufferElements.
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
    """Constant data of plans. The data are packed and uploaded at the first use, and again if the
    submission of the upload failed."""

    __slots__ = ("_buffer", "_device", "_make", "bytes")

    def __init__(self, device: Memory, size: int, make: Callable[[], npt.NDArray[Any]]):
        self._device = device
        self._make = make
        self._buffer: Buffer | None = None
        self.bytes = size

    @property
    def buffer(self) -> Buffer:
        """The array's buffer on the device."""
        found = self._buffer
        return found if found is not None and found.failure is None else self._upload()

    @property
    def uploaded(self) -> bool:
        """True if the data are on the device."""
        return self._buffer is not None and self._buffer.failure is None

    def data(self) -> npt.NDArray[Any]:
        """Return the packed data for an upload."""
        data = np.ascontiguousarray(self._make())
        if data.nbytes != self.bytes:
            raise RuntimeError(f"{data.nbytes} bytes were packed where {self.bytes} were planned")
        return data

    def _upload(self) -> Buffer:
        # Take no lock: the calling thread may hold the lock of the device's queue. Two threads may both
        # upload the data.
        data = self.data()
        buffer = self._device.allocate(self.bytes)
        self._device.upload(buffer, data)
        self._buffer = buffer
        return buffer


@dataclass(frozen=True)
class Plan:
    """The steps of an operator or a network, for inputs of known `Spec`. The first slots are the inputs.

    - ``inputs``, ``results``: the spec of each input and of each result.
    - ``outputs``: the slot of each result; an input's slot if the result is this input with another spec.
    - ``constants``: {slot: content}. A step that overwrites a constant restores it.
    - ``scratch``: {slot: (offset, bytes)} in a range of ``scratch_bytes`` that nothing else uses during the
      run.
    - ``reasons``: why these steps were chosen, by topic ("path", "method", ...).
    - ``over``: {slot of an output: slot of an input whose memory the result may overwrite}.
    - ``in_place``: the steps to run if all results in ``over`` overwrite their inputs; () if these are
      ``steps``.
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
    over: Mapping[int, int] = field(default_factory=dict)
    in_place: tuple[Step, ...] = ()

    def on(self, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> Plan:
        """Return the plan to run on these buffers. If each result in ``over`` has the buffer of its input,
        this plan does not copy data that are in place."""
        if not self.in_place:
            return self
        found = dict(zip(self.outputs, outputs, strict=True))
        shared = all(found[y] is inputs[x] for y, x in self.over.items())
        return self._overwriting if shared else self

    @functools.cached_property
    def _overwriting(self) -> Plan:
        return replace(self, steps=self.in_place, in_place=())

    @functools.cached_property
    def native(self) -> Any:
        """The extension's object for the plan, with the plan's constants on the device."""
        native = native_plan(
            self.steps, self.slots, len(self.inputs), self.outputs, self.scratch, self.scratch_bytes
        )
        for slot, resident in self.constants.items():
            native.bind(slot, resident.buffer)
        return native

    @property
    def result(self) -> Spec:
        """The spec of an operator's only result."""
        return self.results[0]

    @property
    def variants(self) -> tuple[str, ...]:
        """The names of the shader variants, in order of dispatch."""
        return tuple(step.program.variant.name for step in self.steps if step.program is not None)

    @property
    def constant_bytes(self) -> int:
        """The bytes of all constants of the plan: weights, scales, tables."""
        return sum(one.bytes for one in dict.fromkeys(self.constants.values()))

    @property
    def traffic(self) -> tuple[int, int]:
        """(bytes that steps read, bytes that steps write) of intermediate arrays. An array counts in full
        for each step that uses it."""
        size = {slot: size for slot, (_, size) in self.scratch.items()}
        read = sum(size.get(slot, 0) for step in self.steps for slot in step.reads)
        return read, sum(size.get(slot, 0) for step in self.steps for slot in step.writes)

    @property
    def macs(self) -> int:
        """The number of multiply-adds of all dispatches, padding included."""
        return sum(step.macs for step in self.steps)


VECTOR_BYTES = 16
READ, WRITE = 1, 2  # codes of the extension for the access to a slot


def native_plan(
    steps: Sequence[Step],
    slots: int,
    inputs: int,
    outputs: Sequence[int],
    scratch: Mapping[int, tuple[int, int]],
    scratch_bytes: int,
) -> Any:
    """Return the extension's object for a plan.

    - *slots*, *inputs*: the numbers of slots and of inputs.
    - *outputs*: the results' slots.
    - *scratch*: {slot: (offset, bytes)} in scratch memory."""
    # Shaders access the last, partial vector of an array as a whole vector. A driver may drop an access
    # partly outside of its binding, so `vkq.runtime.offsets` leaves room for the whole vector.
    bound = [(slot, offset, whole_vectors(size)) for slot, (offset, size) in scratch.items()]
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
        bound,
        scratch_bytes,
    )


def whole_vectors(size: int) -> int:
    """Round a number of bytes up to whole vectors of four words, the largest elements of shaders."""
    return -(-size // VECTOR_BYTES) * VECTOR_BYTES


def grids(total: int, limits: tuple[int, int, int], most: int) -> Iterator[tuple[int, int, int]]:
    """Yield (first workgroup, x, y) of dispatches that together run exactly *total* workgroups.

    x is at most the device's limit. More workgroups become x * y, and a separate dispatch for the
    remainder. No dispatch has more than *most* workgroups, so that none triggers a watchdog.
    """
    most = max(1, min(most, limits[0] * limits[1]))
    first = 0
    while first < total:
        count = min(most, total - first)
        x = min(count, limits[0])
        y = count // x
        yield first, x, y
        first += x * y
