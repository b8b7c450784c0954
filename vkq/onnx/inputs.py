"""The inputs of a model: ONNX Runtime's description of them, checks of given arrays, and batches."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..arguments import integer, sequence, shown
from ..errors import ArgumentError, DTypeError
from ..graph.graph import Array, Spec
from ..graph.passes.ranges import INT32
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .casts import converted
from .pytorch import plain_array
from .reader import Model
from .tensors import Argument

# Sizes for free dimensions, tried in this order to build a graph before the first input is known.
TRIAL_SIZES = (224, 256, 64, 32, 512, 1)
HELD = {"int64": "int32", "bool": "uint8"}  # keys: dtypes in the model; values: on the device
_TYPES = {"float32": "float", "float64": "double", "float16": "float16"}


@dataclasses.dataclass(frozen=True)
class NodeArg:
    """An input or output: its name, its type, such as "tensor(float)", and its shape. The shape has the name
    of each free dimension in place of its size, or None if the dimension has no name."""

    name: str
    type: str
    shape: list[int | str | None]

    @classmethod
    def of(cls, argument: Argument) -> NodeArg:
        # `argument_of` gives these names to unnamed dimensions.
        unnamed = [f"{argument.name}.{i}" for i in range(len(argument.shape))]
        shape = [None if d == own else d for d, own in zip(argument.shape, unnamed, strict=True)]
        return cls(argument.name, type_name(argument.dtype), shape)


def type_name(dtype: str) -> str:
    """Return ONNX Runtime's name of a dtype, such as "tensor(float)". The name of a type that is no tensor,
    such as "seq(tensor(float))", is returned unchanged."""
    return dtype if "(" in dtype else f"tensor({_TYPES.get(dtype, dtype)})"


def checked_feed(
    inputs: Sequence[Argument],
    feed: Mapping[str, npt.ArrayLike],
    constant: Container[str],
    device: Device | None = None,
) -> dict[str, Any]:
    """Check the inputs of a run, and return them by name as arrays for the device.

    bool becomes uint8 and int64 becomes int32, except for the inputs named in *constant*. Tensors on the
    session's *device* are returned unchanged. Raises ArgumentError or DTypeError if an input is missing,
    unknown, or of the wrong type or shape."""
    known = [argument.name for argument in inputs]
    if set(feed) != set(known):
        raise ArgumentError(f"inputs are given for {sorted(map(str, feed))}; the model takes {known}")
    arrays: dict[str, Any] = {}
    for argument in inputs:
        given = feed[argument.name]
        if device is not None and isinstance(given, Tensor):
            arrays[argument.name] = resident(argument, given, device)
            check_shape(argument, given.shape)
            continue
        array = array_of(argument.name, given)
        if not hasattr(given, "dtype"):
            array = in_type(array, argument.dtype)
        if array.dtype.newbyteorder("=").name != argument.dtype:
            must = f"it must be {argument.dtype}{argument.hint}"
            raise DTypeError(f"input {argument.name!r} is {array.dtype}; {must}")
        check_shape(argument, array.shape)
        if argument.name in constant:
            arrays[argument.name] = array
        else:
            arrays[argument.name] = (
                converted(array, argument) if argument.stored else held(argument.name, array)
            )
    return arrays


def resident(argument: Argument, value: Tensor, device: Device) -> Tensor:
    """Return the tensor *value* if it fits an input of a session on *device*. Raises ArgumentError or
    DTypeError if the tensor's device or type is wrong."""
    if value.device is not device:
        raise ArgumentError(
            f"input {argument.name!r} is on {value.device!r}, and the session on {device!r}; they must be on"
            " one device, opened once"
        )
    dtype = argument.stored or HELD.get(argument.dtype, argument.dtype)
    if value.dtype != dtype:
        held_as = f", which a tensor holds as {dtype}" if dtype != argument.dtype else ""
        raise DTypeError(
            f"input {argument.name!r} is a {value.dtype} tensor; it must be {argument.dtype}{held_as}"
            f"{argument.hint}"
        )
    if argument.dtype == "bool" and value.size and (most := value.numpy().max()) > 1:
        raise ArgumentError(
            f"input {argument.name!r} is bool; its tensor holds {most}, and it must hold only 0 and 1"
        )
    return value


