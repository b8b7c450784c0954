"""Movement operators of ONNX: each element of a result is an element of an input."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from ...errors import ModelError
from ..graph import Array, Node, Spec
from . import images
from .operator import Inputs, Operator, axis_of, like, one, there


def _needed(x: Inputs, index: int) -> list[int]:
    found = x.numbers(index)
    if found is None:
        raise ModelError(f"{x.node}: input {index} is missing")
    return found


def _reshape(x: Inputs) -> list[Spec]:
    given, wanted = x.spec(0).shape, _needed(x, 1)
    keep = not x.node.attributes.get("allowzero", 0)
    if any(d == 0 and keep and i >= len(given) for i, d in enumerate(wanted)):
        raise ModelError(f"{x.node}: a 0 in shape {wanted} copies a dim that {given} does not have")
    shape = [given[i] if d == 0 and keep else d for i, d in enumerate(wanted)]
    size, known = math.prod(given), math.prod(d for d in shape if d != -1)
    if shape.count(-1) == 1 and known and size % known == 0:
        shape[shape.index(-1)] = size // known
    if min(shape, default=0) < 0 or math.prod(shape) != size:
        raise ModelError(f"{x.node}: {given} has {size} elements and cannot become {wanted}")
    return like(x, shape)


def _squeeze(x: Inputs) -> list[Spec]:
    given, axes = x.spec(0).shape, x.numbers(1)
    chosen = (
        {a % max(len(given), 1) for a in axes}
        if axes is not None
        else {i for i, d in enumerate(given) if d == 1}
    )
    if any(given[a] != 1 for a in chosen):
        raise ModelError(f"{x.node}: axes {axes} of {given} must all have length 1")
    return like(x, [d for i, d in enumerate(given) if i not in chosen])


def _unsqueeze(x: Inputs) -> list[Spec]:
    given, axes = x.spec(0).shape, _needed(x, 1)
    rank = len(given) + len(axes)
    chosen = {a % max(rank, 1) for a in axes}
    if len(chosen) != len(axes) or not all(-rank <= a < rank for a in axes):
        raise ModelError(f"{x.node}: axes {axes} must be different axes of the result (of {rank} axes)")
    left = iter(given)
    return like(x, [1 if i in chosen else next(left) for i in range(rank)])


def _flatten(x: Inputs) -> list[Spec]:
    given, axis = x.spec(0).shape, int(x.node.attributes.get("axis", 1))
    axis = axis + len(given) if axis < 0 else axis
    return like(x, (math.prod(given[:axis]), math.prod(given[axis:])))


def _transpose(x: Inputs) -> list[Spec]:
    given = x.spec(0).shape
    perm = permutation(x.node, len(given))
    return like(x, [given[a] for a in perm])


# permute: reshape x to `shape`, transpose it with `perm`, and reshape it to `to`.
def _permute(x: Inputs) -> list[Spec]:
    return like(x, x.node.attributes["to"])


def _permute_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    a = node.attributes
    return one(there(x[0]).reshape(a["shape"]).transpose(a["perm"]).reshape(a["to"]))


def permutation(node: Node, rank: int) -> list[int]:
    """Return the permutation of a Transpose."""
    perm = [int(a) for a in node.attributes.get("perm", range(rank)[::-1])]
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"{node}: perm is {perm}; it must be a permutation of the input's {rank} axes")
    return perm


def slices(node: Node, shape: Sequence[int], given: Sequence[Sequence[int] | None]) -> tuple[slice, ...]:
    """Return a slice for each axis of x. *given*: the Slice node's starts, ends, axes and steps."""
    starts, ends = (list(each or ()) for each in (*given, None, None)[:2])
    axes = given[2] if len(given) > 2 and given[2] is not None else range(len(starts))
    steps = given[3] if len(given) > 3 and given[3] is not None else [1] * len(starts)
    found = [slice(None)] * len(shape)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ModelError(
            f"{node}: starts {starts}, ends {ends}, axes {list(axes)} and steps {list(steps)} do not fit"
            " together; they must have equal lengths, and no step may be 0"
        )
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -len(shape) <= axis < len(shape):
            raise ModelError(f"{node}: axis is {axis} and the input has shape {tuple(shape)}")
        size = shape[axis]
        if step > 0:
            found[axis] = slice(start, end, step)
        else:  # ONNX clamps a negative start to 0, where a Python slice with a negative step would be empty
            first, last = (value + size if value < 0 else value for value in (start, end))
            whole = last < 0 or end in (2**31 - 1, 2**63 - 1)  # as ONNX Runtime reads these two ends
            found[axis] = slice(min(max(first, 0), size - 1), None if whole else last, step)
    return tuple(found)


