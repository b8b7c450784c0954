"""``vkq.Device``: an open Vulkan device with its memory, pipelines and pending work."""

from __future__ import annotations

import contextlib
import math
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..device.capabilities import Capabilities
from ..device.profiles import preference
from ..device.verdict import Verdict
from ..device.watchdog import groups_in_time, seconds_of
from ..errors import ArgumentError, DeviceError
from ..shader.spec import Value, Variant
from .buffer import Buffer
from .caches import PLANS_KEPT, LruCache
from .context import OfOneProcess, close_at_exit, open_context
from .memory import DeviceMemory
from .plan import Plan, Resident
from .program import Program
from .programs import Programs
from .recording import Recording

MOST_MARKS = 1 << 20  # maximum number of timestamps of a recording, and of its marks
CONSTANTS_KEPT = 64  # maximum number of tables that operators share; the largest tables have 64 KiB

P = TypeVar("P")


# Returns the probe's report on a device. vkq.probe sets it, because this module cannot import vkq.probe.
probed: Callable[[Device], Verdict] = lambda device: Verdict({}, False)  # noqa: E731


class Device(OfOneProcess):
    """A Vulkan device, opened with the features that vkq's shaders use.

    Args:
        which: an index, part of a name, or None. None opens the device that the environment variable
            VKQ_DEVICE names, or else the best device: discrete before integrated before virtual before CPU.
        staging: True copies through host memory even if the host can access the device's memory; None copies
            through it only if necessary; False raises ArgumentError if it is necessary.
        tune: "auto" uses the kernels that were fastest when this device was probed (`vkq devices` prints
            them); nothing is measured if vkq's own timings cover this kind of device. "off", like
            VKQ_TUNE=off in the environment, uses this kind's defaults. Both give the same bits.
        capabilities: for tests: capabilities to use instead of those that Vulkan reports (features that are
            false are not enabled). Their index chooses the device if *which* is None.

    Work is submitted when a result is read (``Tensor.numpy``): a chain of layers is one submission. Threads
    may share a Device. It is a context manager; ``close`` frees everything and may be called twice.

    Raises NoDeviceError if there is no loader, no driver or no suitable device, and lists the devices found.

    >>> with Device() as device:
    ...     device.name != ""
    True
    """

    verdict: Verdict | None = None  # for absent and portable devices: the report to use in place of a probe's

    def __init__(
        self,
        which: int | str | None = None,
        *,
        staging: bool | None = None,
        tune: str = "auto",
        capabilities: Capabilities | None = None,
    ):
        self.capabilities, self.doctored, self.context = open_context(which, capabilities, tune)
        self.queue = self.context.queue  # the queue records and submits; plans are added directly to it
        self._local = threading.local()
        self._constants: LruCache[Resident] = LruCache(CONSTANTS_KEPT)
        self._plans: LruCache[Any] = LruCache(PLANS_KEPT)
        self._soft_float: bool | None = None
        try:
            self.programs = Programs(self.context, self.capabilities)
            self._memory = DeviceMemory(self.context, self.capabilities, staging)
        except BaseException:
            self.context.close()
            raise
        close_at_exit(self)

    # ------------------------------------------------------------------------------------------------- facts

    @property
    def name(self) -> str:
        """The device's name from the driver."""
        return self.capabilities.name

    @property
    def short_name(self) -> str:
        """`name` without the part in parentheses, for messages that contain other names as well."""
        return self.name.partition(" (")[0]

    def __repr__(self) -> str:
        return f"<vkq.Device {self.capabilities.index}: {self.name}{' (closed)' if self.closed else ''}>"

    @property
    def shares_processor(self) -> bool:
        """True if the device is the host's own processor: its work takes the host's time."""
        return self.capabilities.device_type == "cpu"

    @property
    def closed(self) -> bool:
        return bool(self.context.closed)

    @property
    def memory_used_bytes(self) -> int:
        """The bytes of device memory in use for tensors, weights and scratch."""
        return self._memory.arena.used_bytes

    @property
    def memory_peak_bytes(self) -> int:
        """The maximum bytes of device memory in use at once since `reset_memory_peak`."""
        return self._memory.arena.peak_bytes

    def reset_memory_peak(self) -> None:
        """Set `memory_peak_bytes` to the bytes in use now."""
        self._memory.arena.reset_peak()

    # ------------------------------------------------------------------------------------------------- memory

    def allocate(self, size: int) -> Buffer:
        """Allocate at least *size* bytes of device memory; the content is undefined."""
        return self._memory.allocate(size)

    def upload(self, target: Buffer, data: npt.NDArray[Any]) -> None:
        """Copy a contiguous array to the beginning of *target*, after all earlier and before all later
        operations. The caller may change the array after this call. The copy is never part of a ``record``
        block: another run of the recording does not repeat it."""
        if data.nbytes == 0:
            return self.check_usable()
        self.queue.upload(target, data.reshape(-1).view(np.uint8))

    def constant(self, key: Hashable, size: int, make: Callable[[], npt.NDArray[Any]]) -> Resident:
        """Return a constant array of *size* bytes for plans, computed and uploaded at the first use of its
        key. The latest CONSTANTS_KEPT arrays are cached."""
        return self._constants.get(key, lambda: Resident(self, size, make))

    def plan(self, key: Hashable, make: Callable[[], P]) -> P:
        """Return the result of *make* for a key; the latest PLANS_KEPT results are cached. Thread-safe."""
        self.check_usable()
        found: P = self._plans.get((key, self.soft_float, preference()), make)
        return found

    @property
    def soft_float(self) -> bool:
        """True if the device does not round to nearest even: shaders round in integers (SOFT_FLOAT)."""
        if self._soft_float is None:
            self._soft_float = probed(self).soft_float
        return self._soft_float

    @property
    def converts(self) -> bool:
        """True if generated kernels convert float16 with instructions (`vkq.probe.conversions`)."""
        return probed(self).converts

    @property
    def loop_limit(self) -> int | None:
        """The number of iterations after which the driver silently ends an invocation's loops, or None."""
        return probed(self).loop_limit

    def download_into(self, source: Buffer, out: npt.NDArray[np.uint8]) -> None:
        """Fill *out* with the first bytes of *source*, after all earlier operations."""
        self.check_readable()
        if out.size:
            self.queue.download(source, out)

    def check_readable(self) -> None:
        """Raise an error if the device is unusable or this thread is in a ``record`` block."""
        self.check_usable()
        if getattr(self._local, "explicit", None) is not None:
            raise DeviceError(
                "a tensor cannot be read while its operations are only being recorded; run the recording"
                " first"
            )

    def download(self, source: Buffer, size: int) -> npt.NDArray[np.uint8]:
        """Return the first *size* bytes of *source* as a new array."""
        out = np.empty(size, np.uint8)
        self.download_into(source, out)
        return out

    def empty_pinned(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """Return an array in host memory that the device can access directly (`vkq.empty_pinned`)."""
        kind = np.dtype(dtype)
        size = kind.itemsize * math.prod(shape)
        data: npt.NDArray[np.uint8] = self.queue.pin(size).view()
        return data[:size].view(kind).reshape(shape)

    # ----------------------------------------------------------------------------------------------- programs

    def program(
        self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        """Return the pipeline of a variant with these specialization constants, cached if possible. Raises
        an error if the device cannot run it."""
        self.check_usable()
        given = dict(constants or {})
        if "SOFT_FLOAT" in variant.specialization and "SOFT_FLOAT" not in given:
            given["SOFT_FLOAT"] = self.soft_float
        return self.programs.get(variant, variant.constants(given), subgroup_size)

    # --------------------------------------------------------------------------------------------- submission

    def recording(self) -> Recording:
        """Return the recording of this thread's `record` block, or of the pending chain outside a block."""
        return getattr(self._local, "explicit", None) or Recording(self, chain=self.queue.chain())

    def add(self, plan: Plan, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Record a plan's steps for submission."""
        explicit: Recording | None = getattr(self._local, "explicit", None)
        if explicit is not None:
            return explicit.add(plan, inputs, outputs)
        self.queue.add(plan.on(inputs, outputs).native, inputs, outputs)

    def operation(self) -> contextlib.AbstractContextManager[Recording]:
        """Context manager: yield the recording for the dispatches of one operation of this thread. Nothing
        is submitted until the block ends."""
        operation: contextlib.AbstractContextManager[Recording] = self.queue.operation(self.recording)
        return operation

    @checked
    @contextlib.contextmanager
    def record(self, timestamps: int = 0, marks: int = 0) -> Iterator[Recording]:
        """Context manager: record this thread's operations in the block instead of running them.
        ``recording.run()`` runs them, any number of times.

        Uploads in the block are not recorded: they run once, before the first run. *timestamps*: the number
        of dispatches whose time on the device is measured (``Recording.gpu_times_us``). *marks*: the number
        of timestamps that the block itself writes (``Recording.mark``).
        """
        if not (0 <= timestamps <= MOST_MARKS and 0 <= marks <= MOST_MARKS):
            raise ArgumentError(
                f"record: timestamps is {timestamps} and marks {marks}; each must be from 0 to {MOST_MARKS}"
            )
        with self._recording_into(Recording(self, timestamps, marks)) as recording:
            assert recording is not None
            yield recording

    def immediate(self) -> contextlib.AbstractContextManager[Any]:
        """Context manager: run operations immediately, also inside a ``record`` block of this thread."""
        return self._recording_into(None)

    @contextlib.contextmanager
    def _recording_into(self, recording: Recording | None) -> Iterator[Recording | None]:
        previous = getattr(self._local, "explicit", None)
        self._local.explicit = recording
        try:
            yield recording
        finally:
            self._local.explicit = previous

    def groups_per_dispatch(self, total: int, macs: int, size: int = 0) -> int:
        """Return the number of *total* workgroups that one dispatch may run (`vkq.device.watchdog`)."""
        return groups_in_time(self.capabilities, total, macs, size, self.verdict)

    def seconds_of(self, macs: int, size: int) -> float:
        """Return an estimate of the seconds for *macs* multiply-adds on *size* bytes; 0.0 if this device's
        work is never split into several submissions (`vkq.device.watchdog`)."""
        return seconds_of(self.capabilities, macs, size, self.verdict)

    def flush(self) -> None:
        """Submit all pending operations without waiting for them."""
        self.check_usable()
        self.queue.flush()

    def synchronize(self) -> None:
        """Submit all pending operations, and wait for the device."""
        self.check_usable()
        self.queue.synchronize()

    def check_usable(self) -> None:
        """Raise an error if the device is closed, lost, or inherited through a fork."""
        self.context.check()

    def close(self) -> None:
        """Wait for the device, write the pipeline cache, and free everything except the memory of existing
        arrays (`vkq.empty_pinned`). Later use raises an error; a second call does nothing."""
        if self.context.forked:
            return  # a forked child owns no objects of the driver
        try:
            if not self.closed and not self.context.lost:
                self.programs.save()
        finally:
            self.context.close()
            self.programs.clear()
            self._constants.clear()
            self._plans.clear()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()
