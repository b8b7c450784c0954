"""Translates movement operators: each element of a result is an element of an input."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..errors import ModelError
from .file import FileOperator
from .layers import BYTES
from .lowering import FIRST, Lowering, Unsupported

Rule = Callable[[Lowering, FileOperator, str], None]


def _sizes(low: Lowering, shape: Sequence[int]) -> str:
    return low.constant(np.array(shape, np.int64), "shape")


def same_parameters(low: Lowering, numbers: Sequence[int], y: int) -> None:
    """Raise Unsupported if an 8-bit operand and the result have different quantization parameters. With
    different parameters, a movement operator would have to change the stored integers."""
    if low.dtype(y) not in BYTES:
        return
    for number in numbers:
        if low.q(number) != low.q(y):
            raise Unsupported(f"its input has {low.q(number)} and its result {low.q(y)}; they must be equal")


def reshaped(low: Lowering, operator: FileOperator, shape: Sequence[int]) -> None:
    """Emit the operator's result: its first input, reshaped to *shape*."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    low.give(y, low.emit("Reshape", [low.last_of(x), _sizes(low, shape)], allowzero=1))


def reshape(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower RESHAPE. The new shape is the second input, else an option, else the shape of the result in the
    file."""
    shape = low.file.tensors[operator.outputs[0]].shape
    if len(operator.inputs) > 1 and operator.inputs[1] in low.arrays:
        shape = tuple(low.numbers(operator.inputs[1], "shape"))
    elif operator.options.get("new_shape"):
        shape = tuple(operator.options["new_shape"])
    size = int(np.prod(low.shape(operator.inputs[0])))
    known = int(np.prod([d for d in shape if d != -1]))
    if shape.count(-1) == 1 and known and size % known == 0:
        shape = tuple(size // known if d == -1 else d for d in shape)
    if min(shape, default=0) < 0 or int(np.prod(shape)) != size:
        raise ModelError(f"{operator}: {low.shape(operator.inputs[0])} cannot become {shape}")
    reshaped(low, operator, shape)


def squeeze(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SQUEEZE. It removes the axes of size 1 that its option names, by default all axes of size 1."""
    given = low.shape(operator.inputs[0])
    chosen = {a % max(len(given), 1) for a in operator.options.get("squeeze_dims", [])}
    chosen = chosen or {i for i, d in enumerate(given) if d == 1}
    if any(given[a] != 1 for a in chosen):
        raise ModelError(f"{operator}: axes {sorted(chosen)} of {given} must all have length 1")
    reshaped(low, operator, [d for i, d in enumerate(given) if i not in chosen])


def expand_dims(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower EXPAND_DIMS. It adds an axis of size 1."""
    given = list(low.shape(operator.inputs[0]))
    (axis,) = low.numbers(operator.inputs[1], "axis")
    if not -len(given) - 1 <= axis <= len(given):
        raise ModelError(f"{operator}: axis is {axis}; it must be {-len(given) - 1} to {len(given)}")
    given.insert(axis if axis >= 0 else axis + len(given) + 1, 1)
    reshaped(low, operator, given)


def transpose(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower TRANSPOSE. If the permutation gives (N, C, H, W), and the input exists only with channels first,
    the result is this input, without a Transpose."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    perm = tuple(low.numbers(operator.inputs[1], "permutation"))
    if perm == FIRST and low.channels_first([x]):
        low.give(y, low.first_of(x))
    else:
        low.give(y, low.emit("Transpose", [low.last_of(x)], perm=perm))


def concatenation(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower CONCATENATION."""
    y, numbers = operator.outputs[0], operator.inputs
    if activation:
        raise Unsupported(f"it has the fused activation {activation}, which LiteRT does not allow there")
    same_parameters(low, numbers, y)
    rank = len(low.shape(numbers[0]))
    axis = operator.options["axis"] % max(rank, 1)
    first = rank == 4 and low.channels_first(numbers)
    names = [low.of(n, first) for n in numbers]
    low.give(y, low.emit("Concat", names, axis=FIRST.index(axis) if first else axis), first)


def pad(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower PAD or PADV2. PAD pads with zero, which is the zero point for 8-bit values. PADV2 pads with a
    given value."""
    x, y = operator.inputs[0], operator.outputs[0]
    same_parameters(low, [x], y)
    margins, rank = np.array(low.numbers(operator.inputs[1], "margins")).reshape(-1, 2), len(low.shape(x))
    if len(margins) != rank or margins.min(initial=0) < 0:
        raise ModelError(
            f"{operator}: its margins are {margins.tolist()}; there must be {rank} pairs of 0 or more"
        )
    first = rank == 4 and low.channels_first([x])
    margins = margins[list(FIRST)] if first else margins
    dtype = low.dtype(x)
    fill = np.asarray(low.q(x).zero_point if dtype in BYTES else 0, dtype)
    if operator.op == "PADV2":
        same_parameters(low, [operator.inputs[2]], y)
        fill = low.array(operator.inputs[2], "value").reshape(())
    pads = low.constant(margins.T.reshape(-1).astype(np.int64), "pads")
    low.give(y, low.emit("Pad", [low.of(x, first), pads, low.constant(fill, "fill")], mode="constant"), first)


RULES: dict[str, Rule] = {
    "RESHAPE": reshape, "SQUEEZE": squeeze, "EXPAND_DIMS": expand_dims, "TRANSPOSE": transpose,
    "CONCATENATION": concatenation, "PAD": pad, "PADV2": pad,
}  # fmt: skip
