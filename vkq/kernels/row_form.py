"""The properties that a kernel for a function of rows depends on."""

from __future__ import annotations

import dataclasses

from ..numerics.rows import FUNCTIONS
from .chain_form import Chain

# An operand of a chain: the result, one element, one for each position in a row, an array like x.
RESULT, ONE, PLACES, LIKE = range(4)


@dataclasses.dataclass(frozen=True)
class RowForm:
    """The properties that a kernel depends on; scales and zero points are push constants. *lanes*: how many
    invocations share a row. *ahead*: how many runs each invocation loads only once (0: it loads them in each
    pass); the first *whole* of them are inside the row. *strided*: the elements of a row are not neighbours.
    *fours*: they are, and fill whole runs. *x_bytes*, *y_bytes*: whether x and y have 8 bits. *divides*: see
    `Quantizer`. *normal*: see `always_normal`; and y's scale is not small. *soft*: the device needs float
    arithmetic in software."""

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
        """Whether floats must be flushed in the chain. They need not in result * a + b, quantized, or a part
        of it: where the flushed and the other product differ, both are below 2^-113 (a result is at most
        2^13), and so their sums with b are the same, or both below 2^-86 and quantized like 0."""
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
        y = not self.y_bytes and FUNCTIONS[self.name].each is not None
        return frozenset(i for i, four in enumerate((not self.x_bytes, *others, y)) if four and self.fours)
