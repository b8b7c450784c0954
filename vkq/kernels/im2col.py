"""Convolutions through an im2col matrix. Scratch memory holds one chunk of the matrix's rows at once, so
its size is bounded."""

from __future__ import annotations

from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from .divisor import divisor
from .gemm import Int8Gemm
from .pixels import pixel_rows, window_constants

# Maximum bytes of the im2col matrix in scratch memory. Larger matrices are computed and multiplied in
# chunks.
SCRATCH_BYTES = 16 << 20


class Im2col:
    """A convolution that multiplies chunks of its im2col matrix by the weight. The weight of *gemm* is
    (merged groups, N, K), the result of `vkq.kernels.weights.merge_groups`."""

    def __init__(self, gemm: Int8Gemm, taps: int):
        self.gemm = gemm
        self.group_channels = gemm.k // taps

    def build(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        gemm, rows = self.gemm, pixel_rows(p, self.gemm.unit)
        count = gemm.row_units(rows)
        chunk = max(1, min(count, SCRATCH_BYTES // max(gemm.unit_bytes, 1)))
        sizes = {
            "groups": gemm.groups, "oh": rows.oh, "ow_padded": rows.ow_padded,
            "group_channels": self.group_channels,
        }  # fmt: skip
        # If k is 0, no kernel reads this buffer.
        matrix = b.words(chunk * gemm.unit_bytes // 4) if gemm.k else x
        for first in range(0, count, chunk):
            size = min(chunk, count - first)
            if gemm.k:
                push = {**sizes, **window_constants(p), **gemm.gather_push(first, size)}
                push |= divisor("run", gemm.k4) | divisor("group", size)
                push |= divisor("line", rows.ow_padded) | divisor("image", rows.oh)
                push |= divisor("tap", self.group_channels) | divisor("kh", p.kw)
                b.dispatch(gemm.gather(self.group_channels), [x, matrix], push)
            gemm.build(b, matrix, y, rows, first=first, count=size)