def neighbours(
    node: Node, shape: Sequence[int], arrays: Sequence[Array | None]
) -> tuple[int, range] | None:  # fmt: skip
    """Return (axis, indices) of a Slice node that selects consecutive elements along one axis of *shape*.
    Return None for any other Slice, for a Slice with a computed input, and for a Slice that selects nothing
    or everything. *arrays*: starts, ends, axes and steps; None for an input that is omitted or computed."""
    if any(name and array is None for name, array in zip(node.inputs[1:], arrays, strict=True)):
        return None
    lists = [None if array is None else [int(v) for v in array.reshape(-1)] for array in arrays]
    parts = [range(*s.indices(d)) for s, d in zip(slices(node, shape, lists), shape, strict=True)]
    found = [(axis, part) for axis, part in enumerate(parts) if part != range(shape[axis])]
    return found[0] if len(found) == 1 and found[0][1] and found[0][1].step == 1 else None


def _slice(x: Inputs) -> list[Spec]:
    given = x.spec(0).shape
    chosen = slices(x.node, given, [x.numbers(i) for i in range(1, 5)])
    return like(x, [len(range(*s.indices(d))) for s, d in zip(chosen, given, strict=True)])


def _slice_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    lists = [None if v is None else [int(n) for n in v.reshape(-1)] for v in x[1:]]
    return one(given[slices(node, given.shape, lists)])


def _concat(x: Inputs) -> list[Spec]:
    first = x.spec(0)
    axis = axis_of(x.node, len(first.shape))
    specs = [x.spec(i) for i in range(len(x.specs))]
    for spec in specs:
        if spec.dtype != first.dtype or len(spec.shape) != len(first.shape) or any(
            a != b for i, (a, b) in enumerate(zip(spec.shape, first.shape, strict=True)) if i != axis
        ):  # fmt: skip
            raise ModelError(f"{x.node}: {first} and {spec} cannot be concatenated along axis {axis}")
    shape = list(first.shape)
    shape[axis] = sum(s.shape[axis] for s in specs)
    return like(x, shape)


