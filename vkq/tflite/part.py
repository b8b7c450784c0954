"""Runs operators of a file in LiteRT, while the rest of the model runs on a device."""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array, Graph
from ..onnx.fallback import OtherShapeError
from .file import File
from .flatbuffer import WORD, FlatTable


def interpreter_of(data: bytes, needed: str) -> Any:
    """Return an interpreter of LiteRT for a file. *needed*: the purpose for which LiteRT is needed, for error
    messages."""
    try:
        from ai_edge_litert.interpreter import Interpreter
    except ImportError as error:
        raise ModelError(f"{needed} needs the package ai-edge-litert: pip install ai-edge-litert") from error
    try:
        return Interpreter(model_content=data, num_threads=os.cpu_count())
    except Exception as error:
        raise ModelError(f"LiteRT refuses the model: {str(error)[:500]}") from error


def cut(file: File, operators: Sequence[int], inputs: Sequence[int], outputs: Sequence[int]) -> bytes:
    """Return a copy of a file whose first subgraph has only these operators, inputs and outputs. The copy
    has no signatures. New lists are appended; all other bytes stay in place, because the file may refer to
    buffers by byte offsets."""
    if file.subgraph:
        raise ModelError("LiteRT runs operators only of a file's first subgraph")
    out = bytearray(file.data)
    root = FlatTable(file.data, int.from_bytes(file.data[:WORD], "little"), "Model")
    graph = root.tables("subgraphs")[0]
    place, first, _ = graph.vector_offsets("operators")
    for i, k in enumerate(sorted(operators)):
        target = first + WORD * k + int.from_bytes(file.data[first + WORD * k :][:WORD], "little")
        struct.pack_into("<I", out, first + WORD * i, target - first - WORD * i)
    struct.pack_into("<I", out, first - WORD, len(operators))
    for name, numbers in (("inputs", inputs), ("outputs", outputs)):
        place = graph.vector_offsets(name)[0]
        if not place:
            raise ModelError(f"the subgraph has no list of {name}")
        out.extend(bytes(-len(out) % WORD))
        if len(out) - place >= 1 << 32:
            raise ModelError(f"the part for LiteRT has {len(out)} bytes; it must have less than 4 GiB")
        struct.pack_into("<I", out, place, len(out) - place)
        out.extend(struct.pack(f"<I{len(numbers)}i", len(numbers), *numbers))
    if root.vector_offsets("signature_defs")[0]:
        struct.pack_into("<I", out, root.vector_offsets("signature_defs")[1] - WORD, 0)
    return bytes(out)


def stored(value: Any, dtype: str) -> Array:
    """Return a value as LiteRT stores it: bool and int64, for which a device stores uint8 and int32."""
    return np.asarray(value, dtype if dtype in ("bool", "int64") else None, order="C")


class LitertPart:
    """Runs some operators of a file in LiteRT. *inputs* and *outputs* map names of values in the graph to
    numbers of tensors in the file."""

    def __init__(
        self, file: File, operators: Sequence[int], inputs: Mapping[str, int], outputs: Mapping[str, int]
    ):
        self.file, self.inputs, self.outputs = file, dict(inputs), dict(outputs)
        data = cut(file, operators, list(self.inputs.values()), list(self.outputs.values()))
        self.interpreter = interpreter_of(data, "fallback='litert'")

    @classmethod
    def of(cls, part: Graph) -> LitertPart:
        """Return the part for a graph whose nodes are ``foreign`` nodes of one file."""
        numbers: dict[str, int] = {}
        for node in part.nodes:
            numbers.update(zip((*node.inputs, *node.outputs), node.attributes["tensors"], strict=True))
        file = part.nodes[0].attributes["file"]
        operators = [node.attributes["place"] for node in part.nodes]
        fed = {x: v for x, v in part.constants.items() if file.tensors[numbers[x]].data is None}
        found = cls(
            file,
            operators,
            {x: numbers[x] for x in (*part.inputs, *fed)},
            {x: numbers[x] for x in part.outputs},
        )
        found.fed = fed  # inputs that are computed from constants only
        found.shapes = {name: part.specs[name].shape for name in part.outputs}
        return found

    shapes: Mapping[str, tuple[int, ...]] = {}
    fed: Mapping[str, Array] = {}

    def sized(self, shapes: Mapping[str, tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Resize the inputs to these shapes, and return the shapes of the outputs."""
        try:
            for detail in self.interpreter.get_input_details():
                (name,) = (name for name, number in self.inputs.items() if number == detail["index"])
                if tuple(detail["shape"]) != tuple(shapes[name]):
                    self.interpreter.resize_tensor_input(detail["index"], shapes[name])
            self.interpreter.allocate_tensors()
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"LiteRT cannot run its part of the model: {str(error)[:500]}") from error
        by_number = {d["index"]: tuple(map(int, d["shape"])) for d in self.interpreter.get_output_details()}
        return [by_number[number] for number in self.outputs.values()]

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Run the operators, and return the results by name."""
        inputs = {**inputs, **self.fed}
        self.sized({name: inputs[name].shape for name in self.inputs})
        try:
            for name, number in self.inputs.items():
                self.interpreter.set_tensor(number, stored(inputs[name], self.file.tensors[number].dtype))
            self.interpreter.invoke()
            found = {
                name: np.array(self.interpreter.get_tensor(number)) for name, number in self.outputs.items()
            }
        except (ValueError, RuntimeError) as error:
            raise ModelError(f"LiteRT cannot run its part of the model: {str(error)[:500]}") from error
        for name, array in found.items():
            if array.shape != tuple(self.shapes[name]):
                raise OtherShapeError(
                    f"LiteRT gives {name!r} the shape {array.shape}, which its operator computes at run time;"
                    f" the device's part is made for the file's shape, {self.shapes[name]}"
                )
        return found
