"""Compares a quantized model with its float model, one layer after the other."""

from __future__ import annotations

import dataclasses
import math
import os
import tempfile
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from ..errors import ModelError
from ..graph.graph import Array
from ..onnx.protobuf import package
from ..onnx.quantize import prepared, quantizer, refusals_told
from ..onnx.reader import read
from .histogram import Histogram
from .mend import repeated
from .shown import LayerReport, LayerRow, decibels
from .tally import Tally
from .walk import LARGE, Run, Walk, give_back, read_by

RANGES = {
    "int8": (-128, 127), "uint8": (0, 255), "int16": (-32768, 32767), "uint16": (0, 65535), "int4": (-8, 7),
    "uint4": (0, 15),
}  # fmt: skip
Q, DQ = "QuantizeLinear", "DequantizeLinear"


def compare_layers(
    model: str | os.PathLike[str],
    quantized: str | os.PathLike[str],
    samples: Iterable[Mapping[str, Array]],
) -> LayerReport:
    """Compare each layer of a *quantized* model with the float *model* from which it was made. Return a row
    for each value that both models have, in the order of the graph.

    Both models run node by node through ONNX Runtime's CPU provider, so that memory holds only the values
    that later layers still read. If `quantize` scaled channels, the float model's channels are scaled by the
    same factors (from the metadata). samples: mappings of input names to arrays.

    Raises ModelError if the models have no values in common or a model cannot be read.
    """
    quantizer()
    with tempfile.TemporaryDirectory() as folder, refusals_told("the models cannot be compared"):
        read(quantized)
        made = package().load(os.fspath(quantized))
        real = Walk(repeated(package().load(prepared(model, folder, 0, "", "")), made))
        pairs = LayerComparison(real, Walk(_with_floats(made)))
        count = 0
        for feed in samples:
            pairs.add(feed)
            count += 1
    return LayerReport(tuple(pairs.rows()), count)


@dataclasses.dataclass
class Site:
    """A value that exists in the float model and in the quantized model, and the layer that computes it.

    - name: the value's name in both models, before quantization
    - real: the name of the float model's value to compare with. If an activation is fused into the quantized
      layer, this is the value after the activation.
    - there: the name of the quantized model's value, after quantization
    - nodes: the layer's nodes in the quantized model, in order
    - reads: maps the names of the quantized layer's inputs to their names in the float model
    - dequantize: the DequantizeLinear that computes *there*, or None"""

    name: str
    real: str
    there: str
    nodes: list[Any]
    reads: dict[str, str]
    dequantize: Any


