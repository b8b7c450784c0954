"""Changes a float model before quantization: scales its channels to equal ranges, and corrects its biases for
the rounding of weights."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import numpy as np

from ..graph.graph import Array
from ..onnx.protobuf import package
from .observe import Observed
from .ranges import Range
from .walk import Walk

EQUIVARIANT = ("Relu", "LeakyRelu")  # functions with f(s x) = s f(x) for s > 0
EQUALIZED, SMOOTHED = NOTES = ("vkq.equalized", "vkq.smoothed")  # keys in the model's metadata
LIMIT = 1024.0  # the factor of a channel is in [1 / LIMIT, LIMIT]


def equalized(proto: Any, seen: Observed) -> tuple[Any, int]:
    """Equalize the channels between pairs of neighbouring convolutions. Return (the new model, the number of
    pairs).

    A pair is a convolution, an optional activation in `EQUIVARIANT`, and a second convolution. No other
    node reads the values between the two convolutions. Channel c of these values is divided by s_c. The
    second weight's elements for channel c are multiplied by s_c, so that the model's results do not change.

    ``s_c = sqrt(a_c / w_c)`` up to a common factor: a_c is the largest magnitude of channel c, and w_c that
    of the weight elements for channel c. A depthwise second convolution has a weight scale for each channel,
    so there ``s_c = a_c``. Sources: Nagel et al. 2019 (https://arxiv.org/abs/1906.04721); for weights with a
    scale per channel, Xiao et al. 2022.
    """
    copy = package().ModelProto.FromString(proto.SerializeToString())
    editor = _Editor(copy)
    pairs: list[list[Any]] = []
    for second in copy.graph.node:
        first = editor.convolution_before(second)
        if first is None:
            continue
        w, v = editor.array(first.input[1]), editor.array(second.input[1])
        peaks = seen.peaks(second.input[0])
        factors = None if peaks is None or len(peaks) != len(w) else _factors(second, v, peaks)
        if factors is None:
            continue
        _rescale(editor, first, second, factors)
        pairs.append([first.name, second.name, factors.tolist()])
    _note(copy, EQUALIZED, pairs)
    return copy, len(pairs)


def _rescale(editor: _Editor, first: Any, second: Any, s: Array) -> None:
    """Divide each output channel c of the convolution *first* (weight and bias) by s[c]. Multiply the weight
    elements of the convolution *second* that read channel c by s[c]."""
    w, v = editor.array(first.input[1]), editor.array(second.input[1])
    editor.set(first.input[1], w / s.reshape(-1, *(1 for _ in w.shape[1:])))
    if len(first.input) > 2 and first.input[2]:
        editor.set(first.input[2], editor.array(first.input[2]) / s)
    editor.set(second.input[1], v * s.reshape(_across(v, len(s))))


def smoothed(proto: Any, seen: Observed, floats: Collection[str]) -> tuple[Any, dict[str, Range], list[str]]:
    """Equalize the channels that convolutions read from float operators or from the model's inputs. Return
    (the new model, the range of each inserted Mul's result by name, the names of these Muls).

    A Mul before the convolution divides channel c by s_c, and the weight is multiplied by s_c, as in
    `equalized`. floats: the names of the nodes that stay float. Source: Xiao et al. 2022
    (https://arxiv.org/abs/2211.10438)."""
    copy = package().ModelProto.FromString(proto.SerializeToString())
    editor = _Editor(copy)
    ranges, divided = dict[str, Range](), []
    for node in list(copy.graph.node):
        made, peaks = editor.makers.get(node.input[0] if node.input else ""), None
        if node.op_type == "Conv" and editor.own(node.input[1]) and (made is None or made.name in floats):
            peaks = seen.peaks(node.input[0])
        factors = None if peaks is None else _factors(node, editor.array(node.input[1]), peaks)
        if factors is None:
            continue
        source = node.input[0]
        name = _divide(editor, node, factors)
        low, high = seen.lows[source] / factors, seen.highs[source] / factors
        ranges[name] = float(low.min()), float(high.max())
        divided.append([node.name, factors.tolist()])
    _note(copy, SMOOTHED, divided)
    return copy, ranges, list(ranges)


def _divide(editor: _Editor, node: Any, s: Array) -> str:
    """Insert a Mul before the convolution *node*. The Mul divides channel c by s[c], and the convolution's
    weight is multiplied by s[c]. Return the name of the Mul's result."""
    helper = package().helper
    name, weight = f"{node.name}/smooth", editor.array(node.input[1])
    by = (1 / s).astype(np.float32).reshape(1, -1, *(1 for _ in weight.shape[2:]))
    graph = editor.proto.graph
    graph.initializer.append(package().numpy_helper.from_array(by, f"{name}/by"))
    graph.node.insert(
        list(graph.node).index(node),
        helper.make_node("Mul", [node.input[0], f"{name}/by"], [name], name=name),
    )
    node.input[0] = name
    editor.set(node.input[1], weight * s.reshape(_across(weight, len(s))))
    return name


def repeated(proto: Any, quantized: Any) -> Any:
    """Return the float model *proto* with its channels scaled by the factors in the metadata of *quantized*.
    The outputs do not change, and the intermediate values can be compared with those of *quantized*."""
    notes = {entry.key: json.loads(entry.value) for entry in quantized.metadata_props if entry.key in NOTES}
    if not notes:
        return proto
    copy = package().ModelProto.FromString(proto.SerializeToString())
    editor = _Editor(copy)
    nodes = {node.name: node for node in copy.graph.node}
    for first, second, s in notes.get(EQUALIZED, ()):
        if first in nodes and second in nodes:
            _rescale(editor, nodes[first], nodes[second], np.array(s))
    for name, s in notes.get(SMOOTHED, ()):
        if name in nodes:
            _divide(editor, nodes[name], np.array(s))
    return copy


def _note(proto: Any, key: str, value: Any) -> None:
    """Record *value*, the channel factors of a change, under a key of the model's metadata. `repeated` reads
    them."""
    if value:
        package().helper.set_model_props(
            proto, {**{e.key: e.value for e in proto.metadata_props}, key: json.dumps(value)}
        )


def _across(weight: Array, channels: int) -> tuple[int, ...]:
    """Return the shape that lets an array with one factor for each input channel broadcast to a weight."""
    rest = (1,) * (weight.ndim - 2)
    return (-1, 1, *rest) if weight.shape[1] == 1 and len(weight) == channels else (1, -1, *rest)


def _factors(node: Any, weight: Array, peaks: Array) -> Array | None:
    """Return the divisors s of the channels that a Conv reads. Return None in two cases: for a grouped
    convolution that is not depthwise, and if no channel has both a nonzero value and a nonzero weight."""
    groups = next((a.i for a in node.attribute if a.name == "group"), 1)
    depthwise = groups == len(weight) == len(peaks) and weight.shape[1] == 1
    if not (depthwise or (groups == 1 and weight.shape[1] == len(peaks))):
        return None
    size = np.abs(weight)
    reads = size.reshape(len(peaks), -1).max(1) if depthwise else size.max((0, *range(2, weight.ndim)))
    alive = (peaks > 0) & (reads > 0)
    if not alive.any():
        return None
    s = np.ones(len(peaks))
    s[alive] = peaks[alive] if depthwise else np.sqrt(peaks[alive] / reads[alive])
    s[alive] /= s[alive].max() if depthwise else np.exp(np.log(s[alive]).mean())
    s[alive] = np.clip(s[alive], 1 / LIMIT, LIMIT)
    return s


def corrected(proto: Any, quantized: Any, seen: Observed) -> tuple[Any, int]:
    """Change the biases of a float model to compensate the mean error of rounded weights. Return (the new
    model, the number of changed biases).

    For Conv and Gemm, ``b += (W - W_q) E[x]``, where W_q is the rounded weight in *quantized* and E[x] the
    mean of each input channel (Nagel et al. 2019)."""
    copy = package().ModelProto.FromString(proto.SerializeToString())
    editor, made = _Editor(copy), Walk(quantized)
    rounded = {n.name: made.constants.get(n.input[1]) for n in made.nodes if n.op_type in ("Conv", "Gemm")}
    count = 0
    for node in copy.graph.node:
        near, mean = rounded.get(node.name), seen.means.get(node.input[0] if node.input else "")
        if (
            node.op_type not in ("Conv", "Gemm")
            or near is None
            or mean is None
            or not editor.own(node.input[1])
        ):
            continue
        w = editor.array(node.input[1])
        if near.shape != w.shape:
            continue
        lost = w.astype(np.float64) - near
        if not lost.any():  # the weight is not rounded, because the layer stays float
            continue
        if node.op_type == "Gemm":
            options = {a.name: a for a in node.attribute}
            if "alpha" in options or "beta" in options or "transA" in options:
                continue
            shift = lost @ mean if "transB" in options and options["transB"].i else mean @ lost
        else:
            groups = next((a.i for a in node.attribute if a.name == "group"), 1)
            by = lost.reshape(groups, len(w) // groups, w.shape[1], -1).sum(-1)
            if mean.size != groups * w.shape[1]:
                continue
            shift = np.einsum("goi,gi->go", by, mean.reshape(groups, -1)).reshape(-1)
        count += editor.add_bias(node, shift)
    return copy, count


class _Editor:
    """Changes the constants of a model in place. Only constants with a single reader may be changed."""

    def __init__(self, proto: Any):
        self.proto = proto
        self.tensors = {tensor.name: tensor for tensor in proto.graph.initializer}
        self.makers = {name: node for node in proto.graph.node for name in node.output}
        self.readers: dict[str, list[Any]] = {}
        for node in proto.graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.outputs = {value.name for value in proto.graph.output}

    def own(self, name: str) -> bool:
        return name in self.tensors and len(self.readers.get(name, ())) == 1

    def array(self, name: str) -> Array:
        return np.asarray(package().numpy_helper.to_array(self.tensors[name]))

    def set(self, name: str, array: Array) -> None:
        dtype = self.array(name).dtype
        self.tensors[name].CopyFrom(package().numpy_helper.from_array(array.astype(dtype), name))

    def convolution_before(self, node: Any) -> Any:
        """Return the Conv whose result the Conv *node* reads, directly or through an activation in
        `EQUIVARIANT`. Return None if there is no such Conv, or if another node reads the values between the
        two convolutions, or their weights."""
        if node.op_type != "Conv" or not self.own(node.input[1]):
            return None
        name = node.input[0]
        for _ in range(2):
            made = self.makers.get(name)
            if made is None or name in self.outputs or len(self.readers[name]) != 1:
                return None
            if made.op_type == "Conv":
                own = all(self.own(n) for n in made.input[1:] if n)
                return made if own else None
            if made.op_type not in EQUIVARIANT:
                return None
            name = made.input[0]
        return None

    def add_bias(self, node: Any, shift: Array) -> bool:
        if len(node.input) > 2 and node.input[2]:
            if not self.own(node.input[2]) or self.array(node.input[2]).shape != shift.shape:
                return False
            self.set(node.input[2], self.array(node.input[2]) + shift)
            return True
        name = f"{node.output[0]}/bias"
        self.proto.graph.initializer.append(package().numpy_helper.from_array(shift.astype(np.float32), name))
        node.input[:] = [*node.input[:2], name]
        return True
