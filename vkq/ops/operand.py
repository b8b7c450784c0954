"""What the element-wise and shape operators have in common: operands of every kind, tables on a device, plain
dispatches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ArgumentError, DTypeError
from ..numerics.qparams import QParams
from ..numerics.stored import shift as shift
from ..runtime.buffer import Buffer
from ..runtime.device import Device, default_device
from ..runtime.program import Program
from ..runtime.tensor import BLOCKED, IMAGE, MATRIX, Tensor

Operand = npt.ArrayLike | Tensor


def device_of(op: str, operands: Sequence[Operand], device: Device | None) -> Device:
    """The device of the tensors among the operands, which must be one; else the one given, else the
    default."""
    devices = [x.device for x in operands if isinstance(x, Tensor)]
    if device is not None:
        devices.insert(0, device)
    for other in devices[1:]:
        if other is not devices[0]:
            raise ArgumentError(
                f"{op}: the operands are on {devices[0]!r} and {other!r}; they must be on one device"
            )
    return devices[0] if devices else default_device()


def take(op: str, name: str, x: Operand, device: Device, layout: str | None = None) -> Tensor:
    """An 8-bit operand as a Tensor; a NumPy array is copied to the device in *layout* or the default one."""
    if not isinstance(x, Tensor):
        array = np.asarray(x)
        if array.dtype.name not in ("int8", "uint8"):
            raise DTypeError(
                f"{op}: {name} has dtype {array.dtype}; it must be int8 or uint8 (quantize it first)"
            )
        return Tensor.from_numpy(array, device, layout)
    if x.dtype not in ("int8", "uint8"):
        raise DTypeError(f"{op}: {name} has dtype {x.dtype}; it must be int8 or uint8 (quantize it first)")
    return x


def meaning(op: str, name: str, x: Tensor, q: QParams | None) -> QParams:
    """The parameters of an operand: those given, which must not contradict its own, or its own."""
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


def give(y: Tensor, *operands: Operand) -> Any:
    """The result as the caller's operands are: a Tensor where one of them is, else a NumPy array."""
    return y if any(isinstance(x, Tensor) for x in operands) else y.numpy()


def check_image(op: str, shape: Sequence[int]) -> None:
    """Raises unless the shape is that of images."""
    if len(shape) != 4:
        raise ArgumentError(
            f"{op}: x has {len(shape)} axes (shape {tuple(shape)}); it must have 4: (N, C, H, W)"
        )


def lanes_are_channels(x: Tensor) -> bool:
    """Whether a word of the tensor holds four channels of one pixel."""
    packed = x.packed
    return packed is not None and packed.dims[packed.lane.dim] == "c"


def image_layout(x: Tensor) -> str:
    """The tensor's own layout where a word holds four channels of one pixel, else kPackedInt8_4W4C."""
    return x.layout if lanes_are_channels(x) else IMAGE


def axes_layout(name: str, rank: int) -> str:
    """The layout for work that follows the axes: not blocks of channels for rows, whose extent is another
    than `folded` says."""
    return MATRIX if name == BLOCKED and rank != 4 else name


def folded(x: Tensor) -> bool:
    """Whether the layout's extent is (1, 1, rows, last axis) instead of the tensor's own four axes."""
    return len(x.shape) != 4 or x.layout == MATRIX


def normal_axis(op: str, axis: int, rank: int) -> int:
    """A non-negative axis."""
    if not -rank <= axis < rank:
        raise ArgumentError(
            f"{op}: axis is {axis} and x has {rank} axes; it must be in [{-rank}, {rank - 1}]"
        )
    return axis % rank


def dispatch(
    program: Program,
    device: Device,
    buffers: Sequence[Buffer],
    push: Mapping[str, int | float],
    work: int = 0,
) -> None:
    """Records one dispatch."""
    with device.operation() as recording:
        recording.dispatch(program, buffers, push, work)


def named(prefix: str, sizes: Sequence[int]) -> dict[str, int | float]:
    """Four numbers as push constants ``prefix_n``, ``_c``, ``_h``, ``_w``."""
    return {f"{prefix}_{axis}": size for axis, size in zip("nchw", sizes, strict=True)}


def four(shape: Sequence[int]) -> tuple[int, ...]:
    """A shape of at most four axes with ones in front."""
    return (1,) * (4 - len(shape)) + tuple(shape)
