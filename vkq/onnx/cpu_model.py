"""A model that runs entirely on the CPU through ONNX Runtime: the last resort of the fallback."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array
from .cpu import cpu_session
from .fallback import warn
from .options import ModelMetadata
from .reader import Model
from .tensors import Argument

TYPES = {"float": "float32", "double": "float64"}


class CpuModel:
    """A model in ONNX Runtime, with the interface of `Executable`. *why*: vkq's reason for refusing the
    model; it is raised if ONNX Runtime refuses the model, too."""

    def __init__(self, source: Any, why: ModelError):
        self.why = str(why)
        given = source if isinstance(source, bytes | str | os.PathLike) else _serialized(source)
        try:
            self.session = cpu_session(given, "fallback='onnxruntime'")
        except ModelError:
            raise why from None
        self._types = {one.name: one.type for one in self.session.get_inputs()}

    @property
    def note(self) -> str:
        """The sentence that the whole model runs on the CPU, with the reason."""
        return f"the whole model runs on the CPU through ONNX Runtime: {self.why}"

    def told(self) -> CpuModel:
        """Warn, and return this object."""
        warn(self.note)
        return self

    def model(self) -> Model:
        """The model's inputs and outputs. Types other than numeric tensors have ONNX Runtime's names."""
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        told = self.session.get_modelmeta()
        metadata = ModelMetadata(*(getattr(told, field.name) for field in dataclasses.fields(ModelMetadata)))
        return Model(
            tuple(map(_argument, inputs)), tuple(map(_argument, outputs)), (), {}, 0, metadata=metadata
        )

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Return the results by name."""
        # Types that the device stores as other types.
        wide = {"tensor(bool)": np.bool_, "tensor(int64)": np.int64}
        types = {name: wide[kind] for name, kind in self._types.items() if kind in wide}
        given = {name: x.astype(types[name]) if name in types else x for name, x in inputs.items()}
        try:
            results = self.session.run(None, given)
        except Exception as error:  # ONNX Runtime has an error class for each kind of failure
            raise ModelError(f"{self.why}\nONNX Runtime cannot run it: {str(error)[:500]}") from error
        return dict(zip([one.name for one in self.session.get_outputs()], results, strict=True))


def _serialized(source: Any) -> bytes:
    data: bytes = bytes(source) if hasattr(source, "__len__") else source.SerializeToString()
    return data


def _argument(one: Any) -> Argument:
    kind, _, element = str(one.type).rstrip(")").partition("(")
    dtype = TYPES.get(element, element) if kind == "tensor" else str(one.type)
    shape = tuple(d if isinstance(d, int) else d or f"{one.name}.{i}" for i, d in enumerate(one.shape or ()))
    return Argument(one.name, dtype, shape)
