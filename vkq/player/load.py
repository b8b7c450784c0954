"""Runs an exported model from Python through libvkq; native/vkq.h documents each call."""

from __future__ import annotations

import ctypes
import functools
import importlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import checked
from ..errors import (
    ArgumentError,
    DeviceError,
    DeviceLostError,
    DTypeError,
    ModelError,
    OutOfMemoryError,
    VkqError,
)
from ..runtime.context import OfOneProcess
from .reader import NAMES

ERRORS: dict[int, type[VkqError]] = {
    1: ArgumentError, 2: ModelError, 3: DeviceError, 4: OutOfMemoryError, 5: DeviceLostError,
}  # fmt: skip


class _Array(ctypes.Structure):
    """`vkq_array` of vkq.h."""

    _fields_ = (
        ("name", ctypes.c_char_p), ("type", ctypes.c_int), ("rank", ctypes.c_uint32),
        ("shape", ctypes.POINTER(ctypes.c_uint64)), ("bytes", ctypes.c_uint64),
        ("low", ctypes.c_int64), ("high", ctypes.c_int64),
    )  # fmt: skip


@functools.cache
def library() -> Any:
    """Return libvkq, which is installed in the folder of the extension module."""
    folder = Path(str(importlib.import_module("vkq._kompute").__file__)).parent
    path = folder / "libvkq.so"
    if not path.exists():
        raise DeviceError(f"{path} is missing; build vkq again: make (in a checkout), or pip install vkq")
    found = ctypes.CDLL(str(path))
    for name in ("vkq_error", "vkq_describe", "vkq_device_name"):
        getattr(found, name).restype = ctypes.c_char_p
    for name in ("vkq_unload", "vkq_close"):
        getattr(found, name).restype = None
    found.vkq_inject.restype = ctypes.c_uint32
    return found


def check(status: int) -> None:
    """Raise the error for a status other than VKQ_OK."""
    if status:
        raise ERRORS[status](library().vkq_error().decode(errors="replace"))


Arrays = dict[str, tuple[str, tuple[int, ...]]]  # name of an input or output -> (type, shape)


