"""Passes over graphs. A pass turns a graph into an equivalent graph, and `lower` runs all passes."""

from __future__ import annotations

from collections.abc import Callable

from ..graph import Graph
from .after import into_layers
from .alike import merge_alike
from .attention import fuse_attention
from .attention_q8 import join_attention
from .branches import side_by_side
from .chains import chain_elements
from .columns import take_columns
from .constants import fold_weights
from .counts import flatten_counts
from .embeddings import fold_into_tables
from .expands import move_expands
from .floats import to_float_layers
from .guards import without_guards
from .halves import widen_dequantized
from .heads import fuse_heads
from .integers import to_integers
from .leading import keep_leading_axes
from .means import to_means
from .movement import move_in_8_bits
from .products import plain_products
from .quantized import quantize_in_convolutions
from .reductions import to_sums
from .rows import find_normalizations, to_rows
from .simplify import simplify
from .sizes import to_taps
from .tables import to_tables
from .transposes import join_transposes
from .types import hold_types

PASSES: tuple[Callable[[Graph], Graph], ...] = (
    widen_dequantized,
    hold_types,
    find_normalizations,
    simplify,
    move_expands,
    without_guards,
    merge_alike,
    fuse_attention,
    plain_products,
    move_in_8_bits,
    to_integers,
    to_tables,
    to_means,
    to_sums,
    fold_weights,
    to_float_layers,
    keep_leading_axes,
    take_columns,
    join_transposes,
    simplify,
    move_expands,
    to_tables,  # again: other passes have removed readers that kept nodes from being fused
    fold_into_tables,
    quantize_in_convolutions,
    side_by_side,
    into_layers,
    to_taps,
    fuse_heads,
    to_rows,
    merge_alike,  # again: fusing attention has added equal masks
    flatten_counts,
    chain_elements,
    join_attention,
)


def lower(graph: Graph) -> Graph:
    """Replace the operators of a model's graph by vkq's operators where possible. The caller must have folded
    the constants."""
    for one in PASSES:
        graph = one(graph)
    graph.verify()
    return graph
