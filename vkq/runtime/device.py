"""``vkq.Device``: an opened Vulkan device with its memory, its pipelines and what waits to be submitted."""

from __future__ import annotations

import atexit
import contextlib
import math
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..device import verdict, vulkan
from ..device.capabilities import Capabilities
from ..device.choose import choose_device
from ..device.profiles import profile
from ..errors import ArgumentError, DeviceError, NoDeviceError, OutOfMemoryError
from ..shader.spec import Value, Variant
from .buffer import Arena, Buffer
from .extension import native_module
from .memory import plan_memory
from .plan import Plan, Resident
from .program import Program
from .programs import Programs
from .recording import Recording

BLOCK_BYTES = 16 << 20
OPERATIONS_BEFORE_SUBMIT = 256
SUBMISSIONS_IN_FLIGHT = 4  # more are waited for: what is in flight keeps its memory
STAGING_BYTES = 64 << 20  # of host memory for copies, at most, where the host does not see the device's
STAGING_CHUNK = 16 << 20  # the host fills one while the device empties another
UNUSED_BYTES = 256 << 20  # of large blocks of memory that nothing uses, kept for what comes next
MOST_MARKS = 1 << 20  # timestamps of a recording, and marks
CONSTANTS_KEPT = 64  # tables that operators share; the largest have 64 KiB
PLANS_KEPT = 1024  # of operators without weights; layers keep their own
SCRATCH_KEPT_BYTES = 64 << 20  # of the scratch memory that plans share; larger ones get memory of their own

_open: weakref.WeakSet[Device] = weakref.WeakSet()
P = TypeVar("P")


def _believed(device: Device) -> bool:
    return False


# Whether a device rounds floats another way than to nearest even, so that shaders must do it in integers. The
# probe tells, which needs devices itself: it puts its own function here (vkq.probe.selftest).
rounds_otherwise: Callable[[Device], bool] = _believed


