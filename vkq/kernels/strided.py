"""Copies of float32, int32 and float16 elements in one dispatch: by strides (Transpose, Slice, Expand), or
by a list of indices from the host."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from ..layout.extent import Spec
from ..numerics.steps import Number
from ..runtime.builder import Builder, Value
from ..shader.assembler import KernelWriter
from ..shader.expression import Expression
from ..shader.spec import Binding, PushConstant, Written

LOCAL = 128
HALF = "float16"


def strided(b: Builder, x: Value, shape: Sequence[int], strides: Sequence[int], first: int = 0) -> Value:
    """Add ``y[i, j, ...] = x[first + i * strides[0] + j * strides[1] + ...]`` to a plan; y has the shape
    *shape*. x is row-major; strides are in elements and may be 0 or negative."""
    y = b.new(Spec(shape, x.spec.dtype))
    if y.spec.size:
        axes = _joined(shape, strides)
        rank, half = len(axes), x.spec.dtype == HALF
        numbers = [first, *(size for size, _ in axes[1:]), *(stride for _, stride in axes)]
        push: dict[str, int | float] = {"count": y.spec.size}
        push.update((f"n{i}", n & 0xFFFFFFFF) for i, n in enumerate(numbers))
        b.dispatch(b.device.program(_by_strides(rank, half)), [x, y], push)
    return y


def _joined(shape: Sequence[int], strides: Sequence[int]) -> list[tuple[int, int]]:
    """Return (size, stride) of each axis, after neighbouring axes that are contiguous are merged."""
    axes: list[tuple[int, int]] = []
    for size, stride in zip(shape, strides, strict=True):
        if size == 1:
            continue
        if axes and axes[-1][1] == size * stride:
            axes[-1] = axes[-1][0] * size, stride
        else:
            axes.append((size, stride))
    return axes or [(1, 1)]


def contiguous(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a row-major array."""
    return tuple(math.prod(shape[i + 1 :]) for i in range(len(shape)))


def gathered_halves(b: Builder, x: Value, index: Value, shape: Sequence[int], fill: int) -> Value:
    """Add a gather of float16 elements to a plan: the elements of x at the flat indices *index*, or the
    float16 number with the bits *fill* where an index is -1."""
    y = b.new(Spec(shape, HALF))
    b.dispatch(b.device.program(_by_places()), [x, index, y], {"count": y.spec.size, "n0": fill})
    return y


@functools.lru_cache(64)
def _by_strides(rank: int, half: bool) -> Written:
    def place(k: KernelWriter, i: Number) -> Number:
        at, rest = k.word(2), i
        for axis in range(rank - 1, 0, -1):
            size = k.word(2 + axis)
            whole = rest.divided(size)
            at = at + (rest - whole * size) * k.word(2 + rank + axis)
            rest = whole
        return at + rest * k.word(2 + rank)

    def element(k: KernelWriter, i: Number) -> Number:
        return _half(k, 0, place(k, i)) if half else k.load(0, place(k, i))

    name = f"strided__element:{rank}" + ".half" * half
    return _written(name, ("x",), 2 * rank, half, element)


@functools.lru_cache(1)
def _by_places() -> Written:
    def element(k: KernelWriter, i: Number) -> Number:
        at = k.load(1, i)
        missing = at.equals(0xFFFFFFFF)
        return missing.where(k.word(2), _half(k, 0, missing.where(0, at, "u")))

    return _written("strided__element:places.half", ("x", "index"), 1, True, element)


def _half(k: KernelWriter, buffer: int, place: Number) -> Number:
    """Return the bits of a float16 element."""
    return (k.load(buffer, place >> 1) >> ((place & 1) << 4)) & 0xFFFF


def _written(
    name: str,
    inputs: Sequence[str],
    words: int,
    half: bool,
    element: Callable[[KernelWriter, Number], Number],
) -> Written:
    """Return a kernel whose invocations each store one word: one 32-bit element, or two float16 elements
    (*half*). *element* computes one element. *words*: the number of push constants after ``count``."""
    per = 2 if half else 1

    def module() -> bytes:
        k = KernelWriter((*(False for _ in inputs), True), 2 + words, LOCAL, False)
        word = k.workgroup() * LOCAL + k.lane()
        with k.when(word * per < k.word(1)):
            found = element(k, word * per)
            if half:  # of an odd number of elements, the last is in both halves of its word
                second, last = word * per + 1, k.word(1) - 1
                found = found | (element(k, (last < second).where(last, second)) << 16)
            k.store(len(inputs), word, found)
        return k.finish()

    bindings = [Binding(i, each, "read", "uint") for i, each in enumerate(inputs)]
    names = ["first_group", "count", *(f"n{i}" for i in range(words))]
    return Written(
        "strided__element", name, "copies of elements by strides or indices",
        (*bindings, Binding(len(inputs), "y", "write", "uint")),
        tuple(PushConstant(each, "uint", 4 * i) for i, each in enumerate(names)),
        LOCAL, Expression(f"(count + {LOCAL * per - 1}) // {LOCAL * per}"), 0, module,
    )  # fmt: skip
