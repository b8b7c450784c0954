"""Tests of broken and hostile files: they raise only typed errors, which name the problem."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from vkq.errors import ModelError, UnsupportedModelError
from vkq.tflite import InferenceSession, read
from vkq.tflite.either import read_model
from vkq.tflite.file import is_tflite

from .all import operator_case
from .convert import FOLDER
from .mutate import mutated
from .networks import NETWORKS
from .writer import Writer, serialized


def model(**more: Any) -> dict[str, Any]:
    w = Writer()
    x, y = w.tensor((1, 2), "float32"), w.tensor((1, 2), "float32")
    w.operator("EXP", [x], [y])
    graph = {"tensors": w.tensors, "inputs": [x], "outputs": [y], "operators": w.operators}
    return {"version": 3, "operator_codes": w.codes, "subgraphs": [graph], "buffers": w.buffers, **more}


def changed(**more: Any) -> bytes:
    """Return the model's bytes, with fields of its subgraph replaced."""
    made = model()
    made["subgraphs"][0].update(more)
    return serialized(made)


def test_a_small_model() -> None:
    found = read(serialized(model()))
    assert [a.name for a in found.inputs] == ["t0"]
    assert [node.op for node in found.nodes] == ["Exp"]


CASES: dict[str, tuple[bytes, str]] = {
    "identifier": (b"\x10\0\0\0ONNX" + bytes(40), "not a .tflite model"),
    "empty": (b"", "not a .tflite model"),
    "root": (b"\xff\xff\xff\x7fTFL3" + bytes(40), "the file has 48"),
    "graphs": (serialized(model(subgraphs=[])), "no subgraphs"),
    "buffer": (changed(tensors=[{"shape": [1], "buffer": 9}] * 2), "is in buffer 9; there are 1"),
    "sizes": (changed(tensors=[{"shape": [-1]}] * 2), "sizes of 0 or more"),
    "axes": (changed(tensors=[{"shape": [1] * 9}] * 2), "8 axes at most"),
    "inputs": (changed(inputs=[2]), "SubGraph.inputs has tensor 2; there are 2"),
    "outputs": (changed(outputs=[]), "no results"),
    "operator": (changed(operators=[{"inputs": [0], "outputs": [7]}]), "Operator.outputs has tensor 7"),
    "code": (changed(operators=[{"opcode_index": 4, "inputs": [0], "outputs": [1]}]), "code 4; there are 1"),
    "unmade": (changed(operators=[]), "no earlier operator makes"),
    "cycle": (changed(operators=[{"inputs": [1], "outputs": [1]}]), "no earlier operator makes"),
    "twice": (changed(operators=[{"inputs": [0], "outputs": [1]}] * 2), "exists already"),
    "type": (changed(tensors=[{"shape": [2]}, {"shape": [2], "type": 9}]), "is int8 in the file"),
}


@pytest.mark.parametrize("name", CASES)
def test_broken(name: str) -> None:
    data, message = CASES[name]
    with pytest.raises(ModelError, match=message):
        read(data)


def test_constants_have_their_size() -> None:
    w = Writer()
    x = w.tensor((2, 2), "int8", 0.5, data=np.zeros(3, np.int8))
    y = w.tensor((2, 2), "int8", 0.5)
    w.operator("RELU", [x], [y])
    with pytest.raises(ModelError, match=r"has 3 bytes; int8\[2, 2\] takes 4"):
        read(w.file([], [y]))


def test_unknown_operators_are_listed(any_device: Any) -> None:
    w = Writer()
    x, y, z = (w.tensor((1, 2), "int8", 0.5) for _ in range(3))
    w.operator("TFLite_Something", [x], [y])
    w.operator("SIGN", [y], [z])
    with pytest.raises(UnsupportedModelError, match=r"TFLite_Something '#0'") as caught:
        InferenceSession(w.file([x], [z]), any_device)
    assert "fallback='litert' (vkq run --fallback litert) runs these on the CPU" in str(caught.value)


def test_format_is_known_by_the_file(tmp_path: Path) -> None:
    data = serialized(model())
    path = tmp_path / "network.bin"
    path.write_bytes(data)
    assert is_tflite(path)
    assert is_tflite(data)
    assert is_tflite("missing.tflite")
    assert not is_tflite("missing.onnx")
    assert [node.op for node in read_model(str(path)).nodes] == ["Exp"]
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        read("missing.tflite")


@pytest.mark.parametrize("start", range(0, 200, 50))
def test_mutated_files(start: int) -> None:
    """A file that is damaged anywhere is read, or raises a ModelError."""
    sources = [
        operator_case("CONV_2D", 1)[0],
        operator_case("CONCATENATION", 0)[0],
        NETWORKS["mobilenet_v2"](),
        (FOLDER / "keywords_16x8.tflite").read_bytes(),
    ]
    for seed in range(start, start + 50):
        data = mutated(sources[seed % 4], seed)
        with contextlib.suppress(ModelError):
            found = read(data)
            found.known({a.name: a.shape for a in found.inputs})


def test_no_file_asks_for_any_memory() -> None:
    """Small files that ask for much memory raise a ModelError: operators that would fill gigabytes, and an
    image of too many rows."""
    w = Writer()
    shape, value = w.constant(np.array([1 << 12, 1 << 10], np.int32)), w.constant(np.float32(1))
    filled = [w.tensor((1 << 12, 1 << 10), "float32") for _ in range(80)]
    for y in filled:
        w.operator("FILL", [shape, value], [y])
    with pytest.raises(ModelError, match="constants would take more than 1073741824 bytes"):
        read(w.file([], filled[:1]))
    for op, kind in (("BILINEAR", "Bilinear"), ("NEAREST_NEIGHBOR", "NearestNeighbor")):
        w = Writer()
        x, y = w.tensor((1, 1, 1, 1), "int8", 1.0), w.tensor((1, 1 << 30, 1, 1), "int8", 1.0)
        size = w.constant(np.array([1 << 30, 1], np.int32))
        w.operator(f"RESIZE_{op}", [x, size], [y], f"Resize{kind}Options")
        with pytest.raises(ModelError, match="the size two numbers from 1 to 65536"):
            read(w.file([x], [y]))
