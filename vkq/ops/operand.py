"""Helpers of operators without weights: apply an operator to arrays or tensors, cache its plans, and name
push constants."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..layout.extent import BLOCKED, BYTES, MATRIX, Spec
from ..numerics.qparams import QParams
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.eager import run
from ..runtime.opened import opened
from ..runtime.plan import Plan
from ..runtime.tensor import Tensor
from ..runtime.transfer import as_array

Operand = npt.ArrayLike | Tensor
Build = Callable[..., Value]  # a function of (builder, inputs as values, options) that returns the result


def apply(
    op: str,
    build: Build,
    operands: Mapping[str, Operand],
    options: tuple[Any, ...],
    device: Device | int | str | None,
    out: Tensor | None = None,
    dtypes: tuple[str, ...] = BYTES,
) -> Any:
    """Return ``build(builder, *inputs, *options)`` of the operands: a Tensor if any operand is a Tensor or
    *out* is given, else a NumPy array. The plan is cached by the inputs' specs and the options."""
    chosen = device_of(op, [*operands.values(), out], device)
    inputs = [take(op, name, x, chosen, dtypes) for name, x in operands.items()]
    y = run(planned(chosen, build, [x.spec for x in inputs], options), inputs, out, op)
    return y if out is not None or any(isinstance(x, Tensor) for x in operands.values()) else y.numpy()


def planned(device: Device, build: Build, specs: Sequence[Spec], options: tuple[Any, ...]) -> Plan:
    """Return the plan of an operator for inputs of these specs. The device caches the plan."""

    def make() -> Plan:
        b = Builder(device)
        return b.plan(build(b, *[b.input(spec) for spec in specs], *options))

    try:
        return device.plan((build, tuple(specs), options), make)
    except TypeError:  # an option cannot be hashed, such as a list
        return device.plan((build, tuple(specs), hashable(options)), make)


def hashable(value: Any) -> Hashable:
    """Return an option as a hashable object, for the cache key of a plan."""
    if isinstance(value, np.ndarray):
        return (value.dtype.str, value.shape, value.tobytes())
    if isinstance(value, (list, tuple)):
        return tuple(hashable(v) for v in value)
    hash(value)
    return value  # type: ignore[no-any-return]


def device_of(op: str, operands: Sequence[Operand | None], device: Device | int | str | None) -> Device:
    """Return the device of the tensors among the operands, which must all be on one device, that of
    *device* if given. Without tensors, return *device* or the default device."""
    devices = [x.device for x in operands if isinstance(x, Tensor)]
    if device is not None:
        devices.insert(0, opened(device))
    for other in devices[1:]:
        if other is not devices[0]:
            raise ArgumentError(
                f"{op}: the operands are on {devices[0]!r} and {other!r}; they must be on one device, opened"
                " once"
            )
    return devices[0] if devices else opened(None)


def take(op: str, name: str, x: Operand, device: Device, dtypes: tuple[str, ...] = BYTES) -> Tensor:
    """Return the operand *name* of the operator *op* as a Tensor. A NumPy array is uploaded in its default
    layout. Raises DTypeError if the dtype is not in *dtypes*."""
    if isinstance(x, Tensor):
        if x.dtype not in dtypes:
            raise DTypeError(f"{op}: {name} has dtype {x.dtype}; it must be {_words(dtypes)}")
        return x
    array = as_array(x, f"{op}: {name}")
    if array.dtype.name not in dtypes:
        raise DTypeError(f"{op}: {name} has dtype {array.dtype}; it must be {_words(dtypes)}")
    return Tensor.from_numpy(array, device)


def _words(dtypes: tuple[str, ...]) -> str:
    return " or ".join(dtypes) + (" (quantize it first)" if dtypes == BYTES else "")


def meaning(op: str, name: str, x: Spec, q: QParams | None) -> QParams:
    """Return the quantization parameters of an operand: those of its spec or *q*, which must be equal if
    both exist."""
    found = q or x.qparams
    if found is None:
        raise ArgumentError(f"{op}: {name} carries no qparams; give {name}_qparams")
    if x.qparams is not None and x.qparams != found:
        raise ArgumentError(
            f"{op}: {name} was quantized with {x.qparams} and {name}_qparams is {found}; they must be equal"
        )
    if found.dtype != x.dtype:
        raise DTypeError(
            f"{op}: {name} has dtype {x.dtype} and its qparams are for {found.dtype}; make them the same"
        )
    return found


def check_image(op: str, shape: Sequence[int]) -> None:
    """Raise an error unless the shape has the four axes of images."""
    if len(shape) != 4:
        raise ArgumentError(
            f"{op}: x has {len(shape)} axes (shape {tuple(shape)}); it must have 4: (N, C, H, W)"
        )


def axes_layout(name: str, rank: int) -> str:
    """Return the layout in which operators along axes read an array of *rank* axes in the layout *name*:
    *name*, or kPackedInt8_4H4W instead of kPackedInt8_16C if the rank is not 4. kPackedInt8_16C stores such
    an array with an extent whose axes are not those of the array."""
    return MATRIX if name == BLOCKED and rank != 4 else name


def normal_axis(op: str, axis: int, rank: int) -> int:
    """Return an axis as a non-negative index."""
    if not -rank <= axis < rank:
        raise ArgumentError(
            f"{op}: axis is {axis} and x has {rank} axes; it must be in [{-rank}, {rank - 1}]"
        )
    return axis % rank


def named(prefix: str, sizes: Sequence[int]) -> dict[str, int | float]:
    """Return four sizes as push constants named ``<prefix>_n``, ``<prefix>_c``, ``<prefix>_h`` and
    ``<prefix>_w``."""
    return {f"{prefix}_{axis}": size for axis, size in zip("nchw", sizes, strict=True)}


def four(shape: Sequence[int]) -> tuple[int, ...]:
    """Return a shape of at most four axes, extended to four by leading axes of length 1."""
    return (1,) * (4 - len(shape)) + tuple(shape)
