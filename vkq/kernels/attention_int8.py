"""The kernel of attention to an int8 cache (`vkq.numerics.attention_cache`): it loads words of four codes,
and multiplies sums and weights by the scales of tokens."""

from __future__ import annotations

import math

from ..numerics.attention import LANES
from ..numerics.attention_cache import PER_WORD, number, words_of
from ..numerics.rational import multiply
from ..numerics.steps import Number, flushed
from .attention_form import PART
from .attention_tiles import AttentionKernel


class Int8AttentionKernel(AttentionKernel):
    """The writer of an attention kernel whose keys and values are words."""

    def run(self) -> int:
        """Return how many neighbouring columns of the results an invocation computes: those of one word, as
        far as every invocation has equally many columns."""
        across = LANES // max(self.tile.rows // 4, 1)
        whole, rest = divmod(self.form.width, across)
        return 1 if rest else math.gcd(whole, PER_WORD)

    def scaled(self, buffer: int, key: Number, value: Number) -> Number:
        matrix, name, width = self.key_matrix, "k_row", self.form.depth
        if buffer == 2:
            matrix, name, width = self.value_matrix, "v_row", self.form.width
        near = (key < self.keys).where(key, self.keys - 1)
        place = matrix + near * self.word(name) + (words_of(width) - 1)
        return multiply(value, flushed(self.k.load(buffer, place).f))

    def values(self, first: Number) -> list[Number]:
        """Load this invocation's columns of the value at *first*, each word once."""
        width, run, columns = self.form.width, self.results.run, self.results.columns
        if width % (self.results.across * run):
            columns = [(column < width).where(column, width - 1) for column in columns]
        found = []
        for i in range(0, len(columns), run):
            word = self.k.load(2, first + (columns[i] >> 2))
            inside = [columns[i + j] if run < PER_WORD else word.of(j) for j in range(run)]
            found += [number(word, column) for column in inside]
        return found

    def bring_keys(self, c: Number, d: Number) -> None:
        """Load the part from element d on of the tile's keys into shared memory, transposed. Elements beyond
        the depth may be any codes: those of the queries are 0."""
        k, keys, count = self.k, self.tile.keys, words_of(self.form.depth) - 1
        part = PART // PER_WORD
        for i in range(keys * part // LANES):
            place = self.lane + LANES * i
            key, own = place >> (part.bit_length() - 1), place & (part - 1)
            index = (d >> 2) + own
            near = index if self.form.depth % PART == 0 else (index < count).where(index, count - 1)
            word = k.load(1, self.key_row(c + key) + near)
            for j in range(PER_WORD):
                k.keep((own * PER_WORD + j) * keys + key + self.at.k, number(word, word.of(j)))
