"""Count how often the comparison of layers finds a wrong scale in a quantized network.

    python -m tests.accuracy.spoil 20
    python -m tests.accuracy.spoil all

The script changes one scale at a time and counts how often the report names the layer of this scale. With
"20", it multiplies 20 random scales of each of five networks by 4 or by 1/4. With "all", it multiplies every
scale, also those of biases, once by 4 and once by 1/4, and one random channel of each weight's scales. Single
channels of biases are left out, because the error of one bias may be smaller than the layer's rounding error.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
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
FACTORS = (0.25, 4.0)

Place = tuple[str, float, int | None]  # (name of a scale, its factor, the channel or None for all channels)


def pair(kind: str, folder: Path) -> tuple[Path, onnx.ModelProto, list[dict[str, Any]]]:
    """Return (the float network's file, its quantized form, the calibration samples)."""
    net = Net(seed=3)
    proto = net.model(*KINDS[kind](net))
    path = folder / f"{kind}.onnx"
    onnx.save(proto, path)
    samples = list(Pictures(net.shape).left)
    quantize(path, folder / "int8.onnx", samples)
    return path, onnx.load(folder / "int8.onnx"), samples


def scales(model: onnx.ModelProto) -> list[str]:
    """Return the names of the scales of activations and of int8 weights with several axes; scales of biases
    are not included."""
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


def biases(model: onnx.ModelProto) -> list[str]:
    """Return the names of the scales of int32 constants."""
    wide = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.INT32}
    found = (node for node in model.graph.node if node.op_type in QDQ and node.input[0] in wide)
    return list(dict.fromkeys(node.input[1] for node in found))


def spoilt(
    model: onnx.ModelProto, scale: str, factor: float, channel: int | None = None
) -> tuple[onnx.ModelProto, set[str]]:
    """Multiply one scale, as a whole or in one channel. Return (the new model, the names of the values and
    weights that this scale quantizes)."""
    copy = onnx.ModelProto.FromString(model.SerializeToString())
    tensor = next(t for t in copy.graph.initializer if t.name == scale)
    array = numpy_helper.to_array(tensor).copy()
    array[... if channel is None else channel] *= np.float32(factor)
    tensor.CopyFrom(numpy_helper.from_array(array, scale))
    users = [node for node in copy.graph.node if node.op_type in QDQ and node.input[1] == scale]
    return copy, {name for node in users for name in (node.input[0], node.output[0])}


def named(report: LayerReport, model: onnx.ModelProto, values: set[str]) -> bool:
    """Return True if the layers at the top of the report compute the given values or read the given
    weights."""
    count = max(1, sum(row.output in values for row in report.rows))
    readers = {name for node in model.graph.node if values & set(node.input) for name in node.output}
    found = {row.output for row in report.worst(count)}
    return bool(found & values) or bool(found & _near(model, readers))


def _near(model: onnx.ModelProto, names: set[str]) -> set[str]:
    """Return the given values, and the values computed from them by Relu and quantization."""
    for node in model.graph.node:  # nodes are in order of execution
        if node.op_type in ("Relu", "Clip", *QDQ) and names & set(node.input):
            names = names | set(node.output)
    return names


def drawn(model: onnx.ModelProto, count: int, random: np.random.Generator) -> Iterator[Place]:
    """Yield random scales and factors."""
    for scale in random.choice(scales(model), count):
        yield str(scale), float(random.choice(FACTORS)), None


def every(model: onnx.ModelProto, random: np.random.Generator) -> Iterator[Place]:
    """Yield every scale with each of the two factors, and also one channel of each weight's scales."""
    sizes = {t.name: int(np.prod(t.dims)) for t in model.graph.initializer}
    for factor in FACTORS:
        for scale in (*scales(model), *biases(model)):
            yield scale, factor, None
        for scale in scales(model):
            if sizes[scale] > 1:
                yield scale, factor, int(random.integers(sizes[scale]))


def main(count: str) -> None:
    random = np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        for kind in NETWORKS:
            path, model, samples = pair(kind, Path(folder))
            tried, missed = 0, []
            for place in every(model, random) if count == "all" else drawn(model, int(count), random):
                broken, values = spoilt(model, *place)
                onnx.save(broken, Path(folder) / "broken.onnx")
                report = compare_layers(path, Path(folder) / "broken.onnx", samples)
                tried += 1
                if not named(report, broken, values):
                    missed.append((*place, [r.output for r in report.worst(2)]))
            print(kind, f"{tried - len(missed)} of {tried} found", missed, flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
