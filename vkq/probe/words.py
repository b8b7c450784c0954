"""Find the words of a matrix of float16 weights that each invocation of a subgroup holds. If weights are
stored in this order, each invocation can load its words directly."""

from __future__ import annotations

import weakref

import numpy as np
import numpy.typing as npt

from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog
from .matrices import Matrices

Words = npt.NDArray[np.int32]
ROWS, COLUMNS = 16, 16  # elements of the matrix; two elements are one word
WORDS = ROWS * COLUMNS // 2
# enough for all invocations of a subgroup (at most 64), even if each holds the whole matrix
_MOST = 64 * ROWS * COLUMNS

_found: weakref.WeakKeyDictionary[Device, dict[Matrices, Words]] = weakref.WeakKeyDictionary()


def order(device: Device, matrices: Matrices) -> Words:
    """Return the indices of the words that each invocation holds, (invocation, word). A matrix has 128
    words, 8 in each row. The device is asked once for each shape. Its invocations must hold elements in
    pairs (`pairs_refusal`)."""
    known = _found.setdefault(device, {})
    if matrices not in known:
        known[matrices] = _asked(device, matrices)
    return known[matrices]


def _asked(device: Device, matrices: Matrices) -> Words:
    assert (matrices.m, matrices.k) == (ROWS, COLUMNS)
    program = device.program(
        catalog().find("selftest__matrix_words"), matrices.shape_constants, matrices.subgroup
    )
    with device.immediate():  # runs even while a recording is open
        places = Tensor.from_numpy(np.arange(ROWS * COLUMNS, dtype="<u2").view(np.int32), device)
        out = Tensor.from_numpy(np.full(_MOST, -1, np.int32), device)
        with device.operation() as recording:
            recording.dispatch(program, [places.buffer, out.buffer], {"count": _MOST})
        words = out.numpy()
    first = words[: np.count_nonzero(words >= 0)] & 0xFFFF
    return np.ascontiguousarray(first.reshape(matrices.subgroup, -1) // 2)


def in_order(blocks: Words, found: Words) -> Words:
    """Reorder the words of matrices (128 each) by invocation: all words of the first, then all words of the
    next."""
    return np.ascontiguousarray(blocks.reshape(-1, WORDS)[:, found.reshape(-1)])
