"""An operator of the graph: shape inference, and its computation in NumPy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np

from ...errors import ModelError
from ..graph import Array, Node, Spec


class UnsupportedForm(ModelError):
    """Raised for a form of an operator that is valid in ONNX, but that the graph does not support."""


class OpenShape(ModelError):
    """Raised if the shapes of a node's results depend on elements known only at run time. *needed*: the name
    of the node's input that has these elements; "" if the shapes are known only after the node has run.

    >>> OpenShape("Range 'r': needs its limit", "limit").needed
    'limit'
    """

    def __init__(self, message: str, needed: str = ""):
        super().__init__(message)
        self.needed = needed


MOST_NUMBERS = 1 << 16  # maximum number of elements of a constant that states a shape, axes, pads or sizes

Kind = Literal["elementwise", "movement", "number", "shape", "quantized"]


@dataclasses.dataclass(frozen=True)
class Inputs:
    """A node's inputs: the spec of each (None if it is omitted), and the array of each constant."""

    node: Node
    specs: Sequence[Spec | None]
    arrays: Sequence[Array | None]

    def spec(self, index: int) -> Spec:
        """Return the spec of a required input."""
        found = self.specs[index] if index < len(self.specs) else None
        if found is None:
            raise ModelError(f"{self.node}: input {index} is missing")
        return found

    def array(self, index: int) -> Array | None:
        """Return the array of a constant input; None for an omitted input. Raise an error for an input that
        is computed at run time."""
        if index >= len(self.specs) or self.specs[index] is None:
            return None
        found = self.arrays[index]
        if found is None:
            raise OpenShape(
                f"{self.node}: input {index} must be a constant; it is computed from the inputs",
                self.node.inputs[index],
            )
        return found

    def numbers(self, index: int) -> list[int] | None:
        """Return the elements of a constant input as a list of integers; None if it is omitted."""
        found = self.array(index)
        if found is None:
            return None
        if found.dtype.kind not in "iu" or found.ndim > 1:
            raise ModelError(f"{self.node}: input {index} is {Spec.of(found)}; it must be a list of integers")
        if found.size > MOST_NUMBERS:
            raise ModelError(
                f"{self.node}: input {index} has {found.size} numbers; at most {MOST_NUMBERS} are read"
            )
        return [int(v) for v in found.reshape(-1)]


Compute = Callable[[Node, Sequence["Array | None"]], "Sequence[Array] | None"]


@dataclasses.dataclass(frozen=True)
class Operator:
    """An entry of the operator table: shape inference and computation. ``compute`` is None if only the
    reference (`vkq.check.graph`) computes the operator. ``most``: the maximum number of inputs; None if
    ``infer`` checks it.

    kind:
    - "elementwise": each element of the result depends on one element of each input, broadcast as in NumPy
    - "movement": each element of the result is an element of an input, or the maximum of several elements (a
      maximum commutes with any increasing function)
    - "number": sums and other functions of real numbers
    - "shape": depends only on shapes, or makes constants
    - "quantized": computes with 8-bit values that have parameters
    """

    kind: Kind
    infer: Callable[[Inputs], Sequence[Spec]]
    compute: Compute | None = None
    most: int | None = None


def same(x: Inputs) -> list[Spec]:
    """Return the first input's spec as the spec of the result."""
    return [x.spec(0)]


def broadcast(x: Inputs, dtype: str | None = None, least: int = 1) -> list[Spec]:
    """Return the spec of the result of an operator that broadcasts its inputs. Raise an error for fewer
    than *least* inputs."""
    shapes = [x.spec(i).shape for i in range(max(least, len(x.specs)))]
    try:
        shape = np.broadcast_shapes(*shapes)
    except ValueError:
        raise ModelError(f"{x.node}: shapes {shapes} do not broadcast") from None
    return [Spec(dtype or x.spec(0).dtype, shape)]


def one(result: Array) -> list[Array]:
    """Return an array as the results of a node with one result."""
    return [np.asarray(result)]


def there(array: Array | None) -> Array:
    """Return a required input. The type checker needs this function: `Inputs.spec` has checked that the
    input exists."""
    assert array is not None
    return array


def axis_of(node: Node, rank: int, default: int | None = None, name: str = "axis") -> int:
    """Return the axis in attribute *name* as a non-negative index."""
    axis = int(node.attributes[name] if default is None else node.attributes.get(name, default))
    if not -rank <= axis < max(rank, 1):
        raise ModelError(f"{node}: {name} is {axis} and the input has {rank} axes")
    return axis % max(rank, 1)


def like(x: Inputs, shape: Sequence[int]) -> list[Spec]:
    """Return the specs of one result, with the first input's type and the shape *shape*."""
    return [Spec(x.spec(0).dtype, tuple(int(d) for d in shape)).check(str(x.node))]
