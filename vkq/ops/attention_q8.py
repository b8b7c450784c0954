"""Attention of 8-bit queries, keys and values: in one dispatch, or in four steps."""

from __future__ import annotations

import numpy as np

from ..kernels.attention_q8 import AttentionQ8
from ..kernels.attention_steps import AttentionSteps
from ..layout.extent import MATRIX, Spec
from ..numerics.stored import shift
from ..problem.heads import TURNED, apart
from ..runtime.builder import Builder, Value
from .elementwise import combined
from .matmul import columns_of, multiplied
from .shape import permuted_as
from .softmax import softmaxed
from .table import looked_up
from .take import sliced


def attended(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, steps: AttentionSteps,
    side_by_side: tuple[int, int, int, int], layout: str | None = None,
    columns: tuple[range, range, range] | None = None,
) -> tuple[Value, str]:  # fmt: skip
    """Add ``softmax(q k^T + mask) v`` of 8-bit arrays to a plan. Return (result, reason for one dispatch or
    several). Each step gives the same bytes as `matmul`, `add` or `softmax`.

    - q: (B, heads, queries, depth).
    - k, v: (B, heads, keys, depth) and (B, heads, keys, width).
    - mask: broadcasts to the scores.
    - *side_by_side*: the number of heads of q, k, v and the result that are stored side by side. If it is
      above 1, the tensor is stored as (B, rows, heads * columns).
    - *layout*: the layout of the result of several dispatches.
    - *columns*: the columns of q, k and v to use (None: all).

    The result is (B, heads, queries, width).
    """
    of_mask = mask.spec.shape if mask else None
    if columns is not None:
        firsts = columns[0].start, columns[1].start, columns[2].start
        specs = [_narrow(x.spec, own) for x, own in zip((q, k, v), columns, strict=True)]
        found = AttentionQ8.of(b.device, (specs[0], specs[1], specs[2]), steps, side_by_side, of_mask, firsts)
        if isinstance(found, AttentionQ8):
            return found.build(b, q, k, v, mask), found.reason
        q, k, v = (_part(b, x, own) for x, own in zip((q, k, v), columns, strict=True))
    found = AttentionQ8.of(b.device, (q.spec, k.spec, v.spec), steps, side_by_side, of_mask)
    if isinstance(found, AttentionQ8):
        return found.build(b, q, k, v, mask), found.reason
    return _in_steps(b, q, k, v, mask, steps, side_by_side, layout), f"in steps: {found}"


def _narrow(x: Spec, columns: range) -> Spec:
    return Spec((*x.shape[:-1], len(columns)), x.dtype, x.layout)


def _part(b: Builder, x: Value, columns: range) -> Value:
    shape = x.spec.shape
    return x if len(columns) == shape[-1] else sliced(b, x, [*map(range, shape[:-1]), columns])


def _in_steps(
    b: Builder, q: Value, k: Value, v: Value, mask: Value | None, steps: AttentionSteps,
    side_by_side: tuple[int, int, int, int], layout: str | None,
) -> Value:  # fmt: skip
    of_q, of_k, of_v, of_y = side_by_side
    qq, kq, sq = steps.scores
    scores = _unnamed(b, multiplied(b, q, k, sq, qq, kq, "wrap", True, (of_q, of_k, 1)))
    if mask is not None and steps.sums is not None:
        one, two = (mask, scores) if steps.mask_first else (scores, mask)
        scores = _unnamed(b, combined(b, one, two, "add", *steps.sums))
    given, weighed = steps.softmax
    weights = _unnamed(b, softmaxed(b, scores, -1, weighed, given, not steps.litert, steps.litert))
    if steps.table is not None:
        entries = np.frombuffer(steps.table, np.int8).astype(np.int16) + shift(weighed.dtype)
        weights = looked_up(b, weights, entries.astype(weighed.dtype), None)
    wq, vq, yq = steps.results
    return multiplied(b, weights, _turned(b, v, of_v), yq, wq, vq, "wrap", True, (1, 1, of_y), layout)


def _turned(b: Builder, v: Value, heads: int) -> Value:
    """Return v transposed to (B, heads, width, keys)."""
    if heads == 1:
        return columns_of(b, v)
    batch, many, keys, width = apart(v.spec.shape, heads)
    return permuted_as(b, v, (batch, keys, many, width), TURNED, (batch, many, width, keys), MATRIX)


def _unnamed(b: Builder, x: Value) -> Value:
    """Return x without quantization parameters. The next step states them."""
    return b.view(x, Spec(x.spec.shape, x.spec.dtype, x.spec.layout))
