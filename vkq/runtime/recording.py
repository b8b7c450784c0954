"""A chain of dispatches and copies, recorded once and submitted any number of times."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from ..device.capabilities import Capabilities
from ..errors import ArgumentError, DeviceError
from ..turns import Turns
from .buffer import Buffer
from .plan import Plan, Step, native_plan, step_of
from .program import Program


class Owner(Protocol):
    """The part of a device's interface that recordings use."""

    @property
    def capabilities(self) -> Capabilities: ...
    @property
    def queue(self) -> Any: ...
    def groups_per_dispatch(self, total: int, macs: int, size: int) -> int: ...
    def seconds_of(self, macs: int, size: int) -> float: ...


@dataclasses.dataclass(frozen=True)
class Recorded:
    """A recorded operation: the steps of a plan (``native``), or a copy of ``size`` bytes from the first
    buffer to the second. `Recording.again` records it again, possibly on other buffers."""

    slots: tuple[Buffer | None, ...]  # the buffer of each slot; None for slots in the scratch memory
    steps: tuple[Step, ...] = ()
    native: Any = None
    scratch: Buffer | None = None
    size: int = 0

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """All buffers that the operation uses."""
        return tuple(b for b in (*self.slots, self.scratch) if b is not None)

    @property
    def dispatches(self) -> int:
        """The number of steps that run a program."""
        return sum(step.program is not None for step in self.steps)


