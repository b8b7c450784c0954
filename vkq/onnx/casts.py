"""Inputs of types that a device lacks, but that only Casts read: the host converts them to another type
before the upload, and the results are the same."""

from __future__ import annotations

import dataclasses
from collections.abc import Container, Iterable, Sequence

import numpy as np

from ..graph.graph import Array, Node
from .tensors import Argument

# For each type: the type to which the host converts an input, and the types to which Casts may convert it. A
# conversion of float64 to float32 rounds, so only the same Cast may follow.
CONVERTED = {
    "float64": ("float32", ("float32",)),
    "uint16": ("int32", ("float32", "float16", "int32", "int64", "int8", "uint8", "bool")),
    "int16": ("int32", ("float32", "float16", "int32", "int64", "int8", "uint8", "bool")),
}


def with_conversions(
    inputs: Iterable[Argument], nodes: Sequence[Node], results: Container[str]
) -> tuple[Argument, ...]:
    """Return the inputs, with `Argument.stored` set for each input that the host converts."""
    return tuple(dataclasses.replace(a, stored=_stored(a, nodes, results)) for a in inputs)


def _stored(argument: Argument, nodes: Sequence[Node], results: Container[str]) -> str:
    if argument.dtype not in CONVERTED or argument.name in results:
        return ""
    stored, targets = CONVERTED[argument.dtype]
    readers = [node for node in nodes if argument.name in node.inputs]
    return stored if all(node.op == "Cast" and node.attributes["to"] in targets for node in readers) else ""


def converted(array: Array, argument: Argument) -> Array:
    """Return the array of an input in the type ``stored``. Floats beyond the type become infinities."""
    with np.errstate(over="ignore"):
        return array.astype(argument.stored)
