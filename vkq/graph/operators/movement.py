"""Operators of ONNX whose results are elements of their inputs, in another place."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ...errors import ModelError
from ...problem.resize import Resize
from ...problem.window import Window
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, axis_of, one, there


def _like(x: Inputs, shape: Sequence[int]) -> list[Spec]:
    return [Spec(x.spec(0).dtype, tuple(int(d) for d in shape)).check(str(x.node))]


def _needed(x: Inputs, index: int) -> list[int]:
    found = x.numbers(index)
    if found is None:
        raise ModelError(f"{x.node}: input {index} is missing")
    return found


def _reshape(x: Inputs) -> list[Spec]:
    given, wanted = x.spec(0).shape, _needed(x, 1)
    keep = not x.node.attributes.get("allowzero", 0)
    if any(d == 0 and keep and i >= len(given) for i, d in enumerate(wanted)):
        raise ModelError(f"{x.node}: shape {wanted} takes over a dim that {given} has not")
    shape = [given[i] if d == 0 and keep else d for i, d in enumerate(wanted)]
    size, known = math.prod(given), math.prod(d for d in shape if d != -1)
    if shape.count(-1) == 1 and known and size % known == 0:
        shape[shape.index(-1)] = size // known
    if min(shape, default=0) < 0 or math.prod(shape) != size:
        raise ModelError(f"{x.node}: {given} has {size} elements and cannot become {wanted}")
    return _like(x, shape)


def _squeeze(x: Inputs) -> list[Spec]:
    given, axes = x.spec(0).shape, x.numbers(1)
    chosen = (
        {a % max(len(given), 1) for a in axes}
        if axes is not None
        else {i for i, d in enumerate(given) if d == 1}
    )
    if any(given[a] != 1 for a in chosen):
        raise ModelError(f"{x.node}: axes {axes} of {given} are not all 1")
    return _like(x, [d for i, d in enumerate(given) if i not in chosen])


def _unsqueeze(x: Inputs) -> list[Spec]:
    given, axes = x.spec(0).shape, _needed(x, 1)
    rank = len(given) + len(axes)
    chosen = {a % max(rank, 1) for a in axes}
    if len(chosen) != len(axes) or not all(-rank <= a < rank for a in axes):
        raise ModelError(f"{x.node}: axes {axes} do not fit {given}")
    left = iter(given)
    return _like(x, [1 if i in chosen else next(left) for i in range(rank)])


def _flatten(x: Inputs) -> list[Spec]:
    given, axis = x.spec(0).shape, int(x.node.attributes.get("axis", 1))
    axis = axis + len(given) if axis < 0 else axis
    return _like(x, (math.prod(given[:axis]), math.prod(given[axis:])))


def _transpose(x: Inputs) -> list[Spec]:
    given = x.spec(0).shape
    perm = permutation(x.node, len(given))
    return _like(x, [given[a] for a in perm])


def permutation(node: Node, rank: int) -> list[int]:
    """The axes of a Transpose."""
    perm = [int(a) for a in node.attributes.get("perm", range(rank)[::-1])]
    if sorted(perm) != list(range(rank)):
        raise ModelError(f"{node}: perm is {perm} and the input has {rank} axes")
    return perm


def slices(node: Node, shape: Sequence[int], given: Sequence[Sequence[int] | None]) -> tuple[slice, ...]:
    """starts, ends, axes, steps of a Slice as Python's slices, one for each axis."""
    starts, ends = given[0] or (), given[1] or ()
    axes = given[2] if len(given) > 2 and given[2] is not None else range(len(starts))
    steps = given[3] if len(given) > 3 and given[3] is not None else [1] * len(starts)
    found = [slice(None)] * len(shape)
    if not len(starts) == len(ends) == len(axes) == len(steps) or 0 in steps:
        raise ModelError(
            f"{node}: starts {starts}, ends {ends}, axes {list(axes)}, steps {list(steps)} do not fit"
        )
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        if not -len(shape) <= axis < len(shape):
            raise ModelError(f"{node}: axis {axis} of {tuple(shape)}")
        size = shape[axis]
        if step > 0:
            found[axis] = slice(start, end, step)
        else:
            last = None if end < -size else end
            found[axis] = slice(min(start, size - 1), last, step)
    return tuple(found)


