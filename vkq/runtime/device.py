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
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import cache
from ..device import capabilities as caps
from ..device import vulkan
from ..errors import ArgumentError, DeviceError, NoDeviceError, OutOfMemoryError
from ..shader.compile import spirv
from ..shader.spec import Value, Variant
from ..shader.spirv import with_float_controls
from .buffer import Arena, Buffer, Memory
from .program import Program, require
from .recording import Recording, native_module

PREFERENCE = ("discrete", "integrated", "virtual", "cpu", "other")
BLOCK_BYTES = 16 << 20
# A watchdog ends a dispatch after about a second, and slow devices have them: multiply-adds that even those finish in time.
MACS_PER_DISPATCH = {"discrete": 1 << 40, "virtual": 1 << 38, "cpu": 1 << 40}
MACS_PER_DISPATCH_DEFAULT = 1 << 33
OPERATIONS_BEFORE_SUBMIT = 256
CONSTANTS_KEPT = 64  # tables that operators share; the largest have 64 KiB

_open: weakref.WeakSet[Device] = weakref.WeakSet()


class Device:
    """A Vulkan device, opened with the features that vkq's shaders use.

    Args:
        which: an index, part of a name, or None for the environment's VKQ_DEVICE, else the best: discrete before integrated
            before virtual before CPU.
        staging: True copies through host memory even where the device's own memory is visible; None decides by the device.
        capabilities: for tests: what to believe of the device instead of what it says (from `vkq.devices`, with fewer
            features or smaller limits); which is then ignored.

    Work is submitted when a result is read (``Tensor.numpy``), so that a chain of layers is one submission. A Device may be
    used from several threads. It is a context manager; ``close`` frees everything and may be called twice.

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
        capabilities: caps.Capabilities | None = None,
    ):
        physical, self.capabilities = _choose(which) if capabilities is None else _pretended(capabilities)
        family = self.capabilities.compute_family
        if family is None:
            raise NoDeviceError(f"{self.capabilities.name} has no queue that computes")
        handle, queue = vulkan.open_device(physical, family, dict(self.capabilities.features), set(self.capabilities.extensions))
        instance = vulkan.instance()
        loader = vulkan.binding().lib.vkGetInstanceProcAddr
        self.context = native_module().Context(
            *(vulkan.handle_int(h) for h in (loader, instance.handle, physical, handle, queue)), family
        )
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._local = threading.local()
        self._pending: Recording | None = None
        self._in_flight: list[Recording] = []
        self._programs: dict[tuple[Any, ...], Program] = {}
        self._constants: OrderedDict[Hashable, Buffer] = OrderedDict()
        self._cached_bytes = self._load_pipeline_cache()
        self._make_arenas(staging)
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
        """Copies a contiguous array to the beginning of *target*."""
        self.check_usable()
        flat = data.reshape(-1).view(np.uint8)
        if flat.size == 0:
            return
        if target.mapped:
            target.view()[: flat.size] = flat
            return
        with self._lock:
            staging = self._allocate(self._staging, flat.size)
            staging.view()[: flat.size] = flat
            self.recording().copy(staging, target, flat.size)

    def constant(self, key: Hashable, make: Callable[[], npt.NDArray[Any]]) -> Buffer:
        """An array in device memory, made and uploaded once for each key; the latest CONSTANTS_KEPT are kept.

        It outlives a ``record`` block, so its upload is never part of one.
        """
        with self._lock:
            found = self._constants.get(key)
            if found is None:
                data = np.ascontiguousarray(make())
                found = self.allocate(data.nbytes)
                explicit: Recording | None = getattr(self._local, "explicit", None)
                self._local.explicit = None
                try:
                    self.upload(found, data)
                finally:
                    self._local.explicit = explicit
                self._constants[key] = found
                if len(self._constants) > CONSTANTS_KEPT:
                    self._constants.popitem(last=False)
            self._constants.move_to_end(key)
            return found

    def download(self, source: Buffer, size: int) -> npt.NDArray[np.uint8]:
        """The first *size* bytes of *source* as a new array, after everything asked for so far has run."""
        self.check_usable()
        if getattr(self._local, "explicit", None) is not None:
            raise DeviceError("a tensor cannot be read while its operations are only being recorded; run the recording first")
        if size == 0:
            return np.empty(0, np.uint8)
        if source.mapped:
            self.synchronize()
            return np.array(source.view()[:size])
        with self._lock:
            staging = self._allocate(self._staging, size)
            self.recording().copy(source, staging, size)
        self.synchronize()
        return np.array(staging.view()[:size])

    def _allocate(self, arena: Arena, size: int) -> Buffer:
        self.check_usable()
        limit = self.capabilities.properties["maxMemoryAllocationSize"]
        if limit and size > limit:
            raise OutOfMemoryError(
                f"{size} bytes asked for, above this device's maxMemoryAllocationSize of {limit}; use smaller tensors"
            )
        try:
            return arena.allocate(size)
        except OutOfMemoryError:
            self.synchronize()  # what has run lets go of its buffers
        try:
            return arena.allocate(size)
        except OutOfMemoryError as error:
            raise OutOfMemoryError(
                f"{self.name}: no memory for {size} bytes more ({self._arena.allocated_bytes} bytes are allocated): {error}",
                error.result,
                error.call,
            ) from error

    def _make_arenas(self, staging: bool | None) -> None:
        types = self.capabilities.memory_types
        host = [i for i, t in enumerate(types) if {"host_visible", "host_coherent"} <= t.flags]
        local = [i for i, t in enumerate(types) if "device_local" in t.flags and "protected" not in t.flags]
        largest = max(types[i].heap_bytes for i in local)
        # Where all of the device's memory is the host's too, and cached, nothing needs to be copied.
        shared = [i for i in local if i in host and "host_cached" in types[i].flags and types[i].heap_bytes == largest]
        cached = max(host, key=lambda i: ("host_cached" in types[i].flags, "device_local" not in types[i].flags))
        own = max(local, key=lambda i: (types[i].heap_bytes, "host_visible" not in types[i].flags))
        use_staging = not shared if staging is None else staging
        if not shared and not use_staging:
            raise ArgumentError(f"{self.name} has no cached device memory that the host sees; staging=False cannot be")
        alignment = self.capabilities.properties["minStorageBufferOffsetAlignment"]

        def arena(memory_type: int, mapped: bool) -> Arena:
            def block(size: int) -> Memory:
                memory: Memory = self.context.allocate(size, memory_type, mapped)
                return memory

            return Arena(block, alignment, BLOCK_BYTES)

        self._arena = arena(own, False) if use_staging else arena(shared[0], True)
        self._staging = arena(cached, True)

    # ----------------------------------------------------------------------------------------------- programs

    def program(self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0) -> Program:
        """The pipeline of a variant with these specialization constants, made once; refused where the device cannot run it."""
        values = variant.constants(constants or {})
        key = (variant, tuple(values.items()), subgroup_size)
        with self._lock:
            found = self._programs.get(key)
            if found is None:
                found = self._programs[key] = self._make_program(variant, values, subgroup_size)
            return found

    def _make_program(self, variant: Variant, values: dict[str, Value], subgroup_size: int) -> Program:
        self.check_usable()
        require(variant, values, self.capabilities)
        facts = self.capabilities.properties
        code = with_float_controls(
            spirv(variant),
            rte=bool(facts["shaderRoundingModeRTEFloat32"]),
            denorm_preserve=bool(facts["shaderDenormPreserveFloat32"]),
        )
        packed = [(i, int.from_bytes(word, "little")) for i, word in variant.pack_specialization(values).items()]
        native = self.context.program(code, len(variant.bindings), 4 * len(variant.push_constants), packed, subgroup_size, 0)
        return Program(variant, values, native)

    def _pipeline_cache_path(self) -> Any:
        return cache.cache_dir() / "pipelines" / f"{self.capabilities.key}.bin"

    def _load_pipeline_cache(self) -> int:
        data = cache.read(self._pipeline_cache_path())
        if data:
            self.context.load_cache(data)
        return len(data or b"")

    def _save_pipeline_cache(self) -> None:
        if not self._programs or self.context.lost:
            return
        data = self.context.cache_data()
        if len(data) > self._cached_bytes:
            cache.write(self._pipeline_cache_path(), data)
            self._cached_bytes = len(data)

    # ---------------------------------------------------------------------------------------------- submission

    def recording(self) -> Recording:
        """Where operations go: the thread's ``record`` block, else the chain that the next read submits."""
        self.check_usable()
        explicit: Recording | None = getattr(self._local, "explicit", None)
        if explicit is not None:
            return explicit
        with self._lock:
            if self._pending is not None and self._pending.operations >= OPERATIONS_BEFORE_SUBMIT:
                self._submit_pending()
            if self._pending is None:
                self._pending = Recording(self)
            return self._pending

    @contextlib.contextmanager
    def operation(self) -> Iterator[Recording]:
        """The recording, held by this thread alone for one operation's dispatches."""
        with self._lock:
            yield self.recording()

    @contextlib.contextmanager
    def record(self, timestamps: int = 0) -> Iterator[Recording]:
        """Records what this thread asks for in the block instead of running it; ``recording.run()`` runs it, again and again.

        *timestamps* is the number of dispatches whose time on the device is measured (``Recording.gpu_times_us``).
        """
        self.flush()  # inputs uploaded before the block are not part of it
        recording = Recording(self, timestamps)
        previous = getattr(self._local, "explicit", None)
        self._local.explicit = recording
        try:
            yield recording
        finally:
            self._local.explicit = previous

    def groups_per_dispatch(self, total: int, macs: int) -> int:
        """How many of *total* workgroups, *macs* multiply-adds in all, one dispatch may have before a watchdog could end it."""
        most = MACS_PER_DISPATCH.get(self.capabilities.device_type, MACS_PER_DISPATCH_DEFAULT)
        return total if macs <= most else max(1, total * most // macs)

    def flush(self) -> None:
        """Submits what was asked for so far, without waiting."""
        self.check_usable()
        with self._lock:
            self._submit_pending()

    def synchronize(self) -> None:
        """Submits what was asked for so far and waits until the device has done it."""
        self.flush()
        while True:
            with self._lock:
                if not self._in_flight:
                    return
                recording = self._in_flight[0]
            try:
                recording.wait()
            finally:
                with self._lock:
                    if recording in self._in_flight:
                        self._in_flight.remove(recording)
                        recording.release()

    def _submit_pending(self) -> None:
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.submit()
            self._in_flight.append(pending)

    def check_usable(self) -> None:
        """Raises where the device is closed, lost, or was inherited through a fork."""
        if os.getpid() != self._pid:
            raise DeviceError(
                "this vkq.Device was opened before the process was forked, and Vulkan does not survive a fork; "
                "open it in the child, started with multiprocessing's 'spawn' method"
            )
        if self.closed:
            raise DeviceError(f"{self.name}: this vkq.Device is closed; open a new one")
        if self.context.lost:
            raise vulkan.error_for(vulkan.VK_ERROR_DEVICE_LOST, "an earlier call")

    def close(self) -> None:
        """Waits for the device, writes the pipeline cache, frees everything. Further use raises; closing again does nothing."""
        if os.getpid() != self._pid:
            return  # a forked child owns nothing
        with self._lock:
            if self.closed:
                return
            self._save_pipeline_cache()
            self._pending = None
            self._in_flight.clear()
            self._programs.clear()
            self._constants.clear()
            self.context.close()

    def __enter__(self) -> Device:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _choose(which: int | str | None) -> tuple[Any, caps.Capabilities]:
    handles = vulkan.instance().physical_devices()
    found = [(handle, caps.read(handle, index)) for index, handle in enumerate(handles)]
    able = [pair for pair in found if pair[1].refusal() is None]
    if which is None:
        which = os.environ.get("VKQ_DEVICE") or None
    if isinstance(which, str) and which.isdigit():
        which = int(which)
    listed = "; ".join(f"{c.index}: {c.name}" for _, c in found) or "none"
    if which is None:
        if not able:
            why = "; ".join(f"{c.name}: {c.refusal()}" for _, c in found) or "the loader shows no device"
            raise NoDeviceError(
                f"no Vulkan device can run vkq: {why}. Install a driver (mesa-vulkan-drivers has one for the CPU)"
            )
        return min(able, key=lambda pair: (PREFERENCE.index(pair[1].device_type), pair[1].index))
    if isinstance(which, int):
        able = [pair for pair in able if pair[1].index == which]
    else:
        able = [pair for pair in able if which.lower() in pair[1].name.lower()]
    if not able:
        raise NoDeviceError(f"no device matches {which!r} and can run vkq; there are: {listed}")
    return able[0]


def _pretended(capabilities: caps.Capabilities) -> tuple[Any, caps.Capabilities]:
    return vulkan.instance().physical_devices()[capabilities.index], capabilities


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
