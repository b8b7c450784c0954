"""ONNX Runtime's words for how a session is opened: options, providers, metadata. Code written for it runs
with vkq after ``import vkq.onnx as onnxruntime``; what has no meaning here says so once for each session."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments import RULES, Rule, shown
from ..errors import ArgumentError, DTypeError
from ..runtime.device import Device
from ..runtime.opened import opened

VULKAN, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"
# Options of a session or a run that are taken, or that change nothing where every run is the same.
HARMLESS = {
    "use_deterministic_compute", "logid", "only_execute_path_to_fetches",
    "enable_profiling", "profile_file_prefix",  # `InferenceSession.end_profiling`
}  # fmt: skip


class IgnoredWarning(UserWarning):
    """An option of ONNX Runtime that has no meaning in vkq."""


class GraphOptimizationLevel(enum.IntEnum):
    """ONNX Runtime's levels. vkq computes the same numbers at every level, and ignores it."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """ONNX Runtime's modes. The device orders the work itself, so vkq ignores it."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """ONNX Runtime's orders of nodes, which vkq ignores."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class Entries:
    """What options and runs share: entries of text by key, which vkq keeps and ignores."""

    _entries: dict[str, str]

    def _add(self, key: str, value: str) -> None:
        self.__dict__.setdefault("_entries", {})[str(key)] = str(value)

    def _get(self, key: str) -> str:
        try:
            return str(self.__dict__.get("_entries", {})[key])
        except KeyError:
            raise ArgumentError(f"there is no entry {key!r}; add it first") from None


@dataclasses.dataclass
class SessionOptions(Entries):
    """The attributes of onnxruntime.SessionOptions with its defaults.

    Sizes that `add_free_dimension_override_by_name` fixes are taken; an attribute with another value than its
    default is ignored with one `IgnoredWarning` for each session.
    """

    enable_cpu_mem_arena: bool = True
    enable_mem_pattern: bool = True
    enable_mem_reuse: bool = True
    enable_profiling: bool = False
    execution_mode: Any = ExecutionMode.ORT_SEQUENTIAL
    execution_order: Any = ExecutionOrder.DEFAULT
    graph_optimization_level: Any = GraphOptimizationLevel.ORT_ENABLE_ALL
    inter_op_num_threads: int = 0
    intra_op_num_threads: int = 0
    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    optimized_model_filepath: str = ""
    profile_file_prefix: str = "onnxruntime_profile_"
    use_deterministic_compute: bool = False
    use_per_session_threads: bool = True
    sizes: dict[str, int] = dataclasses.field(default_factory=dict)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; vkq ignores it."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """The entry that was added with this key."""
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the size of every axis that the model calls *name*."""
        self.sizes[str(name)] = int(size)


