"""Weighted sums of elements along an axis (`vkq.problem.taps`) in one dispatch. Each sum adds its taps in
order, and rounds every product and every sum."""

from __future__ import annotations

import functools
import math

import numpy as np
import numpy.typing as npt

from ..layout.extent import Spec
from ..numerics.rational import add, multiply
from ..numerics.steps import Number, computed, is_nan
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written
from .chain_shader import element

LOCAL = 128
Index = npt.NDArray[np.int32]
Weight = npt.NDArray[np.float32]


def summed_taps(b: Builder, x: Value, axis: int, index: Index, weight: Weight) -> Value:
    """Add ``y[.., j, ..] = sum over t of weight[j, t] * x[.., index[j, t], ..]`` in float32 to a plan."""
    shape = x.spec.shape
    size, count = index.shape
    y = b.new(Spec((*shape[:axis], size, *shape[axis + 1 :]), "float32"))
    if y.spec.size:
        tables = [
            b.constant(b.device.constant((name, t.shape, t.tobytes()), t.nbytes, functools.partial(_same, t)))
            for name, t in (("tap index", index), ("tap weight", weight))
        ]
        inner = math.prod(shape[axis + 1 :])
        push = {"count": y.spec.size, "given": shape[axis], "size": size, "inner": inner, "taps": count}
        program = b.device.program(_written(b.device.soft_float))
        b.dispatch(program, [x, *tables, y], push, macs=y.spec.size * count)
    return y


def _same(table: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    return np.ascontiguousarray(table)


def computed_taps(x: Weight, axis: int, index: Index, weight: Weight) -> Weight:
    """Return the result of `summed_taps` with the same bits, computed in NumPy."""
    moved = np.moveaxis(x, axis, -1)
    total = computed(multiply, moved[..., index[:, 0]], weight[:, 0])
    for t in range(1, index.shape[1]):
        total = computed(add, total, computed(multiply, moved[..., index[:, t]], weight[:, t]))
    total = np.where(np.isnan(total), np.float32(np.nan), total)
    return np.asarray(np.moveaxis(total, -1, axis), np.float32)


@functools.lru_cache(2)
def _written(soft: bool) -> Written:
    def module() -> bytes:
        k = KernelWriter((False, False, False, True), 6, LOCAL, soft)
        i = k.workgroup() * LOCAL + k.lane()
        given, size, inner, taps = (k.word(n) for n in (2, 3, 4, 5))
        with k.when(i < k.word(1)):
            row = i.divided(inner)
            line = row.divided(size)
            own, first = row - line * size, line * given * inner + (i - row * inner)

            def product(t: Number) -> Number:
                at = own * taps + t
                return multiply(element(k, 0, "float32", first + k.load(1, at) * inner), k.load(2, at).f)

            one = k.constant(1, "u")
            (total,) = k.loop(
                one, taps, one, (product(k.constant(0, "u")),), lambda t, s: (add(s[0], product(t)),)
            )
            k.store(3, i, is_nan(total).where(np.nan, total))
        return k.finish()

    names = ("first_group", "count", "given", "size", "inner", "taps")
    ways = (("x", "read"), ("index", "read"), ("weight", "read"), ("y", "write"))
    return Written(
        "taps__element", "taps__element", "weighted sums of elements along an axis",
        tuple(Binding(i, name, way, "uint") for i, (name, way) in enumerate(ways)),
        tuple(PushConstant(name, "uint", 4 * i) for i, name in enumerate(names)),
        LOCAL, Expression(f"(count + {LOCAL - 1}) // {LOCAL}"), 0, module, "taps",
    )  # fmt: skip
