"""Pack weights for products on float16 and bfloat16 matrix units: int8 weights, or float16 weights
(`by_eights`, `matrices_of`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..layout.pack import layout
from ..runtime.packing import pack
from .half_operands import RUN
from .weights import Int8, Int32

WEIGHT_LAYOUT, PAIRS_LAYOUT = "kPackedInt8_16K", "kPackedInt8_32K"
PAIRS = 32  # elements along k of a block; element k + 16 of a block follows element k
Halves = npt.NDArray[np.float16]
TILE = 16  # number of outputs of a stored matrix of floats, and number of its elements along k


def packed_halves(w: Int8) -> Int32:
    """Pack int8 weights (G, N, K) for kernels that load them into shared memory. Elements 1 and 2 of every
    group of 4 along K are swapped (shaders/common/coopmat_half.glslh)."""
    swapped = w.reshape(*w.shape[:2], -1, 4)[..., [0, 2, 1, 3]].reshape(w.shape)
    return pack(layout(WEIGHT_LAYOUT), np.ascontiguousarray(swapped))


def packed_pairs(w: Int8) -> Int32:
    """Pack int8 weights (G, N, K), plus 128, for direct loads into matrices. In every 32 elements along K,
    element k + 16 follows element k (shaders/common/straight_pairs.glslh)."""
    moved: Int32 = (_paired(w).view(np.uint32) ^ np.uint32(0x80808080)).view(np.int32)
    return moved


def packed_signs(w: Int8) -> Int32:
    """Pack weights minus zero points (-127 to 127) for direct loads into matrices. A byte has the magnitude
    of its weight in 7 bits. Its highest bit is the sign of the previous weight of the word (cyclically).
    See SIGNED in shaders/common/coopmat_half_types.glslh."""
    words = _paired(w).view(np.int8).reshape(-1, 4)
    signs = np.roll(words & np.int8(-128), 1, axis=1)
    signed: Int32 = (np.abs(words) | signs).reshape(-1).view(np.int32)
    return signed


def by_eights(w: Halves) -> Int32:
    """Pack float weights (G, N, K) for kernels that load them into shared memory: [run of 8 along
    K][output][element], with outputs padded to a multiple of 16."""
    w = np.pad(w, ((0, 0), (0, -w.shape[1] % TILE), (0, 0)))
    runs = w.reshape(*w.shape[:2], -1, RUN).swapaxes(1, 2)
    return np.ascontiguousarray(runs).view(np.int32).reshape(-1)


def matrices_of(w: Halves) -> Int32:
    """Pack float weights (G, N, K) for direct loads into matrices: blocks of 16 outputs x 16 elements along
    K, in which the elements of an output are contiguous."""
    w = np.pad(w, ((0, 0), (0, -w.shape[1] % TILE), (0, 0)))
    blocks = w.reshape(len(w), -1, TILE, w.shape[2] // TILE, TILE).swapaxes(2, 3)
    return np.ascontiguousarray(blocks).view(np.int32).reshape(-1)


def in_runs(w: Int8) -> Int8:
    """Reorder weights (G, N, K) along K, so that the matrices of `packed_pairs` or `packed_signs` match x.

    The kernel (shaders/gemm/gemv_q8csw_runs_coopmat.comp) reads x in runs of 8 elements (four words). Words
    0 and 1 of a run belong to one matrix, at positions 8 elements apart. Words 2 and 3 belong to the next
    matrix."""
    runs = w.reshape(*w.shape[:2], -1, PAIRS // RUN, 2, 2, 2)
    return np.ascontiguousarray(np.moveaxis(runs, 3, 5).reshape(w.shape))


def _paired(w: Int8) -> Int32:
    paired = w.reshape(*w.shape[:2], -1, 2, PAIRS // 2).swapaxes(-1, -2).reshape(w.shape)
    words: Int32 = pack(layout(PAIRS_LAYOUT), np.ascontiguousarray(paired))
    return words


def less_zeros(w: Int8, zero_point: Int32) -> Int8:
    """Return weights (channels, ...) minus their zero points, for `packed_signs`."""
    return w - zero_point.astype(np.int8).reshape(*zero_point.shape, *(1,) * (w.ndim - zero_point.ndim))
