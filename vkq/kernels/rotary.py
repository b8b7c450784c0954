"""Rotary embeddings (`vkq.numerics.rotary`): an invocation computes one number of the result."""

from __future__ import annotations

import functools

from ..layout.extent import Spec
from ..numerics.rotary import first_of, second_of
from ..numerics.steps import Number
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.spec import Written
from .lines import per_result


def rotated(b: Builder, x: Value, cos: Value, sin: Value, interleaved: bool) -> Value:
    """Add a rotation of x (batch, tokens, heads, d) to a plan. cos, sin: (batch or 1, tokens, 1, width).
    All arrays are float32. The first 2 * width elements of each head are rotated in pairs."""
    batch, tokens, heads, d = x.spec.shape
    y = b.new(Spec(x.spec.shape, "float32"))
    if y.spec.size:
        width = cos.spec.shape[3]
        apart = cos.spec.shape[0] > 1  # each batch element has its own angles
        push = {
            "count": x.spec.size,
            "d": d,
            "heads": heads,
            "width": width,
            "rows": batch * tokens if apart else tokens,
        }
        b.dispatch(b.device.program(_kernel(interleaved, b.device.soft_float)), [x, cos, sin, y], push)
    return y


@functools.lru_cache(4)
def _kernel(interleaved: bool, soft: bool) -> Written:
    def write(k: KernelWriter, i: Number) -> None:
        d, heads, width, rows = (k.word(n) for n in (2, 3, 4, 5))
        vector = i.divided(d)
        column, token = i - vector * d, vector.divided(heads)
        row = token - token.divided(rows) * rows
        first = column & 1 if interleaved else (column < width).where(0, 1)
        first = first.equals(0)
        at = column >> 1 if interleaved else first.where(column, column - width)
        inside = column < width + width
        at = inside.where(at, 0)
        step = k.constant(1, "u") if interleaved else width
        other = inside.where(first.where(i + step, i - step), i)
        own, beside = k.load(0, i).f, k.load(0, other).f
        cos, sin = (k.load(n, row * width + at).f for n in (1, 2))
        turned = first.where(first_of(own, beside, cos, sin), second_of(beside, own, cos, sin))
        k.store(3, i, inside.where(turned, own))

    name = "rotated" + ".interleaved" * interleaved
    return per_result(name, "x cos sin", "y", ("d", "heads", "width", "rows"), soft, "0", write)
