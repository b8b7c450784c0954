"""ONNX's backend interface (https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html):
``prepare(model).run(inputs)``, ``run_model``, ``run_node`` and ``supports_device``."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..device.query import devices
from ..errors import ArgumentError, ModelError
from ..graph.graph import Array
from .reader import read
from .session import InferenceSession

FALLBACK = InferenceSession.FALLBACK


class Prepared:
    """A model that is ready to run. It is opened in the first of three ways that succeeds:

    1. Unchanged.
    2. With all inputs but the first as constants, because ONNX's tests of single nodes pass weights and
       scales as inputs.
    3. With the fallback, if its package is installed.
    """

    def __init__(
        self, model: Any, device: str | None = None, fallback: str | None = FALLBACK, **options: Any
    ):
        self._given = model, _which(device), options
        self._ways: list[Callable[[], dict[str, Any]]] = [dict, self._with_constants]
        if fallback and importlib.util.find_spec(fallback):
            self._ways.append(lambda: {"fallback": fallback})
        self._open(None)

    def _with_constants(self) -> dict[str, Any]:
        return {"constant_inputs": [argument.name for argument in read(self._given[0]).inputs][1:]}

    def _open(self, error: ModelError | None) -> None:
        """Try the remaining ways of opening the model, in order, until one succeeds. If none succeeds,
        raise the last error; *error* is the error before these ways."""
        model, device, options = self._given
        while self._ways:
            try:
                self.session = InferenceSession(model, device, **options, **self._ways.pop(0)())
                return
            except ModelError as refused:
                error = refused
        if error:
            raise error

    def run(self, inputs: Any, **options: Any) -> tuple[Array, ...]:
        """Return all outputs. *inputs* is a list with one array for each input, a single array, or a dict
        of arrays by name."""
        names = [argument.name for argument in self.session.model.inputs]
        if not isinstance(inputs, Mapping):
            given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(names):
                raise ArgumentError(f"{len(given)} inputs are given; the model takes {names}")
            inputs = dict(zip(names, given, strict=True))
        while True:
            try:
                return tuple(self.session.run(None, inputs))
            except ModelError as error:
                self._open(error)


def prepare(model: Any, device: str | None = None, **options: Any) -> Prepared:
    """Return a model on a device. "VULKAN", "GPU" (`vkq.onnx.get_device`) and "CPU" (ONNX's default) mean
    the default device. "VULKAN:1" is the device with index 1. Any other text is part of a device's name.

    If ONNX Runtime is installed, it runs the nodes that the device refuses, on the CPU and with a warning.
    With ``fallback=None``, a model with such nodes is refused instead. `InferenceSession` describes all other
    options.
    """
    return Prepared(model, device, **options)


def run_model(model: Any, inputs: Any, device: str | None = None, **options: Any) -> tuple[Array, ...]:
    """Prepare a model and run it once. Return its outputs."""
    return prepare(model, device, **options).run(inputs)


def run_node(
    node: Any, inputs: Sequence[Array], device: str | None = None, outputs_info: Any = None, **options: Any
) -> tuple[Array, ...]:
    """Return the outputs of a single node. *inputs*: one array for each input of the node, in order, without
    the inputs that the node omits ("")."""
    import onnx

    names = [name for name in node.input if name]
    arrays = [np.asarray(x) for x in inputs]
    infos = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
        for name, x in zip(names, arrays, strict=True)
    ]
    results = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output if name]
    graph = onnx.helper.make_graph([node], "node", infos, results)
    opsets = [onnx.helper.make_opsetid(node.domain, 1 if node.domain else options.pop("opset_version", 24))]
    if node.domain:
        opsets.append(onnx.helper.make_opsetid("", 24))
    model = onnx.helper.make_model(graph, opset_imports=opsets)
    return run_model(model, dict(zip(names, arrays, strict=True)), device, **options)


def supports_device(device: str) -> bool:
    """Return True if `prepare` accepts the device name *device*."""
    which = _which(device)
    if isinstance(which, str):
        return any(which.lower() in d.name.lower() for d in devices())
    return any(which in (None, d.index) for d in devices())


def _which(device: Any) -> Any:
    """Convert ONNX's name of a device, such as "VULKAN:1", to the argument ``device`` of a session."""
    kind, _, index = str(device or "CPU").partition(":")
    if kind not in ("CPU", "GPU", "VULKAN") or not (index == "" or index.isdecimal()):
        return device
    return int(index) if index else None
