"""Exact integer convolution, correlation and template matching of images, and integer matrix products
(`vkq.integer.api`)."""

from .api import conv2d, correlate2d, explain, matmul
from .best import Best
from .match import match_template
from .templates import Templates

__all__ = ["Best", "Templates", "conv2d", "correlate2d", "explain", "match_template", "matmul"]
