"""The methods of ONNX Runtime's InferenceSession other than ``run``, for code written for ONNX Runtime."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

import numpy.typing as npt

from ..arguments import checked
from ..errors import ArgumentError, DeviceError
from ..graph.graph import Array, Graph
from ..runtime.device import Device
from ..runtime.opened import opened
from ..runtime.programs import Progress
from ..runtime.tensor import Tensor
from .binding import IOBinding
from .fallback import caller_warned
from .initial import Initials
from .inputs import NodeArg
from .options import CPU, VULKAN, Asked, IgnoredWarning, ModelMetadata, RunOptions, asked_of, changed
from .prepared import Executables
from .reader import Model
from .values import OrtValue
from .worker import Worker

Self = TypeVar("Self", bound="Manners")
Callback = Callable[[Sequence[Array], Any, str], Any]


class Manners:
    """The methods of a session other than ``run``: they return information, close the session, or run the
    model asynchronously (`run_async`) or with bound memory (IOBinding)."""

    model: Model
    device: Device
    _state: Executables | None
    _fallback: str | None
    _kv_cache: str | None
    _initials: Initials[Manners]
    _which: int | str | None
    _progress: Progress | None
    _trial: tuple[Mapping[str, Sequence[int]], Graph] | None

    def _take(self, device: Device) -> None:
        raise NotImplementedError

    def _keep(self, asked: Asked) -> None:
        """Store the arguments of the session, and warn once about ignored ones."""
        self._options = asked.options
        self._worker, self._told = Worker(), False
        self._profiled: list[tuple[int, int, int]] | None = [] if self._options.enable_profiling else None
        self._began = time.monotonic_ns()
        if asked.ignored:
            caller_warned(
                f"vkq ignores {', '.join(asked.ignored)}: the model runs on {self.device.name}"
                + ("; the CPU runs nodes that the device cannot run" if self._fallback else ""),
                IgnoredWarning,
            )

    def _run_options(self, options: Any) -> None:
        """Warn once for each session about ignored options of a run."""
        if options is not None and not self._told and (ignored := changed(options, RunOptions)):
            self._told = True
            caller_warned(f"run: vkq ignores the run options {', '.join(ignored)}", IgnoredWarning)

    # -------------------------------------------------------------------------------------------- information

    def get_inputs(self) -> list[NodeArg]:
        """Return the inputs of `run`."""
        return [NodeArg.of(argument) for argument in self.model.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Return the outputs of `run`."""
        return [NodeArg.of(argument) for argument in self.model.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """Return the inputs that have a default value in the model. `run` may replace the default; the model
        is prepared again for each new value."""
        return [NodeArg.of(argument) for argument in self.model.overridable]

    def get_modelmeta(self) -> ModelMetadata:
        """Return the metadata in the file."""
        return self.model.metadata

    def get_session_options(self) -> Any:
        """Return the options of the session."""
        return self._options

    def get_providers(self) -> list[str]:
        """Return ``["VulkanExecutionProvider"]``, and "CPUExecutionProvider" if nodes may run on the CPU."""
        return [VULKAN, CPU] if self._fallback else [VULKAN]

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Return the options of each provider. "device_id" is the index of the Vulkan device."""
        own = {VULKAN: {"device_id": str(self.device.capabilities.index)}}
        return own | ({CPU: {}} if self._fallback else {})

    def set_providers(self, providers: Any = None, provider_options: Any = None) -> None:
        """Warn, and change nothing: a session keeps its device. To use another device, open a new session."""
        asked_of(None, None, None, providers, provider_options)
        caller_warned(f"vkq ignores set_providers: the session stays on {self.device.name}", IgnoredWarning)

    @property
    def counters(self) -> dict[str, int]:
        """Return counts since the session was opened.

        - runs: completed runs; a batch of `map` is one run
        - shapes_prepared, cache_hits: sets of input shapes that were prepared; requests for prepared sets
        - bytes_uploaded, bytes_downloaded: bytes of inputs and results that were arrays. Weights, and values
          that pass between the device and a fallback, do not count."""
        return self._executables.counters.as_dict()

    def __repr__(self) -> str:
        def of(arguments: Sequence[NodeArg]) -> str:
            return ", ".join(f"{a.name} {a.type[7:-1]}{a.shape}".replace("'", "") for a in arguments)

        closed = " (closed)" if self._state is None else ""
        name, where = self.model.name or "model", self.device.short_name
        return (
            f"<InferenceSession {name}: {of(self.get_inputs())} -> {of(self.get_outputs())}"
            f" on {where}{closed}>"
        )

    def _declared(self, name: str, value: Any) -> Any:
        """Convert a result to the dtype that the model declares, because a device stores bool and int64 as
        other types. Return Tensors, texts, and lists (ONNX Runtime's sequences) unchanged."""
        if isinstance(value, Tensor) or not hasattr(value, "astype") or value.dtype == object:
            return value
        dtype = next(a.dtype for a in self.model.outputs if a.name == name)
        return value.astype(dtype or value.dtype, copy=False)

    def _names(self, names: Sequence[str] | None) -> list[str]:
        known = [argument.name for argument in self.model.outputs]
        if unknown := [name for name in names or () if name not in known]:
            raise ArgumentError(f"there are no outputs {unknown}; there are {known}")
        return list(names) if names else known

    # --------------------------------------------------------------------------------------------------- runs

    def _call(self, *args: Any, **options: Any) -> Callable[[], list[Any]]:
        raise NotImplementedError

    @checked
    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        callback: Callback,
        user_data: Any = None,
        run_options: Any = None,
    ) -> None:
        """Start `run` in another thread, which then calls ``callback(results, user_data, error)``. *error* is
        "" after a success. After a failure, *error* describes the failure, and the results are empty. Wrong
        arguments raise an error at once, in the caller. The arrays must not change before the callback."""
        if not callable(callback):
            raise ArgumentError(f"run_async: callback is a {type(callback).__name__}, not a function")
        call = self._call(output_names, input_feed, run_options)

        def later() -> None:
            try:
                results, error = call(), ""
            except Exception as raised:
                results, error = [], f"{type(raised).__name__}: {raised}"
            callback(results, user_data, error)

        self._worker.begin(later)

    def io_binding(self) -> IOBinding:
        """Return an IOBinding for `run_with_iobinding`. It binds inputs and outputs to memory."""
        self._executables  # noqa: B018  raises if the session is closed
        return IOBinding(self)

    @checked
    def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
        """Run with the values that *iobinding* binds; `IOBinding.get_outputs` then returns the results."""
        if not isinstance(iobinding, IOBinding) or iobinding.session is not self:
            raise ArgumentError("run_with_iobinding: iobinding must come from this session's io_binding()")
        iobinding.run(run_options)

    @checked
    def run_with_ort_values(
        self, output_names: Sequence[str] | None, input_dict_ort_values: Any, run_options: Any = None
    ) -> list[OrtValue]:
        """Run with OrtValues by input name, and return the results on the host."""
        binding = self.io_binding()
        for name, value in input_dict_ort_values.items():
            binding.bind_ortvalue_input(name, value)
        for name in self._names(output_names):
            binding.bind_output(name)
        binding.run(run_options)
        return binding.get_outputs()

    @checked
    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Sequence[Any],
        fetch_names: Sequence[str],
        fetches: list[OrtValue],
        fetch_devices: Sequence[Any],
    ) -> None:
        """Run with the inputs *feeds*, and append the outputs *fetch_names* to *fetches*. *fetch_devices*:
        the device of each output (`OrtDevice`)."""
        binding = self.io_binding()
        for name, value in zip(feed_names, feeds, strict=True):
            binding.bind_ortvalue_input(name, value)
        for name, device in zip(fetch_names, fetch_devices, strict=True):
            binding.bind_output(name, "vulkan" if device.device_type() else "cpu")
        binding.run(run_options)
        fetches.extend(binding.get_outputs())

    def enable_fallback(self) -> None:
        """Do nothing: the ``providers`` of a session decide what runs on the CPU."""

    disable_fallback = enable_fallback

    def _timed(self, call: Callable[[], list[Array]]) -> list[Array]:
        """Run *call* and return its results; record its time if profiling is on."""
        if self._profiled is None:
            return call()
        begin = time.monotonic_ns()
        results = call()
        self._profiled.append((begin, time.monotonic_ns(), threading.get_ident()))
        return results

    def get_profiling_start_time_ns(self) -> int:
        """Return the time at which the session was opened, on the clock of ``time.monotonic_ns``."""
        return self._began

    def end_profiling(self) -> str:
        """Write the times of all runs so far to a new trace file (Chrome's JSON, microseconds). Return the
        file's name. Return "" if ``SessionOptions.enable_profiling`` is off. `profile` times each node."""
        if self._profiled is None:
            return ""
        events = [
            {"cat": "Session", "pid": os.getpid(), "tid": thread, "dur": (end - begin) / 1000,
             "ts": (begin - self._began) / 1000, "ph": "X", "name": "model_run", "args": {}}
            for begin, end, thread in self._profiled
        ]  # fmt: skip
        self._profiled = None
        path = f"{self._options.profile_file_prefix}_{time.strftime('%Y-%m-%d_%H-%M-%S')}_{os.getpid()}.json"
        with open(path, "x", encoding="utf-8") as file:
            json.dump(events, file)
        return path

    # ----------------------------------------------------------------------------------- closing and pickling

    @property
    def _spare(self) -> bool:
        """True if the fallback may run the whole model on the CPU. With int8 caches it may not: ONNX Runtime
        does not support them."""
        return bool(self._fallback) and self._kv_cache is None

    @property
    def _executables(self) -> Executables:
        if self._state is None:
            raise DeviceError("the session is closed; open another one")
        return self._state

    def __getstate__(self) -> dict[str, Any]:
        kept = (
            "_fallback",
            "_sizes",
            "_given",
            "_which",
            "_constant",
            "_source",
            "_unread",
            "_compute",
            "_kv_cache",
        )
        return {name: getattr(self, name) for name in ("model", *kept)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._progress = self._trial = None
        self._take(opened(self._which))
        self._keep(Asked())

    def close(self) -> None:
        """Close the session. Its memory on the device is freed when the last run in another thread ends.
        Further use raises DeviceError; closing again does nothing. The device stays open."""
        self._state = None
        self._initials.clear()
        self._worker.close()

    def __enter__(self: Self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
