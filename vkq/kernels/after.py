"""Epilogues of kernels with 8-bit results (common/after.glslh). An epilogue does one or more of these
steps:

- it replaces each result by an entry of a lookup table (one table, or one for each channel);
- it adds a residual, with or without a table lookup before the addition;
- it dequantizes the results to float32;
- it uses different quantization parameters for different ranges of channels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from ..numerics.qparams import QParams
from ..runtime.plan import Memory, Resident
from ..shader.spec import Value as Constant

Words = npt.NDArray[np.int32]
# Flags of the steps; their sum is the shader's constant AFTER.
# - TABLE: one lookup table
# - ADD: a residual
# - TABLES: a lookup table for each channel
# - DEQUANTIZED: float32 results
# - PARTS: quantization parameters for each range of channels, without tables
TABLE, ADD, TABLES, DEQUANTIZED, PARTS = 1, 2, 4, 8, 16
HEAD = 16  # bytes of the header before the channel parameters, with TABLES


@dataclasses.dataclass(frozen=True)
class After:
    """An epilogue.

    ``parts``: (number of channels, a multiple of 16; quantization parameters of the results before the
    lookup) of each range of channels. It is empty if all channels have the same parameters."""

    kind: int  # the sum of the flags of its steps (TABLE, ADD, ...)
    y: QParams | None  # the quantization parameters of the results; None: those of the kernel
    bytes: int  # the size of the data that words returns
    words: Callable[[], Words]  # returns the int32 data before the channel parameters
    channels: int = 0  # the number of lookup tables, one for each channel; 0 without TABLES
    tables: Callable[[], Words] = lambda: _none()  # returns the tables behind the channel parameters
    parts: tuple[tuple[int, QParams], ...] = ()

    @property
    def in_place(self) -> bool:
        """True if the epilogue reads the residual from the buffer to which the kernel writes its results."""
        return bool(self.kind & ADD)

    @property
    def constants(self) -> Mapping[str, Constant]:
        """The specialization constants that the epilogue adds to a kernel's program."""
        return {"AFTER": self.kind} if self.kind else {}

    def before(self, device: Memory, size: int, channels: Callable[[], Words]) -> Resident:
        """Return one buffer with this epilogue's data and a kernel's channel parameters. *channels* returns
        the channel parameters, *size* their bytes."""
        if not self.kind:
            return Resident(device, size, channels)
        first = self.bytes + (HEAD if self.channels else 0)
        head = np.array([(first + size) // 16, self.channels - 1, 0, 0][: 4 * bool(self.channels)], np.int32)

        def words() -> Words:
            return np.concatenate([self.words(), head, channels().reshape(-1), self.tables()])

        return Resident(device, first + size + 256 * self.channels, words)

    def then(self, last: After) -> After:
        """Return one epilogue: this epilogue (a lookup), then *last* (the addition of a residual)."""

        def words() -> Words:
            return np.concatenate([self.words(), last.words()])

        kind, size = self.kind | last.kind, self.bytes + last.bytes
        return dataclasses.replace(self, kind=kind, y=last.y, bytes=size, words=words)


def _none() -> Words:
    return np.zeros(0, np.int32)


NOTHING = After(0, None, 0, _none)
# the kernel stores float32 results (common/gemm_output.glslh)
AS_NUMBERS = After(DEQUANTIZED, None, 0, _none)


def through_table(entries: npt.NDArray[np.int8], y: QParams) -> After:
    """Return the epilogue that replaces each stored result q by ``entries[q + 128]``, or by
    ``entries[channel, q + 128]`` if each channel has a table."""
    if entries.ndim == 1:
        return After(TABLE, y, entries.size, lambda: _flat(entries))
    return After(TABLES, y, 0, _none, len(entries), lambda: _flat(entries))


def in_parts(parts: Sequence[tuple[int, QParams, After]]) -> After:
    """Return one epilogue for consecutive ranges of channels. *parts*: (number of channels, quantization
    parameters of the results, epilogue) of each range. The epilogue is `NOTHING` or a result of
    `through_table`. If any range has a table, every channel gets a table, possibly the identity."""
    own = tuple((channels, y) for channels, y, _ in parts)
    if not any(after.kind for *_, after in parts):
        return After(PARTS, None, 0, _none, parts=own)

    def tables() -> Words:
        same, found = np.arange(-128, 128, dtype=np.int8), []
        for channels, _, after in parts:
            entries = after.tables() if after.channels else after.words() if after.kind else same
            found.append(np.broadcast_to(entries.view(np.int8).reshape(-1, 256), (channels, 256)))
        return _flat(np.concatenate(found))

    return After(TABLES, None, 0, _none, sum(channels for channels, _ in own), tables, own)


def with_sum(
    formula: Callable[[], tuple[float, ...]], bounds: tuple[int, int], y: QParams,
    table: Callable[[], npt.NDArray[np.int8]],
) -> After:  # fmt: skip
    """Return the epilogue that adds a residual. It replaces each result q by ``q * ra + other * rb +
    offset``, rounded and clamped to *bounds*, where ``other`` is the byte that the destination of q already
    holds.

    - *formula* returns ra, rb, offset and two limits: one for devices with any rounding, one for devices
      that round to nearest even.
    - If the sum is farther from the nearest integer than the limit, the result is the entry
      [other + 128][q + 128] of *table* instead.

    *formula* and *table* are called when the data are packed."""

    def words() -> Words:
        numbers = np.array(formula(), np.float32).view(np.int32)
        bounded = np.array([*bounds, numbers[4], 0], np.int32)
        return np.concatenate([numbers[:4], bounded, _flat(table())])

    return After(ADD, y, 32 + (1 << 16), words)


def _flat(table: npt.NDArray[np.int8]) -> Words:
    return np.ascontiguousarray(table).reshape(-1).view(np.int32)
