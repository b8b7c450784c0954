"""The attention kernel whose workgroups may each process one part of the keys. They then store states
instead of results (for each row the weighted sums, the largest score and the sum of weights), which another
kernel combines (attention_join)."""

from __future__ import annotations

from ..numerics.rational import add
from ..numerics.steps import Number
from .attention_form import FEW_ROWS
from .attention_tiles import AttentionKernel


class PartsKernel(AttentionKernel):
    """The generator of attention. A workgroup processes all keys or, if the form has a ``span``, that many
    keys."""

    def matrix_of(self, number: Number) -> Number:
        """Return the index of the matrix (batch element and head of the keys) that a workgroup computes.
        Set ``part``, the index of the part of the keys that it reads. *number* is the workgroup's index
        divided by the number of tiles in a matrix."""
        self.sums, self.part = number, number.of(0)
        if not self.form.span:
            return number
        parts = (self.keys + (self.form.span - 1)) >> (self.form.span.bit_length() - 1)
        matrix = number.divided(parts)
        self.part = number - matrix * parts
        return matrix

    def bounds(self) -> tuple[Number, Number]:
        begin, end = self.seen_bounds()
        if not self.form.span:
            return begin, end
        low = self.part * self.form.span
        high = low + self.form.span
        return (begin < low).where(low, begin), (end < high).where(end, high)

    def seen_bounds(self) -> tuple[Number, Number]:
        """Return (begin, end) of the keys to which the workgroup's rows attend; begin is rounded down to a
        multiple of the tile's number of keys."""
        k, keys = self.k, self.keys
        if not self.form.causal:
            return k.constant(0, "u"), keys
        if self.form.placed:
            return self.placed_bounds()
        last = self.first + (self.tile.rows - 1)
        (head, first), (end_head, end) = self.query(k.constant(0, "u")), self.query(last - self.first)
        one = head.equals(end_head)  # if the rows belong to several heads, any query may be among them
        end = self.position(one.where(end, self.queries - 1)) + 1
        return self.begin_of(self.position(one.where(first, 0))), (end < keys).where(end, keys)

    def begin_of(self, first: Number) -> Number:
        """Return the first key to which a query at position *first* attends, rounded down to a multiple of
        the tile's number of keys."""
        begin = (first + 1).i - self.word("window").i
        return ((begin < 0) | self.word("window").equals(0)).where(0, begin).u & (2**32 - self.tile.keys)

    def placed_bounds(self) -> tuple[Number, Number]:
        """Return the result of `seen_bounds` for positions from a buffer, over all rows of the tile: the
        positions may be in any order."""
        k = self.k
        zero, one, last = (k.constant(n, "u") for n in (0, 1, 2**31 - 1))
        rows = self.tile.rows
        state: tuple[Number, ...] = last, zero

        def turn(row: Number, state: tuple[Number, ...]) -> tuple[Number, ...]:
            place = self.position(self.query(row)[1])
            return (place < state[0]).where(place, state[0]), (state[1] < place).where(place, state[1])

        if rows > FEW_ROWS:
            first, end = k.loop(zero, k.constant(rows, "u"), one, state, turn, rolled=True)
        else:  # unrolled, so that the loads overlap
            for row in range(rows):
                state = turn(k.constant(row, "u"), state)
            first, end = state
        return self.begin_of(first), (end < self.keys).where(end + 1, self.keys)

    def finish(self, state: tuple[Number, ...]) -> None:
        """Store the results; with ``apart``, store for each row the weighted sums, the largest score and
        the sum of weights."""
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
