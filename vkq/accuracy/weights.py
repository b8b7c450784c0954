"""Weight-only quantization. Constant weights are stored in 8 or 4 bits and read through DequantizeLinear;
activations do not change."""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import numpy as np

from .. import files
from ..errors import ArgumentError, ModelError, VkqError
from ..graph.graph import Array
from ..numerics.calibration import quantize_weight
from ..numerics.grouped import BITS, GROUPS, packed
from ..onnx.names import chosen
from ..onnx.protobuf import package
from ..onnx.quantize import prepared, quantizer, refusals_told

# The first opset whose DequantizeLinear has an axis (CHANNELS), float16 scales (HALVES), blocks (BLOCKS).
CHANNELS, HALVES, BLOCKS = 13, 19, 21
FLOATS = {1: np.float32, 10: np.float16}  # keys: values of TensorProto.DataType
INT4 = 22
LAYERS = ("Conv", "ConvTranspose", "MatMul", "Gemm")


@dataclasses.dataclass(frozen=True)
class WeightRow:
    """The result for the weight of one layer. ``block``: the number of elements that share a scale, or 0 if
    each output channel has one scale. ``snr_db``: the signal-to-noise ratio of the quantized weight.
    ``why``: the reason why the weight stays float; "" for a quantized weight."""

    node: str
    op: str
    bits: int
    block: int = 0
    snr_db: float = float("inf")
    why: str = ""


def quantize_weights(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    bits: int = 8,
    block: int = 32,
    exclude: Collection[str] = (),
) -> list[WeightRow]:
    """Quantize the weights of the float *model* to 8 or 4 bits, write the result to the file *target*, and
    return a row for each layer.

    Weights of Conv, ConvTranspose, MatMul and Gemm become int8, symmetrically, with the scale
    ``max|w| / 127`` for each output channel. With ``bits=4``, weights of MatMul and Gemm become int4 with a
    scale for each *block* (16, 32, 64 or 128) of elements along K, and weights of convolutions become int8.
    In the model, DequantizeLinear converts the weights to floats. On a device, the schemes q8csw and q4gsw
    compute with the int8 or int4 weights. Biases and activations stay float, so no samples are needed.

    exclude: names of nodes whose weights stay float, or of modules that contain such nodes.

    Raises ArgumentError for invalid options, ModelError for a model that cannot be read.
    """
    if bits not in BITS or block not in GROUPS:
        raise ArgumentError(
            f"bits is {bits} and block {block}; bits must be {' or '.join(map(str, sorted(BITS)))}, block"
            f" one of {', '.join(map(str, GROUPS))}"
        )
    quantizer()
    with tempfile.TemporaryDirectory() as folder, files.output(Path(target)) as beside, refusals_told():
        onnx = package()
        kinds = {
            tensor.data_type
            for tensor in onnx.load(os.fspath(model), load_external_data=False).graph.initializer
        }
        least = BLOCKS if bits == 4 else HALVES if 10 in kinds else CHANNELS
        remedy = "use 8 bits" if bits == 4 else "export it as float32"
        proto = onnx.load(prepared(model, folder, least, f"weights of {bits} bits", remedy))
        rows = WeightReplacement(proto, bits, block, set(chosen(proto, exclude))).rows()
        if not rows:
            raise ModelError(f"{os.fspath(model)} has no constant float weight of {', '.join(LAYERS)}")
        if proto.ByteSize() >= 1 << 31:
            raise ModelError(
                f"the model still takes {proto.ByteSize()} bytes; one ONNX file holds less than 2**31: use"
                " fewer bits, or quantize parts of it"
            )
        onnx.save(proto, beside)
    return rows


