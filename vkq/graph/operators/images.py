"""ONNX's operators on images: pools, Resize, DepthToSpace, SpaceToDepth."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

from ...errors import ModelError
from ...problem.resize import Coordinates, Resize, ResizeMode
from ...problem.window import Window
from ..graph import Array, Node, Spec
from .operator import Inputs, Operator, UnsupportedForm, like, one, there


def _depth_to_space(x: Inputs) -> list[Spec]:
    n, c, h, w = _image(x)
    block = int(x.node.attributes["blocksize"])
    if block < 1 or c % (block * block):
        raise ModelError(f"{x.node}: {c} channels cannot be cut into blocks of {block} x {block}")
    return like(x, (n, c // (block * block), h * block, w * block))


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
    return like(x, (n, c * block * block, h // block, w // block))


def _space_to_depth_compute(node: Node, x: Sequence[Array | None]) -> list[Array]:
    n, c, h, w = there(x[0]).shape
    b = int(node.attributes["blocksize"])
    cut = there(x[0]).reshape(n, c, h // b, b, w // b, b).transpose(0, 3, 5, 1, 2, 4)
    return one(cut.reshape(n, c * b * b, h // b, w // b))


def _image(x: Inputs) -> tuple[int, int, int, int]:
    shape = x.spec(0).shape
    if len(shape) != 4:
        raise UnsupportedForm(f"{x.node}: the input is {x.spec(0)}; it must have 4 axes: (N, C, H, W)")
    return shape[0], shape[1], shape[2], shape[3]


def window(node: Node, shape: Sequence[int]) -> Window:
    """Return the window of a MaxPool or AveragePool. If the node has ``auto_pad``, the padding is computed
    from it."""
    if len(shape) != 4:
        raise UnsupportedForm(f"{node}: the input has {len(shape)} axes; it must have 4: (N, C, H, W)")
    a = node.attributes
    kernel = tuple(int(k) for k in a["kernel_shape"])
    strides = tuple(int(s) for s in a.get("strides", (1,) * len(kernel)))
    dilations = tuple(int(d) for d in a.get("dilations", (1,) * len(kernel)))
    pads = padding(node, shape, kernel, strides, dilations)
    return Window.of(str(node), shape, kernel, strides, pads, dilations, bool(a.get("ceil_mode", 0)))


def padding(
    node: Node, shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[int, ...]:
    """Return the padding (top, left, bottom, right) from ``pads`` or ``auto_pad``."""
    auto, rank = node.attributes.get("auto_pad", "NOTSET"), len(kernel)
    if not len(strides) == len(dilations) == rank == len(shape) - 2 or min(*strides, *dilations, *kernel) < 1:
        raise ModelError(
            f"{node}: kernel {kernel}, strides {strides} and dilations {dilations} do not fit {shape}; each"
            " must have a number of at least 1 for every axis after the second"
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
        raise ModelError(f"{node}: pads are {pads}; a kernel of {rank} axes needs {2 * rank} numbers")
    return pads


def _max_pool(x: Inputs) -> list[Spec]:
    if len(x.node.outputs) > 1 and x.node.outputs[1]:
        raise UnsupportedForm(f"{x.node}: its second result (indices) is not supported")
    return like(x, window(x.node, _image(x)).y_shape)


def _given(arrays: Sequence[Array | None], index: int) -> Array | None:
    """Return an optional input; None if it is omitted or empty."""
    found = arrays[index] if index < len(arrays) else None
    return found if found is not None and found.size else None


def resize_of(node: Node, shape: Sequence[int], given: Sequence[Array | None]) -> Resize:
    """Return the parameters of a Resize. *given*: the arrays of the inputs x, roi, scales and sizes, in this
    order; None for x and for omitted inputs."""
    a = node.attributes
    scales, sizes = (_given(given, i) for i in (2, 3))
    if (scales is None) == (sizes is None):
        raise ModelError(f"{node}: it must have either scales or sizes")
    if len(shape) != 4:
        raise UnsupportedForm(f"{node}: the input has {len(shape)} axes; it must have 4: (N, C, H, W)")
    if a.get("antialias", 0) or a.get("keep_aspect_ratio_policy", "stretch") != "stretch":
        raise UnsupportedForm(f"{node}: antialias and keep_aspect_ratio_policy are not supported")
    for key, kind in (("mode", ResizeMode), ("coordinate_transformation_mode", Coordinates)):
        if key in a and a[key] not in get_args(kind):
            raise UnsupportedForm(
                f"{node}: {key} is {a[key]!r}; it must be one of {', '.join(get_args(kind))}"
            )
    axes = [int(v) % 4 for v in a.get("axes", range(4))]
    chosen = scales if scales is not None else sizes
    assert chosen is not None
    values = dict(zip(axes, chosen.reshape(-1).tolist(), strict=True))
    still = 1.0 if scales is not None else None
    for axis in (0, 1):
        if values.get(axis, still or shape[axis]) != (1.0 if scales is not None else shape[axis]):
            raise UnsupportedForm(f"{node}: it resizes axis {axis}; only height and width can change")
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
        bool(a.get("lines", False)),
    )


def _resize(x: Inputs) -> list[Spec]:
    return like(x, resize_of(x.node, x.spec(0).shape, [None, *(x.array(i) for i in (1, 2, 3))]).y_shape)


OPERATORS: dict[str, Operator] = {
    "DepthToSpace": Operator("movement", _depth_to_space, _depth_to_space_compute),
    "SpaceToDepth": Operator("movement", _space_to_depth, _space_to_depth_compute),
    "MaxPool": Operator("movement", _max_pool),
    "Resize": Operator("movement", _resize),  # `moves` returns False for the linear and cubic modes
}