class Recording:
    """A sequence of operations. A full memory barrier precedes each operation that accesses data of an
    earlier operation.

    ``Device.record`` makes recordings. ``run`` submits everything at once and waits. Each call of ``run``
    uses the current content of the tensors.

    >>> import numpy as np, vkq
    >>> x = vkq.Tensor.from_numpy(np.array([[1.0, -2.0]], np.float32))
    >>> with x.device.record() as recording:
    ...     y = vkq.quantize(x, vkq.QParams(0.5))
    >>> recording.run()
    >>> y.numpy().tolist()
    [[2, -4]]
    >>> x.write(np.array([[3.0, 0.5]], np.float32))
    >>> recording.run()
    >>> y.numpy().tolist()
    [[6, 1]]
    """

    def __init__(self, device: Owner, timestamps: int = 0, marks: int = 0, *, chain: Any = None):
        if timestamps and marks:
            raise ArgumentError(f"Recording: timestamps={timestamps} and marks={marks}; use one of them")
        self.device = device
        self._queue = device.queue
        if not device.capabilities.timestamp_valid_bits:
            timestamps = marks = 0  # the queue has no timestamps; writing one would be an error
        # The next read submits a *chain*, which belongs to the queue. `steps` does not list its operations.
        self._native = chain or self._queue.recording(timestamps, marks)
        self.replays = chain is None  # it may run more than once
        self._running = Turns("Recording.run")  # a lock that `run` holds
        self.steps: list[Recorded] = []
        self.dispatches = 0

    @property
    def sealed(self) -> bool:
        """True if the recording accepts no more operations."""
        return bool(self._native.sealed)

    @property
    def broken(self) -> bool:
        """True if the recording can never run."""
        return bool(self._native.broken)

    @property
    def submissions(self) -> int:
        """The number of submissions: several if a watchdog might stop a single submission
        (`vkq.device.watchdog`)."""
        return int(self._native.submissions)

    def add(self, plan: Plan, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Record a plan's steps on the buffers of its inputs and results."""
        plan = plan.on(inputs, outputs)
        slots: list[Buffer | None] = [*inputs, *[None] * (plan.slots - len(inputs))]
        for slot, output in zip(plan.outputs, outputs, strict=True):
            slots[slot] = output
        for slot, resident in plan.constants.items():
            slots[slot] = resident.buffer
        scratch = self._queue.scratch(plan.scratch_bytes) if plan.scratch_bytes else None
        self._record(Recorded(tuple(slots), plan.steps, plan.native, scratch))

    def dispatch(
        self,
        program: Program,
        buffers: Iterable[Buffer],
        push: Mapping[str, int | float],
        macs: int = 0,
    ) -> None:
        """Record *program* on *buffers* (in binding order), outside of any plan. ``first_group`` in *push*
        is set here.

        *macs*: the number of multiply-adds; required only if the dispatch may be long enough to trigger a
        watchdog.
        """
        slots = tuple(buffers)
        self._step(step_of(self.device, program, [b.bytes for b in slots], push, macs), slots)

    def fill(self, target: Buffer, value: int) -> None:
        """Record a fill of every word of a buffer with *value* (uint32)."""
        self._step(Step((0,), (), (0,), value=value), (target,))

    def _step(self, step: Step, slots: tuple[Buffer, ...]) -> None:
        native = native_plan([step], len(slots), len(slots), (), {}, 0)
        self._record(Recorded(slots, (step,), native))

    def copy(self, source: Buffer, target: Buffer, size: int) -> None:
        """Record a copy of the first *size* bytes of *source* to *target*."""
        self._record(Recorded((source, target), size=size))

    def _record(self, one: Recorded) -> None:
        if one.native is None:
            self._queue.copy(self._native, one.slots[0], one.slots[1], one.size)
        else:
            self._queue.add_to(self._native, one.native, one.slots, one.scratch)
        self.dispatches += one.dispatches
        if self.replays:
            self.steps.append(one)

    def again(self, one: Recorded, buffers: Mapping[Buffer, Buffer] | None = None) -> None:
        """Record an operation of this or another recording again. *buffers*: {buffer of the operation: its
        replacement}."""
        to: Mapping[Any, Any] = buffers or {}
        slots, scratch = tuple(to.get(b, b) for b in one.slots), to.get(one.scratch, one.scratch)
        self._record(dataclasses.replace(one, slots=slots, scratch=scratch))

    def barrier(self) -> None:
        """Record a barrier between all earlier and all later operations."""
        self._queue.barrier(self._native)

    def mark(self) -> None:
        """Write a timestamp after all previous operations (one of the recording's ``marks``)."""
        self._queue.timestamp(self._native)

    @property
    def position(self) -> int:
        """The position of the next operation, for `repeat`."""
        return int(self._native.position)

    def repeat(self, first: int, times: int) -> None:
        """Record all operations from position *first* to the end again, *times* times. The range must begin
        and end with a `barrier`."""
        self._queue.repeat(self._native, first, times)

    def submit(self) -> None:
        """Submit the recording after all earlier work, without waiting for its end. Nothing more can be
        recorded."""
        self._queue.submit(self._native)

    def wait(self) -> None:
        """Wait for the device. KeyboardInterrupt (Ctrl-C) is raised only after the work has ended, so that
        no memory in use is freed."""
        self._queue.wait(self._native)

    def run(self) -> None:
        """Submit the recording and wait for it. Runs of one recording by several threads take place one
        after another."""
        with self._running:
            self.submit()
            self.wait()

    def gpu_times_us(self) -> list[float]:
        """Return the duration of each dispatch in the last run in microseconds, from the device's timestamps.

        Raises DeviceError before the first run, or if the device has no timestamps.
        """
        c = self.device.capabilities
        if not c.timestamp_valid_bits:
            raise DeviceError(
                f"{c.name} has no timestamps (timestampValidBits is 0); measure with the host's clock"
            )
        ticks = self._native.timestamps()
        return [self._ticks_us(a, b) for a, b in zip(ticks[::2], ticks[1::2], strict=True)]

    def mark_times_us(self) -> list[float]:
        """Return the times in microseconds, on the device, between successive marks of the last run."""
        return [self._ticks_us(a, b) for a, b in itertools.pairwise(self._native.timestamps())]

    def _ticks_us(self, begin: int, end: int) -> float:
        c = self.device.capabilities
        return ((end - begin) & ((1 << c.timestamp_valid_bits) - 1)) * c.timestamp_period_ns / 1000
