"""Copies of rectangular regions of 8-bit tensors in a plan: transposition, slices, padding and
concatenation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..errors import ArgumentError
from ..layout.extent import BLOCKED, IMAGE, PIXELS, Spec, layout_number
from ..layout.pack import layout
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant

BLOCK = {IMAGE: 4, BLOCKED: 16}  # channels of a vector, by layout


@dataclasses.dataclass(frozen=True)
class Moved:
    """One axis of the result of a copy."""

    length: int  # number of elements along the axis
    before: int  # number of elements before the copied elements
    size: int  # number of copied elements
    stride: int  # distance between them in the input, in elements

    def joined(self, inner: Moved) -> Moved | None:
        """Return one axis for this axis and the next axis, *inner*, or None if their elements are not
        contiguous."""
        if inner.before or inner.size != inner.length or self.stride != inner.stride * inner.size:
            return None
        return Moved(
            self.length * inner.length, self.before * inner.length, self.size * inner.length, inner.stride
        )


def move(
    b: Builder,
    x: Value,
    y: Value,
    axes: Sequence[Moved],
    fill: int,
    along: int | None = None,
    order: Sequence[int] | None = None,
) -> None:
    """Add a copy of x into y to a plan.

    - *axes*: a `Moved` for each axis of y. Elements of y that are not copied from x get *fill*.
    - *along*: write only the range of this axis that x covers; None: write all of y.
    - *order*: the order of axes of a transposition; None: no transposition."""
    if order is None and _whole_pixels(x.spec, y.spec, axes, along):
        return _move_pixels(b, x, y, axes, fill, along is not None)
    if order is not None and len(order) == 4 and order[1] != 1 and y.spec.layout in PIXELS:
        return _transpose_pixels(b, x, y, order)
    lane = len(axes) - 1 if y.spec.folded else layout(y.spec.layout).lane.dim
    whole_words = not axes or (axes[lane].before % 4 == 0 and (order is None or order[lane] == lane))
    _move(b, x, y, axes, fill, along, whole_words)


def pixels_as_rows(
    image: Sequence[int], shape: Sequence[int], order: Sequence[int], to: Sequence[int]
) -> bool:  # fmt: skip
    """Return True if `permuted` converts an image (N, C, H, W) to rows of channels (N, H * W, C), which
    have the same bytes in kPackedInt8_16C."""
    if len(image) != 4:
        return False
    n, c, h, w = image
    return (tuple(shape), tuple(order), tuple(to)) == ((n, c, h * w), (0, 2, 1), (n, h * w, c))


def permuted(
    b: Builder, x: Value, shape: Sequence[int], order: Sequence[int], to: Sequence[int], name: str | None
) -> Value:
    """Reshape x to *shape*, transpose it to this *order* of axes, and reshape the result to *to*. *name*:
    the layout of the result; None: the default layout."""
    s = x.spec
    y = b.new(Spec(to, s.dtype, name, s.qparams))
    if s.size:
        steps, last = strides(shape), (s.shape[-1:], to[-1:], shape[-1:])
        axes = [Moved(shape[a], 0, shape[a], steps[a]) for a in order]
        rows = s.folded and y.spec.folded and all(n and n[0] % 4 == 0 for n in last)
        _move(b, x, y, axes, 0, None, rows and order[-1] == len(order) - 1, True)
    return y


def _move(
    b: Builder, x: Value, y: Value, axes: Sequence[Moved], fill: int, along: int | None, whole_words: bool,
    cut: bool = False,
) -> None:  # fmt: skip
    """Do the work of `move`, by whole words (*whole_words*) or single elements. *cut*: *axes* are the axes
    of another shape, whose elements have the same row-major order as those of y."""
    packed, folded = layout(y.spec.layout), y.spec.folded or cut
    box_axis, box_first, box_size = (0, 0, 0) if along is None else _box(y.spec, axes, along)
    box = list(y.spec.extent)
    if box_axis:
        box[box_axis] = box_size
    push: dict[str, int | float] = {
        "words": packed.words(box), "fill": fill, "box_axis": box_axis, "box_first": box_first,
        "box_size": box_size,
    }  # fmt: skip
    logical = _four_axes(axes, folded)
    for name, values in {
        "y": y.spec.extent,
        "x": x.spec.extent,
        "dims": [a.length for a in logical],
        "before": [a.before for a in logical],
        "size": [a.size for a in logical],
        "stride": [a.stride for a in logical],
    }.items():
        push |= {f"{name}_{d}": value for d, value in zip("nchw", values, strict=True)}
    constants: dict[str, Constant] = {
        "LAYOUT": layout_number(y.spec.layout), "X_LAYOUT": layout_number(x.spec.layout),
        "FOLDED": folded, "WORDS": whole_words,
        "KEEP": along is not None, "LANE_AXIS": packed.lane.dim,
    }  # fmt: skip
    b.dispatch(b.device.program(catalog().find("move_q8__word"), constants), [x, y], push)


def _whole_pixels(x: Spec, y: Spec, axes: Sequence[Moved], along: int | None) -> bool:
    """Return True if the copy moves whole pixels and whole blocks of channels."""
    if y.layout not in PIXELS or x.layout != y.layout or len(axes) != 4:
        return False
    block, channels = BLOCK[y.layout], axes[1]
    own = zip(axes, x.shape, strides(x.shape), strict=True)
    whole = [a.stride == step and a.size == size for a, size, step in own]
    # The last vector of x may have lanes after x's last channel, which are copied, too. In y, these lanes
    # must be padding, or belong to the next input, which is written later.
    last = along == 1 or channels.size % block == 0 or channels.before + channels.size >= channels.length
    together = y.layout == BLOCKED or along != 3  # False: a vector may hold pixels of two inputs
    return all(whole) and channels.before % block == 0 and last and together


def _move_pixels(b: Builder, x: Value, y: Value, axes: Sequence[Moved], fill: int, keep: bool) -> None:
    before = [a.before for a in axes]
    push: dict[str, int | float] = {
        "vectors": (x if keep else y).spec.nbytes // 16, "fill": fill, "before_n": before[0],
        "before_block": before[1] // BLOCK[y.spec.layout], "before_h": before[2], "before_w": before[3],
    }  # fmt: skip
    for name, spec in (("y", y.spec), ("x", x.spec)):
        push |= {f"{name}_{d}": size for d, size in zip("nchw", spec.shape, strict=True)}
    variant = catalog().find("move_q8__pixels", layout=PIXELS[y.spec.layout])
    b.dispatch(b.device.program(variant, {"KEEP": keep}), [x, y], push)


def _transpose_pixels(b: Builder, x: Value, y: Value, order: Sequence[int]) -> None:
    n, c, h, w = sizes = x.spec.shape
    blocked = y.spec.layout == BLOCKED
    runs = [n, -(-c // 16), h, w]
    runs[order[1]] = -(-sizes[order[1]] // (16 if blocked else 4))
    if not blocked and order[1] != 3:
        runs[3] = -(-runs[3] // 4)
    threads = math.prod(runs) * (4 if blocked or order[1] != 3 else 1)
    constants: dict[str, Constant] = {f"ORDER_{i}": axis for i, axis in enumerate(order)}
    variant = catalog().find("transpose_q8__pixels", layout=PIXELS[y.spec.layout])
    push: dict[str, int | float] = {"threads": threads, "n": n, "c": c, "h": h, "w": w}
    b.dispatch(b.device.program(variant, constants), [x, y], push)


def _box(y: Spec, axes: Sequence[Moved], along: int) -> tuple[int, int, int]:
    """Return (axis, first index, size) of the part of y that an input covers along an axis; (0, 0, 0) for
    all of y. The first index is rounded down to a whole block."""
    if y.folded:
        inner = math.prod(y.shape[along + 1 : -1])
        if along == len(y.shape) - 1:
            axis, begin, size = 3, axes[along].before, axes[along].size
        elif math.prod(y.shape[:along]) == 1:
            axis, begin, size = 2, axes[along].before * inner, axes[along].size * inner
        else:
            return (0, 0, 0)
    else:
        axis, begin, size = along, axes[along].before, axes[along].size
    first = begin // 4 * 4
    return (axis, first, begin + size - first) if axis else (0, 0, 0)


def _four_axes(axes: Sequence[Moved], folded: bool) -> list[Moved]:
    """Return four axes for the same copy. Merge axes where possible if the layout is folded."""
    joined: list[Moved] = []
    for axis in axes:
        one = joined[-1].joined(axis) if folded and joined else None
        joined[-1:] = [one] if one else [*joined[-1:], axis]
    if len(joined) > 4:
        joined = [axis for axis in joined if axis.length > 1]
    if len(joined) > 4:
        raise ArgumentError(
            f"{len(joined)} axes move independently; at most 4 can: reshape, and move them in steps"
        )
    return [Moved(1, 0, 1, 0)] * (4 - len(joined)) + joined


def strides(shape: Sequence[int]) -> list[int]:
    """Return the row-major strides of a shape, in elements."""
    return [math.prod(shape[i + 1 :]) for i in range(len(shape))]
