"""The inputs of attention: masks, and the memory layout of queries, keys and values."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from ...numerics.attention import Seen
from ..graph import Array
from ..operators.attention import Axes
from ..operators.movement import permutation
from .ranges import INT32, Range, fits, result_range
from .sweep import Sweep, scalar

# If a mask adds LEAST or less to the score of a key, the key is hidden: its softmax weight is 0, whatever the
# score is.
LEAST = -1e30
ONE_BY_ONE: Axes = (0, 1, 2, 3)
FLOATS = ("float32", "float16")


@dataclasses.dataclass(frozen=True)
class Mask:
    """A mask of attention scores. If ``low`` is None, the value ``name`` is added to the scores. Otherwise
    the value ``name`` has Boolean flags, and ``low`` replaces each score whose flag is False (if
    ``inverted``: each score whose flag is True)."""

    name: str
    low: float | None = None
    inverted: bool = False


@dataclasses.dataclass(frozen=True)
class Laid:
    """The memory layout of a value with four axes. Memory holds the value ``name``. Permuting the axes of
    ``name`` by ``axes`` gives the value that this layout describes."""

    name: str
    axes: Axes


def laid_rows(sweep: Sweep, name: str, shape: tuple[int, ...]) -> Laid:
    """Return the memory layout of the queries *name*. *shape*: the shape of the scores (batch, heads,
    queries, keys). If the queries do not begin with the axes (batch, heads, queries), emit a Reshape first. A
    model in which several heads share keys may store the queries of these heads as rows of one matrix."""
    own = sweep.specs[name].shape
    name = name if own[:-1] == shape[:3] else _shaped(sweep, name, (*shape[:3], own[-1]))
    return followed(sweep, Laid(name, ONE_BY_ONE))


def laid(sweep: Sweep, name: str, batch: int, last: int | None = 3) -> Laid:
    """Return the memory layout of a value as a layout with four axes. If the value has only three axes, a
    Reshape first splits axis 0 into (*batch*, heads). Transposes that compute the value become part of the
    layout instead of being executed. *last*: the axis that must be contiguous in memory (None: any)."""
    own = sweep.specs[name].shape
    if len(own) == 3:
        parts = (batch, own[0] // batch) if batch and own[0] % batch == 0 else (1, own[0])
        name = _shaped(sweep, name, (*parts, *own[1:]))
    return followed(sweep, Laid(name, ONE_BY_ONE), last)


def laid_keys(sweep: Sweep, name: str, batch: int) -> Laid:
    """Return the memory layout of keys (batch, heads, keys, features). *name*: the transposed keys (batch,
    heads, features, keys)."""
    found = laid(sweep, name, batch, None)
    b, h, d, t = found.axes
    return Laid(found.name, (b, h, t, d))


def followed(sweep: Sweep, found: Laid, last: int | None = 3) -> Laid:
    """Follow *found* back through Transposes, Casts from float16 and repetitions of heads. Return the layout
    of *found* in terms of the value before these nodes. *last*: see `laid`."""
    while (before := _before(sweep, found)) is not None:
        if last is not None and before.axes[last] != last:
            break
        found = before
    return found


def _before(sweep: Sweep, laid: Laid) -> Laid | None:
    """If a Transpose, a repetition of heads, or a Cast from float16 computes the value *laid.name*, return
    the layout in terms of this node's input. Return None for other nodes."""
    made = sweep.producer(laid.name, "Transpose", "Reshape", "Cast", "Identity")
    if made is None:
        return None
    x, shape = made.inputs[0], sweep.specs[laid.name].shape
    if made.op == "Transpose":
        perm = permutation(made, 4)
        return Laid(x, tuple(perm[a] for a in laid.axes))
    if made.op == "Reshape":
        return Laid(single, laid.axes) if (single := _single_heads(sweep, x, shape, laid)) else None
    return Laid(x, laid.axes) if sweep.specs[x].dtype in FLOATS else None


def _single_heads(sweep: Sweep, name: str, shape: Sequence[int], laid: Laid) -> str:
    """Return the value before its heads were repeated. *name* is the input of a Reshape to *shape* (batch,
    heads, tokens, features). If *name* is the result of an Expand that repeats heads, return the input of the
    Expand, reshaped to four axes. If *name* has the shape *shape* already, return *name*. Otherwise return
    ""."""
    if sweep.specs[name].shape == shape:
        return name
    repeated = sweep.producer(name, "Expand")
    if repeated is None or laid.axes[:2] != (0, 1) or laid.axes[2] + laid.axes[3] != 5:
        return ""
    one, many = sweep.specs[repeated.inputs[0]].shape, sweep.specs[name].shape
    if len(one) != 5 or one[2] != 1 or many != (*one[:2], many[2], *one[3:]):
        return ""
    if (many[0], many[1] * many[2], *many[3:]) != tuple(shape):
        return ""
    return _shaped(sweep, repeated.inputs[0], (*one[:2], *one[3:]))


def _shaped(sweep: Sweep, name: str, shape: Sequence[int]) -> str:
    """Return the name of a value that has the elements of *name* in the shape *shape*. If a Reshape computes
    *name* from a value of this shape, return that value. Otherwise emit a Reshape."""
    made = sweep.producer(name, "Reshape")
    if made is not None and sweep.specs[made.inputs[0]].shape == tuple(shape):
        return made.inputs[0]
    return sweep.reshape(name, shape)


