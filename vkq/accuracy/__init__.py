"""Quantization of models that preserves accuracy: chooses the values to store in 8 or 4 bits, and measures
how close the quantized model is to the float model."""

from .keep import KeptLayer
from .layers import compare_layers
from .measure import Agreement, OutputRow
from .search import QuantizedReport, quantize
from .shown import LayerReport, LayerRow
from .torch_module import quantize_torch
from .trial import SearchStep
from .weights import WeightRow, quantize_weights

__all__ = [
    "Agreement",
    "KeptLayer",
    "LayerReport",
    "LayerRow",
    "OutputRow",
    "QuantizedReport",
    "SearchStep",
    "WeightRow",
    "compare_layers",
    "quantize",
    "quantize_torch",
    "quantize_weights",
]
