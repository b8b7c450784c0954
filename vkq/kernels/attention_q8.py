"""8-bit attention in one dispatch: the product q k^T, the addition of a mask, the softmax, and the product
with v. The scores stay in shared memory. The products use packed dot products (attention_q8.comp) or matrix
units (attention_q8_coopmat.comp)."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator

import numpy as np

from ..device.profiles import profile
from ..layout.extent import BLOCKED, MATRIX, Spec
from ..numerics.requantize import multipliers
from ..numerics.stored import signed_zero_point
from ..numerics.tables import SoftmaxTerms
from ..probe.matrices import Matrices, advertised, counted
from ..problem.heads import apart, together
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.program import Program
from ..select.path import COOPMAT, choose_path, without_matrices
from ..shader.catalog import catalog
from ..shader.spec import Variant
from .attention import AttentionSizes
from .attention_q8_tiles import Tile, best, dot_tiles, matrix_tiles
from .attention_steps import AttentionSteps, offsets, score_scale
from .gemm import SHIFTS
from .repack import repacked, reshaped
from .sharing import runs_beside_others

SHADER, UNITS = "attention_q8__tile", "attention_q8__coopmat"
TABLE_BYTES = 1024  # bytes of a table with one float32 for each byte value
SOFTMAX = 16  # the cost of the softmax of one score, in multiply-adds
LAYOUTS = {MATRIX: "4h4w", BLOCKED: "16c"}
LEAST_QUERIES = 16  # minimum number of queries for matrix units; with fewer, most of a matrix would be empty
HEADS = ("Q_HEADS", "K_HEADS", "V_HEADS", "Y_HEADS")


def sizes_of(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> AttentionSizes | None:
    """Return the sizes of attention for q, k and v of shape (..., heads, rows, columns). Return None if the
    shapes are inconsistent, a size is 0, or a number of columns is not a multiple of 4."""
    if len(q) < 3 or not q[:-2] == k[:-2] == v[:-2] or (k[-2], q[-1]) != (v[-2], k[-1]):
        return None
    batch, heads, (queries, depth), (keys, width) = math.prod(q[:-3]), q[-3], q[-2:], v[-2:]
    if depth % 4 or width % 4 or not min(batch, heads, queries, keys, depth, width):
        return None
    return AttentionSizes(batch, heads, heads, queries, keys, depth, width)


@dataclasses.dataclass(frozen=True)
class AttentionQ8:
    """8-bit attention of given sizes in one dispatch."""

    device: Device
    sizes: AttentionSizes
    steps: AttentionSteps
    side_by_side: tuple[int, int, int, int]  # for q, k, v and y: heads that are side by side in a row
    mask: tuple[int, ...] | None
    layout: str
    form: str  # the form of the dot product
    firsts: tuple[int, int, int] = (0, 0, 0)  # the first column of q, k and v in their tensors
    matrices: Matrices | None = None  # those of matrix units; None: packed dot products

    @classmethod
    def of(
        cls, device: Device, operands: tuple[Spec, Spec, Spec], steps: AttentionSteps,
        side_by_side: tuple[int, int, int, int], mask: tuple[int, ...] | None,
        firsts: tuple[int, int, int] = (0, 0, 0),
    ) -> AttentionQ8 | str:  # fmt: skip
        """Return the attention for operands of these specs, or the reason why one dispatch cannot or should
        not compute it."""
        if profile(device.capabilities).attention_in_steps:
            return "the device's profile asks for steps (attention_in_steps)"
        q, k, v = (apart(one.shape, heads) for one, heads in zip(operands, side_by_side, strict=False))
        sizes = sizes_of(q, k, v)
        if sizes is None:
            return f"queries {q}, keys {k} and values {v} are not matrices of whole words"
        form = without_matrices(device).form
        if form == "float":
            return "the device has no packed dot product"
        if not _broadcasts(mask, (*q[:-1], sizes.keys)):
            return f"the mask has shape {mask}; it must have a number for each of {sizes.keys} keys"
        if steps.sums is not None and offsets(steps.sums, steps.mask_first, device.soft_float) is None:
            return "some sums of score and mask are rounding ties, which only a lookup table can decide"
        runs = min(side_by_side) > 1 and sizes.depth % 16 == sizes.width % 16 == 0
        blocked = runs and all(one.layout == BLOCKED for one in operands)
        one_matrix = (
            sizes.batch * sizes.heads == min(side_by_side) or sizes.queries % 4 == sizes.keys % 4 == 0
        )
        if any(firsts) and (not blocked or any(first % 16 for first in firsts)):
            return "queries, keys or values lie among other columns, and are not whole blocks of 16 columns"
        if not blocked and not one_matrix:
            return f"a block of four of {sizes.queries} queries or {sizes.keys} keys lies in two matrices"
        layout = BLOCKED if blocked else MATRIX
        found = cls(device, sizes, steps, side_by_side, mask, layout, form, firsts)
        if blocked:
            found = found._on_matrix_units()
        return found if found._able else f"scores of {sizes.keys} keys exceed the shared memory"

    def _on_matrix_units(self) -> AttentionQ8:
        """Return this attention on matrix units if the device's matrix units can compute it, else
        unchanged."""
        c, sizes = self.device.capabilities, self.sizes
        if sizes.queries < LEAST_QUERIES or choose_path(self.device).path != COOPMAT or counted(c):
            return self
        for one in advertised(c):
            fits = one.m == 16 and one.subgroup >= 16 and sizes.depth % one.k == 0
            found = dataclasses.replace(self, matrices=one)
            if fits and one.form == "s8s8" and found._able:
                return found
        return self

    @property
    def variant(self) -> Variant:
        """The shader variant: attention_q8_coopmat.comp on matrix units, else attention_q8.comp for this
        dot form and layout."""
        if self.matrices:
            return catalog().find(UNITS)
        return catalog().find(SHADER, dot=self.form, layout=LAYOUTS[self.layout])

    @property
    def _products(self) -> int:
        """The number of products q k^T: batch times heads."""
        return self.sizes.batch * self.sizes.heads

    @functools.cached_property
    def _able(self) -> list[Tile]:
        return [one for one in self._tiles() if self._runs(one)]

    @property
    def tile(self) -> Tile:
        """The specialization constants of the tile to run on the device."""
        return best(self._able, self.sizes, profile(self.device.capabilities).multiprocessors)

    def _tiles(self) -> Iterator[Tile]:
        """Yield all tiles of the shader. Tiles for dot products are in descending order of rows."""
        return matrix_tiles(self.sizes, self.matrices) if self.matrices else dot_tiles(self.sizes)

    def _runs(self, tile: Tile) -> bool:
        return runs_beside_others(self.device, self.variant, self._constants(tile), self._push())

    def _constants(self, tile: Tile) -> Tile:
        steps = self.steps
        small = {"SMALL_SUMS": self._largest_sum < 1 << 22} if self.matrices else {}
        return {
            **tile, **small, **dict(zip(HEADS, self.side_by_side, strict=True)), "LITERT": steps.litert,
            "NORMAL": self._terms.normal, "MASK": steps.sums is not None, "TABLE": steps.table is not None,
        }  # fmt: skip

    @functools.cached_property
    def _terms(self) -> SoftmaxTerms:
        of, y = self.steps.softmax
        return SoftmaxTerms.of(self.steps.litert, of.scale, y.scale, self.sizes.keys)

    @property
    def _largest_sum(self) -> float:
        """A bound of the magnitudes of the int32 sums of both products: q k^T, and weights times v.

        The weights of a row, minus their zero point, sum to at most 255 * keys. If no lookup table is
        between the softmax and the second product, this sum is also at most 1 / scale + keys, because each
        rounding adds at most 1."""
        sizes, weights = self.sizes, self.steps.softmax[1]
        total = 255.0 * sizes.keys
        if self.steps.table is None and self.steps.results[0].zero_point == weights.zero_point:
            total = min(total, 1 / weights.scale + sizes.keys)
        return 255 * max(255.0 * sizes.depth, total)

    def _push(self) -> dict[str, int | float]:
        steps, sizes, weights = self.steps, self.sizes, self.steps.softmax[1]
        of_q, of_k = (0, 0) if self.matrices else SHIFTS[self.form]
        (q, k, scores), (p, v, y) = steps.scores, steps.results
        ra = score_scale(steps.sums, steps.mask_first) if steps.sums else 0.0
        batch, head, query = self._rows()
        return {
            "matrices": self._products, "heads": sizes.heads, "queries": sizes.queries, "keys": sizes.keys,
            "q_zero": signed_zero_point(q) + of_q, "k_zero": signed_zero_point(k) + of_k,
            "score_zero": signed_zero_point(scores), "weight_zero": signed_zero_point(p) + of_q,
            "v_zero": signed_zero_point(v) + of_k, "y_zero": signed_zero_point(y), "ra": ra,
            "score_multiplier": float(multipliers(q.scale, k.scale, scores.scale)[0]),
            "y_multiplier": float(multipliers(p.scale, v.scale, y.scale)[0]),
            "steps": self._terms.steps, "softmax_zero": signed_zero_point(weights),
            "mask_batch": batch, "mask_head": head, "mask_query": query,
            **{f"{x}_column": first // 16 for x, first in zip("qkv", self.firsts, strict=True)},
        }  # fmt: skip

    def _rows(self) -> tuple[int, int, int]:
        """Return the mask's strides, in rows, along batch, heads and queries; 0 for a broadcast axis."""
        batch, heads, queries, _ = (1,) * (4 - len(self.mask or (1,))) + (self.mask or (1,))
        return heads * queries * (batch > 1), queries * (heads > 1), int(queries > 1)

    def program(self) -> Program:
        """Return the pipeline of the variant with the tile's constants."""
        subgroup = self.matrices.subgroup if self.matrices else 0
        return self.device.program(self.variant, self._constants(self.tile), subgroup)

    @property
    def reason(self) -> str:
        """The reason why one dispatch computes the attention, for reports."""
        scores = self._products * self.sizes.queries * self.sizes.keys
        units = f", on matrix units ({self.matrices})" if self.matrices else ""
        return f"one dispatch: {scores} scores stay in shared memory{units}"

    def build(self, b: Builder, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
        """Add the dispatch to a plan, and return the result."""
        s, steps, (*_, y_heads), products = self.sizes, self.steps, self.side_by_side, self._products
        leading, rows = apart(q.spec.shape, self.side_by_side[0])[:-2], (s.queries, s.keys, s.keys)
        operands = [
            reshaped(b, x, (products // heads * many, x.spec.size // (products // heads * many)), self.layout)
            for x, heads, many in zip((q, k, v), self.side_by_side, rows, strict=False)
        ]
        tables = self._terms.terms.tobytes() + (steps.table or b"")
        entries = functools.partial(np.frombuffer, tables, np.uint8)
        terms = b.constant(b.device.constant(("attention_q8", tables), len(tables), entries))
        given, added = terms, terms
        if mask is not None and steps.sums is not None:
            known = functools.partial(offsets, steps.sums, steps.mask_first, b.device.soft_float)
            of = ("offsets", steps.sums, steps.mask_first)
            given, added = repacked(b, mask, MATRIX), b.constant(b.device.constant(of, TABLE_BYTES, known))
        yq = steps.results[2]
        y = b.new(Spec((products // y_heads * s.queries, y_heads * s.width), yq.dtype, self.layout, yq))
        program = self.program()
        macs = products * s.queries * s.keys * (s.depth + s.width + SOFTMAX)
        b.dispatch(program, [*operands, given, added, terms, y], self._push(), macs)
        return reshaped(b, y, together((*leading, s.queries, s.width), y_heads), self.layout)


def _broadcasts(mask: tuple[int, ...] | None, scores: tuple[int, ...]) -> bool:
    """Return True if the shader can broadcast a mask of this shape to the scores. A mask needs a value for
    every key."""
    if mask is None:
        return True
    if not 1 <= len(mask) <= len(scores) <= 4 or mask[-1] != scores[-1] or scores[-1] == 1:
        return False
    return all(own in (1, size) for own, size in zip(mask[::-1], scores[::-1], strict=False))
