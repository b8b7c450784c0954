"""Translates operators that rearrange whole images: blocks as batches, mirrored margins, reversed axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..errors import ModelError
from .file import FileOperator
from .layers import BYTES
from .lowering import Lowering, Unsupported
from .movement import Rule, same_parameters


def _block(low: Lowering, operator: FileOperator) -> tuple[list[int], list[list[int]], tuple[int, ...]]:
    """Return the sizes of a block, the margins, and the shape of x. The axes of a block follow the batch."""
    x, shape = operator.inputs[0], low.shape(operator.inputs[0])
    same_parameters(low, [x], operator.outputs[0])
    block = low.numbers(operator.inputs[1], "block")
    margins = np.array(low.numbers(operator.inputs[2], "margins")).reshape(-1, 2).tolist()
    fits = 0 < len(block) == len(margins) < len(shape)
    if not fits or min(block) < 1 or np.min(margins) < 0:
        raise Unsupported(
            f"x has shape {shape}, its block is {block} and its margins are {margins}; x must have more axes"
            " than the block, the block sizes of at least 1, and the margins as many pairs, none negative"
        )
    return block, margins, shape


def space_to_batch(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower SPACE_TO_BATCH_ND. The pixels at the same position in all blocks form a new batch element."""
    block, margins, (n, *sizes) = _block(low, operator)
    x, y, axes = operator.inputs[0], operator.outputs[0], len(block)
    dtype, rest = low.dtype(x), sizes[axes:]
    fill = low.constant(np.asarray(low.q(x).zero_point if dtype in BYTES else 0, dtype), "fill")
    before, after = zip((0, 0), *margins, *((0, 0) for _ in rest), strict=True)
    wide = [size + sum(pair) for size, pair in zip(sizes, margins, strict=False)]
    if any(size % b for size, b in zip(wide, block, strict=True)):
        raise ModelError(f"{operator}: the size with margins is {wide}; it must be a multiple of {block}")
    pads = low.constant(np.array([*before, *after], np.int64), "pads")
    name = low.emit("Pad", [low.last_of(x), pads, fill], mode="constant")
    counts = [size // b for size, b in zip(wide, block, strict=True)]
    pairs = [d for pair in zip(counts, block, strict=True) for d in pair]
    name = low.reshape(name, (n, *pairs, *rest))
    inside, blocks = range(2, 2 * axes + 1, 2), range(1, 2 * axes, 2)
    last = range(2 * axes + 1, 2 * axes + 1 + len(rest))
    name = low.emit("Transpose", [name], perm=(*inside, 0, *blocks, *last))
    low.give(y, low.reshape(name, (math.prod(block) * n, *counts, *rest)))


def batch_to_space(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower BATCH_TO_SPACE_ND, the inverse of SPACE_TO_BATCH_ND. At the end it crops the margins."""
    block, crops, (n, *sizes) = _block(low, operator)
    x, y, axes, cells = operator.inputs[0], operator.outputs[0], len(block), math.prod(block)
    if n % cells:
        raise ModelError(f"{operator}: the batch is {n}; it must be a multiple of the block's size, {cells}")
    rest = sizes[axes:]
    name = low.reshape(low.last_of(x), (*block, n // cells, *sizes))
    pairs = [a for i in range(axes) for a in (axes + 1 + i, i)]
    last = range(2 * axes + 1, 2 * axes + 1 + len(rest))
    name = low.emit("Transpose", [name], perm=(axes, *pairs, *last))
    whole = [size * b for size, b in zip(sizes, block, strict=False)]
    name = low.reshape(name, (n // cells, *whole, *rest))
    ends = [size - crop[1] for size, crop in zip(whole, crops, strict=True)]
    lists = [[crop[0] for crop in crops], ends, [*range(1, axes + 1)], [1] * axes]
    names = [low.constant(np.array(v, np.int64), "slice") for v in lists]
    low.give(y, low.emit("Slice", [name, *names]))


def _gathered(low: Lowering, operator: FileOperator, places: dict[int, Sequence[int]]) -> None:
    """Emit the result: the first input, gathered along each axis in *places* at the indices given there."""
    name = low.last_of(operator.inputs[0])
    same_parameters(low, operator.inputs[:1], operator.outputs[0])
    for axis, chosen in places.items():
        name = low.emit("Gather", [name, low.constant(np.array(chosen, np.int64), "places")], axis=axis)
    low.give(operator.outputs[0], name)


def mirror_pad(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower MIRROR_PAD. Its margins mirror the inside: mode 0 (REFLECT) leaves out the edge, and mode 1
    (SYMMETRIC) repeats it."""
    shape, symmetric = low.shape(operator.inputs[0]), operator.options["mode"] == 1
    margins = np.array(low.numbers(operator.inputs[1], "margins")).reshape(-1, 2)
    most = [d - (not symmetric) for d in shape]
    if len(margins) != len(shape) or margins.min(initial=0) < 0 or (margins.max(1, initial=0) > most).any():
        raise ModelError(
            f"{operator}: its margins are {margins.tolist()}; they must be {len(shape)} pairs of 0 to {most}"
        )
    places: dict[int, Sequence[int]] = {}
    for axis, (pair, size) in enumerate(zip(margins, shape, strict=True)):
        if pair.any():
            mode = "symmetric" if symmetric else "reflect"
            places[axis] = np.pad(np.arange(size), pair.tolist(), mode=mode).tolist()  # type: ignore[call-overload]
    _gathered(low, operator, places)


def reverse(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower REVERSE_V2. It reverses the order of elements along some axes."""
    shape = low.shape(operator.inputs[0])
    axes = {a % max(len(shape), 1) for a in low.numbers(operator.inputs[1], "axes")}
    _gathered(low, operator, {axis: range(shape[axis])[::-1] for axis in sorted(axes)})


def filled(low: Lowering, operator: FileOperator, activation: str) -> None:
    """Lower FILL. Its result is a constant."""
    shape, value = low.numbers(operator.inputs[0], "shape"), low.array(operator.inputs[1], "value")
    if min(shape, default=1) < 0 or value.size != 1:
        raise ModelError(
            f"{operator}: its shape is {shape} and its value has {value.size} elements; it must have one"
        )
    names = low.constant(value.reshape(()), "value"), low.constant(np.array(shape, np.int64), "shape")
    low.give(operator.outputs[0], low.emit("Expand", names))


RULES: dict[str, Rule] = {
    "SPACE_TO_BATCH_ND": space_to_batch, "BATCH_TO_SPACE_ND": batch_to_space, "MIRROR_PAD": mirror_pad,
    "REVERSE_V2": reverse, "FILL": filled,
}  # fmt: skip
