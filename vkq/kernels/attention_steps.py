"""The steps of 8-bit attention as a model has them, and the sum of scores and a mask without a table."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ..numerics.elementwise import scales_of_sum
from ..numerics.qparams import QParams
from .binary import FLOAT_STEP, stored_table

Three = tuple[QParams, QParams, QParams]  # the parameters of two operands and of the result


@dataclasses.dataclass(frozen=True)
class AttentionSteps:
    """The quantization parameters of each step. scores: q k^T. sums: scores plus mask; None without a mask.
    softmax: its input and its result. results: weights v. mask_first: the mask is the first operand of the
    sum. litert: the softmax gives LiteRT's bytes, else ONNX Runtime's. table: the 256 bytes of a lookup after
    the softmax, for the stored inputs from -128 on."""

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


def score_scale(sums: Three, mask_first: bool) -> float:
    """Return the factor of the score in the sum of score and mask."""
    ra, rb, _ = scales_of_sum(*sums, False)
    return float(rb if mask_first else ra)


@functools.lru_cache(maxsize=64)
def offsets(sums: Three, mask_first: bool, soft_float: bool) -> Any:
    """Return a float32 value c for each stored value of the mask, from -128 on. For every score,
    ``round(score * ra + c)``, clamped to int8, is the sum of the score and the mask's value. None if no such
    c exists. soft_float: the device may round in any direction, else it rounds to nearest even.

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
    if soft_float:  # product and sum are rounded once each; sums beyond 256 saturate anyway
        errors = FLOAT_STEP * (2 * np.abs(products).max() + np.abs(found) + 512)
        return found if np.all(np.minimum(high - found, found - low) > errors) else None
    fused = (products + found[:, None].astype(np.float64)).astype(np.float32)
    apart = numbers.astype(np.float32) * np.float32(ra) + found[:, None]
    exact = (np.array_equal(np.rint(np.clip(value, -128, 127)), want) for value in (fused, apart))
    return found if all(exact) else None
