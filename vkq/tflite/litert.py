"""LiteRT on the CPU. It is the reference for comparisons, and the fallback for operators that a device cannot
run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ArgumentError, ModelError
from ..graph.graph import Array
from ..onnx.cpu_model import CpuModel
from ..onnx.fallback import warn
from ..onnx.reader import Model
from ..onnx.tensors import Argument
from .file import File
from .lowering import names_of
from .part import interpreter_of, stored
from .reader import parsed


class Litert:
    """A model in LiteRT with its default delegate XNNPACK, with the interface of ONNX Runtime's session.
    *needed*: the purpose for which LiteRT is needed, for error messages."""

    def __init__(self, model: Any, needed: str):
        self.file: File = model if isinstance(model, File) else parsed(model)
        if self.file.subgraph:
            raise ModelError(f"{needed}: LiteRT runs only a file's first subgraph")
        self.names = names_of(self.file)
        self.interpreter = interpreter_of(bytes(self.file.data), needed)

    def check(self, feed: Mapping[str, Any]) -> None:
        """Raise ArgumentError unless *feed* has exactly the model's inputs."""
        known = [self.names[number] for number in self.file.inputs]
        if set(feed) != set(known):
            raise ArgumentError(f"inputs are given for {sorted(map(str, feed))}; the model takes {known}")

    def run(self, names: Sequence[str] | None, feed: Mapping[str, Any]) -> list[Array]:
        """Return the outputs *names*; None means all outputs."""
        self.check(feed)
        known = {self.names[number]: number for number in self.file.outputs}
        try:
            for detail in self.interpreter.get_input_details():
                given = np.shape(feed[self.names[detail["index"]]])
                if given != tuple(detail["shape"]):
                    self.interpreter.resize_tensor_input(detail["index"], given)
            self.interpreter.allocate_tensors()
            for number in self.file.inputs:
                self.interpreter.set_tensor(number, np.asarray(feed[self.names[number]], order="C"))
            self.interpreter.invoke()
            return [np.asarray(self.interpreter.get_tensor(known[name])) for name in names or known]
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"LiteRT cannot run the model: {str(error)[:500]}") from error


class LitertCpuModel(CpuModel):
    """A model that LiteRT runs completely: the last resort of the fallback."""

    def __init__(self, source: Any, why: ModelError):
        self.why = str(why)
        self.litert = Litert(source, "fallback='litert'")

    @property
    def note(self) -> str:
        return f"the whole model runs on the CPU through LiteRT: {self.why}"

    def told(self) -> LitertCpuModel:
        warn(self.note)
        return self

    def model(self) -> Model:
        file, names = self.litert.file, self.litert.names
        inputs, outputs = (
            tuple(Argument(names[n], file.tensors[n].dtype, file.tensors[n].shape) for n in numbers)
            for numbers in (file.inputs, file.outputs)
        )
        return Model(inputs, outputs, (), {}, 0)

    def run(self, inputs: Mapping[str, Any]) -> dict[str, Array]:
        self.litert.check(inputs)
        file, names = self.litert.file, self.litert.names
        given = {names[n]: stored(inputs[names[n]], file.tensors[n].dtype) for n in file.inputs}
        outputs = [names[n] for n in file.outputs]
        return dict(zip(outputs, self.litert.run(outputs, given), strict=True))
