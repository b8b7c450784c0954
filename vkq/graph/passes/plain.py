"""Rewrites operators that the graph does not support as other operators, once shapes are known.

A rule gets a node (`words.Words`) and emits its replacement. If the rule returns False, the node stays, and
a fallback must compute it."""

from __future__ import annotations

from collections.abc import Callable

from ..graph import Node
from . import computed, einsum, fourier, grids, indices, norms, orders, recurrent, sizes, unfolded, volumes
from .sweep import Sweep
from .words import Words

RULES: dict[str, Callable[[Words], bool]] = {
    "ArgMax": orders.arg_max,
    "ArgMin": orders.arg_max,
    "AveragePool": volumes.pool,
    "BatchNormalization": norms.batch_normalization,
    "Conv": unfolded.convolution,
    "ConvTranspose": unfolded.transposed_convolution,
    "DFT": fourier.dft,
    "DequantizeLinear": computed.dequantize_linear,
    "Dropout": norms.dropout,
    "Einsum": einsum.einsum,
    "GatherElements": indices.gather_elements,
    "GatherND": indices.gather_nd,
    "GlobalAveragePool": volumes.whole,
    "GlobalMaxPool": volumes.whole,
    "GRU": recurrent.recurrent,
    "LSTM": recurrent.recurrent,
    "QuantizeLinear": computed.quantize_linear,
    "RNN": recurrent.recurrent,
    "GridSample": grids.grid_sample,
    "Hardmax": orders.hardmax,
    "LRN": norms.local_response,
    "LayerNormalization": norms.layer_normalization,
    "LpNormalization": norms.lp_normalization,
    "MaxPool": volumes.pool,
    "OneHot": indices.one_hot,
    "Resize": sizes.other_resize,
    "ReverseSequence": indices.reverse_sequence,
    "STFT": fourier.stft,
    "Scatter": indices.scatter_elements,
    "ScatterElements": indices.scatter_elements,
    "ScatterND": indices.scatter_nd,
    "TensorScatter": indices.tensor_scatter,
    "TopK": orders.top_k,
    "Trilu": indices.trilu,
}


def in_plain_words(sweep: Sweep, node: Node, visit: Callable[[Node], object]) -> bool:
    """Replace a node by other operators. Return False if no rule supports the node."""
    a = node.attributes
    foreign = node.op == "foreign"
    rule = RULES.get(a["op"] if foreign and not a["domain"] else node.op)
    if rule is None:
        return False
    return rule(Words(sweep, node, dict(a["attributes"] if foreign else a), visit))
