"""Chains of element-wise operators on a device, one dispatch each."""

from __future__ import annotations

import numpy as np

from ...kernels.chain import Chain, chained, packs
from ...kernels.quantize import dequantized, quantized
from ...layout.extent import MATRIX, default_layout
from ...numerics.qparams import QParams
from ...runtime.builder import Value
from ..graph import Node
from .context import BYTES, Context, DeviceOperator, anything, unnamed
from .layouts import wanted


def _as_numbers(dtype: str) -> QParams:
    """Return the quantization parameters (scale 1, zero point 0) that dequantize a byte to its integer
    value."""
    return QParams.of(np.float32(1), np.zeros((), dtype)[()])


def _chain(context: Context, node: Node) -> tuple[Value, ...]:
    b, chain = context.builder, node.attributes["chain"]
    assert isinstance(chain, Chain)
    inputs = []
    for name in node.inputs:
        value = context.value(name)
        if value.spec.dtype in BYTES:
            q = _as_numbers(value.spec.dtype)
            value = b.once(value, "numbers", lambda value=value, q=q: dequantized(b, value, q))  # type: ignore[misc]
        inputs.append(value)
    found = chained(b, chain, inputs, node.attributes["shape"], _held(context, node))
    return tuple(
        unnamed(context, quantized(b, value, _as_numbers(dtype), wanted(context, name)))
        if dtype in BYTES and value.spec.dtype not in BYTES
        else value
        for value, dtype, name in zip(found, node.attributes["gives"], node.outputs, strict=True)
    )


def _held(context: Context, node: Node) -> tuple[str, ...]:
    """If the chain's dispatch can store 8-bit results, return the type of each result, or "" for a result
    that is not 8-bit. Otherwise return (): the dispatch then stores 8-bit results as float32, and further
    dispatches quantize them."""
    a, shapes = node.attributes, [context.graph.specs[name].shape for name in node.inputs]
    layouts = [
        wanted(context, name) or default_layout(dtype, len(a["shape"]))
        for name, dtype in zip(node.outputs, a["gives"], strict=True)
        if dtype in BYTES
    ]
    if set(layouts) != {MATRIX} or not packs(a["chain"], shapes, a["shape"]):
        return ()
    return tuple(dtype if dtype in BYTES else "" for dtype in a["gives"])


ROWS = {"chain": DeviceOperator(anything, _chain, (*BYTES, "float32", "int32", "float16", "bool"))}
