"""ONNX Runtime's arguments for opening a session: options, providers, metadata. Code for ONNX Runtime runs
unchanged after ``import vkq.onnx as onnxruntime``. A session warns once about arguments that it ignores."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping, Sequence
from typing import Any

from ..arguments import RULES, Rule, shown
from ..errors import ArgumentError, DTypeError, UnsupportedModelError, did_you_mean
from ..runtime.device import Device
from ..runtime.opened import opened
from .initializers import replaced
from .pytorch import model_of

VULKAN, CPU = "VulkanExecutionProvider", "CPUExecutionProvider"
# Options for which no warning is issued: vkq uses them, or they could not change its results.
HARMLESS = {
    "use_deterministic_compute", "logid", "only_execute_path_to_fetches",
    "enable_profiling", "profile_file_prefix",  # options that `InferenceSession.end_profiling` uses
}  # fmt: skip
USED = {"sizes", "initializers", "providers"}  # `SessionOptions` attributes that vkq uses
# Keywords of onnxruntime.InferenceSession that `asked_of` accepts: the model, and keywords without effect.
ARGUMENTS = ("path_or_bytes", "disabled_optimizers", "enable_fallback", "read_config_from_model")
KEYWORDS = (
    "device", "fallback", "constant_inputs", "progress", "compute", "sess_options",
    "providers", "provider_options")  # fmt: skip


class IgnoredWarning(UserWarning):
    """Warning: an option of ONNX Runtime has no effect in vkq."""


class GraphOptimizationLevel(enum.IntEnum):
    """ONNX Runtime's levels of optimization. vkq ignores the level: results do not depend on it."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class ExecutionMode(enum.IntEnum):
    """ONNX Runtime's execution modes. vkq ignores them, because the device schedules the work."""

    ORT_SEQUENTIAL = 0
    ORT_PARALLEL = 1


class ExecutionOrder(enum.IntEnum):
    """ONNX Runtime's orders of nodes. vkq ignores them."""

    DEFAULT = 0
    PRIORITY_BASED = 1
    MEMORY_EFFICIENT = 2


class Entries:
    """Text entries of the options of sessions and runs, by key. vkq stores them but does not use them."""

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
    """The attributes of onnxruntime.SessionOptions, with ONNX Runtime's defaults.

    `add_free_dimension_override_by_name` fixes free dimensions. Most attributes have no effect: if the value
    of such an attribute is not the default, the session warns once (`IgnoredWarning`).
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
    initializers: dict[str, Any] = dataclasses.field(default_factory=dict)
    providers: list[Any] = dataclasses.field(default_factory=list)

    def add_session_config_entry(self, key: str, value: str) -> None:
        """Store a text entry under a key. vkq does not use the entry."""
        self._add(key, value)

    def get_session_config_entry(self, key: str) -> str:
        """Return the entry with this key. Raises ArgumentError if no entry has this key."""
        return self._get(key)

    def add_free_dimension_override_by_name(self, name: str, size: int) -> None:
        """Fix the size of every axis that the model calls *name* to *size*."""
        self.sizes[str(name)] = int(size)

    def add_free_dimension_override_by_denotation(self, denotation: str, size: int) -> None:
        """Do nothing: each run determines the sizes of free dimensions."""

    def add_initializer(self, name: str, ort_value: Any) -> None:
        """Replace the model's initializer *name* by an OrtValue of the initializer's type and shape."""
        self.initializers[str(name)] = ort_value

    def add_external_initializers(self, names: Sequence[str], ort_values: Sequence[Any]) -> None:
        """Replace several initializers. External data of replaced initializers is not read."""
        self.initializers |= dict(zip(names, ort_values, strict=True))

    def add_provider(self, provider_name: str, options: Mapping[str, Any] | None = None) -> None:
        """Add a provider, as an element of a session's argument ``providers``."""
        self.providers.append((provider_name, dict(options or {})))

    def has_providers(self) -> bool:
        """Return True if `add_provider` was called."""
        return bool(self.providers)

    def register_custom_ops_library(self, path: str) -> None:
        """Raise UnsupportedModelError: operators compiled for ONNX Runtime cannot run on a Vulkan device."""
        raise UnsupportedModelError(
            f"{shown(path)} has operators that only ONNX Runtime runs; run such models there, or write the"
            " operators as functions of the model (onnx.helper.make_function), which vkq expands"
        )


