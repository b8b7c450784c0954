"""Describe a wrong result in a text from which the kind of driver fault can be guessed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .compare import Array
from .expected import Expected

LANES = 4  # number of channels in a packed 32-bit word


def symptom(got: Array, want: Expected, before: Array | None, poison: Array) -> str:
    """Describe a wrong result. *before*: the expected result of the previous run, or None for the first run.
    It may be float32 although *got* is float16. *poison*: the content of the result's memory before this
    run."""
    if said := want.unlike(got):
        return said
    wrong = want.wrong(got)
    of = f"{int(wrong.sum())} of {wrong.size} elements"
    if not got[wrong].any() and want.y[wrong].any():
        return f"zeros: {of}"
    unwritten = _same(got, poison) & wrong
    if unwritten.sum() * 2 > wrong.sum():
        return f"not written: {of}, {_where(unwritten)}"
    if before is not None and before.shape == got.shape and _same(got, _as(before, got.dtype))[wrong].all():
        return f"the result of the run before: {of}, {_where(wrong)}"
    if moved := _moved(got, want):
        return f"{moved}: {of}, {_where(wrong)}"
    return f"{of} differ, {_where(wrong)}; {_first(got, want, wrong)}"


def when(wrong: Sequence[int], times: int) -> str:
    """Return a text that lists the wrong runs. Runs are counted from 1."""
    if len(wrong) == times:
        return "in every run"
    if list(wrong) == [1]:
        return "in the first run alone"
    if list(wrong) == list(range(2, times + 1)):
        return "in every run but the first"
    listed = ", ".join(map(str, wrong[:5])) + (", ..." if len(wrong) > 5 else "")
    return f"in {len(wrong)} of {times} runs ({listed})"


def _as(a: Array, dtype: np.dtype[Any]) -> Array:
    with np.errstate(over="ignore"):  # large values become infinite in float16
        return a.astype(dtype)


def _same(a: Array, b: Array) -> npt.NDArray[np.bool_]:
    kind = {1: np.uint8, 2: np.uint16, 4: np.uint32}[a.dtype.itemsize]
    return np.asarray(np.ascontiguousarray(a).view(kind) == np.ascontiguousarray(b).view(kind))


def _moved(got: Array, want: Expected) -> str | None:
    """Return a text that says how correct values are misplaced (such as in other lanes of a vector); None if
    they are not."""
    if want.bound is not None or got.shape[-1] < 2:
        return None
    for axis in {got.ndim - 1, 1 if got.ndim == 4 else got.ndim - 1}:
        for step in (1, -1):
            if got.shape[axis] > 1 and np.array_equal(got, np.roll(want.y, step, axis)):
                return f"lanes are off by {step} along axis {axis}"
    wrong = want.wrong(got)
    if wrong.any() and np.array_equal(np.sort(got[wrong]), np.sort(want.y[wrong])):
        return "right numbers in wrong lanes"
    return None


def _where(wrong: npt.NDArray[np.bool_]) -> str:
    """Return a text with the rows and channels of the wrong elements, such as
    ``rows 32 to 47, channels 8 to 15``. Channels are axis 1 of an image, and the last axis of a matrix."""
    last = np.moveaxis(wrong, 1, -1) if wrong.ndim == 4 else wrong
    matrix = last.reshape(-1, last.shape[-1])
    rows, channels = (np.asarray(matrix.any(axis=axis)) for axis in (1, 0))
    return f"rows {_span(rows)}, channels {_span(channels)}"


def _span(some: npt.NDArray[np.bool_]) -> str:
    places = np.flatnonzero(some)
    first, last = int(places[0]), int(places[-1])
    lanes = np.unique(places % LANES)
    if places.size > 1 and lanes.size == 1 and last - first >= LANES:
        return f"{first} to {last} (lane {int(lanes[0])} of {LANES})"
    holes = "" if places.size == last - first + 1 else f" ({places.size} of them)"
    return f"{first} to {last}{holes}" if last > first else str(first)


def _first(got: Array, want: Expected, wrong: npt.NDArray[np.bool_]) -> str:
    place = tuple(int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
    return f"first at {place}: got {got[place]}, must be {want.y[place]}"