class Device:
    """A Vulkan device, opened with the features that vkq's shaders use.

    Args:
        which: an index, part of a name, or None for the environment's VKQ_DEVICE, else the best: discrete
            before integrated before virtual before CPU.
        staging: True copies through host memory even where the device's own memory is visible; None decides
            by the device.
        tune: "auto" takes the kernels that were the fastest when the device was probed, where nobody had
            timed its kind before (`vkq devices` prints them); "off" those of its kind. The environment's
            VKQ_TUNE=off measures nothing and takes nothing of it. The bits are the same.
        capabilities: for tests: what vkq shall believe of the device, instead of what Vulkan says (features
            that are false are not enabled); its index chooses the device where *which* is None.

    Work is submitted when a result is read (``Tensor.numpy``), so that a chain of layers is one submission. A
    Device may be used from several threads. It is a context manager; ``close`` frees everything and may be
    called twice.

    Raises:
        NoDeviceError: no loader, no driver, or no device that fits, with what there is.

    >>> with Device() as device:
    ...     device.name != ""
    True
    """

    def __init__(
        self,
        which: int | str | None = None,
        *,
        staging: bool | None = None,
        tune: str = "auto",
        capabilities: Capabilities | None = None,
    ):
        extension = native_module()  # before anything is opened that a failed import would leave open
        physical, found = choose_device(capabilities.index if which is None and capabilities else which)
        if tune not in ("auto", "off"):
            raise ArgumentError(f"Device: tune is {tune!r}; it must be 'auto' or 'off'")
        self.capabilities = capabilities or (verdict.with_choices(found) if tune == "auto" else found)
        self.doctored = (
            self.capabilities.key != found.key
        )  # for tests: another process would see another device
        family, refusal = self.capabilities.compute_family, self.capabilities.refusal()
        if refusal or family is None:
            raise NoDeviceError(f"{self.capabilities.name} cannot run vkq: {refusal}")
        self._lock = threading.RLock()  # of what is made once; not held while the queue works
        self._local = threading.local()
        self._constants: OrderedDict[Hashable, Resident] = OrderedDict()
        self._plans: OrderedDict[Hashable, Any] = OrderedDict()
        self._soft_float: bool | None = None
        handle, queue = vulkan.open_device(
            physical, family, dict(self.capabilities.features), set(self.capabilities.extensions)
        )
        loader = vulkan.binding().lib.vkGetInstanceProcAddr
        handles = (loader, vulkan.instance().handle, physical, handle, queue)
        self.handle = handle  # the VkDevice, for queries that the extension does not make
        self.context = extension.Context(
            *(vulkan.handle_int(h) for h in handles), family, profile(self.capabilities).wide_barriers,
            self.capabilities.properties["maxStorageBufferRange"], self.name,
        )  # fmt: skip
        self.queue = self.context.queue  # who records and submits; a plan is added to it directly
        self.queue.operations_per_chain = OPERATIONS_BEFORE_SUBMIT
        self.queue.chains_in_flight = SUBMISSIONS_IN_FLIGHT
        try:
            self.programs = Programs(self.context, self.capabilities)
            self._make_arenas(staging)
        except BaseException:
            self.context.close()
            raise
        _open.add(self)

    # ------------------------------------------------------------------------------------------------- facts

    @property
    def name(self) -> str:
        """The device's name, as the driver gives it."""
        return self.capabilities.name

    @property
    def short_name(self) -> str:
        """`name` without what stands in brackets behind it, for lines that name other things too."""
        return self.name.partition(" (")[0]

    def __repr__(self) -> str:
        return f"<vkq.Device {self.capabilities.index}: {self.name}{' (closed)' if self.closed else ''}>"

    @property
    def shares_processor(self) -> bool:
        """Whether the device is the host's own processor, so that work moves nowhere by being left to it."""
        return self.capabilities.device_type == "cpu"

    @property
    def closed(self) -> bool:
        return bool(self.context.closed)

    @property
    def memory_used_bytes(self) -> int:
        """Device memory handed out to tensors, weights and scratch."""
        return self._arena.used_bytes

    @property
    def memory_peak_bytes(self) -> int:
        """The most device memory that was handed out at a time, since `reset_memory_peak`."""
        return self._arena.peak_bytes

    def reset_memory_peak(self) -> None:
        """Begins a new measurement of `memory_peak_bytes`."""
        self._arena.reset_peak()

    # ------------------------------------------------------------------------------------------------- memory

    def allocate(self, size: int) -> Buffer:
        """Device memory of at least *size* bytes; its content is undefined."""
        if size <= self._largest:
            with contextlib.suppress(OutOfMemoryError):
                return self._arena.allocate(size)
        return self._allocate_late(size)

    def upload(self, target: Buffer, data: npt.NDArray[Any]) -> None:
        """Copies a contiguous array to the beginning of *target*, before what is asked for later and after
        what was before. The array may be changed as soon as this returns.

        Never part of a ``record`` block: replaying it does not copy again.
        """
        if data.nbytes == 0:
            return self.check_usable()
        self.queue.upload(target, data.reshape(-1).view(np.uint8))

    def constant(self, key: Hashable, size: int, make: Callable[[], npt.NDArray[Any]]) -> Resident:
        """An array of *size* bytes for plans, made and uploaded once for each key when it is first used; the
        latest CONSTANTS_KEPT are kept."""
        with self._lock:
            found = self._constants.get(key)
            if found is None:
                found = self._constants[key] = Resident(self, size, make)
                if len(self._constants) > CONSTANTS_KEPT:
                    self._constants.popitem(last=False)
            self._constants.move_to_end(key)
            return found

    def plan(self, key: Hashable, make: Callable[[], P]) -> P:
        """What *make* returns, made once for each key; the latest PLANS_KEPT are kept. Thread-safe."""
        found: P | None = self._plans.get((key, self._soft_float))
        if found is None:
            self.check_usable()
            found = make()
            with self._lock:
                self._plans[key, self.soft_float] = found
                if len(self._plans) > PLANS_KEPT:
                    self._plans.popitem(last=False)
        return found

    @property
    def soft_float(self) -> bool:
        """Whether shaders round floats in integers on this device (SOFT_FLOAT), because it rounds them
        otherwise."""
        if self._soft_float is None:
            self._soft_float = rounds_otherwise(self)
        return self._soft_float

    def download_into(self, source: Buffer, out: npt.NDArray[np.uint8]) -> None:
        """Fills *out* with the first bytes of *source*, after everything asked for so far has run."""
        self.check_readable()
        if out.size:
            self.queue.download(source, out)

    def check_readable(self) -> None:
        """Raises where the device is not usable, or this thread is in a ``record`` block."""
        self.check_usable()
        if getattr(self._local, "explicit", None) is not None:
            raise DeviceError(
                "a tensor cannot be read while its operations are only being recorded; run the recording"
                " first"
            )

    def download(self, source: Buffer, size: int) -> npt.NDArray[np.uint8]:
        """The first *size* bytes of *source* as a new array."""
        out = np.empty(size, np.uint8)
        self.download_into(source, out)
        return out

    def empty_pinned(self, shape: Sequence[int], dtype: npt.DTypeLike) -> npt.NDArray[Any]:
        """An array in host memory that the device copies from and to by itself (`vkq.empty_pinned`)."""
        kind = np.dtype(dtype)
        size = kind.itemsize * math.prod(shape)
        data: npt.NDArray[np.uint8] = self.queue.pin(size).view()
        return data[:size].view(kind).reshape(shape)

    def _allocate_late(self, size: int) -> Buffer:
        """Where the first try found no memory: what has run lets go of its own, and there is a second."""
        self.check_usable()
        if size > self._largest:
            raise OutOfMemoryError(
                f"{self.name}: {size} bytes asked for at once, above {self._largest_rule}; use smaller"
                " tensors"
            )
        self.queue.trim()
        try:
            return self._arena.allocate(size)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{self.name}: no memory for {size} bytes more ({self._arena.allocated_bytes} bytes are"
                f" allocated): {error}",
                error.result,
                error.call,
            ) from error

    def _make_arenas(self, staging: bool | None) -> None:
        facts, types = self.capabilities.properties, self.capabilities.memory_types
        plan = plan_memory(self.capabilities, self.context.buffer_memory_types(), staging)

        def largest(memory_type: int) -> tuple[int, str]:
            limits = {
                f"this device's {name}": facts[name] for name in ("maxMemoryAllocationSize", "maxBufferSize")
            }
            limits["the size of the memory heap"] = types[memory_type].heap_bytes
            return min((limit, name) for name, limit in limits.items() if limit)

        def arena(memory_type: int, mapped: bool, keep: int) -> Any:
            return self.context.arena(
                memory_type, mapped, facts["minStorageBufferOffsetAlignment"], BLOCK_BYTES,
                largest(memory_type)[0], keep,
            )  # fmt: skip

        self._largest, rule = largest(plan.own)
        self._largest_rule = f"{rule} of {self._largest}"
        self._arena: Arena = arena(plan.own, plan.mapped, min(UNUSED_BYTES, types[plan.own].heap_bytes // 16))
        self._staging: Arena = arena(plan.staging, True, 0)
        limit = min(STAGING_BYTES, max(BLOCK_BYTES, types[plan.staging].heap_bytes // 16))
        self.context.set_arenas(self._arena, SCRATCH_KEPT_BYTES, self._staging, limit, STAGING_CHUNK)

    # ----------------------------------------------------------------------------------------------- programs

    def program(
        self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        """The pipeline of a variant with these specialization constants, made once; refused where the device
        cannot run it."""
        self.check_usable()
        given = dict(constants or {})
        if "SOFT_FLOAT" in variant.specialization and "SOFT_FLOAT" not in given:
            given["SOFT_FLOAT"] = self.soft_float
        return self.programs.get(variant, variant.constants(given), subgroup_size)

    # ----------------------------------------------------------------------------------------------
    # submission

    def recording(self) -> Recording:
        """Where operations go: the thread's ``record`` block, else the chain that the next read submits."""
        explicit: Recording | None = getattr(self._local, "explicit", None)
        return explicit if explicit is not None else Recording(self, chain=self.queue.chain())

    def add(self, plan: Plan, inputs: Sequence[Buffer], outputs: Sequence[Buffer]) -> None:
        """Records a plan's steps where operations go."""
        explicit: Recording | None = getattr(self._local, "explicit", None)
        if explicit is not None:
            return explicit.add(plan, inputs, outputs)
        self.queue.add(plan.native, inputs, outputs)

    def operation(self) -> contextlib.AbstractContextManager[Recording]:
        """The recording, held by this thread alone for one operation's dispatches, and not submitted before
        its end."""
        operation: contextlib.AbstractContextManager[Recording] = self.queue.operation(self.recording)
        return operation

    @checked
    @contextlib.contextmanager
    def record(self, timestamps: int = 0, marks: int = 0) -> Iterator[Recording]:
        """Records what this thread asks for in the block instead of running it; ``recording.run()`` runs it,
        again and again.

        Arrays that are uploaded in the block are not part of it: they are there once, before the first run.
        *timestamps* is the number of dispatches whose time on the device is measured
        (``Recording.gpu_times_us``); *marks* the number of points in time that the block takes itself
        (``Recording.mark``).
        """
        if not (0 <= timestamps <= MOST_MARKS and 0 <= marks <= MOST_MARKS):
            raise ArgumentError(
                f"record: timestamps is {timestamps} and marks {marks}; each must be from 0 to {MOST_MARKS}"
            )
        with self._recording_into(Recording(self, timestamps, marks)) as recording:
            assert recording is not None
            yield recording

    def immediate(self) -> contextlib.AbstractContextManager[Any]:
        """Inside a ``record`` block of this thread: what is asked for in this block runs as if the other were
        not there."""
        return self._recording_into(None)

    @contextlib.contextmanager
    def _recording_into(self, recording: Recording | None) -> Iterator[Recording | None]:
        previous = getattr(self._local, "explicit", None)
        self._local.explicit = recording
        try:
            yield recording
        finally:
            self._local.explicit = previous

    def groups_per_dispatch(self, total: int, macs: int) -> int:
        """How many of *total* workgroups, *macs* multiply-adds in all, one dispatch may have before a
        watchdog could end it."""
        most = profile(self.capabilities).macs_per_dispatch
        return total if macs <= most else max(1, total * most // macs)

    def flush(self) -> None:
        """Submits what was asked for so far, without waiting."""
        self.check_usable()
        self.queue.flush()

    def synchronize(self) -> None:
        """Submits what was asked for so far and waits until the device has done it."""
        self.check_usable()
        self.queue.synchronize()

    def check_usable(self) -> None:
        """Raises where the device is closed, lost, or was inherited through a fork."""
        self.context.check()

    def close(self) -> None:
        """Waits for the device, writes the pipeline cache, frees everything. Further use raises; closing
        again does nothing."""
        if self.context.forked:
            return  # a forked child owns nothing
        try:
            if not self.closed and not self.context.lost:
                self.programs.save()
        finally:
            self.context.close()  # not under the lock, which a thread may want that holds the queue
            with self._lock:
                self.programs.clear()
                self._constants.clear()
                self._plans.clear()

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


@atexit.register
def _close_all() -> None:
    """Devices left open are closed before the interpreter tears down what they use."""
    if not _open:
        return
    native_module().begin_exit()
    for device in list(_open):
        with contextlib.suppress(Exception):
            device.close()
