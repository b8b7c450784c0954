"""Operators on rows of values: running sums and products, sort keys, scattered rows. One description serves
NumPy and devices (`vkq.numerics.steps`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from .described import KINDS, REAL, WHOLE, array_of, number_of
from .elementary import order
from .steps import Array, Number, computed

# {reduction of a scatter: ONNX operator that combines two values}
REDUCTIONS = {"none": "", "add": "Add", "mul": "Mul", "max": "Max", "min": "Min"}
# {running result (CumSum, CumProd): ONNX operator that joins the next element}
JOINS = {"add": "Add", "mul": "Mul"}
IDENTITY = {"add": 0, "mul": 1}


def joined(op: str, kind: str) -> Callable[[Number, Number], Number]:
    """Return an ONNX operator of two operands as a function of two `Number`s of kind *kind*."""
    table: Any = REAL if kind == "f" else WHOLE
    return lambda a, b: table[op]({}, a, b)


def running(how: str, x: Array, exclusive: bool) -> Array:
    """Return running sums or products along the last axis. *how*: "add" or "mul". Result i includes element
    i, unless *exclusive*."""
    if x.dtype.name not in KINDS or x.dtype == bool:
        function: Any = np.cumsum if how == "add" else np.cumprod
        found = function(x, -1, dtype=x.dtype)
        if not exclusive:
            return np.asarray(found)
        first = np.full((*x.shape[:-1], 1), IDENTITY[how], x.dtype)
        return np.concatenate([first, found[..., :-1]], -1)[..., : x.shape[-1]]
    wide = x.astype(np.float32) if x.dtype == np.float16 else x
    join, found = joined(JOINS[how], KINDS[wide.dtype.name]), np.empty_like(wide)
    total = number_of(np.full(x.shape[:-1], IDENTITY[how], wide.dtype))
    with np.errstate(all="ignore"):
        for i in range(x.shape[-1]):
            after = join(total, number_of(wide[..., i]))
            found[..., i] = array_of(total if exclusive else after, wide.dtype.name)
            total = after
        return np.asarray(found, x.dtype)


def keys(x: Array) -> Array:
    """Return integers that compare as the elements of x do. A NaN is the largest element, or the smallest
    if its sign bit is set."""
    if x.dtype.kind != "f":
        return x
    return computed(order, x.astype(np.float32))


def scattered(reduction: str, x: Array, ids: Array, updates: Array) -> Array:
    """Return x after all updates, one after the other. Update i combines row ``ids[i]`` of x with the row
    ``updates[i]``, which replaces it for the reduction "none"."""
    found: Array = x.copy()
    if reduction == "none":
        for place, row in zip(ids, updates, strict=True):
            found[place] = row
        return found
    join, dtype = joined(REDUCTIONS[reduction], KINDS[x.dtype.name]), x.dtype.name
    found = array_of(number_of(x), dtype)
    with np.errstate(all="ignore"):
        for place, row in zip(ids, updates, strict=True):
            found[place] = array_of(join(number_of(found[place]), number_of(row)), dtype)
    return found
