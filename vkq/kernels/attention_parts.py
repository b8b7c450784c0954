"""The kernel of attention in which a workgroup may compute a part of the keys. It then stores its state, and
another kernel joins the parts (attention_join)."""

from __future__ import annotations

from ..numerics.rational import add
from ..numerics.steps import Number
from .attention_tiles import AttentionKernel


class PartsKernel(AttentionKernel):
    """Writes the SPIR-V of attention to all keys, or with ``span`` to a part of the keys."""

    def matrix_of(self, number: Number) -> Number:
        """Return the index of the matrix (batch element and head of the keys) that a workgroup computes,
        and set the index of the part of the keys that the workgroup reads. *number* is the workgroup's
        number divided by the number of tiles in a matrix."""
        self.sums, self.part = number, number.of(0)
        if not self.form.span:
            return number
        parts = (self.keys + (self.form.span - 1)) >> (self.form.span.bit_length() - 1)
        matrix = number.divided(parts)
        self.part = number - matrix * parts
        return matrix

    def bounds(self) -> tuple[Number, Number]:
        """Return the begin and the end of the range of keys that the workgroup reads."""
        begin, end = super().bounds()
        if not self.form.span:
            return begin, end
        low = self.part * self.form.span
        high = low + self.form.span
        return (begin < low).where(low, begin), (end < high).where(end, high)

    def finish(self, state: tuple[Number, ...]) -> None:
        """Store the results. With ``apart``, store for each row the weighted sums, the largest score and
        the sum of weights instead of the results."""
        if not self.form.apart:
            return super().finish(state)
        k, width = self.k, self.form.width
        total, first = self.joined(state[1], add), self.sums * self.lines + self.first
        with k.when(self.sub.equals(0) & (self.first + self.own < self.lines)):
            place = (first + self.own) * (width + 2) + width
            k.store(self.y, place, state[0])
            k.store(self.y, place + 1, total)
        columns = self.results.columns
        for i, row in enumerate(self.results.rows):
            for j, column in enumerate(columns):
                with k.when((self.first + row < self.lines) & (column < width)):
                    place = (first + row) * (width + 2) + column
                    k.store(self.y, place, state[2 + i * len(columns) + j])
        return None
