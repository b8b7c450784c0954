"""The form of a kernel for a function of rows: all properties for which the kernel is compiled."""

from __future__ import annotations

import dataclasses

from ..numerics.rows import FUNCTIONS
from .chain_form import Chain

# The kinds of a chain's inputs: the function's result (RESULT); one element (ONE); one element for each
# position in a row (PLACES); an array of the shape of x (LIKE).
RESULT, ONE, PLACES, LIKE = range(4)


@dataclasses.dataclass(frozen=True)
class RowForm:
    """The properties for which a kernel is compiled; scales and zero points are push constants. A run is four
    neighbouring elements of a row. *lanes*: the number of invocations that share a row. *ahead*: the number
    of runs that each invocation loads once and keeps in registers; 0: it loads its runs again in each pass.
    *whole*: how many of the *ahead* runs are inside the row for every lane. *strided*: the elements of a row
    are not contiguous. *fours*: the elements are contiguous, and their number is a multiple of four.
    *x_bytes*, *y_bytes*: x, y are 8-bit. *y_real*: y is dequantized again. *divides*: see `Quantizer`.
    *normal*: no subnormal floats occur outside the chain. *soft*: the device needs software float arithmetic.
    *x*, *y*: the layouts of x and y."""

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
        """True if floats must be flushed in the chain. They need not be if y is 8-bit and the chain is result
        * a + b or a part of it. Proof: a result is at most 2^13. If flushing changes the product, the product
        is below 2^-113 with and without flushing. The sum with b then stays the same, or it is below 2^-86
        and quantizes like 0."""
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
        """The indices of the buffers of float32 numbers that the kernel reads or writes as vectors of
        four."""
        ways = zip(self.operands, self.chain.inputs if self.chain else (), strict=True)
        others = [way != ONE and dtype == "float32" for way, dtype in ways if way != RESULT]
        y = (self.y_real or not self.y_bytes) and FUNCTIONS[self.name].each is not None
        return frozenset(i for i, four in enumerate((not self.x_bytes, *others, y)) if four and self.fours)
