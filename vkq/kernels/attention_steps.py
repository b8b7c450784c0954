"""The steps of a model's 8-bit attention with their quantization parameters, and a formula without a table
for the sum of scores and mask."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from ..numerics.elementwise import scales_of_sum
from ..numerics.qparams import QParams
from .binary import FLOAT_STEP, stored_table

Three = tuple[QParams, QParams, QParams]  # the parameters of the two operands and of the result


@dataclasses.dataclass(frozen=True)
class AttentionSteps:
    """The quantization parameters of each step, and its options."""

    scores: Three  # of the product q k^T
    sums: Three | None  # of scores plus mask; None: there is no mask
    softmax: tuple[QParams, QParams]  # of the input and the result of the softmax
    results: Three  # of the product of the weights and v
    mask_first: bool = False  # the mask is the first operand of the sum
    litert: bool = False  # the softmax gives LiteRT's bytes; False: ONNX Runtime's
    table: bytes | None = None  # a lookup after the softmax, in the order of stored inputs -128 to 127

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
    ``round(score * ra + c)``, clamped to int8, is the sum of the score and the mask's value. Return None if
    no such c exists. soft_float: whether the device may round in any direction instead of to nearest even.

    The sum must round to the right byte, so each score restricts c to an interval of length 1. The interval
    is unbounded on one side if the sum saturates. c is the middle of the intersection of the 256 intervals,
    which also contains the constant of the float32 formula.
    """
    table = stored_table("add", *sums, None)  # index: [second operand][first operand]
    table = table.T if mask_first else table  # index: [mask][score]
    numbers, ra = np.arange(-128, 128), score_scale(sums, mask_first)
    products, want = numbers * ra, table.astype(np.float64)
    low = np.where(want > -128, want - 0.5 - products, -np.inf).max(1)
    high = np.where(want < 127, want + 0.5 - products, np.inf).min(1)
    low, high = np.where(np.isinf(low), high - 2, low), np.where(np.isinf(high), low + 2, high)
    found = ((low + high) / 2).astype(np.float32)
    found.flags.writeable = False
    if soft_float:  # product and sum round once each; sums beyond 256 saturate
        errors = FLOAT_STEP * (2 * np.abs(products).max() + np.abs(found) + 512)
        return found if np.all(np.minimum(high - found, found - low) > errors) else None
    fused = (products + found[:, None].astype(np.float64)).astype(np.float32)
    apart = numbers.astype(np.float32) * np.float32(ra) + found[:, None]
    exact = (np.array_equal(np.rint(np.clip(value, -128, 127)), want) for value in (fused, apart))
    return found if all(exact) else None
