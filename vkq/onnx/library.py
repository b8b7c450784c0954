"""ONNX Runtime's functions and classes other than sessions and values: information, logging, and settings
of the process."""

from __future__ import annotations

import dataclasses
import enum
import logging
import sys
from collections.abc import Mapping
from typing import Any

from .._version import __version__
from ..arguments import shown
from ..errors import ArgumentError
from .fallback import caller_warned
from .options import CPU, VULKAN, IgnoredWarning

_told: set[str] = set()  # names of ignored functions for which a warning was issued


def get_available_providers() -> list[str]:
    """Return ``["VulkanExecutionProvider", "CPUExecutionProvider"]``. The second provider is ONNX Runtime,
    which can run the nodes that a device cannot run."""
    return [VULKAN, CPU]


get_all_providers = get_available_providers


def get_device() -> str:
    """Return ``"GPU"``, ONNX Runtime's name of this kind of device. `vkq.devices` lists the devices."""
    return "GPU"


def get_version_string() -> str:
    """Return the version of vkq."""
    return __version__


def get_build_info() -> str:
    """Return the text of `vkq --version`."""
    return f"vkq {__version__}"


def set_default_logger_severity(level: int) -> None:
    """Set the level of ``logging.getLogger("vkq")`` by ONNX Runtime's numbers: 0 verbose, 1 information, 2
    warnings, 3 errors, 4 fatal."""
    if level not in range(5):
        raise ArgumentError(f"the severity is {shown(level)}; it must be from 0 (verbose) to 4 (fatal)")
    logging.getLogger("vkq").setLevel(10 * (level + 1))


def set_default_logger_verbosity(level: int) -> None:
    """Do nothing: the logger has only severity levels."""


def disable_telemetry_events() -> None:
    """Do nothing: vkq has no telemetry."""


enable_telemetry_events = disable_telemetry_events


def set_seed(seed: int) -> None:
    """Do nothing except warn once: no operator that draws random numbers runs on a device. For nodes on the
    CPU, call ``onnxruntime.set_seed``."""
    _ignored("set_seed", "no operator of random numbers runs on a device")


@dataclasses.dataclass(frozen=True)
class OrtDevice:
    """ONNX Runtime's description of a device, such as ``OrtDevice.make("cpu", 0)``."""

    name: str
    index: int = 0

    @classmethod
    def make(cls, ort_device_name: str, device_id: int, vendor_id: int = -1) -> OrtDevice:
        """Return a device: "cpu" is the CPU, and any other name is the GPU with the index *device_id*."""
        return cls(str(ort_device_name).lower(), int(device_id))

    def device_type(self) -> int:
        """Return 0 for the CPU, and 1 for a GPU."""
        return int(self.name != "cpu")

    def device_id(self) -> int:
        """Return the index of the device."""
        return self.index

    def device_mem_type(self) -> int:
        """Return 0, which stands for the default kind of memory in ONNX Runtime."""
        return 0


class OrtAllocatorType(enum.IntEnum):
    """The kinds of allocators in ONNX Runtime. vkq ignores them."""

    INVALID = -1
    ORT_DEVICE_ALLOCATOR = 0
    ORT_ARENA_ALLOCATOR = 1


class OrtMemType(enum.IntEnum):
    """The kinds of memory in ONNX Runtime. vkq ignores them."""

    CPU_INPUT = -2
    CPU_OUTPUT = -1
    DEFAULT = 0


@dataclasses.dataclass(frozen=True)
class OrtMemoryInfo:
    """The device and the kind of memory of an allocator in ONNX Runtime."""

    name: str
    allocator_type: Any
    device_id: int
    memory_type: Any


class OrtArenaCfg(dict[str, int]):
    """Options of an allocator in ONNX Runtime: positional numbers, or one dictionary."""

    def __init__(self, *given: Any) -> None:
        keys = "max_mem", "arena_extend_strategy", "initial_chunk_size_bytes", "max_dead_bytes_per_chunk"
        one = given[0] if len(given) == 1 else dict(zip(keys, given, strict=False))
        if not isinstance(one, Mapping):
            raise ArgumentError(f"OrtArenaCfg is given {shown(one)}; it must be a dictionary or numbers")
        super().__init__(one)


def create_and_register_allocator(memory_info: OrtMemoryInfo, arena_cfg: OrtArenaCfg | None = None) -> None:
    """Do nothing except warn once: a device manages its own memory (``vkq.Device``), and its sessions share
    this memory."""
    _ignored("create_and_register_allocator", "sessions of a device share its memory")


def set_global_thread_pool_sizes(intra_op_num_threads: int, inter_op_num_threads: int) -> None:
    """Do nothing except warn once: vkq has no thread pools, because the device schedules the work."""
    _ignored("set_global_thread_pool_sizes", "the device orders the work")


def preload_dlls(cuda: bool = True, cudnn: bool = True, msvc: bool = True, directory: Any = None) -> None:
    """Do nothing: the Vulkan loader finds the libraries of a device."""


def print_debug_info() -> None:
    """Print the version, and the command that reports more."""
    sys.stdout.write(f"{get_build_info()}\n`vkq report` writes what is known about the devices to a file\n")


def _ignored(name: str, why: str) -> None:
    if name not in _told:
        _told.add(name)
        caller_warned(f"vkq ignores {name}: {why}", IgnoredWarning)
