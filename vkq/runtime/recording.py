"""A chain of dispatches and copies, recorded once and submitted as often as wished."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import threading
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, DeviceError
from .buffer import Buffer
from .program import Program

if TYPE_CHECKING:
    from .device import Device


@dataclasses.dataclass(frozen=True)
class Step:
    """One recorded dispatch (``program`` set), copy or fill, with what `Recording.again` needs to record it
    on other buffers."""

    buffers: tuple[Buffer, ...]
    program: Program | None = None
    push: Mapping[str, int | float] = dataclasses.field(default_factory=dict)
    macs: int = 0
    size: int = 0  # of a copy, in bytes
    value: int = 0  # of a fill


class Recording:
    """Operations in order, with a full memory barrier wherever one touches what an earlier one wrote.

    Made by ``Device.record``. ``run`` submits everything at once and waits; it can be called again, and then
    works on what the tensors hold at that time.
    """

    def __init__(self, device: Device, timestamps: int = 0, marks: int = 0, *, replays: bool = False):
        if timestamps and marks:
            raise ArgumentError(f"Recording: timestamps={timestamps} and marks={marks}; use one of them")
        self.device = device
        if not device.capabilities.timestamp_valid_bits:
            timestamps = marks = 0  # the queue has none, and a command for them would be an error
        self._native = device.context.recording(2 * timestamps or marks)
        self._timestamps = timestamps
        self._replays = replays
        self._running = threading.Lock()  # for a whole run
        self.steps: list[Step] = []
        # Kept while they may be in use: to the end of the wait, or as long as it can be replayed.
        self.buffers: set[Buffer] = set()
        self._outputs: set[Buffer] = set()
        self.sealed = False  # takes no more operations
        self.broken = False  # can never run
        self._read: list[tuple[int, int, int]] = []
        self._written: list[tuple[int, int, int]] = []
        self.dispatches = 0
        self.operations = 0
        self._native.barrier()  # against everything submitted before

    def dispatch(
        self, program: Program, buffers: Iterable[Buffer], push: Mapping[str, int | float], macs: int = 0
    ) -> None:
        """Runs *program* on *buffers* (in binding order); ``first_group`` is filled in here.

        *macs* is the work in multiply-adds, where it may be enough for a watchdog to matter.
        """
        buffers = list(buffers)
        for buffer in buffers:
            buffer.check()
        variant = program.variant
        limit = self.device.capabilities.properties["maxStorageBufferRange"]
        for buffer, binding in zip(buffers, variant.bindings, strict=True):
            if buffer.bytes > limit:
                raise ArgumentError(
                    f"{variant.name}: buffer {binding.name} has {buffer.bytes} bytes, above this device's "
                    f"maxStorageBufferRange of {limit}; use a smaller batch or split the tensor"
                )
        total = variant.workgroups(push, program.constants)
        self._order(
            [b for b, binding in zip(buffers, variant.bindings, strict=True) if "read" in binding.access],
            [b for b, binding in zip(buffers, variant.bindings, strict=True) if "write" in binding.access],
        )
        bindings = [b.binding() for b in buffers]
        timed = self.dispatches < self._timestamps
        if timed:
            self._native.timestamp()
        most = self.device.groups_per_dispatch(total, macs)
        for first, x, y in grids(total, self.device.capabilities.max_workgroups, most):
            packed = variant.pack_push(first_group=first, **push)
            self._native.dispatch(program.native, bindings, packed, x, y, 1)
        if timed:
            self._native.timestamp()
        self.steps.append(Step(tuple(buffers), program, dict(push), macs))
        self.dispatches += 1
        self.operations += 1

    def copy(self, source: Buffer, target: Buffer, size: int) -> None:
        """Copies the first *size* bytes."""
        self.steps.append(Step((source, target), size=size))
        self._order([source], [target])
        (memory, offset, _), (to_memory, to_offset, _) = source.binding(), target.binding()
        self._native.copy((memory, offset, size), (to_memory, to_offset, size))
        self.operations += 1

    def fill(self, target: Buffer, value: int) -> None:
        """Sets every word to *value* (uint32)."""
        self.steps.append(Step((target,), value=value))
        self._order([], [target])
        self._native.fill(target.binding(), value)
        self.operations += 1

    def again(self, step: Step, buffers: Mapping[Buffer, Buffer] | None = None) -> None:
        """Records a step of this or another recording, on other buffers where *buffers* names them."""
        used = [(buffers or {}).get(b, b) for b in step.buffers]
        if step.program is not None:
            self.dispatch(step.program, used, step.push, step.macs)
        elif len(used) == 2:
            self.copy(used[0], used[1], step.size)
        else:
            self.fill(used[0], step.value)

    def barrier(self) -> None:
        """Everything recorded before ends before anything recorded after begins."""
        self._native.barrier()
        self._read, self._written = [], []

    def mark(self) -> None:
        """Takes the time on the device where all before has ended (one of the recording's ``marks``)."""
        self._native.timestamp()

    @property
    def position(self) -> int:
        """Where the next operation will stand, for `repeat`."""
        return int(self._native.position)

    def repeat(self, first: int, times: int) -> None:
        """Records everything from position *first* on again, *times* more times; begin and end it with a
        `barrier`."""
        self._native.repeat(first, times)

    def submit(self) -> None:
        """Hands the whole chain to the device, after what was asked for before, and returns; nothing more can
        be recorded."""
        self.device.flush()
        self.device.submit(self)

    def wait(self) -> None:
        """Until the device has finished (Ctrl-C is raised at the end, so that nothing in flight is freed)."""
        self.device.finish(self)

    def run(self) -> None:
        """Submits the chain and waits for it. Threads that run the same recording take turns."""
        with self._running:
            self.submit()
            self.wait()

    def submit_native(self) -> None:
        """For ``Device.submit``. Where the chain can never run, its results are marked: reading them raises
        the error."""
        self.sealed = True
        try:
            self._native.submit()
        except DeviceError as error:
            self.broken = self._native.broken
            if self.broken:
                for buffer in self._outputs:
                    buffer.failure = error
            raise

    def wait_native(self) -> None:
        """For ``Device.finish``."""
        self._native.wait()

    def gpu_times_us(self) -> list[float]:
        """The duration of each dispatch in the last run in microseconds, from the device's timestamps.

        Raises DeviceError before the first run, and where the device has no timestamps.
        """
        c = self.device.capabilities
        if not c.timestamp_valid_bits:
            raise DeviceError(
                f"{c.name} has no timestamps (timestampValidBits is 0); measure with the host's clock"
            )
        ticks = self._native.timestamps()
        return [self._ticks_us(a, b) for a, b in zip(ticks[::2], ticks[1::2], strict=True)]

    def mark_times_us(self) -> list[float]:
        """The time on the device between each mark and the next in the last run, in microseconds."""
        return [self._ticks_us(a, b) for a, b in itertools.pairwise(self._native.timestamps())]

    def _ticks_us(self, begin: int, end: int) -> float:
        c = self.device.capabilities
        return ((end - begin) & ((1 << c.timestamp_valid_bits) - 1)) * c.timestamp_period_ns / 1000

    def release(self) -> None:
        """Lets go of the buffers, where it is not run again."""
        if not self._replays:
            self.buffers.clear()
            self._outputs.clear()
            self.steps.clear()

    def _order(self, reads: list[Buffer], writes: list[Buffer]) -> None:
        """A barrier where one of the ranges meets an earlier write, or a write meets an earlier read."""
        reading, writing = [_range(b) for b in reads], [_range(b) for b in writes]
        if _meet(reading + writing, self._written) or _meet(writing, self._read):
            self._native.barrier()
            self._read, self._written = [], []
        self._read += reading
        self._written += writing
        self.buffers.update(reads, writes)
        self._outputs.update(writes)


def grids(total: int, limits: tuple[int, int, int], most: int) -> Iterable[tuple[int, int, int]]:
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


def _range(buffer: Buffer) -> tuple[int, int, int]:
    return id(buffer.block), buffer.offset, buffer.offset + buffer.bytes


def _meet(some: list[tuple[int, int, int]], others: list[tuple[int, int, int]]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


def native_module() -> Any:
    """The compiled extension, imported late so that the shader tools work without it."""
    return importlib.import_module("vkq._kompute")
