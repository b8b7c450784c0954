"""The compile-time properties of a kernel for a function of rows."""

from __future__ import annotations

import dataclasses

from ..numerics.rows import FUNCTIONS
from .chain_form import Chain

# The kinds of a chain's inputs:
# - RESULT: the function's result
# - ONE: one element
# - PLACES: one element for each position in a row
# - LIKE: an array of the shape of the rows
RESULT, ONE, PLACES, LIKE = range(4)


@dataclasses.dataclass(frozen=True)
class RowForm:
    """The compile-time properties of a kernel; scales and zero points are push constants. A run is four
    neighbouring elements of a row. *soft*, *converts*: as in `vkq.shader.assembler.KernelWriter`."""

    name: str
    lanes: int  # invocations that share a row
    ahead: int  # runs that each invocation keeps in registers; 0: each pass loads the runs again
    whole: int  # the number of the `ahead` runs that are inside the row for every lane
    strided: bool  # the elements of a row are not contiguous
    fours: bool  # the elements of a row are contiguous, and their number is a multiple of four
    epsilon: float
    chain: Chain | None
    operands: tuple[int, ...]  # the kind of each input of the chain
    x_bytes: bool  # x is 8-bit
    y_bytes: bool  # y is 8-bit
    y_real: bool  # y is quantized and then dequantized, so the kernel stores floats
    divides: bool  # see `Quantizer`
    normal: bool  # no subnormal floats occur outside the chain
    x: str  # the layout of x
    y: str  # the layout of y
    soft: bool
    converts: bool
    prologue: Chain | None = None  # a chain whose first result is x; its second result, if any, is stored
    reads: tuple[int, ...] = ()  # the kind of each input of the prologue

    @property
    def loads(self) -> tuple[tuple[str, int], ...]:
        """The type and the kind of each array that the kernel reads, in the order of its buffers."""
        others = zip(self.chain.inputs if self.chain else (), self.operands, strict=True)
        after = tuple((dtype, way) for dtype, way in others if way != RESULT)
        if self.prologue is None:
            return (("int8" if self.x_bytes else "float32", LIKE), *after)
        return (*zip(self.prologue.inputs, self.reads, strict=True), *after)

    @property
    def y_buffer(self) -> int:
        return len(self.loads)

    @property
    def stores(self) -> tuple[str, ...]:
        """The types of the results: y as stored, and the second result of the prologue."""
        chain, before = self.chain, self.prologue
        y = "float32" if chain is None else chain.types[chain.results[0]]
        second = () if before is None else tuple(before.types[i] for i in before.results[1:])
        return ("int8" if self.y_bytes and not self.y_real else y, *second)

    @property
    def chain_flushes(self) -> bool:
        """True if subnormal floats must be flushed in the chain. They need not be if `normal` is True, y is
        8-bit, and the chain is result * a, result + b, or result * a + b.

        Proof: a result is at most 2^13. If flushing changes the product, the product is below 2^-113 with
        and without flushing. Then its sum with b stays the same, or the sum is below 2^-86 and quantizes
        like 0."""
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
        """The indices of the float32 buffers whose elements the kernel reads or writes as vectors of four."""
        if not self.fours:
            return frozenset()
        read = [dtype == "float32" and way != ONE for dtype, way in self.loads]
        write = [dtype == "float32" and FUNCTIONS[self.name].each is not None for dtype in self.stores]
        return frozenset(i for i, four in enumerate((*read, *write)) if four)
