"""Measure the memory that a comparison of layers, or a quantization, needs.

    python -m tests.accuracy.memory compare 25 64
    python -m tests.accuracy.memory quantize 25 64

These commands compare, or quantize, a network of 25 blocks, and print the peak memory of the process. A
block is a convolution and a Relu; every second block also adds a residual. Each value between two nodes has
64 MB.
"""

from __future__ import annotations

import resource
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from vkq.accuracy import LayerReport, QuantizedReport, compare_layers, quantize
from vkq.accuracy.place import QuantPlan, placed

CHANNELS = 4


def pair(blocks: int, side: int, folder: Path) -> tuple[Path, Path]:
    """Write a float network with values of (1, 4, side, side) and its quantized form; return both files."""
    random = np.random.default_rng(0)
    nodes, weights, x = [], [], "x"
    for i in range(blocks):
        w = random.normal(0, 0.5, (CHANNELS, CHANNELS, 1, 1)).astype(np.float32)
        weights.append(numpy_helper.from_array(w, f"w{i}"))
        nodes.append(helper.make_node("Conv", [x, f"w{i}"], [f"c{i}"], name=f"conv{i}"))
        nodes.append(helper.make_node("Relu", [f"c{i}"], [f"r{i}"], name=f"relu{i}"))
        if i % 2:
            nodes.append(helper.make_node("Add", [f"r{i}", x], [f"a{i}"], name=f"add{i}"))
        x = nodes[-1].output[0]
    shape = [1, CHANNELS, side, side]
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("x", x)]
    graph = helper.make_graph(nodes, "large", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    names = ["x", *(name for node in nodes for name in node.output)]
    made = placed(model, QuantPlan({name: (0.0 if name[0] == "r" else -4.0, 4.0) for name in names}))
    onnx.save(model, folder / "float.onnx")
    onnx.save(made, folder / "int8.onnx")
    return folder / "float.onnx", folder / "int8.onnx"


def compared(blocks: int, side: int, folder: Path) -> LayerReport:
    """Return the report of the comparison of layers for one random sample."""
    x = np.random.default_rng(1).standard_normal((1, CHANNELS, side, side), np.float32)
    return compare_layers(*pair(blocks, side, folder), [{"x": x}])


def quantized(blocks: int, side: int, folder: Path) -> QuantizedReport:
    """Return the report for three random samples, generated when they are read."""

    def samples() -> Iterator[dict[str, np.ndarray]]:
        for seed in range(3):
            yield {"x": np.random.default_rng(seed).standard_normal((1, CHANNELS, side, side), np.float32)}

    return quantize(pair(blocks, side, folder)[0], folder / "made.onnx", samples, seconds=0)


def main(what: str, blocks: int, megabytes: float) -> None:
    side = round((megabytes * 1e6 / 4 / CHANNELS) ** 0.5)
    begun = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    with tempfile.TemporaryDirectory() as folder:
        report = {"compare": compared, "quantize": quantized}[what](blocks, side, Path(folder))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    values = 2 * blocks + blocks // 2 + 1
    print(report)
    print(f"values of {values * megabytes:.0f} MB; peak {peak:.0f} MB ({begun:.0f} MB at the start)")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), float(sys.argv[3]))
