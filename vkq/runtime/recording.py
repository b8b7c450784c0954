"""A chain of dispatches and copies, recorded once and submitted as often as wished."""

from __future__ import annotations

import dataclasses
import importlib
import itertools
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol, cast

from ..device.capabilities import Capabilities
from ..errors import ArgumentError, DeviceError
from .buffer import Buffer, Slice
from .plan import Plan, Step, step_of
from .program import Program

AnyBuffer = Buffer | Slice


class Owner(Protocol):
    """What a recording needs of its device."""

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def context(self) -> Any: ...
    def scratch(self, size: int) -> Buffer: ...
    def groups_per_dispatch(self, total: int, macs: int) -> int: ...
    def flush(self) -> None: ...
    def submit(self, recording: Any) -> None: ...
    def finish(self, recording: Any) -> None: ...


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A step with its buffers, by slot; or a copy of ``size`` bytes from the first to the second (no
    step)."""

    buffers: tuple[AnyBuffer, ...]
    step: Step | None = None
    size: int = 0

    @property
    def program(self) -> Program | None:
        """Of a dispatch."""
        return self.step.program if self.step else None

    @property
    def macs(self) -> int:
        """The multiply-adds of a dispatch."""
        return self.step.macs if self.step else 0


class Recording:
    """Operations in order, with a full memory barrier wherever one touches what an earlier one wrote.

    Made by ``Device.record``. ``run`` submits everything at once and waits; it can be called again, and then
    works on what the tensors hold at that time.
    """

    def __init__(self, device: Owner, timestamps: int = 0, marks: int = 0, *, replays: bool = False):
        if timestamps and marks:
            raise ArgumentError(f"Recording: timestamps={timestamps} and marks={marks}; use one of them")
        self.device = device
        if not device.capabilities.timestamp_valid_bits:
            timestamps = marks = 0  # the queue has none, and a command for them would be an error
        self._native = device.context.recording(2 * timestamps or marks)
        self._timestamps = timestamps
        self._replays = replays
        self._running = threading.Lock()  # for a whole run
        self.steps: list[Recorded] = []
        # Kept while they may be in use: to the end of the wait, or as long as it can be replayed.
        self.buffers: set[AnyBuffer] = set()
        self._outputs: set[AnyBuffer] = set()
        self.sealed = False  # takes no more operations
        self.broken = False  # can never run
        self._read: list[tuple[int, int, int]] = []
        self._written: list[tuple[int, int, int]] = []
        self.dispatches = 0
        self.operations = 0
        self._native.barrier()  # against everything submitted before

    def add(self, plan: Plan, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Records a plan's steps on the buffers of its inputs and its results."""
        for buffer in inputs:
            buffer.check()
        slots: list[AnyBuffer | None] = [*inputs, *[None] * (plan.slots - len(inputs))]
        for slot, output in zip(plan.outputs, outputs, strict=True):
            slots[slot] = output
        for slot, resident in plan.constants.items():
            slots[slot] = resident.buffer
        if plan.scratch:
            whole = self.device.scratch(plan.scratch_bytes)
            for slot, (offset, size) in plan.scratch.items():
                slots[slot] = Slice(whole, offset, size)
        for step in plan.steps:
            self._record(step, tuple(cast(AnyBuffer, slots[slot]) for slot in step.slots))

    def dispatch(
        self,
        program: Program,
        buffers: Iterable[Buffer],
        push: Mapping[str, int | float],
        macs: int = 0,
    ) -> None:
        """Runs *program* on *buffers* (in binding order), outside of any plan; ``first_group`` is filled in
        here.

        *macs* is the work in multiply-adds, where it may be enough for a watchdog to matter.
        """
        buffers = tuple(buffers)
        for buffer in buffers:
            buffer.check()
        self._record(step_of(self.device, program, [b.bytes for b in buffers], push, macs), buffers)

    def _record(self, step: Step, buffers: tuple[AnyBuffer, ...]) -> None:
        by_slot = dict(zip(step.slots, buffers, strict=True))
        self._order([by_slot[slot] for slot in step.reads], [by_slot[slot] for slot in step.writes])
        if step.program is None:
            self._native.fill(buffers[0].binding(), step.value)
        else:
            self._dispatch(step, step.program, [b.binding() for b in buffers])
        self.steps.append(Recorded(buffers, step))
        self.operations += 1

    def _dispatch(self, step: Step, program: Program, bindings: list[Any]) -> None:
        timed = self.dispatches < self._timestamps
        if timed:
            self._native.timestamp()
        at = program.first_group_at
        for first, x, y in step.grids:
            push = (
                step.push if not first else step.push[:at] + first.to_bytes(4, "little") + step.push[at + 4 :]
            )
            self._native.dispatch(program.native, bindings, push, x, y, 1)
        if timed:
            self._native.timestamp()
        self.dispatches += 1

    def copy(self, source: AnyBuffer, target: AnyBuffer, size: int) -> None:
        """Copies the first *size* bytes."""
        self.steps.append(Recorded((source, target), size=size))
        self._order([source], [target])
        (memory, offset, _), (to_memory, to_offset, _) = source.binding(), target.binding()
        self._native.copy((memory, offset, size), (to_memory, to_offset, size))
        self.operations += 1

    def fill(self, target: Buffer, value: int) -> None:
        """Sets every word to *value* (uint32)."""
        self._record(Step((0,), (), (0,), value=value), (target,))

    def again(self, one: Recorded, buffers: Mapping[Any, Any] | None = None) -> None:
        """Records a step of this or another recording, on other buffers where *buffers* names them."""
        used = tuple((buffers or {}).get(b, b) for b in one.buffers)
        if one.step is None:
            self.copy(used[0], used[1], one.size)
        else:
            self._record(one.step, used)

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
                    if isinstance(buffer, Buffer):
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

    def _order(self, reads: list[AnyBuffer], writes: list[AnyBuffer]) -> None:
        """A barrier where one of the ranges meets an earlier write, or a write meets an earlier read."""
        reading, writing = [_range(b) for b in reads], [_range(b) for b in writes]
        if _meet(reading + writing, self._written) or _meet(writing, self._read):
            self._native.barrier()
            self._read, self._written = [], []
        self._read += reading
        self._written += writing
        self.buffers.update(reads, writes)
        self._outputs.update(writes)


def _range(buffer: AnyBuffer) -> tuple[int, int, int]:
    return id(buffer.block), buffer.offset, buffer.offset + buffer.bytes


def _meet(some: list[tuple[int, int, int]], others: list[tuple[int, int, int]]) -> bool:
    return any(a[0] == b[0] and a[1] < b[2] and b[1] < a[2] for a in some for b in others)


def native_module() -> Any:
    """The compiled extension, imported late so that the shader tools work without it."""
    return importlib.import_module("vkq._kompute")
