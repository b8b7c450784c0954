"""Models that stay good: what of a float model becomes 8 or 4 bits, and how near it stays."""

from .weights import WeightRow, quantize_weights

__all__ = ["WeightRow", "quantize_weights"]