class LayerComparison:
    """Compares each layer of a quantized model with the same layer of its float model. `add` compares the
    layers on one more sample."""

    def __init__(self, real: Walk, quantized: Walk):
        self.real, self.quantized = real, quantized
        names = [n for n in real.inputs if n in quantized.inputs]
        names += [n for node in real.nodes for n in node.output if n and n not in real.constants]
        self.floats = set(names)
        self.sites = [site for name in names if (site := self._site(name)) is not None]
        self.tallies = {site.name: Tally() for site in self.sites}
        if not self.sites:
            raise ModelError(
                "the models have no quantized value in common: give the float model from which the quantized"
                " model was made"
            )

    def _site(self, name: str) -> Site | None:
        walk = self.quantized
        if name not in walk.maker and name not in walk.inputs:
            return None
        real = self._activated(name)
        if real != name and real in walk.maker:  # the activation is not fused and has its own row
            return None
        there, dequantize = self._quantized(name)
        nodes, reads, seen, ahead = [], dict[str, str](), set[str](), [there]
        while ahead:
            at = ahead.pop()
            node = walk.maker.get(at)
            source = self._read_of_float(at)
            if at != there and at != name and source is not None:
                reads[at] = source
            elif at in walk.inputs:
                reads[at] = at
            elif node is not None and node.output[0] not in seen:
                seen.add(node.output[0])
                nodes.append(node)
                ahead += [n for n in read_by(node) if n not in walk.constants]
        order = {id(node): i for i, node in enumerate(walk.nodes)}
        nodes.sort(key=lambda node: order[id(node)])
        changed = any(n.op_type in (Q, DQ) or n.op_type.startswith("QLinear") for n in nodes)
        weights = any(n in walk.maker and n in walk.constants for node in nodes for n in node.input)
        if not (changed or weights or name in walk.outputs):
            return None
        return Site(name, real, there, nodes, reads, dequantize)

    def _quantized(self, name: str) -> tuple[str, Any]:
        """Return (result, node) for a value of the quantized model. The node is the DequantizeLinear that
        computes the value, or that follows the value's QuantizeLinear; the result is the name of the
        node's output. If the value is not quantized, return (*name*, None)."""
        walk = self.quantized
        made = walk.maker.get(name)
        if made is not None and made.op_type == DQ:
            return name, made
        quantize = next((n for n in walk.readers[name] if n.op_type == Q), None)
        if quantize is None:
            return name, None
        found = next((n for n in walk.readers[quantize.output[0]] if n.op_type == DQ), None)
        return (found.output[0], found) if found is not None else (name, None)

    def _activated(self, name: str) -> str:
        """Return the name of the float model's value to compare with the quantized value *name*. If a Relu
        or Clip is the only reader of *name*, return the name of that operator's result: the range of the
        quantized value may replace the operator. Otherwise return *name*."""
        readers = self.real.readers[name]
        alone = len(readers) == 1 and readers[0].op_type in ("Relu", "Clip") and name not in self.real.outputs
        return str(readers[0].output[0]) if alone else name

    def _read_of_float(self, at: str) -> str | None:
        """Return the name in the float model of *at*, a value of the quantized model. If a QuantizeLinear
        and a DequantizeLinear compute *at*, return the name of the QuantizeLinear's input. Return None if
        the float model does not have the value."""
        node = self.quantized.maker.get(at)
        if node is not None and node.op_type == DQ:
            before = self.quantized.maker.get(node.input[0])
            if before is not None and before.op_type == Q and before.input[0] in self.floats:
                return str(before.input[0])
        return at if at in self.floats else None

    def add(self, feed: Mapping[str, Array]) -> None:
        """Run both models on one sample, and add their values to the tallies."""
        wanted = [name for site in self.sites for name in (site.real, *site.reads.values())]
        real = self.real.run(feed, wanted)
        got = self.quantized.run(feed, [site.there for site in self.sites])
        for site in self.sites:
            if self._add(site, real, got) >= LARGE:
                give_back()

    def _add(self, site: Site, real: Run, got: Run) -> int:
        """Add the values of a layer for one sample to the layer's tally. Return the size of the float value
        in bytes. *real* and *got*: the runs of the float and the quantized model on the sample."""
        own = self._own(site, {at: real.take(name) for at, name in site.reads.items()})
        x, y = real.take(site.real), got.take(site.there)
        if x.dtype.kind == "f" and x.size and x.shape == y.shape:
            self.tallies[site.name].add(x, y, own)
        return int(x.nbytes)

    def _own(self, site: Site, values: dict[str, Array]) -> Array:
        """Run the nodes of one quantized layer, and return the result. *values*: the layer's inputs, taken
        from the float model. Each intermediate value is dropped after its last reader."""
        for i, node in enumerate(site.nodes, 1):
            values.update(self.quantized.apply(node, values))
            wanted = {site.there, *(name for later in site.nodes[i:] for name in read_by(later))}
            values = {name: array for name, array in values.items() if name in wanted}
        return values[site.there]

    def rows(self) -> list[LayerRow]:
        return [
            self._row(s, self.tallies[s.name])
            for s in self.sites
            if np.any(self.tallies[s.name].histogram.counts)
        ]

    def _row(self, site: Site, tally: Tally) -> LayerRow:
        maker = self.real.maker.get(site.name)
        signal, noise = np.atleast_1d(tally.signal), np.atleast_1d(tally.noise)
        channels = [decibels(s, n) for s, n in zip(signal, noise, strict=True)]
        worst = int(np.argmin(channels))
        clipped, used, loss = self._scale(site, tally.histogram)
        size = math.sqrt(float(signal.sum()) * tally.other)
        return LayerRow(
            layer=(maker.name if maker else "") or site.name,
            op=maker.op_type if maker else "input", output=site.name,
            snr_db=decibels(signal.sum(), noise.sum()), own_db=decibels(signal.sum(), tally.own),
            cosine=tally.cross / size if size else 1.0, clipped=clipped, used=used,
            scale_loss_db=max(loss, self._weight_loss(site)),
            channel=worst, channel_db=channels[worst],
        )  # fmt: skip

    def _scale(self, site: Site, found: Histogram) -> tuple[float, float, float]:
        """Return three numbers for the scale of a quantized value: the fraction of the elements that are
        clipped, the fraction of the quantization range that the elements cover, and the loss in dB compared
        with a scale that fits the elements."""
        if site.dequantize is None:
            return 0.0, 1.0, 0.0
        arrays = [self.quantized.constants.get(name) for name in site.dequantize.input[1:]]
        scales = arrays[0]
        zero = arrays[1] if len(arrays) > 1 and arrays[1] is not None else np.zeros(1, np.uint8)
        if scales is None or scales.size != 1 or zero.dtype.name not in RANGES:
            return 0.0, 1.0, 0.0
        scale, point = float(scales.reshape(-1)[0]), int(zero.reshape(-1)[0])
        qmin, qmax = RANGES[zero.dtype.name]
        low, high = (qmin - point) * scale, (qmax - point) * scale
        span = max(found.high, 0.0) - min(found.low, 0.0)
        used = (min(max(found.high, 0.0), high) - max(min(found.low, 0.0), low)) / (high - low)
        whole = span / (qmax - qmin) or scale
        best = found.noise(whole, round(qmin - min(found.low, 0.0) / whole), qmin, qmax)
        noise = found.noise(scale, point, qmin, qmax)
        return (
            found.clipped(low - scale / 2, high + scale / 2),
            used,
            max(0.0, decibels(noise, best)) if noise else 0.0,
        )

    def _weight_loss(self, site: Site) -> float:
        """Return how many dB of signal-to-noise ratio a constant weight loses by its scales, compared with
        one scale that fits all elements. If the layer has several weights, return the largest loss."""
        most = 0.0
        for node in site.nodes:
            source = next(
                (self.real.maker.get(n) for n in (node.output[0], site.name) if n in self.real.maker), None
            )
            for i, name in enumerate(node.input[:2]):
                w = self.quantized.constants.get(name)
                other = self._float_weight(source, i)
                if (
                    w is None
                    or other is None
                    or name not in self.quantized.maker
                    or w.shape != other.shape
                    or w.ndim < 2
                ):
                    continue
                noise = float(np.square(w.astype(np.float64) - other).sum())
                # the reference: rounding noise with one scale for the whole tensor
                step = float(np.abs(other).max()) / 127
                best = max(step * step / 12 * other.size, 1e-300)
                most = max(most, decibels(noise, best)) if noise else most
        return most

    def _float_weight(self, node: Any, index: int) -> Array | None:
        """Return the constant that the float layer reads as input *index*. *node* is the layer, or an
        activation after it that is fused into the layer."""
        while node is not None and node.op_type in ("Relu", "Clip"):
            node = self.real.maker.get(node.input[0])
        if node is None or index >= len(node.input):
            return None
        return self.real.constants.get(node.input[index])


def _with_floats(proto: Any) -> Any:
    """Insert the float values that a QOperator model lacks, so that its layers can be fed with values of the
    float model. After each value ``NAME_quantized``, a DequantizeLinear computes NAME, and a QuantizeLinear
    restores the quantized value for the readers. No value changes."""
    onnx = package()
    made = {name for node in proto.graph.node for name in node.output} | {v.name for v in proto.graph.input}
    known = {tensor.name for tensor in proto.graph.initializer}
    readers = list(proto.graph.node)
    for name in sorted(made):
        real = name.removesuffix("_quantized")
        if name == real or real in made or not {f"{real}_scale", f"{real}_zero_point"} <= known:
            continue
        numbers = [f"{real}_scale", f"{real}_zero_point"]
        again = f"{name}_again"
        for node in readers:
            node.input[:] = [again if read == name else read for read in node.input]
        proto.graph.node.append(onnx.helper.make_node(DQ, [name, *numbers], [real], name=real))
        proto.graph.node.append(onnx.helper.make_node(Q, [real, *numbers], [again], name=again))
    return proto
