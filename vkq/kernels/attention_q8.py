"""8-bit attention in one dispatch (attention_q8.comp): two products, the addition of a mask and the softmax,
with the scores in shared memory."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..device.profiles import profile
from ..layout.extent import BLOCKED, MATRIX, Spec
from ..numerics.elementwise import scales_of_sum
from ..numerics.qparams import QParams
from ..numerics.requantize import multipliers
from ..numerics.stored import signed_zero_point
from ..numerics.tables import SoftmaxTerms
from ..problem.heads import apart, together
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.program import Program
from ..select.path import without_matrices
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from .attention import AttentionSizes
from .binary import FLOAT_STEP, stored_table
from .gemm import SHIFTS
from .repack import repacked, reshaped
from .sharing import runs_beside_others
from .weights import ceil4

SHADER = "attention_q8__tile"
INVOCATIONS = 128
TABLE_BYTES = 1024  # the size of a table of one float32 for each byte
SOFTMAX = 16  # the cost of the softmax of one score, in multiply-adds
# The most 4x4 blocks of keys or values in shared memory at a time, and the most blocks along the keys.
STAGED, MOST_TILE = 512, 32
LAYOUTS = {MATRIX: "4h4w", BLOCKED: "16c"}
HEADS = ("Q_HEADS", "K_HEADS", "V_HEADS", "Y_HEADS")

Three = tuple[QParams, QParams, QParams]  # the parameters of two operands and of the result


@dataclasses.dataclass(frozen=True)
class AttentionSteps:
    """The quantization parameters of each step: ``scores = q k^T``; ``sums`` of the scores and a mask (None
    without a mask); the softmax (its input, its result); ``y = weights v``. mask_first: the mask is the first
    operand of the sum. litert: the softmax gives LiteRT's bytes, else ONNX Runtime's. table: the 256 bytes of
    a lookup after the softmax, for the stored inputs from -128 on."""

    scores: Three
    sums: Three | None
    softmax: tuple[QParams, QParams]
    results: Three
    mask_first: bool = False
    litert: bool = False
    table: bytes | None = None

    @property
    def dtypes(self) -> set[str]:
        """The types of all operands and results."""
        return {q.dtype for q in (*self.scores, *(self.sums or ()), *self.softmax, *self.results)}


def sizes_of(q: tuple[int, ...], k: tuple[int, ...], v: tuple[int, ...]) -> AttentionSizes | None:
    """Return the sizes of attention for operands of shape (..., heads, rows, columns). None if their leading
    axes differ or their columns are not a multiple of 4."""
    if len(q) < 3 or not q[:-2] == k[:-2] == v[:-2] or (k[-2], q[-1]) != (v[-2], k[-1]):
        return None
    batch, heads, (queries, depth), (keys, width) = math.prod(q[:-3]), q[-3], q[-2:], v[-2:]
    if depth % 4 or width % 4 or not min(batch, heads, queries, keys, depth, width):
        return None
    return AttentionSizes(batch, heads, heads, queries, keys, depth, width)


@dataclasses.dataclass(frozen=True)
class AttentionQ8:
    """8-bit attention of given sizes in one dispatch. side_by_side: the number of heads in the columns of q,
    k, v and the result. firsts: the first columns of q, k and v."""

    device: Device
    sizes: AttentionSizes
    steps: AttentionSteps
    side_by_side: tuple[int, int, int, int]
    mask: tuple[int, ...] | None
    layout: str
    form: str  # the form of the dot product
    firsts: tuple[int, int, int] = (0, 0, 0)

    @classmethod
    def of(
        cls, device: Device, operands: tuple[Spec, Spec, Spec], steps: AttentionSteps,
        side_by_side: tuple[int, int, int, int], mask: tuple[int, ...] | None,
        firsts: tuple[int, int, int] = (0, 0, 0),
    ) -> AttentionQ8 | str:  # fmt: skip
        """Return attention for such operands, or the reason why one dispatch cannot or should not compute
        it."""
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
            return f"the mask is {mask}, without a number for each of {sizes.keys} keys"
        if steps.sums is not None and offsets(steps.sums, steps.mask_first, device.soft_float) is None:
            return "sums of scores and mask are ties, which only a table decides"
        runs = min(side_by_side) > 1 and sizes.depth % 16 == sizes.width % 16 == 0
        blocked = runs and all(one.layout == BLOCKED for one in operands)
        one_matrix = (
            sizes.batch * sizes.heads == min(side_by_side) or sizes.queries % 4 == sizes.keys % 4 == 0
        )
        if any(firsts) and (not blocked or any(first % 16 for first in firsts)):
            return "queries, keys or values among other columns are not whole blocks of 16 columns"
        if not blocked and not one_matrix:
            return f"four of {sizes.queries} queries or {sizes.keys} keys lie in two matrices"
        layout = BLOCKED if blocked else MATRIX
        found = cls(device, sizes, steps, side_by_side, mask, layout, form, firsts)
        return found if found._able else f"scores of {sizes.keys} keys exceed the shared memory"

    @property
    def variant(self) -> Variant:
        """The shader of the device's dot form."""
        return catalog().find(SHADER, dot=self.form, layout=LAYOUTS[self.layout])

    @property
    def _matrices(self) -> int:
        return self.sizes.batch * self.sizes.heads

    @functools.cached_property
    def _able(self) -> list[dict[str, Constant]]:
        return [one for one in self._tiles() if self._runs(one)]

    @property
    def tile(self) -> dict[str, Constant]:
        """The constants of the largest tile that gives every core work, or of the smallest tile if none
        does."""
        cores, fours = profile(self.device.capabilities).multiprocessors, ceil4(self.sizes.queries)
        busy = (t for t in self._able if self._matrices * -(-fours // int(t["ROWS4"])) >= 2 * cores)
        return next(busy, self._able[-1])

    def _tiles(self) -> Iterator[dict[str, Constant]]:
        """Yield tiles, the largest first."""
        depth, wide = ceil4(self.sizes.depth), ceil4(self.sizes.width)
        keys4, tile = 1 << (ceil4(self.sizes.keys) - 1).bit_length(), MOST_TILE
        while tile > 1 and tile * max(depth, wide) > STAGED:
            tile //= 2
        for rows4 in (one for one in (8, 4, 2, 1) if one * wide <= INVOCATIONS):
            yield {
                "ROWS4": rows4, "KEYS4": keys4, "TILE": min(tile, keys4),
                "DEPTH4": depth, "WIDTH4": wide, "LOCAL_X": INVOCATIONS,
            }  # fmt: skip

    def _runs(self, tile: dict[str, Constant]) -> bool:
        return runs_beside_others(self.device, self.variant, self._constants(tile), self._push())

    def _constants(self, tile: dict[str, Constant]) -> dict[str, Constant]:
        steps = self.steps
        return {
            **tile, **dict(zip(HEADS, self.side_by_side, strict=True)), "LITERT": steps.litert,
            "NORMAL": self._terms.normal, "MASK": steps.sums is not None, "TABLE": steps.table is not None,
        }  # fmt: skip

    @functools.cached_property
    def _terms(self) -> SoftmaxTerms:
        of, y = self.steps.softmax
        return SoftmaxTerms.of(self.steps.litert, of.scale, y.scale, self.sizes.keys)

    def _push(self) -> dict[str, int | float]:
        steps, sizes, weights = self.steps, self.sizes, self.steps.softmax[1]
        of_q, of_k = SHIFTS[self.form]
        (q, k, scores), (p, v, y) = steps.scores, steps.results
        ra = score_scale(steps.sums, steps.mask_first) if steps.sums else 0.0
        batch, head, query = self._rows()
        return {
            "matrices": self._matrices, "heads": sizes.heads, "queries": sizes.queries, "keys": sizes.keys,
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
        """Return the strides of the mask's batches, heads and queries, in rows of the mask."""
        batch, heads, queries, _ = (1,) * (4 - len(self.mask or (1,))) + (self.mask or (1,))
        return heads * queries * (batch > 1), queries * (heads > 1), int(queries > 1)

    def program(self) -> Program:
        """Return the pipeline."""
        return self.device.program(self.variant, self._constants(self.tile))

    @property
    def reason(self) -> str:
        """The reason for one dispatch, as text."""
        scores = self._matrices * self.sizes.queries * self.sizes.keys
        return f"one dispatch: {scores} scores stay in shared memory"

    def build(self, b: Builder, q: Value, k: Value, v: Value, mask: Value | None) -> Value:
        """Add the dispatch to a plan."""
        s, steps, (*_, y_heads), matrices = self.sizes, self.steps, self.side_by_side, self._matrices
        leading, rows = apart(q.spec.shape, self.side_by_side[0])[:-2], (s.queries, s.keys, s.keys)
        operands = [
            reshaped(b, x, (matrices // heads * many, x.spec.size // (matrices // heads * many)), self.layout)
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
        y = b.new(Spec((matrices // y_heads * s.queries, y_heads * s.width), yq.dtype, self.layout, yq))
        program = self.program()
        macs = matrices * s.queries * s.keys * (s.depth + s.width + SOFTMAX)
        b.dispatch(program, [*operands, given, added, terms, y], self._push(), macs)
        return reshaped(b, y, together((*leading, s.queries, s.width), y_heads), self.layout)


def score_scale(sums: Three, mask_first: bool) -> float:
    """Return the factor of the score in the sum of score and mask."""
    ra, rb, _ = scales_of_sum(*sums, False)
    return float(rb if mask_first else ra)


@functools.lru_cache(maxsize=64)
def offsets(sums: Three, mask_first: bool, soft_float: bool) -> Any:
    """Return a float32 value c for each stored value of the mask, from -128 on, so that ``round(score * ra +
    c)``, clamped to int8, is the sum of the mask's value and every score. None if no such c exists.
    soft_float: the device may round in any direction, else it rounds to nearest even.

    For each score, the sum's byte allows c an interval of length 1, unbounded on one side where the sum
    saturates. The intersection of the 256 intervals contains the constant of the float32 formula; c is its
    middle.
    """
    table = stored_table("add", *sums, None)  # indexed [second][first]
    table = table.T if mask_first else table  # indexed [mask][score]
    numbers, ra = np.arange(-128, 128), score_scale(sums, mask_first)
    products, want = numbers * ra, table.astype(np.float64)
    low = np.where(want > -128, want - 0.5 - products, -np.inf).max(1)
    high = np.where(want < 127, want + 0.5 - products, np.inf).min(1)
    low, high = np.where(np.isinf(low), high - 2, low), np.where(np.isinf(high), low + 2, high)
    found = ((low + high) / 2).astype(np.float32)
    found.flags.writeable = False
    if soft_float:  # product and sum are rounded once each; only sums up to 256 matter
        errors = FLOAT_STEP * (2 * np.abs(products).max() + np.abs(found) + 512)
        return found if np.all(np.minimum(high - found, found - low) > errors) else None
    fused = (products + found[:, None].astype(np.float64)).astype(np.float32)
    apart = numbers.astype(np.float32) * np.float32(ra) + found[:, None]
    exact = (np.array_equal(np.rint(np.clip(value, -128, 127)), want) for value in (fused, apart))
    return found if all(exact) else None


def _broadcasts(mask: tuple[int, ...] | None, scores: tuple[int, ...]) -> bool:
    """Return True if the shader can broadcast a mask of this shape; it must have a value for every key."""
    if mask is None:
        return True
    if not 1 <= len(mask) <= len(scores) <= 4 or mask[-1] != scores[-1] or scores[-1] == 1:
        return False
    return all(own in (1, size) for own, size in zip(mask[::-1], scores[::-1], strict=False))
