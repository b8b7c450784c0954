"""Broken models made from valid ones: flipped bytes; changed, dropped and swapped protobuf fields.

python -m tests.onnx.mutate 100000      tries 100000 mutants, and prints those whose error is no ModelError
"""

from __future__ import annotations

import random
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import onnx

import vkq.onnx
from tests.onnx.networks import KINDS, Net, quantized
from vkq.errors import ModelError
from vkq.graph.passes import lower
from vkq.onnx.inputs import trial_shapes

NUMBERS = [-(2**63), -(2**31), -129, -2, -1, 0, 1, 2, 3, 7, 255, 2**31 - 1, 2**31, 2**40, 2**63 - 1]


def sources() -> list[Any]:
    """Return small valid models of several kinds, quantized and float."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind, form in (
            ("shufflenet", "qdq_int8"),
            ("unet", "qdq_uint8"),
            ("mobilenet_v3", "qoperator_uint8"),
        ):
            net = Net(seed=7, shape=(1, 3, 8, 8))
            found.append(
                onnx.load_from_string(quantized(net.model(*KINDS[kind](net)), form, Path(folder), net.shape))
            )
    net = Net(seed=7, shape=(1, 3, 8, 8))
    return [*found, net.model(*KINDS["attention"](net))]


def mutated(proto: Any, seed: int) -> bytes:
    """Return a model's bytes with one to three faults in its fields, or with flipped and cut bytes."""
    r = random.Random(seed)
    if r.random() < 0.25:
        data = bytearray(proto.SerializeToString())
        for _ in range(r.randint(1, 8)):
            data[r.randrange(len(data))] = r.randrange(256)
        return bytes(data[: r.randrange(len(data))] if r.random() < 0.2 else data)
    model = onnx.ModelProto()
    model.CopyFrom(proto)
    for _ in range(r.randint(1, 3)):
        _change(model, r)
    return model.SerializeToString()


def _change(model: Any, r: random.Random) -> None:
    graph = model.graph
    node = r.choice(graph.node)
    names = [v for n in graph.node for v in (*n.input, *n.output)]
    kind = r.randrange(14)
    if kind == 0 and node.attribute:
        attribute = r.choice(node.attribute)
        if attribute.ints:
            attribute.ints[r.randrange(len(attribute.ints))] = r.choice(NUMBERS)
        attribute.i = r.choice(NUMBERS)
        attribute.f = float(r.choice([0, -1, float("nan"), float("inf"), 1e30]))
    elif kind == 1 and node.attribute:
        r.choice(node.attribute).name = r.choice(
            ["axis", "pads", "perm", "strides", "kernel_shape", "group", "x", ""]
        )
    elif kind == 2 and node.attribute:
        attribute = r.choice(node.attribute)
        attribute.type = r.randrange(0, 12)
    elif kind == 3 and node.input:
        node.input[r.randrange(len(node.input))] = r.choice([*names, "", "nobody"])
    elif kind == 4:
        node.op_type = r.choice(
            [n.op_type for n in graph.node] + ["LSTM", "If", "NonZero", "Foo", "", "TopK", "Loop"]
        )
    elif kind == 5:
        node.domain = r.choice(["", "com.microsoft", "ai.onnx.ml", "nowhere"])
    elif kind == 6:
        graph.node.remove(node)
    elif kind == 7:
        graph.node.append(node)
    elif kind == 8 and graph.initializer:
        tensor = r.choice(graph.initializer)
        if tensor.dims:
            tensor.dims[r.randrange(len(tensor.dims))] = r.choice(NUMBERS)
        else:
            tensor.dims.append(r.choice(NUMBERS))
    elif kind == 9 and graph.initializer:
        r.choice(graph.initializer).data_type = r.randrange(-1, 30)
    elif kind == 10 and graph.initializer:
        tensor = r.choice(graph.initializer)
        tensor.raw_data = r.randbytes(r.choice([0, 1, 4, 8, len(tensor.raw_data)]))
    elif kind == 11:
        value = r.choice([*graph.input, *graph.output])
        if value.type.tensor_type.shape.dim:
            r.choice(value.type.tensor_type.shape.dim).dim_value = r.choice(NUMBERS)
        value.type.tensor_type.elem_type = r.choice([1, 2, 3, 7, 9, 10, 16, value.type.tensor_type.elem_type])
    elif kind == 12:
        model.opset_import[0].version = r.choice([*range(-1, 30), *NUMBERS])
    elif node.output:
        node.output[r.randrange(len(node.output))] = r.choice([*names, ""])


def attempt(data: bytes) -> None:
    """Read and lower a model; only a ModelError may be raised."""
    try:
        model = vkq.onnx.read(data)
        lower(model.at(trial_shapes(model)))
    except ModelError:
        pass


def main(count: int, first: int = 0) -> int:
    """Return how many of *count* mutants raised something other than a ModelError."""
    protos, bad = sources(), 0
    for seed in range(first, first + count):
        try:
            attempt(mutated(protos[seed % len(protos)], seed))
        except Exception:
            bad += 1
            if bad <= 10:
                sys.stdout.write(f"seed {seed}: {traceback.format_exc(limit=-4)}\n")
    sys.stdout.write(f"{count} mutants, {bad} bad\n")
    return bad


if __name__ == "__main__":
    sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0)))
