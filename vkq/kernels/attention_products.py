"""The products of queries and keys in the kernel of attention (`vkq.kernels.attention_tiles`)."""

from __future__ import annotations

import contextlib

from ..numerics.attention import LANES, Tile
from ..numerics.steps import Number
from ..shader.assembler import KernelWriter
from .attention_form import PAD, UNROLLED, AttentionForm, Places, Split
from .chain_shader import element


class Products:
    """The generator of the products of all queries of a tile with a tile of keys. Shared memory holds a
    part of the queries and keys (some elements of each) at once."""

    form: AttentionForm
    tile: Tile
    at: Places
    k: KernelWriter
    lane: Number
    scores: Split  # the rows and keys whose products an invocation computes
    keys: Number
    key_matrix: Number

    def word(self, name: str) -> Number:
        """Load a push constant."""
        raise NotImplementedError

    def number(self, buffer: int, place: Number) -> Number:
        """Load an element of q, k or v."""
        half = self.form.types[buffer] == "float16"
        return element(self.k, buffer, "float16", place) if half else self.k.load(buffer, place).f

    def loads(self, rows: int) -> int:
        """Return the number of elements that an invocation loads for a part of *rows* queries or keys."""
        return max(rows * self.form.part // LANES, 1)

    def add_products_of(self, c: Number, q_rows: list[Number]) -> None:
        """Store the products of all queries with the keys of a tile in shared memory. The weights later
        replace them."""
        k, split, zero = self.k, self.scores, self.k.constant(0.0, "f")
        sums: tuple[Number, ...] = tuple([zero] * split.count)
        depth, step = (k.constant(n, "u") for n in (self.form.depth, self.form.part))
        sums = k.loop(k.constant(0, "u"), depth, step, sums, lambda d, s: self.add_part(c, d, s, q_rows))
        first = split.row * self.tile.keys + split.column + self.at.weights
        places = [first + (i * self.tile.keys + j) for i in split.below for j in split.beside]
        for place, total in zip(places, sums, strict=True):
            k.keep(place, total)

    def add_part(
        self, c: Number, d: Number, sums: tuple[Number, ...], q_rows: list[Number]
    ) -> tuple[Number, ...]:
        """Load elements d and following of the queries and keys, and add their products to the sums. Return
        the sums."""
        k = self.k
        k.barrier()
        self.bring(0, self.tile.rows, 0, d, q_rows)
        self.bring_keys(c, d)
        k.barrier()
        zero, step = k.constant(0, "u"), k.constant(UNROLLED, "u")
        return k.loop(zero, k.constant(self.form.part, "u"), step, sums, self.add_products, rolled=True)

    def bring_keys(self, c: Number, d: Number) -> None:
        """Load elements d and following of the tile's keys into shared memory."""
        keys = [
            c + ((self.lane + LANES * i) >> self.form.part_bits) for i in range(self.loads(self.tile.keys))
        ]
        starts = [self.key_matrix + self.near(key) * self.word("k_row") for key in keys]
        self.bring(1, self.tile.keys, self.at.k, d, starts)

    def near(self, key: Number) -> Number:
        """Return *key*, or the index of the last key if *key* is larger."""
        return (key < self.keys).where(key, self.keys - 1)

    def bring(self, buffer: int, rows: int, to: int, d: Number, starts: list[Number]) -> None:
        """Load elements d and following of *rows* queries or keys into shared memory at *to*, transposed.
        *starts*: for each load of this invocation, the offset of the query or key in *buffer*."""
        k, depth, part = self.k, self.form.depth, self.form.part
        own = self.lane & (part - 1)
        column, few = d + own, rows * part < LANES
        for i, start in enumerate(starts):
            near = column if depth % part == 0 else (column < depth).where(column, depth - 1)
            place = start + (near * self.word("k_column") if buffer else near)
            value = self.number(buffer, place)
            value = value if depth % part == 0 else (column < depth).where(value, 0.0)
            row = (self.lane + LANES * i) >> self.form.part_bits
            with k.when(self.lane < rows * part) if few else contextlib.nullcontext():
                k.keep(own * (rows + PAD) + row + to, value)

    def add_products(self, c: Number, sums: tuple[Number, ...]) -> tuple[Number, ...]:
        """Add the products of UNROLLED elements, from element c of the part on, to the sums. Return the
        sums."""
        k, split = self.k, self.scores
        of_query, of_key = self.tile.rows + PAD, self.tile.keys + PAD
        found, query = list(sums), c * of_query + split.row
        key = c * of_key + split.column + self.at.k
        for i in range(UNROLLED):
            queries = [k.exchange(query + (i * of_query + n)) for n in split.below]
            keys = [k.exchange(key + (i * of_key + n)) for n in split.beside]
            products = (q * one for q in queries for one in keys)
            found = [one + product for one, product in zip(found, products, strict=True)]
        return tuple(found)
