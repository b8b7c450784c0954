"""The sizes of operators that only move data, by name.

    max_pool2d[N=32,C=64,H=112,W=112,block=16,K=3,stride=2]

``block`` is the number of channels in a vector of the layout: 16 for kPackedInt8_16C, 4 for
kPackedInt8_4W4C. Softmax runs on rows (N, C); H and W are 1. Depthwise and 2x2 transposed convolutions are
included because they have few multiply-adds per byte.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from vkq.errors import ArgumentError
from vkq.problem.names import Takes, read

LAYOUTS = {16: "kPackedInt8_16C", 4: "kPackedInt8_4W4C"}
# {operation: (bytes of an element of x, bytes of the result for each element of x, shape of the second
# operand; "": none)}
BYTES: dict[str, tuple[int, int, str]] = {
    "quantize": (4, 1, ""), "dequantize": (1, 4, ""), "repack": (1, 1, ""), "lookup": (1, 1, ""),
    "add": (1, 1, "same"), "mul": (1, 1, "same"), "gate": (1, 1, "gate"), "concat": (1, 2, "same"),
    "max_pool2d": (1, 1, ""), "avg_pool2d": (1, 1, ""), "global_avg_pool2d": (1, 1, ""),
    "resize": (1, 4, ""), "pad": (1, 1, ""), "transpose": (1, 1, ""), "softmax": (1, 1, ""),
    "depthwise_conv2d": (1, 1, ""), "conv_transpose2x2": (1, 4, ""),
}  # fmt: skip
WINDOWS = ("max_pool2d", "avg_pool2d", "depthwise_conv2d")
TAKES: Takes = {
    op: (("N", "C", "H", "W"), ("block", "K", "stride") if op in WINDOWS else ("block",)) for op in BYTES
}


@dataclass(frozen=True)
class Mover:
    """An operator that moves data, with the sizes of x (N, C, H, W)."""

    op: str
    n: int
    c: int
    h: int
    w: int
    block: int = 16
    k: int = 3
    stride: int = 1

    macs = 0
    weight_shape = ()

    @property
    def name(self) -> str:
        """The name, which `mover` parses."""
        kernel = f",K={self.k},stride={self.stride}" if self.op in WINDOWS else ""
        return f"{self.op}[N={self.n},C={self.c},H={self.h},W={self.w},block={self.block}{kernel}]"

    @property
    def x_shape(self) -> tuple[int, ...]:
        """The shape of the first operand."""
        return (self.n, self.c) if self.op == "softmax" else (self.n, self.c, self.h, self.w)

    @property
    def z_shape(self) -> tuple[int, ...]:
        """The shape of the second operand; (0,) if the operator has one operand."""
        return {"same": self.x_shape, "gate": (self.n, self.c, 1, 1), "": (0,)}[BYTES[self.op][2]]

    def bytes(self, *_: int) -> int:
        """Return the bytes of the operands and the result, each counted once, without padding around
        images."""
        x_bytes, y_bytes, _other = BYTES[self.op]
        size = math.prod(self.x_shape)
        fewer = self.stride**2 if self.op in WINDOWS else 1
        fewer = self.h * self.w if self.op == "global_avg_pool2d" else fewer
        return x_bytes * size + math.prod(self.z_shape) + y_bytes * size // fewer


def mover(name: str) -> Mover:
    """Return the problem with this name; the inverse of `Mover.name`.

    >>> mover("max_pool2d[N=1,C=16,H=8,W=9,K=2,stride=2,block=4]").name
    'max_pool2d[N=1,C=16,H=8,W=9,block=4,K=2,stride=2]'
    """
    op, (n, c, h, w), given = read(name, TAKES)
    options = {key.lower(): value for key, value in given.items()}
    wrong = any(not isinstance(value, int) or value < 1 for value in options.values())
    if wrong or min(n, c, h, w) < 1 or options.get("block", 16) not in LAYOUTS:
        raise ArgumentError(f"{name!r}: each size must be one number, 1 or more, and block 16 or 4")
    if op == "softmax" and (h, w) != (1, 1):
        raise ArgumentError(f"{name!r}: a softmax is one of rows (N, C); H and W must be 1")
    return Mover(op, n, c, h, w, **options)
