"""Models that stay good: what of a float model becomes 8 or 4 bits, and how near it stays."""

from .layers import compare_layers
from .measure import Agreement, OutputRow
from .shown import LayerReport, LayerRow
from .weights import WeightRow, quantize_weights

__all__ = [
    "Agreement",
    "LayerReport",
    "LayerRow",
    "OutputRow",
    "WeightRow",
    "compare_layers",
    "quantize_weights",
]