@dataclasses.dataclass
class RunOptions(Entries):
    """The attributes of onnxruntime.RunOptions with its defaults; others are ignored with a warning."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Keep an entry; vkq ignores it."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """The entry that was added with this key."""
        return self._get(key)


def changed(options: Any, kind: type[SessionOptions | RunOptions]) -> list[str]:
    """``name=value`` of each attribute that is not its default, of options of vkq or ONNX Runtime."""
    plain = {field.name: field.default for field in dataclasses.fields(kind) if field.name not in HARMLESS}
    found = [(name, getattr(options, name, value), value) for name, value in plain.items() if name != "sizes"]
    return [f"{name}={getattr(now, 'name', now)}" for name, now, value in found if _number(now) != value]


def _number(value: Any) -> Any:
    """An enumeration's number: ONNX Runtime's are of classes of their own."""
    return getattr(value, "value", value)


@dataclasses.dataclass(frozen=True)
class Asked:
    """What a session is opened with: the device, the fallback, the options, and what is ignored."""

    device: Device | int | str | None = None
    fallback: str | None = None
    options: Any = dataclasses.field(default_factory=SessionOptions)
    ignored: tuple[str, ...] = ()

    @property
    def sizes(self) -> Mapping[str, int]:
        """Of open axes, by name. (Those in ONNX Runtime's own object cannot be read.)"""
        return getattr(self.options, "sizes", {})


def asked_of(
    device: Any,
    fallback: Any,
    sess_options: Any,
    providers: Any,
    provider_options: Any,
    runtime: str = "onnxruntime",
) -> Asked:
    """ONNX Runtime's arguments, whose second and third are options and providers, in vkq's words. *runtime*
    is the fallback's name. Raises ArgumentError for a list of providers that ONNX Runtime refuses, too."""
    if _is_options(device):
        device, sess_options = None, device
    if isinstance(fallback, (list, tuple)):
        fallback, providers = None, fallback
    given = [] if providers is None else _pairs(providers, provider_options)
    names = [name for name, _ in given]
    ignored = [f"{CPU} as the only provider"] if names == [CPU] else []
    for name, own in given:
        if name == VULKAN:
            ignored += [f"{name}'s {key}" for key in own if key != "device_id"]
            if "device_id" in own and device is None:
                device = _index(own["device_id"])
        elif name != CPU:
            ignored.append(name)
    fallback = fallback or (runtime if CPU in names else None)
    if fallback not in (None, runtime):
        raise ArgumentError(f"fallback is {fallback!r}; it must be None or {runtime!r}")
    options = sess_options or SessionOptions()
    return Asked(device, fallback, options, (*ignored, *changed(options, SessionOptions)))


def _pairs(providers: Any, provider_options: Any) -> list[tuple[str, Mapping[str, Any]]]:
    rule = "names of providers or (name, options) pairs"
    if not isinstance(providers, Sequence) or isinstance(providers, str):
        raise DTypeError(f"providers is {shown(providers)}; it must be a list of {rule}")
    found: list[tuple[str, Mapping[str, Any]]] = []
    if provider_options is not None and (
        not isinstance(provider_options, Sequence) or len(provider_options) != len(providers)
    ):
        raise ArgumentError(
            f"provider_options is {shown(provider_options)}; it must have a dictionary for each of the"
            f" {len(providers)} providers"
        )
    for one, more in zip(providers, provider_options or [{}] * len(providers), strict=True):
        name, options = one if isinstance(one, (tuple, list)) and len(one) == 2 else (one, more)
        if not isinstance(name, str) or not isinstance(options, Mapping):
            raise ArgumentError(f"providers has {shown(one)}; it must be a list of {rule}")
        found.append((name, options))
    return found


def _index(value: Any) -> int:
    try:
        return int(value)
    except (TypeError, ValueError):
        raise ArgumentError(f"{VULKAN}: device_id is {shown(value)}; it must be a number") from None


def _is_options(value: Any) -> bool:
    """Whether it is a SessionOptions of vkq or of ONNX Runtime."""
    return hasattr(value, "add_session_config_entry") and hasattr(value, "graph_optimization_level")


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
    """What a model file says of itself (`InferenceSession.get_modelmeta`), as ONNX Runtime's."""

    custom_metadata_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = 0


def get_available_providers() -> list[str]:
    """``["VulkanExecutionProvider", "CPUExecutionProvider"]``; the latter is ONNX Runtime's, for nodes that a
    device cannot run."""
    return [VULKAN, CPU]


get_all_providers = get_available_providers


def get_device() -> str:
    """``"GPU"``: what the package computes on, as ONNX Runtime says it. `vkq.devices` lists the devices."""
    return "GPU"


def set_default_logger_severity(level: int) -> None:
    """Set the level of ``logging.getLogger("vkq")``: 0 verbose, 1 information, 2 warnings, 3 errors, 4 fatal,
    as ONNX Runtime counts."""
    import logging

    if level not in range(5):
        raise ArgumentError(f"the severity is {shown(level)}; it must be from 0 (verbose) to 4 (fatal)")
    logging.getLogger("vkq").setLevel(10 * (level + 1))


_devices = RULES[opened.__annotations__["given"]]
RULES |= {
    "Device | int | str | SessionOptions | None": Rule(
        lambda value: _is_options(value) or _devices.check(value), f"{_devices.must}, or a SessionOptions"
    ),
    "str | Sequence[Any] | None": Rule(
        lambda value: value is None or isinstance(value, (str, list, tuple)),
        "text, None, or a list of providers",
    ),
}
