"""``vkq.Device``: an opened Vulkan device with its memory, its pipelines and what waits to be submitted."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from ..device import vulkan
from ..device.capabilities import Capabilities
from ..device.choose import choose
from ..device.profiles import profile
from ..errors import DeviceError, NoDeviceError, OutOfMemoryError
from ..shader.spec import Value, Variant
from . import pipeline_cache
from .buffer import Arena, Buffer, Memory
from .memory import plan_memory
from .plan import Resident
from .program import Program, code, require
from .recording import Recording, native_module

BLOCK_BYTES = 16 << 20
OPERATIONS_BEFORE_SUBMIT = 256
SUBMISSIONS_IN_FLIGHT = 4  # more are waited for: what is in flight keeps its memory
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
        capabilities: Capabilities | None = None,
    ):
        extension = native_module()  # before anything is opened that a failed import would leave open
        physical, found = choose(capabilities.index if which is None and capabilities else which)
        self.capabilities = capabilities or found
        self.doctored = (
            self.capabilities.key != found.key
        )  # for tests: another process would see another device
        family, refusal = self.capabilities.compute_family, self.capabilities.refusal()
        if refusal or family is None:
            raise NoDeviceError(f"{self.capabilities.name} cannot run vkq: {refusal}")
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._pending: Recording | None = None
        self._operations = 0  # that are being recorded by the thread that holds the lock
        self._in_flight: list[Recording] = []
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._constants: OrderedDict[Hashable, Resident] = OrderedDict()
        self._plans: OrderedDict[Hashable, Any] = OrderedDict()
        self._scratch: Buffer | None = None
        self._soft_float: bool | None = None
        handle, queue = vulkan.open_device(
            physical, family, dict(self.capabilities.features), set(self.capabilities.extensions)
        )
        loader = vulkan.binding().lib.vkGetInstanceProcAddr
        handles = (loader, vulkan.instance().handle, physical, handle, queue)
        self.handle = handle  # the VkDevice, for queries that the extension does not make
        self.context = extension.Context(
            *(vulkan.handle_int(h) for h in handles), family, profile(self.capabilities).wide_barriers
        )
        try:
            self._cached_bytes = pipeline_cache.load(self.context, self.capabilities)
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

    def __repr__(self) -> str:
        return f"<vkq.Device {self.capabilities.index}: {self.name}{' (closed)' if self.closed else ''}>"

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
        return self._allocate(self._arena, size)

    def upload(self, target: Buffer, data: npt.NDArray[Any]) -> None:
        """Copies a contiguous array to the beginning of *target*, before what is asked for later and after
        what was before.

        Never part of a ``record`` block: replaying it does not copy again.
        """
        flat = data.reshape(-1).view(np.uint8)
        if flat.size == 0:
            return self.check_usable()
        if target.mapped:
            if self._in_use(target):
                self.synchronize()
            with self._lock:  # keeps the device open
                self.check_usable()
                target.view()[: flat.size] = flat
        else:
            staging = self._allocate(self._staging, flat.size)
            with self._lock:
                self.check_usable()
                staging.view()[: flat.size] = flat
                self._chain().copy(staging, target, flat.size)
        target.failure = None

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

    def scratch(self, size: int) -> Buffer:
        """Memory for what lies between the steps of plans. All share it, ordered by barriers; large ones have
        their own. Call it inside ``operation()``, which keeps other threads out."""
        if size > SCRATCH_KEPT_BYTES:
            return self.allocate(size)
        if self._scratch is None or self._scratch.bytes < size:
            self._scratch = None
            self._scratch = self.allocate(size)
        return self._scratch

    @property
    def soft_float(self) -> bool:
        """Whether shaders round floats in integers on this device (SOFT_FLOAT), because it rounds them
        otherwise."""
        if self._soft_float is None:
            self._soft_float = rounds_otherwise(self)
        return self._soft_float

    def download(self, source: Buffer, size: int) -> npt.NDArray[np.uint8]:
        """The first *size* bytes of *source* as a new array, after everything asked for so far has run."""
        self.check_usable()
        if getattr(self._local, "explicit", None) is not None:
            raise DeviceError(
                "a tensor cannot be read while its operations are only being recorded; run the recording"
                " first"
            )
        if size == 0:
            return np.empty(0, np.uint8)
        if not source.mapped:
            staging = self._allocate(self._staging, size)
            with self._lock:
                source.check()
                self._chain().copy(source, staging, size)
                source = staging
        self.synchronize()
        with self._lock:
            self.check_usable()
            source.check()
            return np.array(source.view()[:size])

    def _in_use(self, buffer: Buffer) -> bool:
        with self._lock:
            return any(buffer in r.buffers for r in (self._pending, *self._in_flight) if r is not None)

    def _allocate(self, arena: Arena, size: int) -> Buffer:
        self.check_usable()
        if size > arena.largest:
            raise OutOfMemoryError(
                f"{self.name}: {size} bytes asked for at once, above {arena.rule}; use smaller tensors"
            )
        try:
            return arena.allocate(size)
        except OutOfMemoryError:
            self.synchronize()  # what has run lets go of its buffers
            for one in (self._arena, self._staging):
                one.trim()
        try:
            return arena.allocate(size)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{self.name}: no memory for {size} bytes more ({self._arena.allocated_bytes} bytes are"
                f" allocated): {error}",
                error.result,
                error.call,
            ) from error

    def _make_arenas(self, staging: bool | None) -> None:
        context, facts = self.context, self.capabilities.properties
        plan = plan_memory(self.capabilities, context.buffer_memory_types(), staging)

        def arena(memory_type: int, mapped: bool) -> Arena:
            def block(size: int) -> Memory:  # refers to no Device: an arena does not keep its device alive
                memory: Memory = context.allocate(size, memory_type, mapped)
                return memory

            limits = {
                f"this device's {name}": facts[name] for name in ("maxMemoryAllocationSize", "maxBufferSize")
            }
            limits["the size of the memory heap"] = self.capabilities.memory_types[memory_type].heap_bytes
            largest, rule = min((limit, name) for name, limit in limits.items() if limit)
            return Arena(
                block, facts["minStorageBufferOffsetAlignment"], BLOCK_BYTES, largest, f"{rule} of {largest}"
            )

        self._arena = arena(plan.own, plan.mapped)
        self._staging = arena(plan.staging, True)

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
        values = variant.constants(given)
        key = (variant, tuple(values.items()), subgroup_size)
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                found = self._programs[key] = self._make_program(variant, values, subgroup_size)
            return found

    def _make_program(self, variant: Variant, values: dict[str, Value], subgroup_size: int) -> Program:
        require(variant, values, self.capabilities)
        packed = [
            (i, int.from_bytes(word, "little")) for i, word in variant.pack_specialization(values).items()
        ]
        native = self.context.program(
            code(variant, self.capabilities), len(variant.bindings), 4 * len(variant.push_constants), packed,
            subgroup_size, 0,
        )  # fmt: skip
        return Program(variant, values, native)

    # ----------------------------------------------------------------------------------------------
    # submission

    def recording(self) -> Recording:
        """Where operations go: the thread's ``record`` block, else the chain that the next read submits."""
        self.check_usable()
        explicit: Recording | None = getattr(self._local, "explicit", None)
        return explicit if explicit is not None else self._chain()

    def _chain(self) -> Recording:
        with self._lock:
            pending = self._pending
            if pending is not None and (pending.sealed or pending.operations >= OPERATIONS_BEFORE_SUBMIT):
                self._submit_pending()
            if self._pending is None:
                self._pending = Recording(self)
            return self._pending

    @contextlib.contextmanager
    def operation(self) -> Iterator[Recording]:
        """The recording, held by this thread alone for one operation's dispatches, and not submitted before
        its end."""
        self.check_usable()
        with self._lock:
            recording = self.recording()
            self._operations += 1
            try:
                yield recording
            finally:
                self._operations -= 1

    @contextlib.contextmanager
    def record(self, timestamps: int = 0, marks: int = 0) -> Iterator[Recording]:
        """Records what this thread asks for in the block instead of running it; ``recording.run()`` runs it,
        again and again.

        Arrays that are uploaded in the block are not part of it: they are there once, before the first run.
        *timestamps* is the number of dispatches whose time on the device is measured
        (``Recording.gpu_times_us``); *marks* the number of points in time that the block takes itself
        (``Recording.mark``).
        """
        with self._recording_into(Recording(self, timestamps, marks, replays=True)) as recording:
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
        with self._lock:
            self._submit_pending()

    def synchronize(self) -> None:
        """Submits what was asked for so far and waits until the device has done it."""
        self.flush()
        with self._lock:
            submitted = list(self._in_flight)
        for recording in submitted:
            self.finish(recording)

    def submit(self, recording: Recording) -> None:
        """Hands a recording to the device (``Recording.submit``)."""
        with self._lock:
            recording.submit_native()
            self._in_flight.append(recording)

    def finish(self, recording: Recording) -> None:
        """Waits for a recording (``Recording.wait``); its buffers are then no longer in use."""
        try:
            recording.wait_native()
        finally:
            with self._lock:
                if recording in self._in_flight:
                    self._in_flight.remove(recording)
                    recording.release()

    def _submit_pending(self) -> None:
        pending = self._pending
        if pending is None or self._operations:  # an operation's dispatches stay together
            return
        try:
            self.submit(pending)
        except DeviceError:
            if pending.broken:  # else nothing is lost: the next call submits it again
                self._pending = None
            raise
        self._pending = None
        if len(self._in_flight) > SUBMISSIONS_IN_FLIGHT:
            self.finish(self._in_flight[0])

    def check_usable(self) -> None:
        """Raises where the device is closed, lost, or was inherited through a fork."""
        if os.getpid() != self._pid:
            raise DeviceError(
                "this vkq.Device was opened before the process was forked, and Vulkan does not survive a"
                " fork; open it in the child, started with multiprocessing's 'spawn' method"
            )
        if self.closed:
            raise DeviceError(f"{self.name}: this vkq.Device is closed; open a new one")
        if self.context.lost:
            raise vulkan.error_for(vulkan.VK_ERROR_DEVICE_LOST, "an earlier call")

    def close(self) -> None:
        """Waits for the device, writes the pipeline cache, frees everything. Further use raises; closing
        again does nothing."""
        if os.getpid() != self._pid:
            return  # a forked child owns nothing
        with self._lock:
            if self.closed:
                return
            try:
                if self._programs and not self.context.lost:
                    pipeline_cache.save(self.context, self.capabilities, self._cached_bytes)
            finally:
                self._pending = None
                self._in_flight.clear()
                self._programs.clear()
                self._constants.clear()
                self._plans.clear()
                self._scratch = None
                self.context.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


_default: Device | None = None
_default_lock = threading.Lock()


def default_device() -> Device:
    """The device that functions use when none is given: opened on first use, like ``Device()``."""
    global _default
    with _default_lock:
        if _default is None or _default.closed or _default.context.lost:
            _default = Device()
        return _default


@atexit.register
def _close_all() -> None:
    """Devices left open are closed before the interpreter tears down what they use."""
    for device in list(_open):
        with contextlib.suppress(Exception):
            device.close()
