"""Change the layout or shape of a value, with a dispatch if bytes move."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ..layout.extent import BLOCKED, CONTIGUOUS, PIXELS, Spec, layout_number
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog


def reshaped(b: Builder, x: Value, shape: Sequence[int], layout: str | None = None) -> Value:
    """Reshape x to *shape*, which has the same number of elements. Elements keep their row-major order."""
    s = x.spec
    if s.layout == CONTIGUOUS:
        return b.view(x, Spec(shape, s.dtype, CONTIGUOUS, s.qparams))
    to = Spec(shape, s.dtype, layout, s.qparams)
    if to.layout == s.layout and to.extent == s.extent:
        return b.view(x, to)
    y = b.new(to)
    repack_into(b, x, y)
    return y


def repack_into(b: Builder, x: Value, y: Value) -> None:
    """Add a dispatch that writes the elements of x, in row-major order, into y in y's layout."""
    s, to = x.spec, y.spec
    if not s.size:
        return
    if {s.layout, to.layout} == PIXELS.keys() and s.extent == to.extent:
        program = b.device.program(catalog().find("repack_q8__pixels", to=PIXELS[to.layout]))
        sizes: dict[str, int | float] = dict(zip("nchw", to.extent, strict=True))
        b.dispatch(program, [x, y], {"vectors": to.nbytes // 16, **sizes})
        return
    constants = {"X_LAYOUT": layout_number(s.layout), "Y_LAYOUT": layout_number(to.layout)}
    program = b.device.program(catalog().find("repack_q8__word"), constants)
    push: dict[str, int | float] = {"words": to.nbytes // 4}
    push |= {f"x_{d}": v for d, v in zip("nchw", s.extent, strict=True)}
    push |= {f"y_{d}": v for d, v in zip("nchw", to.extent, strict=True)}
    b.dispatch(program, [x, y], push)


def repacked(b: Builder, x: Value, layout: str) -> Value:
    """Return x in another packed layout, or x itself if it has this layout. A plan repacks each x once."""
    if x.spec.layout == layout:
        return x
    return b.once(x, layout, lambda: reshaped(b, x, x.spec.shape, layout))


def rows_as_image(b: Builder, x: Value, axis: int) -> Value:
    """Return a view of rows in kPackedInt8_16C as an image with the same bytes. The axes before *axis*
    become the images, the axes from *axis* on the height, and the last axis the channels."""
    s = x.spec
    image = math.prod(s.shape[:axis]), s.shape[-1], math.prod(s.shape[axis:-1]), 1
    return b.view(x, Spec(image, s.dtype, BLOCKED, s.qparams))