# ---------------------------------------------------------------------------------------------------- masks


def masks(
    sweep: Sweep, added: Sequence[Mask], shape: tuple[int, ...], placing: bool = True
) -> tuple[Seen, str, str]:
    """Return (seen, bias, places) for the masks *added*. A name is "" if there is no such value.

    - seen: the rule that decides by position which keys a query sees
    - bias: the name of the value that is added to the scores
    - places: the name of the queries' positions, if they are computed at run time

    If *placing* is False, a mask that depends on computed positions becomes part of the bias."""
    seen, bias, places = Seen(), "", ""
    for one in added:
        name, array = one.name, sweep.array(one.name)
        shown = None if array is None else _shown(array, one)
        found = None if shown is None or seen.causal else causal(shown, *shape[2:])
        by_run = placed(sweep, one, shape) if placing and array is None and not seen.causal else None
        if found is not None:
            seen = found
        elif by_run is not None:
            seen, places = Seen(True, 0, by_run[1]), by_run[0]
        elif one.low is None:
            wide = name if sweep.specs[name].dtype == "float32" else sweep.emit("Cast", [name], to="float32")
            bias = sweep.emit("Add", [bias, wide]) if bias else wide
        else:
            low, zero = (sweep.constant(np.asarray(x, np.float32), "number") for x in (one.low, 0.0))
            parts = [bias or zero, low]
            bias = sweep.emit("Where", [name, *(parts[::-1] if one.inverted else parts)])
    return seen, bias, places


def placed(sweep: Sweep, mask: Mask, shape: tuple[int, ...]) -> tuple[str, int] | None:
    """Return (places, window) for a mask that hides keys by positions computed at run time. Return None for
    other masks, or if a query might see no key.

    - places: the name of the queries' positions, int32 (batch or 1, queries)
    - window: each query sees the last *window* keys up to its position; 0: all keys up to its position"""
    if mask.low is None or mask.inverted or mask.low > LEAST:
        return None
    both, window = sweep.producer(mask.name, "And"), 0
    seen, near = both.inputs if both is not None else (mask.name, "")
    made = sweep.producer(seen, "LessOrEqual")
    if made is None or not _counted(sweep, made.inputs[0], shape[3]):
        return None
    place = made.inputs[1]
    if near:
        window = _window(sweep, near, made.inputs)
        if window <= 0:
            return None
    own, (low, high) = sweep.specs[place], range_of(sweep, place)
    if own.dtype != "int32" or own.shape not in ((1, 1, shape[2], 1), (shape[0], 1, shape[2], 1)):
        return None
    if low < 0 or (window and high >= shape[3]):
        return None
    return sweep.reshape(place, (own.shape[0], shape[2])), window


def _counted(sweep: Sweep, name: str, count: int) -> bool:
    """Return True if a value is constant and has the numbers 0 to *count* - 1 along its last axis."""
    array = sweep.array(name)
    return array is not None and array.size == array.shape[-1] == count and np.array_equal(
        array.reshape(-1), np.arange(count)
    )  # fmt: skip


def _window(sweep: Sweep, name: str, compared: Sequence[str]) -> int:
    """Return n if the flags *name* are computed as key > place - n, else 0. *compared*: (key, place)."""
    made = sweep.producer(name, "Greater")
    first = sweep.producer(made.inputs[1], "Sub") if made is not None else None
    if made is None or first is None or [made.inputs[0], first.inputs[0]] != list(compared):
        return 0
    return int(scalar(sweep.array(first.inputs[1])) or 0)


def range_of(sweep: Sweep, name: str, steps: int = 16) -> Range:
    """Return the range of the elements of an int32 value, derived from the nodes that compute the value. On
    each path back from the value, at most *steps* nodes are considered."""
    array, made = sweep.array(name), sweep.producer(name)
    if array is not None:
        return (int(array.min()), int(array.max())) if array.size else (0, 0)
    if made is None or not steps or sweep.specs[name].dtype != "int32":
        return INT32
    given = [range_of(sweep, x, steps - 1) for x in made.inputs if x]
    found = result_range(made, given, sweep.specs)
    return found if found is not None and fits(found) else INT32


def _shown(array: Array, mask: Mask) -> Array | None:
    """Return a constant mask as flags (True for visible keys), or None if the mask also changes the scores of
    visible keys."""
    if mask.low is not None:
        return array.astype(np.bool_) ^ mask.inverted
    hidden = array <= LEAST
    return ~hidden if np.all(hidden | (array == 0)) else None


def causal(shown: Array, queries: int, keys: int) -> Seen | None:
    """Return the rule that shows exactly the keys with the flag True. A rule shows each query all keys, the
    keys up to its own position, or the last of the keys up to its own position (a window). Return None if no
    rule fits."""
    if shown.ndim < 2 or shown.shape[-2:] != (queries, keys) or math.prod(shown.shape[:-2]) != 1:
        return None
    flags = shown.reshape(queries, keys)
    if not flags.any(1).all():
        return None
    if flags.all():
        return Seen()
    last = keys - 1 - int(np.argmax(flags[0, ::-1]))  # the index of the last key that the first query sees
    # The last query sees this many keys, if the keys that it sees are consecutive.
    wide = keys - int(np.argmax(flags[-1])) - int(np.argmax(flags[-1, ::-1]))
    for window in (0, wide):
        found = Seen(True, last, window)
        if np.array_equal(found.flags(queries, keys), flags):
            return found
    return None