def held(name: str, array: Array, kind: str = "input") -> Array:
    """Return an array in the type that a device stores: uint8 for bool, int32 for int64. Raises
    ArgumentError if a number does not fit int32. *kind* and *name* describe the array in the error text."""
    if array.dtype == np.bool_:
        return array.view(np.uint8)
    if array.dtype.kind != "i" or array.dtype.itemsize < 8:
        return array
    low, high = (array.min(), array.max()) if array.size else (0, 0)
    if not (INT32[0] <= low and high <= INT32[1]):
        raise ArgumentError(
            f"{kind} {name!r} holds {low} to {high}; on a device int64 numbers must fit int32, {INT32[0]} to"
            f" {INT32[1]} "
            + (
                f"(constant_inputs=[{name!r}] allows all int64)"
                if kind == "input"
                else "(outputs='host' allows all int64)"
            )
        )
    return array.astype(np.int32)


def checked_shapes(
    inputs: Sequence[Argument], shapes: Mapping[str, Sequence[int]]
) -> dict[str, tuple[int, ...]]:
    """Check the rank and the fixed sizes of shapes given by input name. Return the shapes as tuples."""
    known = [argument.name for argument in inputs]
    if set(shapes) != set(known):
        raise ArgumentError(f"shapes are given for {sorted(map(str, shapes))}; the model takes {known}")
    for argument in inputs:
        shape = shapes[argument.name]
        if not sequence(integer)(shape):
            raise DTypeError(f"the shape of {argument.name!r} is {shown(shape)}; it must be integers")
        check_shape(argument, tuple(shape))
        Spec(argument.dtype, tuple(shape)).check(f"input {argument.name!r}")
    return {name: tuple(map(int, shapes[name])) for name in known}


def check_shape(argument: Argument, shape: tuple[int, ...]) -> None:
    """Raise ArgumentError if *shape* does not fit the declared shape of an input. As in ONNX Runtime, free
    dimensions of the same name may have different sizes: some exporters give one name to all of them."""
    sizes = zip(shape, argument.shape, strict=False)
    fits = len(shape) == len(argument.shape) and all(d == size for size, d in sizes if isinstance(d, int))
    if argument.ranked and not fits:
        raise ArgumentError(
            f"input {argument.name!r} has shape {shape}; it must be {list(argument.shape)}{argument.hint}"
        )


def in_type(array: Array, dtype: str) -> Array:
    """Convert an array that was made from a list to the dtype of an input. Return it unchanged if the
    conversion would change an integer's value, or convert floats to integers."""
    try:
        to = np.dtype(dtype)
    except TypeError:  # ONNX Runtime's name of a type that NumPy lacks
        return array
    allowed = {"b": "biuf", "i": "biuf", "u": "biuf", "f": "f"}.get(array.dtype.kind, "")
    if array.size and to.kind not in allowed:
        return array
    made = array.astype(to)
    return made if to.kind == "f" or np.array_equal(made, array) else array


def array_of(name: str, value: npt.ArrayLike) -> Array:
    try:
        return np.asarray(plain_array(value))
    # Ragged lists cannot be converted, and the __array__ of an object may raise any exception.
    except Exception as error:
        raise ArgumentError(f"input {name!r} is not an array: {str(error)[:200]}") from error


def trial_shapes(model: Model) -> dict[str, tuple[int, ...]]:
    """Return input shapes that the model accepts, to build its graph before the first run."""
    few = all(isinstance(d, int) for a in model.inputs for d in a.shape[1:])
    for size in TRIAL_SIZES:
        shapes = {
            a.name: tuple(d if isinstance(d, int) else 1 if i == 0 else size for i, d in enumerate(a.shape))
            for a in model.inputs
        }
        if few:  # only batch sizes are free, so the first trial is enough
            return shapes
        try:
            model.known(shapes)
            return shapes
        except ValueError as error:
            last = error
    raise last


