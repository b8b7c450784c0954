"""The kernel of attention: each workgroup computes a tile of rows (`vkq.numerics.attention.Tile`).

A row is a query of one of the heads that share keys and values. For each tile of keys, the workgroup loads
parts of the queries and keys into shared memory, and computes the scores. Then the invocations of each row
find its largest score and compute its weights. Every invocation accumulates some rows and columns of the
results in registers.
"""

from __future__ import annotations

from collections.abc import Callable

from ..numerics.attention import HIDDEN, LANES, base, score, weighed, weight
from ..numerics.elementary import maximum
from ..numerics.rational import add, divide, multiply
from ..numerics.steps import Number
from ..shader.assembler import KernelWriter
from .attention_form import FEW_ROWS, STRIDES, UNROLLED, WORDS, AttentionForm, Places, Split
from .attention_products import Products

Turn = Callable[[Number, tuple[Number, ...]], tuple[Number, ...]]


class AttentionKernel(Products):
    """The generator of an attention kernel."""

    def __init__(self, form: AttentionForm):
        self.form, self.tile, self.at = form, form.tile, Places.of(form.tile, form.part)
        self.y = self.reads()  # index of the result buffer, after the buffers that the kernel reads
        self.k = k = KernelWriter((*[False] * self.y, True), len(WORDS), LANES, form.soft, self.at.end)
        lane, rows, keys = k.lane(), self.tile.rows, self.tile.keys
        self.lane = lane
        self.scores = Split(lane, max(rows // 4, 1) if rows > 8 else max(rows // 2, 1), rows, keys)
        self.results = Split(lane, form.down, rows, form.width, self.run())
        # the row whose weights this invocation helps to compute
        self.own = lane >> (self.tile.lanes.bit_length() - 1)
        self.sub = lane & (self.tile.lanes - 1)
        self.lines, self.queries, self.keys = (self.word(n) for n in ("lines", "queries", "keys"))
        tiles = (self.lines + (rows - 1)) >> (rows.bit_length() - 1)
        group = k.workgroup()
        number = group.divided(tiles)
        self.first = (group - number * tiles) << (rows.bit_length() - 1)
        matrix = self.matrix_of(number)
        self.batch = matrix.divided(self.word("groups"))
        self.head = matrix - self.batch * self.word("groups")
        self.shared_heads = self.lines.divided(self.queries)
        if form.causal:
            self.place = self.position(self.query(self.own)[1])
        if form.biased:
            self.bias_row = self.start("b", self.own)
        self.key_matrix, self.value_matrix = (self._matrix(x) for x in "kv")

    def reads(self) -> int:
        """Return the number of buffers that the kernel reads."""
        return 3 + self.form.biased + self.form.placed

    def run(self) -> int:
        """Return the number of neighbouring columns of the results that an invocation computes."""
        return 1

    def matrix_of(self, number: Number) -> Number:
        """Return the index of the matrix (batch element and head of the keys) that a workgroup computes.
        *number* is the workgroup's index divided by the number of tiles in a matrix."""
        return number

    def position(self, query: Number) -> Number:
        """Return the position of a query among the keys. The push constant "start" is the position of the
        first query. If a buffer has the positions, "start" is the buffer's stride between batches."""
        start = self.word("start")
        return self.k.load(self.y - 1, self.batch * start + query) if self.form.placed else query + start

    def word(self, name: str) -> Number:
        return self.k.word(WORDS.index(name))

    def query(self, row: Number) -> tuple[Number, Number]:
        """Return (head, index of the query) of a row. Rows beyond the last row count as the last row."""
        line = self.first + row
        line = (line < self.lines).where(line, self.lines - 1)
        head = line.divided(self.queries)
        return self.head * self.shared_heads + head, line - head * self.queries

    def start(self, name: str, row: Number) -> Number:
        """Return the offset of a row in q ("q"), y ("y") or bias ("b")."""
        head, query = self.query(row)
        step = {each: self.word(f"{name}_{each}") for each in STRIDES}
        return self.batch * step["batch"] + head * step["head"] + query * step["row"]

    def _matrix(self, name: str) -> Number:
        """Return the offset of the keys (*name* "k") or values ("v") that the workgroup's heads share."""
        return self.batch * self.word(f"{name}_batch") + self.head * self.word(f"{name}_head")

    def module(self) -> bytes:
        k = self.k
        q_rows = [
            self.start("q", (self.lane + LANES * i) >> self.form.part_bits)
            for i in range(self.loads(self.tile.rows))
        ]
        zero, low = k.constant(0.0, "f"), k.constant(HIDDEN, "f")
        state: tuple[Number, ...] = (low, zero, *[zero] * self.results.count)
        begin, end = self.bounds()
        step = k.constant(self.tile.keys, "u")
        state = k.loop(begin, end, step, state, lambda c, s: self.turn(c, s, end, q_rows))
        self.finish(state)
        return k.finish()

    def finish(self, state: tuple[Number, ...]) -> None:
        """Divide the weighted sums in *state* by the sums of the weights, and store the quotients."""
        k, f = self.k, self.form
        total = self.joined(state[1], add)
        with k.when(self.sub.equals(0)):
            k.keep(self.own + self.at.rows, divide(total.of(1.0), total))
        k.barrier()
        columns = self.results.columns
        for i, row in enumerate(self.results.rows):
            inverse, first = k.exchange(row + self.at.rows), self.start("y", row)
            for j, column in enumerate(columns):
                with k.when((self.first + row < self.lines) & (column < f.width)):
                    value = weighed(state[2 + i * len(columns) + j], inverse, f.guarded)
                    k.store(self.y, first + column, value)

    def bounds(self) -> tuple[Number, Number]:
        """Return (begin, end) of the keys that the workgroup reads."""
        raise NotImplementedError

    def turn(
        self, c: Number, state: tuple[Number, ...], end: Number, q_rows: list[Number]
    ) -> tuple[Number, ...]:
        """Process the tile of keys at key c, and return the new state: the largest score and the sum of
        weights of the invocation's row, then all weighted sums of values that the invocation accumulates."""
        k, at, tile = self.k, self.at, self.tile
        self.add_products_of(c, q_rows)
        k.barrier()
        own = self.own * tile.keys + at.weights

        def find(column: Number, largest: tuple[Number, ...]) -> tuple[Number, ...]:
            found = self.score(c, column, k.exchange(own + column))
            k.keep(own + column, found)
            return (maximum(largest[0], found),)

        largest = self.joined(self.over_own((state[0],), find)[0], maximum)
        subtracted = base(largest)
        shrunk = weight(state[0], subtracted)

        def add_weight(column: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
            part = weight(k.exchange(own + column), subtracted)
            k.keep(own + column, self.factor(c + column, part))
            return (add(sums[0], part),)

        (total,) = self.over_own((multiply(state[1], shrunk),), add_weight)
        with k.when(self.sub.equals(0)):
            k.keep(self.own + at.rows, shrunk)
        k.barrier()
        results = self.results
        factors = [k.exchange(row + at.rows) for row in results.rows for _ in results.columns]
        sums = tuple(multiply(one, factor) for one, factor in zip(state[2:], factors, strict=True))
        return (largest, total, *self.add_values(c, end, sums))

    def factor(self, key: Number, weight: Number) -> Number:
        """Return the factor of a key's value: its weight."""
        return weight

    def add_values(self, c: Number, end: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
        """Add the weighted values of the tile of keys at key c to the sums. No row attends to key *end* or
        later keys."""
        left, rows = self.keys - c, self.tile.rows
        many = 128 // max(rows, 4) if rows <= FEW_ROWS else UNROLLED
        zero, one, step = (self.k.constant(n, "u") for n in (0, 1, many))
        count = (left < self.tile.keys).where(left, self.tile.keys)
        whole = count & (2**32 - many)
        sums = self.k.loop(zero, whole, step, sums, lambda i, s: self.add_keys(c, i, many, s))
        return self.k.loop(whole, count, one, sums, lambda i, s: self.add_keys(c, i, 1, s))

    def over_own(self, state: tuple[Number, ...], turn: Turn) -> tuple[Number, ...]:
        """Write a loop that calls *turn* for each key of the tile whose weight this invocation computes.
        The loop is not unrolled, to save registers."""
        k = self.k
        end, step = (k.constant(n, "u") for n in (self.tile.keys, self.tile.lanes))
        return k.loop(self.sub, end, step, state, turn)

    def add_keys(self, c: Number, i: Number, many: int, sums: tuple[Number, ...]) -> tuple[Number, ...]:
        """Add the weighted values of *many* keys from key c + i on to the sums of this invocation's rows
        and columns. Load all values first, so that the loads overlap."""
        k, results = self.k, self.results
        loaded = [self.values(self.value_matrix + (c + (i + j)) * self.word("v_row")) for j in range(many)]
        for j, values in enumerate(loaded):
            one = results.row * self.tile.keys + (i + j) + self.at.weights
            weights = [k.exchange(one + n * self.tile.keys) for n in results.below]
            products = (w * value for w in weights for value in values)
            sums = tuple(one + product for one, product in zip(sums, products, strict=True))
        return sums

    def values(self, first: Number) -> list[Number]:
        """Load this invocation's columns of the value vector at *first*."""
        width = self.form.width
        whole = width % self.results.across == 0
        columns = [x if whole else (x < width).where(x, width - 1) for x in self.results.columns]
        return [self.number(2, first + column) for column in columns]

    def score(self, c: Number, column: Number, total: Number) -> Number:
        """Return the score of key c + column for this invocation's row. *total*: the sum of the products."""
        key, bias = c + column, None
        seen = key < self.keys
        if self.form.biased:
            near = seen.where(key, self.keys - 1)
            bias = self.k.load(3, self.bias_row + near * self.word("b_column")).f
        if self.form.causal:
            window = self.word("window")
            seen = seen & (key <= self.place) & (window.equals(0) | (key + window > self.place))
        return seen.where(self.scored(key, total, bias), HIDDEN)

    def scored(self, key: Number, total: Number, bias: Number | None) -> Number:
        """Return a score: *total* (the sum of the products of query and key), scaled, plus the bias."""
        return score(total, self.word("scale").f, bias)

    def joined(self, value: Number, join: Callable[[Number, Number], Number]) -> Number:
        """Write a reduction with the operation *join* over the invocations of a row, with one *value* from
        each. Return the result to every invocation of the row."""
        k, place = self.k, self.lane + self.at.lanes
        half = self.tile.lanes // 2
        while half:
            k.keep(place, value)
            k.barrier()
            other = k.exchange(((self.lane + half) & (LANES - 1)) + self.at.lanes)
            k.barrier()
            value, half = join(value, other), half // 2
        k.keep(place, value)
        k.barrier()
        found = k.exchange(self.lane - self.sub + self.at.lanes)
        k.barrier()
        return found
