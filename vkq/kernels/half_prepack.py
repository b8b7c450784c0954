"""Weights of products on float16 matrix units, prepacked so that an invocation reads its words in order."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..probe import words
from ..probe.matrices import Matrices
from ..runtime.device import Device
from ..runtime.plan import Resident
from .half_configs import WORDS_OUTPUTS
from .half_weights import PAIRS, in_runs
from .weights import Int8, Int32


class Prepacked:
    """The weights of *n* outputs and *k* elements along K, both with padding. *padded*: a function that
    returns the weights. *pairs*: a function that packs weights as matrices. Each order of the weights is
    packed once and cached."""

    def __init__(
        self, device: Device, n: int, k: int, padded: Callable[[], Int8], pairs: Callable[[Int8], Int32]
    ):
        self.device, self.n, self.k, self.padded, self.pairs = device, n, k, padded, pairs
        self._known = dict[tuple[str, bytes], Resident]()

    def words(self, matrices: Matrices) -> Resident:
        """Return the weights in the order of `half_configs.WORDS` (shaders/common/straight_words.glslh):
        for each block of k, the matrices of WORDS_OUTPUTS outputs are contiguous. Words 1 and 2 of every
        group of 4 are swapped."""
        found, beside = words.order(self.device, matrices), WORDS_OUTPUTS // matrices.m
        found = found.reshape(-1, 4)[:, [0, 2, 1, 3]].reshape(found.shape)
        high = -(-self.n // WORDS_OUTPUTS) * beside

        def packed() -> Int32:
            blocks = words.in_order(self.pairs(self.padded()), found)
            blocks = blocks.reshape(-1, self.k // PAIRS, found.size)
            blocks = np.pad(blocks, ((0, high - len(blocks)), (0, 0), (0, 0)))
            groups = blocks.reshape(-1, beside, *blocks.shape[1:]).swapaxes(1, 2)
            return np.ascontiguousarray(groups).reshape(-1)

        return self._resident(("words", found.tobytes()), high * (self.k // PAIRS) * found.size, packed)

    def runs(self, matrices: Matrices) -> Resident:
        """Return the weights in the order of `in_runs`, matrix after matrix
        (shaders/gemm/gemv_q8csw_runs_coopmat.comp)."""
        found = words.order(self.device, matrices)
        size = -(-self.n // matrices.m) * (self.k // PAIRS) * found.size

        def packed() -> Int32:
            return words.in_order(self.pairs(in_runs(self.padded())), found)

        return self._resident(("runs", found.tobytes()), size, packed)

    def _resident(self, key: tuple[str, bytes], size: int, packed: Callable[[], Int32]) -> Resident:
        if key not in self._known:
            self._known[key] = Resident(self.device, 4 * size, packed)
        return self._known[key]
