"""ONNX's backend interface (https://onnx.ai/onnx/repo-docs/ImplementingAnOnnxBackend.html), so that whatever
takes a backend can take vkq: ``prepare(model).run(inputs)``, ``run_model``, ``run_node``,
``supports_device``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..device.query import devices
from ..errors import ArgumentError, ModelError
from ..graph.graph import Array
from .reader import read
from .session import InferenceSession


class Prepared:
    """A model that is ready to run."""

    def __init__(self, model: Any, device: str | None = None, **options: Any):
        self._given = model, _which(device), options
        self._bound = False
        try:
            self.session = InferenceSession(*self._given[:2], **options)
        except ModelError:
            self._bind()

    def _bind(self) -> None:
        """All inputs but the first count as constants: in ONNX's tests of single nodes, weights and scales
        are inputs."""
        model, device, options = self._given
        names = [argument.name for argument in read(model).inputs]
        self.session = InferenceSession(model, device, constant_inputs=names[1:], **options)
        self._bound = True

    def run(self, inputs: Any, **options: Any) -> tuple[Array, ...]:
        """All outputs. inputs: one array for each input in order, a single array, or arrays by name."""
        names = [argument.name for argument in self.session.model.inputs]
        if not isinstance(inputs, Mapping):
            given = inputs if isinstance(inputs, (list, tuple)) else [inputs]
            if len(given) != len(names):
                raise ArgumentError(f"{len(given)} inputs are given; the model takes {names}")
            inputs = dict(zip(names, given, strict=True))
        try:
            return tuple(self.session.run(None, inputs))
        except ModelError:
            if self._bound:
                raise
        self._bind()
        return tuple(self.session.run(None, inputs))


def prepare(model: Any, device: str | None = None, **options: Any) -> Prepared:
    """A model on a device: "VULKAN" or "CPU" (ONNX's default) is the default device, "VULKAN:1" that with the
    index 1, and anything else part of a name."""
    return Prepared(model, device, **options)


def run_model(model: Any, inputs: Any, device: str | None = None, **options: Any) -> tuple[Array, ...]:
    """The outputs of a model, which is prepared and run once."""
    return prepare(model, device, **options).run(inputs)


def run_node(
    node: Any, inputs: Sequence[Array], device: str | None = None, outputs_info: Any = None, **options: Any
) -> tuple[Array, ...]:
    """The outputs of a single node, for inputs in order (an input of "" has none)."""
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
    """Whether there is such a device."""
    which = _which(device)
    if isinstance(which, str):
        return any(which.lower() in d.name.lower() for d in devices())
    return any(which in (None, d.index) for d in devices())


def _which(device: Any) -> Any:
    """A device in ONNX's words ("VULKAN:1") as a session takes it."""
    kind, _, index = str(device or "CPU").partition(":")
    if kind not in ("CPU", "VULKAN") or not (index == "" or index.isdecimal()):
        return device
    return int(index) if index else None