def _slice(x: Inputs) -> list[Spec]:
    given = x.spec(0).shape
    chosen = slices(x.node, given, [x.numbers(i) for i in range(1, 5)])
    return _like(x, [len(range(*s.indices(d))) for s, d in zip(chosen, given, strict=True)])


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
            raise ModelError(
                f"{x.node}: {first} and {spec} cannot stand one after the other along axis {axis}"
            )
    shape = list(first.shape)
    shape[axis] = sum(s.shape[axis] for s in specs)
    return _like(x, shape)


def parts(x: Inputs) -> list[int]:
    """The sizes of the results of a Split."""
    given, axis = x.spec(0).shape, axis_of(x.node, len(x.spec(0).shape), 0)
    sizes, count = x.numbers(1), len(x.node.outputs)
    if sizes is None:
        each = -(-given[axis] // count)
        sizes = [min(each, max(0, given[axis] - each * i)) for i in range(count)]
    if len(sizes) != count or sum(sizes) != given[axis] or min(sizes) < 0:
        raise ModelError(f"{x.node}: sizes {sizes} do not fit {count} results of {given} along axis {axis}")
    return sizes


def _split(x: Inputs) -> list[Spec]:
    given, axis = x.spec(0).shape, axis_of(x.node, len(x.spec(0).shape), 0)
    return [_like(x, (*given[:axis], size, *given[axis + 1 :]))[0] for size in parts(x)]


def _split_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given = there(x[0])
    sizes = parts(Inputs(node, [None if v is None else Spec.of(v) for v in x], x))
    return np.split(given, np.cumsum(sizes)[:-1], axis_of(node, given.ndim, 0))


def _gather(x: Inputs) -> list[Spec]:
    given, index = x.spec(0).shape, x.spec(1).shape
    axis = axis_of(x.node, len(given), 0)
    return _like(x, (*given[:axis], *index, *given[axis + 1 :]))


def _gather_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, index = there(x[0]), there(x[1]).astype(np.int64)
    axis = axis_of(node, given.ndim, 0)
    size = given.shape[axis]
    if index.size and not (-size <= index.min() and index.max() < size):
        raise ModelError(f"{node}: indices go from {index.min()} to {index.max()}; the axis has {size}")
    return one(np.take(given, index, axis))


def _expand(x: Inputs) -> list[Spec]:
    given, wanted = x.spec(0).shape, _needed(x, 1)
    try:
        return _like(x, np.broadcast_shapes(given, tuple(wanted)))
    except ValueError:
        raise ModelError(f"{x.node}: {given} cannot be expanded to {wanted}") from None


def _tile(x: Inputs) -> list[Spec]:
    given, repeats = x.spec(0).shape, _needed(x, 1)
    if len(repeats) != len(given) or min(repeats, default=0) < 0:
        raise ModelError(f"{x.node}: repeats {repeats} do not fit {given}")
    return _like(x, [d * r for d, r in zip(given, repeats, strict=True)])


def margins(node: Node, rank: int, pads: Sequence[int], axes: Sequence[int] | None) -> list[tuple[int, int]]:
    """(before, after) of each axis of a Pad; negative numbers cut off."""
    chosen = list(range(rank)) if axes is None else [a % max(rank, 1) for a in axes]
    if len(pads) != 2 * len(chosen):
        raise ModelError(f"{node}: pads {list(pads)} do not fit {len(chosen)} axes")
    found = [(0, 0)] * rank
    for i, axis in enumerate(chosen):
        found[axis] = (pads[i], pads[len(chosen) + i])
    return found


def _pad(x: Inputs) -> list[Spec]:
    given = x.spec(0).shape
    around = margins(x.node, len(given), _needed(x, 1), x.numbers(3))
    return _like(x, [d + before + after for d, (before, after) in zip(given, around, strict=True)])


def _pad_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    given, axes = there(x[0]), x[3] if len(x) > 3 else None
    pads = [int(v) for v in there(x[1]).reshape(-1)]
    around = margins(node, given.ndim, pads, None if axes is None else [int(a) for a in axes.reshape(-1)])
    cut = given[
        tuple(slice(max(0, -b), d + min(0, a)) for d, (b, a) in zip(given.shape, around, strict=True))
    ]
    grown = [(max(0, before), max(0, after)) for before, after in around]
    mode = node.attributes.get("mode", "constant")
    if mode == "constant":
        fill = x[2] if len(x) > 2 else None
        value = given.dtype.type(0) if fill is None else fill.reshape(())
        return one(np.pad(cut, grown, constant_values=value))
    if mode not in ("reflect", "edge", "wrap"):
        raise ModelError(f"{node}: mode is {mode!r}; it must be constant, reflect, edge or wrap")
    known: Any = mode
    return one(np.pad(cut, grown, mode=known))


def _depth_to_space(x: Inputs) -> list[Spec]:
    n, c, h, w = _image(x)
    block = int(x.node.attributes["blocksize"])
    if block < 1 or c % (block * block):
        raise ModelError(f"{x.node}: {c} channels cannot be cut into blocks of {block} x {block}")
    return _like(x, (n, c // (block * block), h * block, w * block))


def _depth_to_space_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    n, c, h, w = there(x[0]).shape
    b = int(node.attributes["blocksize"])
    if node.attributes.get("mode", "DCR") == "DCR":
        cut = there(x[0]).reshape(n, b, b, c // (b * b), h, w).transpose(0, 3, 4, 1, 5, 2)
    else:
        cut = there(x[0]).reshape(n, c // (b * b), b, b, h, w).transpose(0, 1, 4, 2, 5, 3)
    return one(cut.reshape(n, c // (b * b), h * b, w * b))


def _space_to_depth(x: Inputs) -> list[Spec]:
    n, c, h, w = _image(x)
    block = int(x.node.attributes["blocksize"])
    if block < 1 or h % block or w % block:
        raise ModelError(f"{x.node}: {h} x {w} pixels cannot be cut into blocks of {block}")
    return _like(x, (n, c * block * block, h // block, w // block))


def _space_to_depth_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    n, c, h, w = there(x[0]).shape
    b = int(node.attributes["blocksize"])
    cut = there(x[0]).reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return one(cut.reshape(n, c * b * b, h // b, w // b))


def _image(x: Inputs) -> tuple[int, int, int, int]:
    shape = x.spec(0).shape
    if len(shape) != 4:
        raise ModelError(f"{x.node}: the input is {x.spec(0)}; it must have 4 axes: (N, C, H, W)")
    return shape[0], shape[1], shape[2], shape[3]


def window(node: Node, shape: Sequence[int]) -> Window:
    """The window of MaxPool and AveragePool (with ``auto_pad`` resolved)."""
    a = node.attributes
    kernel = tuple(int(k) for k in a["kernel_shape"])
    strides = tuple(int(s) for s in a.get("strides", (1,) * len(kernel)))
    dilations = tuple(int(d) for d in a.get("dilations", (1,) * len(kernel)))
    pads = padding(node, shape, kernel, strides, dilations)
    return Window.of(str(node), shape, kernel, strides, pads, dilations, bool(a.get("ceil_mode", 0)))


def padding(
    node: Node, shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """(top, left, bottom, right), from ``pads`` or ``auto_pad``."""
    auto, rank = node.attributes.get("auto_pad", "NOTSET"), len(kernel)
    if not len(strides) == len(dilations) == rank == len(shape) - 2 or min(*strides, *dilations, *kernel) < 1:
        raise ModelError(
            f"{node}: kernel {kernel}, strides {strides} and dilations {dilations} do not fit {shape}"
        )
    if auto == "VALID":
        return (0,) * 2 * rank
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        before, after = [], []
        for size, k, s, d in zip(shape[2:], kernel, strides, dilations, strict=True):
            total = max(0, (-(-size // s) - 1) * s + d * (k - 1) + 1 - size)
            less, more = total // 2, total - total // 2
            before.append(less if auto == "SAME_UPPER" else more)
            after.append(more if auto == "SAME_UPPER" else less)
        return (*before, *after)
    pads = tuple(int(p) for p in node.attributes.get("pads", (0,) * 2 * rank))
    if len(pads) != 2 * rank:
        raise ModelError(f"{node}: pads {pads} do not fit a kernel of {rank} axes")
    return pads


def _max_pool(x: Inputs) -> list[Spec]:
    if len(x.node.outputs) > 1 and x.node.outputs[1]:
        raise ModelError(f"{x.node}: its second result (indices) is not supported")
    return _like(x, window(x.node, _image(x)).y_shape)


def _given(arrays: Sequence[Array | None], index: int) -> Array | None:
    """An input that is there and not empty."""
    found = arrays[index] if index < len(arrays) else None
    return found if found is not None and found.size else None


def resize_of(node: Node, shape: Sequence[int], given: Sequence[Array | None]) -> Resize:
    """What a Resize does: inputs x, roi, scales, sizes."""
    a = node.attributes
    scales, sizes = (_given(given, i) for i in (2, 3))
    if len(shape) != 4 or (scales is None) == (sizes is None):
        raise ModelError(
            f"{node}: the input has {len(shape)} axes; it must have 4, and either scales or sizes"
        )
    if a.get("antialias", 0) or a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise ModelError(f"{node}: antialias and keep_aspect_ratio_policy are not supported")
    axes = [int(v) % 4 for v in a.get("axes", range(4))]
    chosen = scales if scales is not None else sizes
    assert chosen is not None
    values = dict(zip(axes, chosen.reshape(-1).tolist(), strict=True))
    still = 1.0 if scales is not None else None
    for axis in (0, 1):
        if values.get(axis, still or shape[axis]) != (1.0 if scales is not None else shape[axis]):
            raise ModelError(f"{node}: only height and width can change; axis {axis} does")
    default = [1.0, 1.0] if scales is not None else list(shape[2:])
    two = [values.get(axis, default[axis - 2]) for axis in (2, 3)]
    return Resize.of(
        shape,
        None if scales is not None else [int(v) for v in two],
        two if scales is not None else None,
        a.get("mode", "nearest"),
        a.get("coordinate_transformation_mode", "half_pixel"),
        a.get("nearest_mode", "round_prefer_floor"),
        a.get("rounding", "truncate"),
    )


def _resize(x: Inputs) -> list[Spec]:
    return _like(x, resize_of(x.node, x.spec(0).shape, [None, *(x.array(i) for i in (1, 2, 3))]).y_shape)


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
    "Reshape": Operator("movement", _reshape, _by_shape),
    "Squeeze": Operator("movement", _squeeze, _by_shape),
    "Unsqueeze": Operator("movement", _unsqueeze, _by_shape),
    "Flatten": Operator("movement", _flatten, _by_shape),
    "Transpose": Operator(
        "movement",
        _transpose,
        lambda node, x: one(there(x[0]).transpose(permutation(node, there(x[0]).ndim))),
    ),
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
    "DepthToSpace": Operator("movement", _depth_to_space, _depth_to_space_compute),
    "SpaceToDepth": Operator("movement", _space_to_depth, _space_to_depth_compute),
    "MaxPool": Operator("movement", _max_pool),
    "Resize": Operator("movement", _resize),  # linear is none: see `moves`
    "Dropout": Operator("movement", _dropout, _dropout_compute),
}


def moves(node: Node) -> bool:
    """Whether the results of a node are elements of its inputs."""
    return node.op in OPERATORS and not (
        node.op == "Resize" and node.attributes.get("mode", "nearest") != "nearest"
    )
