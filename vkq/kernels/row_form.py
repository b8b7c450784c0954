"""The properties on which a kernel for a function of rows depends."""

from __future__ import annotations

import dataclasses

from ..numerics.rows import FUNCTIONS
from .chain_form import Chain

# Kinds of a chain's inputs: the function's result, one element, one for each position in a row, an array like
# x.
RESULT, ONE, PLACES, LIKE = range(4)


@dataclasses.dataclass(frozen=True)
class RowForm:
    """The properties on which a kernel depends; scales and zero points are push constants. *lanes*: how many
    invocations share a row. *ahead*: how many runs each invocation loads once (0: it loads its runs in each
    pass); the first *whole* of these are inside the row. *strided*: the elements of a row are not contiguous.
    *fours*: they are contiguous, and fill whole runs. *x_bytes*, *y_bytes*: x, y are 8-bit. *y_real*: y is
    dequantized again. *divides*: see `Quantizer`. *normal*: `always_normal` holds, and y's scale is not
    small. *soft*: the device needs software float arithmetic."""

    name: str
    lanes: int
    ahead: int
    whole: int
    strided: bool
    fours: bool
    epsilon: float
    chain: Chain | None
    operands: tuple[int, ...]
    x_bytes: bool
    y_bytes: bool
    y_real: bool
    divides: bool
    normal: bool
    x: str
    y: str
    soft: bool

    @property
    def y_buffer(self) -> int:
        return 1 + sum(operand != RESULT for operand in self.operands)

    @property
    def chain_flushes(self) -> bool:
        """True if floats must be flushed in the chain. They need not be if the chain is result * a + b, or a
        part of it, and y is 8-bit. A result is at most 2^13. So if flushing changes the product, the product
        is below 2^-113 with and without flushing. Its sum with b then stays the same, or is below 2^-86 and
        quantized like 0."""
        if self.chain is None or not (self.normal and self.y_bytes):
            return not (self.normal and self.y_bytes)
        last = self.operands.index(RESULT)
        for i, link in enumerate(self.chain.links, len(self.chain.inputs) + len(self.chain.constants)):
            if last not in link.operands or link.dtype != "float32":
                return True
            last = i
        return tuple(link.op for link in self.chain.links) not in (("Mul",), ("Add",), ("Mul", "Add"))

    @property
    def vectors(self) -> frozenset[int]:
        """The buffers of float32 numbers that the kernel reads and writes as vectors of four."""
        ways = zip(self.operands, self.chain.inputs if self.chain else (), strict=True)
        others = [way != ONE and dtype == "float32" for way, dtype in ways if way != RESULT]
        y = (self.y_real or not self.y_bytes) and FUNCTIONS[self.name].each is not None
        return frozenset(i for i, four in enumerate((not self.x_bytes, *others, y)) if four and self.fours)