@dataclasses.dataclass
class RunOptions(Entries):
    """The attributes of onnxruntime.RunOptions, with ONNX Runtime's defaults. If
    ``only_execute_path_to_fetches`` is True, a run computes only the nodes that the requested outputs need.
    No other attribute has an effect: if its value is not the default, the session warns once."""

    log_severity_level: int = -1
    log_verbosity_level: int = 0
    logid: str = ""
    only_execute_path_to_fetches: bool = False
    terminate: bool = False

    def add_run_config_entry(self, key: str, value: str) -> None:
        """Store a text entry under a key. vkq does not use the entry."""
        self._add(key, value)

    def get_run_config_entry(self, key: str) -> str:
        """Return the entry with this key. Raises ArgumentError if no entry has this key."""
        return self._get(key)


def changed(options: Any, kind: type[SessionOptions | RunOptions]) -> list[str]:
    """Return ``name=value`` of each attribute that differs from its default. *options* is an object of vkq
    or of ONNX Runtime."""
    plain = {field.name: field.default for field in dataclasses.fields(kind) if field.name not in HARMLESS}
    found = [
        (name, getattr(options, name, value), value) for name, value in plain.items() if name not in USED
    ]
    return [f"{name}={getattr(now, 'name', now)}" for name, now, value in found if _number(now) != value]


def _number(value: Any) -> Any:
    """Return the number of an enumeration's member (vkq's or ONNX Runtime's); return any other value
    unchanged."""
    return getattr(value, "value", value)


@dataclasses.dataclass(frozen=True)
class Asked:
    """The arguments of a session, translated to vkq's: device, fallback, options, and texts about ignored
    arguments."""

    device: Device | int | str | None = None
    fallback: str | None = None
    options: Any = dataclasses.field(default_factory=SessionOptions)
    ignored: tuple[str, ...] = ()
    path_or_bytes: Any = None

    def given(self, model: Any) -> Any:
        """Return the session's model, with the initializers of the options. The caller passes the model as
        *model* or as the keyword ``path_or_bytes``. Raises DTypeError unless exactly one of them is given."""
        if (model is None) == (self.path_or_bytes is None):
            raise DTypeError("InferenceSession takes one model: a path, bytes, or an onnx.ModelProto")
        model = model_of(self.path_or_bytes if model is None else model)
        return replaced(model, getattr(self.options, "initializers", {}))

    @property
    def sizes(self) -> Mapping[str, int]:
        """The sizes of free dimensions, by name. Empty for ONNX Runtime's options, which hide the sizes."""
        return getattr(self.options, "sizes", {})


def asked_of(
    device: Any,
    fallback: Any,
    sess_options: Any,
    providers: Any,
    provider_options: Any,
    runtime: str = "onnxruntime",
    more: Mapping[str, Any] | None = None,
) -> Asked:
    """Translate ONNX Runtime's arguments of a session to vkq's.

    *device* may be the session options, which are ONNX Runtime's second argument. *fallback* may be the
    providers, its third argument. *runtime*: the name of the fallback. *more*: keywords in `ARGUMENTS`.
    Raises ArgumentError for lists of providers that ONNX Runtime also refuses."""
    more = more or {}
    for name in set(more) - set(ARGUMENTS):
        raise DTypeError(f"InferenceSession has no argument {name!r}{did_you_mean(name, KEYWORDS)}")
    if _is_options(device):
        device, sess_options = None, device
    if isinstance(fallback, (list, tuple)):
        fallback, providers = None, fallback
    options = sess_options or SessionOptions()
    providers = getattr(options, "providers", None) or None if providers is None else providers
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
    ignored += [f"{name}={more[name]}" for name in more if name == "disabled_optimizers" and more[name]]
    told = *ignored, *changed(options, SessionOptions)
    return Asked(device, fallback, options, told, more.get("path_or_bytes"))


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
    """Return True if an object is a SessionOptions of vkq or of ONNX Runtime."""
    return hasattr(value, "add_session_config_entry") and hasattr(value, "graph_optimization_level")


@dataclasses.dataclass(frozen=True)
class ModelMetadata:
    """The metadata of a model file (`InferenceSession.get_modelmeta`), as in ONNX Runtime."""

    custom_metadata_map: Mapping[str, str] = dataclasses.field(default_factory=dict)
    description: str = ""
    domain: str = ""
    graph_description: str = ""
    graph_name: str = ""
    producer_name: str = ""
    version: int = 0


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
