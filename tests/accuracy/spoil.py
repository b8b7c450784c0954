"""Count how often a wrong scale in a quantized network is found.

    python -m tests.accuracy.spoil 20

multiplies 20 random scales of each of five networks by a factor, one at a time, and counts how often the
layer is named.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from tests.onnx.networks import KINDS, Net, Pictures
from vkq.accuracy import LayerReport, compare_layers
from vkq.onnx.quantize import quantize

NETWORKS = ("resnet", "mobilenet_v2", "mobilenet_v3", "efficientnet", "unet")
QDQ = ("QuantizeLinear", "DequantizeLinear")


def pair(kind: str, folder: Path) -> tuple[Path, onnx.ModelProto, list[dict[str, Any]]]:
    """Return the float network's file, its quantized form, and the samples that calibrated it."""
    net = Net(seed=3)
    proto = net.model(*KINDS[kind](net))
    path = folder / f"{kind}.onnx"
    onnx.save(proto, path)
    samples = list(Pictures(net.shape).left)
    quantize(path, folder / "int8.onnx", samples)
    return path, onnx.load(folder / "int8.onnx"), samples


def scales(model: onnx.ModelProto) -> list[str]:
    """Return the scales of activations and weights, without those of biases and of constants without an
    axis."""
    nodes = model.graph.node
    made = {name for node in nodes for name in node.output} | {value.name for value in model.graph.input}
    found = []
    for node in nodes:
        kind = "QuantizeLinear" if node.op_type == "QuantizeLinear" else "weight"
        tensor = next((t for t in model.graph.initializer if t.name == node.input[0]), None)
        weight = tensor is not None and tensor.data_type == onnx.TensorProto.INT8 and len(tensor.dims) > 1
        if node.op_type in QDQ and ((kind != "weight" and node.input[0] in made) or weight):
            found.append(node.input[1])
    return list(dict.fromkeys(found))


def spoilt(model: onnx.ModelProto, scale: str, factor: float) -> tuple[onnx.ModelProto, set[str]]:
    """Return the model with one scale multiplied, and the values or weights that this scale quantizes."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = next(t for t in copy.graph.initializer if t.name == scale)
    tensor.CopyFrom(
        numpy_helper.from_array((numpy_helper.to_array(tensor) * factor).astype(np.float32), scale)
    )
    users = [node for node in copy.graph.node if node.op_type in QDQ and node.input[1] == scale]
    return copy, {name for node in users for name in (node.input[0], node.output[0])}


def named(report: LayerReport, model: onnx.ModelProto, values: set[str]) -> bool:
    """Return whether the first layers that the report names compute these values or read these weights."""
    count = max(1, sum(row.output in values for row in report.rows))
    readers = {name for node in model.graph.node if values & set(node.input) for name in node.output}
    found = {row.output for row in report.worst(count)}
    return bool(found & values) or bool(found & _near(model, readers))


def _near(model: onnx.ModelProto, names: set[str]) -> set[str]:
    """Return these values and those made from them by Relu and quantization."""
    for node in model.graph.node:  # in order
        if node.op_type in ("Relu", "Clip", *QDQ) and names & set(node.input):
            names = names | set(node.output)
    return names


def main(count: int) -> None:
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for kind in NETWORKS:
            path, model, samples = pair(kind, Path(folder))
            names = scales(model)
            missed = []
            for scale in random.choice(names, count):
                factor = float(random.choice([0.25, 4.0]))
                broken, values = spoilt(model, str(scale), factor)
                onnx.save(broken, Path(folder) / "broken.onnx")
                report = compare_layers(path, Path(folder) / "broken.onnx", samples)
                if not named(report, broken, values):
                    missed.append((str(scale), factor, [r.output for r in report.worst(2)]))
            print(
                kind, f"{count - len(missed)} of {count} found among {len(names)} scales", missed, flush=True
            )


if __name__ == "__main__":
    main(int(sys.argv[1]))
