"""Select rows of an array by ids on the device: one dispatch that copies words or vectors."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from ..layout.extent import CONTIGUOUS, MATRIX, NUMBERS, Spec
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from .weights import ceil4


@dataclasses.dataclass(frozen=True)
class _Form:
    """A variant of gather_rows.comp and its sizes."""

    variant: str
    width: int  # length of a row, in the words or vectors that the variant copies
    inner: int = 1  # number of rows that an id selects


def _form(x: Spec, y: Spec, axis: int) -> _Form | None:
    """Return (the variant that copies the rows, its sizes). Return None if no variant supports the layouts,
    a row is not a whole number of words or vectors, or *axis* is the last axis of a matrix in
    kPackedInt8_4H4W."""
    if x.layout == y.layout == MATRIX:
        last = len(x.shape) - 1
        return _Form("bytes", ceil4(x.shape[-1]), math.prod(x.shape[axis + 1 : -1])) if axis < last else None
    if x.layout != CONTIGUOUS:
        return None
    size = math.prod(x.shape[axis + 1 :]) * NUMBERS[x.dtype].itemsize  # bytes that an id selects
    if size % 16 == 0:
        return _Form("vectors", size // 16)
    return _Form("words", size // 4) if size % 4 == 0 else None


def gathered_rows(b: Builder, x: Value, ids: Value, axis: int, shape: Sequence[int]) -> Value | None:
    """Add ``np.take(x, ids, axis)``, whose result has *shape*, to a plan (`vkq.ops.take.gathered`). Return
    None if no variant of the shader can copy the rows (`_form`)."""
    y = Spec(shape, x.spec.dtype, None, x.spec.qparams)
    form = _form(x.spec, y, axis)
    if form is None:
        return None
    outer, count, length = math.prod(x.spec.shape[:axis]), ids.spec.size, x.spec.shape[axis]
    rows = outer * count * form.inner
    push: dict[str, int | float] = {
        "elements": form.width * (ceil4(rows) if form.variant == "bytes" else rows), "width": form.width,
        "rows": rows, "inner": form.inner, "ids": count, "axis": length,
    }  # fmt: skip
    variant = catalog().find("gather_rows__element", of=form.variant)
    program = b.device.program(variant, {"ALONE": outer == form.inner == 1})
    made = b.new(y)
    b.dispatch(program, [x, ids, made], push)
    return made