class PlayedModel(OfOneProcess):
    """An exported model on a device. A context manager; `close` may be called twice.

    A file contains the model for one or more sets of input shapes (`vkq export --batch 1 8`). `inputs` and
    `outputs` map names to (dtype, shape) in the first set; `shapes` lists, for every set, the input shapes by
    name. `run` chooses the set by the shapes of its inputs. The first use of a set loads it, and compares
    the results for stored inputs with the stored outputs (the known answer).

    Args:
        path: the file.
        which: a device by index or part of its name; None: the device that VKQ_DEVICE names, else the best.
        cache: a path for the driver's pipeline cache, which is read and written; None: no cache. With a
            cache, the comparison with the known answer is not repeated for a file, device and driver that
            have passed it.

    Raises ModelError if the file is missing, damaged or not an exported model; DeviceError if there is no
    such device, or if none of the file's plans runs on it; OutOfMemoryError.
    """

    @checked
    def __init__(
        self, path: str | os.PathLike[str], which: int | str | None = None, cache: str | None = None
    ):
        self._device, self._model = ctypes.c_void_p(), ctypes.c_void_p()
        self._loaded: dict[tuple[tuple[int, ...], ...], tuple[ctypes.c_void_p, Arrays]] = {}
        name = None if which is None else str(which).encode()
        try:
            check(library().vkq_open(name, ctypes.byref(self._device)))
            kept = None if cache is None else os.fsencode(cache)
            check(library().vkq_load(self._device, os.fsencode(path), kept, ctypes.byref(self._model)))
            self.inputs, self.outputs = _described(self._model)
            self.shapes = [self._shapes(k) for k in range(library().vkq_shapes(self._model))]
        except BaseException:
            self.close()
            raise

    def _shapes(self, number: int) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the inputs in one set of the file."""
        one, found = _Array(), {}
        for i in range(len(self.inputs)):
            check(library().vkq_shape(self._model, number, i, ctypes.byref(one)))
            found[one.name.decode()] = _shape(one)
        return found

    def _shaped(self, shapes: Mapping[str, tuple[int, ...]]) -> tuple[ctypes.c_void_p, Arrays]:
        """Return the loaded model for these input shapes, and its outputs."""
        key = tuple(shapes.values())
        if key in self._loaded:
            return self._loaded[key]
        if shapes not in self.shapes:
            held = " or ".join(map(str, self.shapes))
            raise ArgumentError(f"the inputs have the shapes {dict(shapes)}; the file takes {held}")
        arrays = [(ctypes.c_uint64 * max(len(shape), 1))(*shape) for shape in shapes.values()]
        pointers = (ctypes.c_void_p * max(len(arrays), 1))(*map(ctypes.addressof, arrays))
        shaped = ctypes.c_void_p()
        check(library().vkq_shaped(self._model, pointers, ctypes.byref(shaped)))
        self._loaded[key] = shaped, _described(shaped)[1]
        return self._loaded[key]

    @checked
    def explain(self, shapes: Mapping[str, Sequence[int]] | None = None) -> str:
        """Return a text about the plan that runs, the reasons why earlier plans in the file were rejected,
        and, if the file has several sets of shapes, these sets. *shapes*: input shapes by name, which select
        a set other than the first."""
        self._usable()
        wanted = {name: tuple(shapes[name]) for name in self.inputs} if shapes else self.shapes[0]
        return str(library().vkq_describe(self._shaped(wanted)[0]).decode())

    @property
    def device(self) -> str:
        """The device's name."""
        self._usable()
        return str(library().vkq_device_name(self._device).decode())

    @checked
    def run(
        self, output_names: Sequence[str] | None, input_feed: Mapping[str, npt.ArrayLike]
    ) -> list[npt.NDArray[Any]]:
        """Return the outputs of these names (None: all) for inputs by name, as
        `vkq.onnx.InferenceSession.run` does. An int32 input may be given in any integer type or as bool; its
        numbers are checked against the input's bounds. Calls from several threads run one after another.

        Raises ArgumentError for unknown or missing names, for shapes that the file does not have and for
        numbers out of bounds, and DTypeError for another dtype."""
        self._usable()
        names = list(self.outputs) if output_names is None else list(output_names)
        if unknown := [name for name in names if name not in self.outputs]:
            raise ArgumentError(f"there are no outputs {unknown}; there are {list(self.outputs)}")
        if set(input_feed) != set(self.inputs):
            raise ArgumentError(
                f"inputs are given for {sorted(input_feed)}; the model takes {list(self.inputs)}"
            )
        given = [self._given(name, input_feed[name]) for name in self.inputs]
        model, outputs = self._shaped({name: x.shape for name, x in zip(self.inputs, given, strict=True)})
        results = {name: np.empty(shape, dtype) for name, (dtype, shape) in outputs.items()}
        check(library().vkq_run(model, _pointers(given), _pointers(list(results.values()))))
        return [results[name] for name in names]

    def _given(self, name: str, data: npt.ArrayLike) -> npt.NDArray[Any]:
        dtype, array = self.inputs[name][0], np.asarray(data)
        if array.shape not in (held := [shapes[name] for shapes in self.shapes]):
            several = " or ".join(str(shape) for shape in dict.fromkeys(held))
            raise ArgumentError(f"input {name!r} has shape {array.shape}; the file takes {several}")
        if dtype == "int32" and array.dtype.kind in "iub":
            info = np.iinfo(np.int32)
            if array.size and not (info.min <= array.min() and array.max() <= info.max):
                raise ArgumentError(f"input {name!r} holds numbers outside int32")
        elif array.dtype.name != dtype:
            raise DTypeError(f"input {name!r} is {array.dtype}; it must be {dtype}")
        return np.ascontiguousarray(array, dtype)

    def _usable(self) -> None:
        if not self._model:
            raise DeviceError("the model is closed; load its file again")

    def close(self) -> None:
        """Free the model and its device."""
        if self._model:
            library().vkq_unload(self._model)
        if self._device:
            library().vkq_close(self._device)
        self._device, self._model = ctypes.c_void_p(), ctypes.c_void_p()

    def __enter__(self) -> PlayedModel:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_model", None):
            self.close()


def _described(model: ctypes.c_void_p) -> tuple[Arrays, Arrays]:
    """Return the inputs and the outputs of a model."""
    one, found = _Array(), dict[str, Arrays]()
    for kind in ("input", "output"):
        arrays = found.setdefault(kind, {})
        for i in range(getattr(library(), f"vkq_{kind}s")(model)):
            check(getattr(library(), f"vkq_{kind}")(model, i, ctypes.byref(one)))
            arrays[one.name.decode()] = NAMES[one.type], _shape(one)
    return found["input"], found["output"]


def _shape(one: _Array) -> tuple[int, ...]:
    return tuple(one.shape[k] for k in range(one.rank))


def _pointers(arrays: Sequence[npt.NDArray[Any]]) -> Any:
    return (ctypes.c_void_p * max(len(arrays), 1))(*(x.ctypes.data for x in arrays))


def load(
    path: str | os.PathLike[str], which: int | str | None = None, cache: str | None = None
) -> PlayedModel:
    """Load an exported model and return it, ready to run. `PlayedModel` describes the arguments, the result
    and the errors."""
    return PlayedModel(path, which, cache)
