"""The kernel of attention to an int8 cache. It loads words of four 8-bit codes, multiplies the sums of
products and the weights by the tokens' scales, and computes the positions of the queries from lengths."""

from __future__ import annotations

import dataclasses
import math

from ..numerics.attention import LANES
from ..numerics.attention_cache import PER_WORD, number, words_of
from ..numerics.attention_int8 import factor_of, score_of
from ..numerics.steps import Number, flushed
from .attention_form import PAD, UNROLLED, AttentionForm
from .attention_parts import PartsKernel


@dataclasses.dataclass(frozen=True)
class Int8Form(AttentionForm):
    """The compile-time properties of a kernel. ``causal`` and ``placed`` are always True, because the
    buffer of lengths gives each row a last key."""

    ordered: bool  # `Int8Rules.causal`; False: the last key of every row is the newest in the cache
    follows: bool  # `Int8Rules.follows`
    softcap: float  # `Int8Rules.softcap`

    @property
    def down(self) -> int:
        return max(self.tile.rows // 4, 1)


class Int8AttentionKernel(PartsKernel):
    """The generator of an attention kernel whose keys and values are words of four 8-bit codes."""

    form: Int8Form

    def run(self) -> int:
        """Return the number of neighbouring columns of the results that an invocation computes: the four
        columns of a word, or 2 or 1 if an invocation's number of columns is not a multiple of 4."""
        across = LANES // self.form.down
        whole, rest = divmod(self.form.width, across)
        return 1 if rest else math.gcd(whole, PER_WORD)

    def position(self, query: Number) -> Number:
        length = self.k.load(self.y - 1, self.batch)
        if not self.form.ordered:
            return length - 1
        place = query + (length - self.queries) if self.form.follows else query
        return (place < length).where(place, length - 1)

    def scale(self, buffer: int, key: Number) -> Number:
        """Load the scale of a key (buffer 1) or of a value (buffer 2)."""
        matrix, name = ((self.key_matrix, "k_row"), (self.value_matrix, "v_row"))[buffer - 1]
        place = matrix + self.near(key) * self.word(name) + (words_of(self.form.width) - 1)
        return flushed(self.k.load(buffer, place).f)

    def scored(self, key: Number, total: Number, bias: Number | None) -> Number:
        return score_of(total, self.scale(1, key), self.word("scale").f, self.form.softcap, bias)

    def factor(self, key: Number, weight: Number) -> Number:
        return factor_of(weight, self.scale(2, key))

    def values(self, first: Number) -> list[Number]:
        """Load this invocation's columns of the value vector at *first*. Read each word once."""
        width, run, columns = self.form.width, self.results.run, self.results.columns
        if width % (self.results.across * run):
            columns = [(column < width).where(column, width - 1) for column in columns]
        found = []
        for i in range(0, len(columns), run):
            word = self.k.load(2, first + (columns[i] >> 2))
            inside = [columns[i + j] if run < PER_WORD else word.of(j) for j in range(run)]
            found += [number(word, column) for column in inside]
        return found

    def add_values(self, c: Number, end: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
        """Add the weighted values of the tile of keys at key c, UNROLLED keys at a time, so that the loads
        overlap. The last iteration may include *end* and later keys, whose weights are 0."""
        left, zero, step = end - c, *(self.k.constant(n, "u") for n in (0, UNROLLED))
        count = (left < self.tile.keys).where(left, self.tile.keys)

        def turn(i: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
            keys = [self.near(c + (i + j)) for j in range(UNROLLED)]
            loaded = [self.values(self.value_matrix + key * self.word("v_row")) for key in keys]
            for j, values in enumerate(loaded):
                place = self.results.row * self.tile.keys + (i + j) + self.at.weights
                weights = [self.k.exchange(place + n * self.tile.keys) for n in self.results.below]
                products = [w * value for w in weights for value in values]
                sums = tuple(one + product for one, product in zip(sums, products, strict=True))
            return sums

        return self.k.loop(zero, count, step, sums, turn)

    def bring_keys(self, c: Number, d: Number) -> None:
        """Load elements d and following of the tile's keys into shared memory, transposed. Elements beyond
        the depth may be any codes: the queries are 0 there."""
        k, keys, count = self.k, self.tile.keys, words_of(self.form.depth) - 1
        part = self.form.part // PER_WORD
        for i in range(keys * part // LANES):
            place = self.lane + LANES * i
            key, own = place >> (part.bit_length() - 1), place & (part - 1)
            index = (d >> 2) + own
            near = index if self.form.depth % self.form.part == 0 else (index < count).where(index, count - 1)
            word = k.load(1, self.key_matrix + self.near(c + key) * self.word("k_row") + near)
            for j in range(PER_WORD):
                k.keep((own * PER_WORD + j) * (keys + PAD) + key + self.at.k, number(word, word.of(j)))
