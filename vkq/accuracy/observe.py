"""Runs a float model on the calibration samples, and collects statistics of its values."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..graph.graph import Array
from .histogram import Histogram
from .walk import Walk

LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


class Observed:
    """Statistics of a float model's values, by name.

    - histograms: a histogram of each value
    - means, lows, highs: for each value that a layer reads, the mean, the smallest element (at most 0) and
      the largest element (at least 0) of each channel
    - work: the multiply-adds of each layer for one sample, by the name of the layer's node"""

    def __init__(self, proto: Any, samples: Iterable[Mapping[str, Array]]):
        self.walk = Walk(proto)
        self.histograms: dict[str, Histogram] = {}
        self.means: dict[str, Array] = {}
        self.lows: dict[str, Array] = {}
        self.highs: dict[str, Array] = {}
        self.work: dict[str, int] = {}
        self._read = {
            node.input[0]: _channel_axis(node) for node in self.walk.nodes if node.op_type in LAYERS
        }
        names = list(self.walk.inputs)
        names += [n for node in self.walk.nodes for n in node.output if n and n not in self.walk.constants]
        count = 0
        for feed in samples:
            run = self.walk.run(feed, names)
            for name in names:
                self._add(name, run.take(name))
            count += 1
        self.means = {name: mean / max(count, 1) for name, mean in self.means.items()}

    def peaks(self, name: str) -> Array | None:
        """Return the largest magnitude of each channel of the value *name*, or None if no layer reads the
        value."""
        return np.maximum(-self.lows[name], self.highs[name]) if name in self.lows else None

    def _add(self, name: str, array: Any) -> None:
        if not isinstance(array, np.ndarray) or array.dtype.kind != "f":
            return
        self.histograms.setdefault(name, Histogram()).add(array)
        axis = self._read.get(name)
        if axis is not None and array.ndim >= 2 and array.size:
            axes = tuple(i for i in range(array.ndim) if i != axis % array.ndim)
            mean = array.mean(axes, dtype=np.float64)
            if name not in self.means or self.means[name].shape == mean.shape:
                self.means[name] = self.means.get(name, 0) + mean
                self.lows[name] = np.minimum(self.lows.get(name, 0), array.min(axes))
                self.highs[name] = np.maximum(self.highs.get(name, 0), array.max(axes))
        node = self.walk.maker.get(name)
        if node is not None and node.op_type in LAYERS and node.name not in self.work:
            weight = next((self.walk.constants[n] for n in node.input[:2] if n in self.walk.constants), None)
            if weight is not None and weight.size:
                transposed = node.op_type == "ConvTranspose"
                outputs = weight.shape[0] if node.op_type == "Conv" else array.shape[1 if transposed else -1]
                self.work[node.name] = int(array.size * weight.size // max(outputs, 1))


def _channel_axis(node: Any) -> int:
    return 1 if node.op_type.startswith("Conv") else -1
