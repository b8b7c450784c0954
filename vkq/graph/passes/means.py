"""Fuses a lookup of 8-bit values in a table, GlobalAveragePool and quantize into one operator
``mean_lookup``: the mean of the looked-up values over an image.

Examples are the HardSwish before MobileNetV3's squeeze, and DenseNet's last BatchNormalization, which no
QuantizeLinear follows. The sum is exact, whereas ONNX Runtime adds floats."""

from __future__ import annotations

import numpy as np

from ..graph import Graph, Node
from .sweep import Sweep, swept


def to_means(graph: Graph) -> Graph:
    """Replace each GlobalAveragePool between a lookup and a quantize by ``mean_lookup``."""
    return swept(graph, _visit, "quantize") if "GlobalAveragePool" in graph.kinds else graph


def _visit(sweep: Sweep, node: Node) -> bool:
    mean = sweep.producer(node.inputs[0], "GlobalAveragePool")
    table = sweep.producer(mean.inputs[0], "lookup") if mean is not None else None
    if table is None or len(sweep.specs[table.inputs[0]].shape) != 4 or table.attributes.get("axis", 1) != 1:
        return False
    entries = table.attributes["table"]
    if entries.dtype != np.float32 or not np.isfinite(entries).all():
        return False
    y = node.attributes["y"]
    sweep.emit("mean_lookup", table.inputs, node.outputs[0], node.source, table=entries, y=y)
    return True
