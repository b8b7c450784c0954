"""Fuses cheap element-wise operators into the function of rows that reads their result. Examples are a
conversion from float16, and the sum of a residual and a layer's result."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from ...kernels.row_form import LIKE, ONE, PLACES
from ..graph import Node
from .rows import by_last_axis
from .sweep import Sweep

# The kernel may compute the prologue once in each pass over a row, so its operators must be cheap.
CHEAP = ("Add", "Cast", "Mul", "Sub", "Sum")
MOST_LINKS = 8
MOST_BUFFERS = 6  # maximum number of arrays that the kernel of a function of rows reads and writes


def with_prologue(sweep: Sweep, node: Node, uses: Mapping[str, int]) -> bool:
    """Fuse the chain that computes the input of *node*, a function of rows, into the kernel of *node*. If
    other nodes read a result of the chain, the kernel stores this result, too. Return False if the kernel
    cannot compute the chain."""
    x = node.inputs[0]
    made = sweep.producer(x, "chain")
    if made is None or "x" in node.attributes or not by_last_axis(sweep, node):
        return False
    chain, shape, gives = made.attributes["chain"], sweep.specs[x].shape, made.attributes["gives"]
    others = [name for name in made.outputs if name != x or uses[name] > 1]
    ways = [way_of(sweep, name, dtype, shape) for name, dtype in zip(made.inputs, chain.inputs, strict=True)]
    cheap = len(chain.links) <= MOST_LINKS and all(link.op in CHEAP for link in chain.links)
    if not cheap or None in ways or made.attributes["shape"] != shape or len(others) > 1:
        return False
    places = [made.outputs.index(name) for name in (x, *others)]
    if not all(storable(gives[i], shape) for i in places[1:]) or gives[places[0]] != "float32":
        return False
    if len(made.inputs) + len(places) > MOST_BUFFERS:
        return False
    results = tuple(chain.results[i] for i in places)
    attributes = {**node.attributes, "prologue": dataclasses.replace(chain, results=results)}
    attributes["reads"] = tuple(ways)
    return sweep.replace(made, Node("rows", made.inputs, (*node.outputs, *others), attributes, node.source))


def storable(dtype: str, shape: tuple[int, ...]) -> bool:
    """Return True if a function of rows whose result has the shape *shape* can store results of type *dtype*.
    For float16, the length of a row must be a multiple of 4."""
    return dtype == "float32" or (dtype == "float16" and shape[-1] % 4 == 0)


def way_of(sweep: Sweep, name: str, dtype: str, shape: tuple[int, ...]) -> int | None:
    """Return how the kernel of a function of rows addresses the operand *name* of a chain (LIKE, PLACES or
    ONE). *shape*: the shape of the kernel's results. Return None if the kernel cannot read the operand."""
    own = sweep.specs[name]
    if own.dtype != dtype:  # a Boolean or 8-bit operand, which only the kernels of chains convert
        return None
    if own.shape == shape:
        return LIKE
    if set(own.shape[:-1]) <= {1} and len(own.shape) <= len(shape):
        return PLACES if own.shape and own.shape[-1] != 1 else ONE
    return None