def parts(x: Inputs) -> list[int]:
    """Return the sizes of the results of a Split along its axis."""
    given, axis = x.spec(0).shape, axis_of(x.node, len(x.spec(0).shape), 0)
    sizes, count = x.numbers(1), len(x.node.outputs)
    if sizes is None:
        each = -(-given[axis] // count)
        sizes = [min(each, max(0, given[axis] - each * i)) for i in range(count)]
    if len(sizes) != count or sum(sizes) != given[axis] or min(sizes) < 0:
        raise ModelError(f"{x.node}: {sizes} must be {count} sizes that add up to axis {axis} of {given}")
    return sizes


def _split(x: Inputs) -> list[Spec]:
    given, axis = x.spec(0).shape, axis_of(x.node, len(x.spec(0).shape), 0)
    return [like(x, (*given[:axis], size, *given[axis + 1 :]))[0] for size in parts(x)]


def _split_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    sizes = parts(Inputs(node, [None if v is None else Spec.of(v) for v in x], x))
    return np.split(given, np.cumsum(sizes)[:-1], axis_of(node, given.ndim, 0))


def _gather(x: Inputs) -> list[Spec]:
    given, index = x.spec(0).shape, x.spec(1).shape
    axis = axis_of(x.node, len(given), 0)
    return like(x, (*given[:axis], *index, *given[axis + 1 :]))


def _gather_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, index = there(x[0]), there(x[1]).astype(np.int64)
    axis = axis_of(node, given.ndim, 0)
    size = given.shape[axis]
    if index.size and not (-size <= index.min() and index.max() < size):
        raise ModelError(f"{node}: indices go from {index.min()} to {index.max()}; the axis has size {size}")
    return one(np.take(given, index, axis))


def _expand(x: Inputs) -> list[Spec]:
    given, wanted = x.spec(0).shape, _needed(x, 1)
    try:
        return like(x, np.broadcast_shapes(given, tuple(wanted)))
    except ValueError:
        raise ModelError(f"{x.node}: {given} cannot be expanded to {wanted}") from None


def _tile(x: Inputs) -> list[Spec]:
    given, repeats = x.spec(0).shape, _needed(x, 1)
    if len(repeats) != len(given) or min(repeats, default=0) < 0:
        raise ModelError(f"{x.node}: repeats {repeats} must be one number >= 0 for each axis of {given}")
    return like(x, [d * r for d, r in zip(given, repeats, strict=True)])


def margins(node: Node, rank: int, pads: Sequence[int], axes: Sequence[int] | None) -> list[tuple[int, int]]:
    """Return (before, after) for each axis of a Pad; negative values crop."""
    chosen = list(range(rank)) if axes is None else [a % max(rank, 1) for a in axes]
    if len(pads) != 2 * len(chosen):
        raise ModelError(f"{node}: pads are {list(pads)}; {len(chosen)} axes need {2 * len(chosen)} numbers")
    found = [(0, 0)] * rank
    for i, axis in enumerate(chosen):
        found[axis] = (pads[i], pads[len(chosen) + i])
    return found


def _pad(x: Inputs) -> list[Spec]:
    given = x.spec(0).shape
    around = margins(x.node, len(given), _needed(x, 1), x.numbers(3))
    shape = [d + before + after for d, (before, after) in zip(given, around, strict=True)]
    if min(shape, default=0) < 0:
        raise ModelError(f"{x.node}: its pads {around} crop more elements than {given} and the padding have")
    return like(x, shape)


def _pad_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, axes = there(x[0]), x[3] if len(x) > 3 else None
    pads = [int(v) for v in there(x[1]).reshape(-1)]
    around = margins(node, given.ndim, pads, None if axes is None else [int(a) for a in axes.reshape(-1)])
    grown = [(max(0, before), max(0, after)) for before, after in around]
    mode = node.attributes.get("mode", "constant")
    if mode == "constant":
        fill = x[2] if len(x) > 2 else None
        value = given.dtype.type(0) if fill is None else fill.reshape(())
        return one(_cropped(np.pad(given, grown, constant_values=value), around))
    if mode not in ("reflect", "edge", "wrap"):
        raise ModelError(f"{node}: mode is {mode!r}; it must be constant, reflect, edge or wrap")
    cut, known = _cropped(given, around), cast(Any, mode)
    if any(not size and max(pair) > 0 for size, pair in zip(cut.shape, around, strict=True)):
        raise ModelError(f"{node}: pads {around} leave nothing of {given.shape} for mode {mode} to repeat")
    return one(np.pad(cut, grown, mode=known))


def _cropped(x: Array, around: Sequence[tuple[int, int]]) -> Array:
    """Return x without the elements that negative margins crop."""
    return x[
        tuple(slice(max(0, -b), max(0, d + min(0, a))) for d, (b, a) in zip(x.shape, around, strict=True))
    ]


def _dropout(x: Inputs) -> list[Spec]:
    training = x.array(2)
    if training is not None and bool(training.any()):
        raise ModelError(f"{x.node}: training_mode is true; a model for inference must have false")
    return [x.spec(0), Spec("bool", x.spec(0).shape)][: len(x.node.outputs)]


def _dropout_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    return [there(x[0]), np.ones(there(x[0]).shape, bool)][: len(node.outputs)]


def _by_shape(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = [None if v is None else Spec.of(v) for v in x]
    shape = OPERATORS[node.op].infer(Inputs(node, given, x))[0].shape
    return one(np.broadcast_to(there(x[0]), shape) if node.op == "Expand" else there(x[0]).reshape(shape))


OPERATORS: dict[str, Operator] = {
    **images.OPERATORS,
    "Reshape": Operator("movement", _reshape, _by_shape),
    "Squeeze": Operator("movement", _squeeze, _by_shape),
    "Unsqueeze": Operator("movement", _unsqueeze, _by_shape),
    "Flatten": Operator("movement", _flatten, _by_shape),
    "Transpose": Operator(
        "movement",
        _transpose,
        lambda node, x: one(there(x[0]).transpose(permutation(node, there(x[0]).ndim))),
    ),
    "permute": Operator("movement", _permute, _permute_compute),
    "Slice": Operator("movement", _slice, _slice_compute),
    "Concat": Operator(
        "movement",
        _concat,
        lambda node, x: one(np.concatenate([there(v) for v in x], node.attributes["axis"])),
    ),
    "Split": Operator("movement", _split, _split_compute),
    "Gather": Operator("movement", _gather, _gather_compute),
    "Expand": Operator("movement", _expand, _by_shape),
    "Tile": Operator("movement", _tile, lambda node, x: one(np.tile(there(x[0]), there(x[1]).tolist()))),
    "Pad": Operator("movement", _pad, _pad_compute),
    "Dropout": Operator("movement", _dropout, _dropout_compute),
}


def moves(node: Node) -> bool:
    """Return True if every element of a node's results is an element of its inputs."""
    return node.op in OPERATORS and not (
        node.op == "Resize" and node.attributes.get("mode", "nearest") != "nearest"
    )
