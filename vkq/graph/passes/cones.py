"""Evaluates connected element-wise nodes for every value of a type. Results are cached, because a model has
one graph for each set of input sizes, and each of these graphs needs the results."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

import numpy as np

from ...numerics.qparams import QParams
from ..graph import Array, Node
from ..operators.table import compute

MOST_BYTES = 1 << 16  # maximum bytes of a cached result, and of a constant in its key
MOST_KEPT = 256  # maximum number of cached results
PLAIN = (bool, int, float, str, type(None), QParams)
_kept: dict[Hashable, Array] = {}


def evaluated(
    cone: Sequence[Node], name: str, given: Mapping[str, Array], constants: Mapping[str, Array]
) -> Array:
    """Return the array of the value *name*, which may be read-only. The nodes *cone* compute it from the
    arrays *given* and from constants."""
    key = _key(cone, name, given, constants)
    found = None if key is None else _kept.get(key)
    if found is None:
        found = _computed(cone, name, given, constants)
        if key is not None and found.nbytes <= MOST_BYTES:
            found.setflags(write=False)
            _kept[key] = found
            while len(_kept) > MOST_KEPT:
                _kept.pop(next(iter(_kept), None), None)
    return found


def _computed(
    cone: Sequence[Node], name: str, given: Mapping[str, Array], constants: Mapping[str, Array]
) -> Array:
    values = dict(given)
    for node in cone:
        arrays = [None if not v else values[v] if v in values else constants[v] for v in node.inputs]
        # A constant of one element becomes a scalar: its axes would add axes to the 1-D array of all values.
        arrays = [a.reshape(()) if a is not None and a.size == 1 and v not in values else a
                  for a, v in zip(arrays, node.inputs, strict=True)]  # fmt: skip
        values.update(zip(node.outputs, compute(node, arrays), strict=True))
    return values[name]


def _key(
    cone: Sequence[Node], name: str, given: Mapping[str, Array], constants: Mapping[str, Array]
) -> Hashable | None:
    """Return a cache key of everything that determines the value *name*: the types and shapes of the arrays
    in *given*, the constants and the nodes. The key does not contain names of values. Return None if the key
    would be too large or not hashable."""
    known: dict[str, Hashable] = {
        root: (i, array.dtype.str, array.shape, array.strides)
        for i, (root, array) in enumerate(given.items())
    }
    steps: list[Hashable] = []
    for node in cone:
        for constant in node.inputs:
            if constant and constant not in known:
                array = constants[constant]
                if array.nbytes > MOST_BYTES:
                    return None
                known[constant] = array.dtype.str, array.shape, array.tobytes()
        attributes = [_plain(value) for value in node.attributes.values()]
        if None in attributes:
            return None
        read = tuple(known[v] if v else "" for v in node.inputs)
        steps.append((node.op, tuple(node.attributes), tuple(attributes), read))
        known.update((v, ("step", len(steps), i)) for i, v in enumerate(node.outputs))
    return tuple(steps), known[name]


def _plain(value: object) -> Hashable | None:
    """Return an attribute as a hashable value for a cache key. Values that Python treats as equal (0.0, -0.0,
    0, False) become different."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes()) if value.nbytes <= MOST_BYTES else None
    plain = all(isinstance(v, PLAIN) for v in (value if isinstance(value, tuple) else (value,)))
    return repr(value) if plain else None