class WeightReplacement:
    """Replaces the weights of a model in place."""

    def __init__(self, proto: Any, bits: int, block: int, exclude: Collection[str]):
        self.proto, self.bits, self.block, self.exclude = proto, bits, block, exclude
        self.floats = {t.name: t for t in proto.graph.initializer if t.data_type in FLOATS}
        self.made: dict[tuple[str, int, int], tuple[str, float]] = {}
        self.new: list[Any] = []

    def rows(self) -> list[WeightRow]:
        rows = [
            self._layer(node) for node in self.proto.graph.node if node.op_type in LAYERS and not node.domain
        ]
        graph = self.proto.graph
        nodes = [*self.new, *graph.node]
        del graph.node[:]
        graph.node.extend(nodes)
        read = {name for node in nodes for name in node.input} | {value.name for value in graph.output}
        read |= {name for node in nodes for a in node.attribute for name in _outer(a)}
        for values in (graph.initializer, graph.input):
            for tensor in [t for t in values if t.name in self.floats and t.name not in read]:
                values.remove(tensor)
        return [row for row in rows if row]

    def _layer(self, node: Any) -> WeightRow | None:
        """Quantize the weight of one layer, and return its row. Return None for a layer without a constant
        weight."""
        left = node.op_type in ("MatMul", "Gemm") and node.input[0] in self.floats
        name = node.input[0 if left else 1]
        if name not in self.floats or (left and node.input[1] in self.floats):
            return None
        tensor = self.floats[name]
        wide = 8 * np.dtype(FLOATS[tensor.data_type]).itemsize
        rank = len(tensor.dims)
        if node.name in self.exclude:
            return WeightRow(node.name, node.op_type, wide, why="excluded")
        if rank != 2 and node.op_type in ("MatMul", "Gemm"):
            return WeightRow(node.name, node.op_type, wide, why=f"the weight has {rank} axes; it must have 2")
        if 0 in tensor.dims:
            return WeightRow(node.name, node.op_type, wide, why="the weight is empty")
        axis, blocks = _channels(node, left)
        block = self.block if blocks and self.bits == 4 else 0
        key = name, axis, block
        try:
            output, snr = self.made[key] = self.made.get(key) or self._dequantized(name, axis, block)
        except VkqError as error:
            raise ModelError(f"{node.op_type} {node.name!r}: {error}") from error
        node.input[0 if left else 1] = output
        return WeightRow(node.name, node.op_type, 4 if block else 8, block, snr)

    def _dequantized(self, name: str, axis: int, block: int) -> tuple[str, float]:
        """Add a quantized weight and its DequantizeLinear to the model. Return (the name of the dequantized
        weight, its signal-to-noise ratio in dB)."""
        onnx, tensor = package(), self.floats[name]
        dtype, w = FLOATS[tensor.data_type], onnx.numpy_helper.to_array(tensor)
        codes, scale, real = _in_blocks(w, axis, block, dtype) if block else _in_channels(w, axis, dtype)
        noise = np.square(real - w.astype(np.float64)).sum()
        signal = np.square(w.astype(np.float64)).sum()
        names = [f"{name}/{what}{axis}" for what in (f"int{4 if block else 8}_", "scale_", "float_")]
        if block:
            raw = packed((codes.reshape(-1) & 15).astype(np.uint8), 4).tobytes()
            stored = onnx.TensorProto(name=names[0], data_type=INT4, dims=w.shape, raw_data=raw)
        else:
            stored = onnx.numpy_helper.from_array(codes, names[0])
        self.proto.graph.initializer.extend([stored, onnx.numpy_helper.from_array(scale, names[1])])
        options = {"axis": 1 - axis, "block_size": block} if block else {"axis": axis}
        self.new.append(
            onnx.helper.make_node("DequantizeLinear", names[:2], names[2:], name=names[2], **options)
        )
        return names[2], float(10 * np.log10(signal / noise)) if noise else float("inf")


def _channels(node: Any, left: bool) -> tuple[int, bool]:
    """Return (the axis of the output channels of a node's weight, whether the weight can be quantized in
    blocks along its other axis). Only the right operand of a matrix product can be quantized in blocks.
    *left*: True if the weight is the left operand of the node."""
    if node.op_type == "Conv":
        return 0, False
    if node.op_type == "ConvTranspose":
        return 1, False
    turned = next((a.i for a in node.attribute if a.name == ("transA" if left else "transB")), 0)
    return (turned if left else 1 - turned), not left


def _in_channels(w: Array, axis: int, dtype: Any) -> tuple[Array, Array, Array]:
    """Return (codes, scales, values) of a weight with one scale for each slice along *axis*. Codes are int8,
    scales have the type *dtype*, and the dequantized values are float64."""
    codes, scale = quantize_weight(w, axis)
    stored = scale.astype(dtype)
    if dtype == np.float16:  # compute the codes again, with the rounded scales
        smallest = np.finfo(np.float16).smallest_subnormal
        stored = np.where(stored < smallest, smallest, stored).astype(dtype)
    shape = [-1 if i == axis else 1 for i in range(w.ndim)]
    steps = stored.astype(np.float32).reshape(shape)
    if dtype == np.float16:
        codes = np.clip(np.rint(w.astype(np.float32) / steps), -127, 127).astype(np.int8)
    return codes, stored, codes * steps.astype(np.float64)


def _in_blocks(w: Array, axis: int, block: int, dtype: Any) -> tuple[Array, Array, Array]:
    """Return (codes, scales, values) of a matrix with one scale for each block of consecutive elements. A
    block lies along the axis that is not *axis*. Codes are int4 values stored as int8, scales have the type
    *dtype*, and the dequantized values are float64."""
    rows = w if axis == 0 else w.T
    weight = quantize_weight(rows, bits=4, group=block, scale_dtype=np.dtype(dtype).name)
    codes, scale, real = weight.codes().astype(np.int8) - np.int8(8), weight.scale, weight.dequantize()
    if axis:
        codes, scale, real = codes.T, scale.T, real.T
    return codes, np.ascontiguousarray(scale), real.astype(np.float64)


def _outer(attribute: Any) -> list[str]:
    """Return the names of the values that the subgraphs in an attribute of an If or Loop read."""
    graphs = [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]
    return [
        name
        for graph in graphs
        for name in (
            *(name for node in graph.node for name in node.input),
            *(value.name for value in graph.output),
            *(name for node in graph.node for inner in node.attribute for name in _outer(inner)),
        )
    ]
