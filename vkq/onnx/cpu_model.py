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
    """A model that ONNX Runtime runs on the CPU, with the interface of `Executable`. *why*: the error with
    which vkq refused the model. This error is raised if ONNX Runtime refuses the model, too."""

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
        """A sentence for the user: the whole model runs on the CPU, and the reason."""
        return f"the whole model runs on the CPU through ONNX Runtime: {self.why}"

    def told(self) -> CpuModel:
        """Warn that the whole model runs on the CPU, and return this object."""
        warn(self.note)
        return self

    def model(self) -> Model:
        """Return a `Model` with the inputs and outputs only. The dtype of an input or output that is not a
        tensor is ONNX Runtime's name of its type, such as "seq(tensor(float))"."""
        inputs, outputs = self.session.get_inputs(), self.session.get_outputs()
        told = self.session.get_modelmeta()
        metadata = ModelMetadata(*(getattr(told, field.name) for field in dataclasses.fields(ModelMetadata)))
        return Model(
            tuple(map(_argument, inputs)), tuple(map(_argument, outputs)), (), {}, 0, metadata=metadata
        )

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model, and return its results by name."""
        # vkq passes uint8 for bool and int32 for int64, the types that a device stores.
        wide = {"tensor(bool)": np.bool_, "tensor(int64)": np.int64}
        types = {name: wide[kind] for name, kind in self._types.items() if kind in wide}
        given = {name: x.astype(types[name]) if name in types else x for name, x in inputs.items()}
        try:
            results = self.session.run(None, given)
        except Exception as error:  # ONNX Runtime's errors have no common base class
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
