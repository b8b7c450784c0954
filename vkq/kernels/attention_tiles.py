"""The kernel of attention: a workgroup for a tile of rows (`vkq.numerics.attention.Tile`).

A row is a query of one of the heads that share keys. For each tile of keys the workgroup brings parts of the
queries and the keys into shared memory and adds up the scores, then each row's lanes find the largest score
and the weights, and then each invocation adds up some rows of some columns of the results in registers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from ..numerics.attention import HIDDEN, LANES, Tile, base, score, weighed, weight
from ..numerics.elementary import maximum
from ..numerics.rational import add, divide, multiply
from ..numerics.steps import Number
from ..shader.assembler import KernelWriter
from .chain import element

PART = 16  # numbers of queries and keys in shared memory at once
UNROLLED = 4
Turn = Callable[[Number, tuple[Number, ...]], tuple[Number, ...]]
STRIDES = ("batch", "head", "row")
WORDS = (
    "first_group", "matrices", "groups", "lines", "queries", "keys", "scale", "start", "window",
    *(f"{x}_{stride}" for x in "qkvyb" for stride in STRIDES), "k_column", "b_column",
)  # fmt: skip


@dataclasses.dataclass(frozen=True)
class AttentionForm:
    """What a kernel is made for."""

    depth: int
    width: int
    tile: Tile
    types: tuple[str, str, str]  # of q, k and v
    causal: bool
    biased: bool
    guarded: bool
    soft: bool


@dataclasses.dataclass(frozen=True)
class Places:
    """Where things lie in shared memory: parts of queries and keys, weights, a number for each row and for
    each invocation."""

    k: int
    weights: int
    rows: int
    lanes: int
    end: int

    @classmethod
    def of(cls, tile: Tile) -> Places:
        k = tile.rows * PART
        weights = k + tile.keys * PART
        rows = weights + tile.rows * tile.keys
        return cls(k, weights, rows, rows + tile.rows, rows + tile.rows + LANES)


class _Split:
    """A matrix (rows, columns) over the invocations: each has every *down*-th row and *across*-th column."""

    def __init__(self, lane: Number, down: int, rows: int, columns: int):
        self.across = LANES // down
        self.row, self.column = lane >> (self.across.bit_length() - 1), lane & (self.across - 1)
        self.rows = [self.row + down * i for i in range(rows // down)]
        self.columns = [self.column + self.across * j for j in range(-(-columns // self.across))]


class _Attention:
    """A kernel while it is written."""

    def __init__(self, form: AttentionForm):
        self.form, self.tile, self.at = form, form.tile, Places.of(form.tile)
        self.k = k = KernelWriter(
            (*[False] * (3 + form.biased), True), len(WORDS), LANES, form.soft, self.at.end
        )
        lane, rows, keys = k.lane(), self.tile.rows, self.tile.keys
        self.lane = lane
        self.scores = _Split(lane, max(rows // 4, 1) if rows > 8 else max(rows // 2, 1), rows, keys)
        self.results = _Split(lane, max(rows // 4, 1), rows, form.width)
        self.own = lane >> (self.tile.lanes.bit_length() - 1)  # the row whose weights it finds
        self.sub = lane & (self.tile.lanes - 1)
        self.lines, self.queries, self.keys = (self.word(n) for n in ("lines", "queries", "keys"))
        tiles = (self.lines + (rows - 1)) >> (rows.bit_length() - 1)
        group = k.workgroup()
        matrix = group.divided(tiles)
        self.first = (group - matrix * tiles) << (rows.bit_length() - 1)
        self.batch = matrix.divided(self.word("groups"))
        self.head = matrix - self.batch * self.word("groups")
        self.shared_heads = self.lines.divided(self.queries)
        self.key_matrix, self.value_matrix = (self._matrix(x) for x in "kv")
        split = self.scores.rows
        self.places = [self.query(row)[1] + self.word("start") for row in split if form.causal]
        self.biases = [self.start("b", row) for row in split if form.biased]

    def word(self, name: str) -> Number:
        return self.k.word(WORDS.index(name))

    def query(self, row: Number) -> tuple[Number, Number]:
        """The head and the number of a row's query; rows beyond the last are it again."""
        line = self.first + row
        line = (line < self.lines).where(line, self.lines - 1)
        head = line.divided(self.queries)
        return self.head * self.shared_heads + head, line - head * self.queries

    def start(self, name: str, row: Number) -> Number:
        """Where a row's numbers begin in q, y or bias."""
        head, query = self.query(row)
        step = {each: self.word(f"{name}_{each}") for each in STRIDES}
        return self.batch * step["batch"] + head * step["head"] + query * step["row"]

    def _matrix(self, name: str) -> Number:
        """Where the keys or the values of the workgroup's heads begin."""
        return self.batch * self.word(f"{name}_batch") + self.head * self.word(f"{name}_head")

    def module(self) -> bytes:
        k, f = self.k, self.form
        q_rows = [self.start("q", (self.lane + LANES * i) >> 4) for i in range(self.loads(self.tile.rows))]
        zero, low = k.constant(0.0, "f"), k.constant(HIDDEN, "f")
        columns, rows = self.results.columns, self.results.rows
        state: tuple[Number, ...] = (low, zero, *[zero] * (len(rows) * len(columns)))
        begin, end = self.bounds()
        step = k.constant(self.tile.keys, "u")
        state = k.loop(begin, end, step, state, lambda c, s: self.turn(c, s, end, q_rows))
        total = self.joined(state[1], add)
        with k.when(self.sub.equals(0)):
            k.keep(self.own + self.at.rows, divide(total.of(1.0), total))
        k.barrier()
        for i, row in enumerate(rows):
            inverse, first = k.exchange(row + self.at.rows), self.start("y", row)
            for j, column in enumerate(columns):
                with k.when((self.first + row < self.lines) & (column < f.width)):
                    value = weighed(state[2 + i * len(columns) + j], inverse, f.guarded)
                    k.store(3 + f.biased, first + column, value)
        return k.finish()

    def number(self, buffer: int, place: Number) -> Number:
        """A number of q, k or v."""
        half = self.form.types[buffer] == "float16"
        return element(self.k, buffer, "float16", place) if half else self.k.load(buffer, place).f

    @staticmethod
    def loads(rows: int) -> int:
        """How many numbers of a part each invocation brings."""
        return max(rows * PART // LANES, 1)

    def bounds(self) -> tuple[Number, Number]:
        """The keys that the workgroup's rows see, from a tile's first on."""
        k, keys = self.k, self.keys
        if not self.form.causal:
            return k.constant(0, "u"), keys
        last = self.first + (self.tile.rows - 1)
        (head, first), (end_head, end) = self.query(k.constant(0, "u")), self.query(last - self.first)
        one = head.equals(end_head)  # rows of several heads may have any query
        end = self.word("start") + one.where(end, self.queries - 1) + 1
        begin = (self.word("start") + one.where(first, 0) + 1).i - self.word("window").i
        begin = ((begin < 0) | self.word("window").equals(0)).where(0, begin).u & (2**32 - self.tile.keys)
        return begin, (end < keys).where(end, keys)

    def turn(
        self, c: Number, state: tuple[Number, ...], end: Number, q_rows: list[Number]
    ) -> tuple[Number, ...]:
        """A tile of keys from c on."""
        k, at, tile = self.k, self.at, self.tile
        self.find_scores(c, q_rows)
        k.barrier()
        largest = self.joined(self.over_own((state[0],), self.larger)[0], maximum)
        subtracted = base(largest)
        shrunk = weight(state[0], subtracted)

        def add_weight(place: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
            part = weight(k.exchange(place), subtracted)
            k.keep(place, part)
            return (add(sums[0], part),)

        (total,) = self.over_own((multiply(state[1], shrunk),), add_weight)
        with k.when(self.sub.equals(0)):
            k.keep(self.own + at.rows, shrunk)
        k.barrier()
        results = self.results
        factors = [k.exchange(row + at.rows) for row in results.rows for _ in results.columns]
        sums = tuple(multiply(one, factor) for one, factor in zip(state[2:], factors, strict=True))
        left = self.keys - c
        count = (left < tile.keys).where(left, tile.keys)
        sums = k.loop(
            k.constant(0, "u"), count, k.constant(1, "u"), sums, lambda i, s: self.add_value(c, i, s)
        )
        return (largest, total, *sums)

    def larger(self, place: Number, state: tuple[Number, ...]) -> tuple[Number, ...]:
        return (maximum(state[0], self.k.exchange(place)),)

    def over_own(self, state: tuple[Number, ...], turn: Turn) -> tuple[Number, ...]:
        """After a turn for each score of its row that is the invocation's own: one after the other, so that
        they need few registers."""
        k, first, tile = self.k, self.own * self.tile.keys + self.at.weights, self.tile
        step = k.constant(tile.lanes, "u")
        return k.loop(first + self.sub, first + tile.keys, step, state, turn)

    def add_value(self, c: Number, i: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
        """Some rows of some columns with the value of key c + i."""
        k, results = self.k, self.results
        first = self.value_matrix + (c + i) * self.word("v_row")
        width = self.form.width
        whole = width % results.across == 0
        columns = [x if whole else (x < width).where(x, width - 1) for x in results.columns]
        values = [self.number(2, first + column) for column in columns]
        weights = [k.exchange(row * self.tile.keys + i + self.at.weights) for row in results.rows]
        products = (w * value for w in weights for value in values)
        return tuple(one + product for one, product in zip(sums, products, strict=True))

    def find_scores(self, c: Number, q_rows: list[Number]) -> None:
        """The scores of a tile, to where its weights will lie."""
        k, split, zero = self.k, self.scores, self.k.constant(0.0, "f")
        sums: tuple[Number, ...] = tuple([zero] * (len(split.rows) * len(split.columns)))
        parts = k.constant(self.form.depth, "u")
        step = k.constant(PART, "u")
        sums = k.loop(k.constant(0, "u"), parts, step, sums, lambda d, s: self.add_part(c, d, s, q_rows))
        for i, row in enumerate(split.rows):
            for j, column in enumerate(split.columns):
                key, bias = c + column, None
                near = (key < self.keys).where(key, self.keys - 1)
                if self.form.biased:
                    bias = k.load(3, self.biases[i] + near * self.word("b_column")).f
                found = score(sums[i * len(split.columns) + j], self.word("scale").f, bias)
                seen = key < self.keys
                if self.form.causal:
                    window, place = self.word("window"), self.places[i]
                    seen = seen & (key <= place) & (window.equals(0) | (key + window > place))
                k.keep(row * self.tile.keys + column + self.at.weights, seen.where(found, HIDDEN))

    def add_part(
        self, c: Number, d: Number, sums: tuple[Number, ...], q_rows: list[Number]
    ) -> tuple[Number, ...]:
        """Scores with the products of the numbers from d on."""
        k = self.k
        k.barrier()
        self.bring(0, self.tile.rows, 0, d, q_rows)
        rows = []
        for i in range(self.loads(self.tile.keys)):
            key = c + ((self.lane + LANES * i) >> 4)
            rows.append(self.key_matrix + (key < self.keys).where(key, self.keys - 1) * self.word("k_row"))
        self.bring(1, self.tile.keys, self.at.k, d, rows)
        k.barrier()
        zero, step = k.constant(0, "u"), k.constant(UNROLLED, "u")
        return k.loop(zero, k.constant(PART, "u"), step, sums, self.add_products)

    def bring(self, buffer: int, rows: int, to: int, d: Number, starts: list[Number]) -> None:
        """A part of queries or keys, number by number, each for all rows."""
        k, depth, column = self.k, self.form.depth, d + (self.lane & (PART - 1))
        for i, start in enumerate(starts):
            near = column if depth % PART == 0 else (column < depth).where(column, depth - 1)
            place = start + (near * self.word("k_column") if buffer else near)
            value = self.number(buffer, place)
            value = value if depth % PART == 0 else (column < depth).where(value, 0.0)
            target = (self.lane & (PART - 1)) * rows + ((self.lane + LANES * i) >> 4) + to
            if rows * PART >= LANES:
                k.keep(target, value)
                continue
            with k.when(self.lane < rows * PART):
                k.keep(target, value)

    def add_products(self, c: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
        """Scores with the products of UNROLLED numbers of the part from c on."""
        k, split = self.k, self.scores
        found = list(sums)
        for i in range(UNROLLED):
            queries = [k.exchange((c + i) * self.tile.rows + row) for row in split.rows]
            keys = [k.exchange((c + i) * self.tile.keys + column + self.at.k) for column in split.columns]
            products = (q * one for q in queries for one in keys)
            found = [one + product for one, product in zip(found, products, strict=True)]
        return tuple(found)

    def joined(self, value: Number, join: Callable[[Number, Number], Number]) -> Number:
        """What all invocations of a row have found, for each of them."""
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


def module(form: AttentionForm) -> bytes:
    """The SPIR-V."""
    return _Attention(form).module()
