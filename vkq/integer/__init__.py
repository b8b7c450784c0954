"""Exact integer convolution, correlation and template matching of images, and integer matrix products: see
`vkq.integer.api`."""

from .api import conv2d, correlate2d, match_template, matmul

__all__ = ["conv2d", "correlate2d", "match_template", "matmul"]