def shapes_of(
    model: Model, given: Sequence[str], arrays: Mapping[str, Array] | None = None
) -> dict[str, tuple[int, ...]]:
    """Return the shape of each input: from *given* (texts NAME=1x3x224x224), else from its array, else from
    the model. Free dimensions of the same name get the same size: that of a given shape or array, else the
    size that `trial_shapes` finds."""
    names = [argument.name for argument in model.inputs]
    shapes: dict[str, tuple[int, ...]] = {name: array.shape for name, array in (arrays or {}).items()}
    for text in given:
        name, _, sizes = text.rpartition("=")
        if not re.fullmatch("[0-9]{1,10}(x[0-9]{1,10})*", sizes):
            raise ArgumentError(f"--shape is {text!r}; write it as NAME=1x3x224x224")
        shapes[name or model.inputs[0].name] = tuple(int(size) for size in sizes.split("x"))
    if unknown := sorted(set(shapes) - set(names)):
        raise ArgumentError(f"--shape names {unknown}; the model takes {names}")
    if len(shapes) == len(model.inputs):
        return checked_shapes(model.inputs, shapes)
    named: dict[int | str, int] = {
        dim: size
        for argument in model.inputs
        for dim, size in zip(argument.shape, shapes.get(argument.name, ()), strict=False)
        if isinstance(dim, str)
    }
    for name, likely in trial_shapes(model).items():
        dims = next(a.shape for a in model.inputs if a.name == name)
        shapes.setdefault(name, tuple(named.get(d, size) for d, size in zip(dims, likely, strict=True)))
    return checked_shapes(model.inputs, shapes)


def columns(group: Sequence[Any], inputs: Sequence[Argument]) -> dict[str, list[Array]]:
    """Return, by input name, a list of the input's arrays, one for each element of a batch and without the
    batch axis. *group*: the elements of the batch, each a mapping by input name, or the array of the first
    input."""
    rows = [one if isinstance(one, Mapping) else {inputs[0].name: one} for one in group]
    for i, row in enumerate(rows):
        if row.keys() != rows[0].keys():
            given, names = sorted(map(str, row)), sorted(map(str, rows[0]))
            raise ArgumentError(
                f"element {i} of the batch has the inputs {given}, and the first has {names}; they must be"
                " equal"
            )
    ranks = {argument.name: len(argument.shape) for argument in inputs}
    return {name: [_element(name, row[name], ranks.get(name)) for row in rows] for name in rows[0]}


def _element(name: str, value: npt.ArrayLike, rank: int | None) -> Array:
    """Return the array of one element of a batch without its batch axis. *rank*: the number of axes of the
    input, including the batch axis. An array of this rank must have length 1 along axis 0."""
    array = array_of(name, value)
    if array.ndim != rank or not rank:
        return array
    if array.shape[0] != 1:
        raise ArgumentError(
            f"input {name!r}: an element has shape {array.shape}, whose axis 0 (the batch) must be 1;"
            " give its elements one by one (batch=N computes N of them together)"
        )
    return array[0]  # type: ignore[no-any-return]


def alike(name: str, arrays: list[Array]) -> list[Array]:
    """Return the arrays of a batch as contiguous arrays in native byte order. Raises ArgumentError if the
    arrays differ in shape or type."""
    shape, dtype = arrays[0].shape, arrays[0].dtype.newbyteorder("=")
    for i, array in enumerate(arrays):
        if array.shape != shape or array.dtype.newbyteorder("=") != dtype:
            raise ArgumentError(
                f"input {name!r}: array {i} of the batch is {array.dtype} {array.shape}, the first {dtype}"
                f" {shape}; they must be equal"
            )
    return [np.ascontiguousarray(array, dtype) for array in arrays]


def groups(inputs: Iterable[Any], size: int) -> Iterator[list[Any]]:
    """Yield lists of *size* consecutive inputs. The last list may be shorter."""
    group: list[Any] = []
    for one in inputs:
        group.append(one)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group
