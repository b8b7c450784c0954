"""Find the workgroups that computed the wrong elements of a product. A driver's fault often affects a single
workgroup, and the number of this workgroup indicates the cause."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from ..runtime.buffer import Buffer
from ..runtime.plan import Step
from ..runtime.recording import Recording
from ..shader.expression import Expression, ceil_div

FEW = 5  # maximum number of workgroups that are listed
_BLOCKS = ("4 * TILE_M4 * LOCAL_Y", "4 * TILE_N4 * LOCAL_X")
_MATRICES = ("BM", "BN")
# For each shader, the numbers of rows and columns that one workgroup computes, as expressions of the shader's
# constants. Consecutive workgroups compute neighbouring columns.
TILES = {
    "gemm_q8ta_q8csw__tiled": _BLOCKS,
    "gemm_q8ta_q8csw__texels": _BLOCKS,
    "gemm_dq8ca_q8csw__tiled": _BLOCKS,
    "gemm_dq8ca_q8csw__texels": _BLOCKS,
    "gemm_q8ta_q8csw__staged": ("4 * TILE_M4 * LY", "4 * TILE_N4 * LX"),
    "gemv_q8ta_q8csw__split": ("4", "4 * LOCAL_X"),
    "gemv_q8ta_q8csw__texels": ("4", "4 * LOCAL_X"),
    "gemm_q8csw__tiled": ("TILE_M * LOCAL_Y", "4 * TILE_N4 * LOCAL_X"),
    "gemm_q8csw__lanes": ("ROWS", "4 * LANES"),
    "gemm_q8ta_q8csw__coopmat": _MATRICES,
    "gemm_q8ta_q8csw__wide_coopmat": _MATRICES,
}


def named(recording: Recording, y: Buffer, wrong: npt.NDArray[np.bool_]) -> str:
    """Return a text that names the workgroups that wrote the wrong elements of the result in *y*, such as
    ``workgroup 5 of 6, from 0 (64x64 results each)``. Return "" if the dispatch has only one workgroup, or
    the workgroup of an element is not known."""
    steps = [s for one in recording.steps for s in one.steps if any(one.slots[n] is y for n in s.writes)]
    tile = _tile(steps[-1]) if steps else None
    # If an image's width is not a multiple of 4, its rows are padded in memory, and the index of an element
    # does not tell its workgroup.
    if tile is None or (wrong.ndim == 4 and wrong.shape[3] % 4):
        return ""
    (rows, columns), total = tile, sum(x * y for _, x, y in steps[-1].grids)
    last = np.moveaxis(wrong, 1, -1) if wrong.ndim == 4 else wrong
    at_row, at_column = np.nonzero(last.reshape(-1, last.shape[-1]))
    across = ceil_div(last.shape[-1], columns)
    if total < 2 or total != across * ceil_div(wrong.size // last.shape[-1], rows):
        return ""
    numbers = np.unique(at_row // rows * across + at_column // columns).tolist()
    listed = ", ".join(map(str, numbers[:FEW])) + (", ..." if len(numbers) > FEW else "")
    listed = f"all {total}" if len(numbers) == total else f"{listed} of {total}, from 0"
    return f"workgroup{'s' if len(numbers) > 1 else ''} {listed} ({rows}x{columns} results each)"


def _tile(step: Step) -> tuple[int, int] | None:
    """Return the numbers of rows and columns that one workgroup computes; None if they are not known."""
    program = step.program
    if program is None or program.variant.shader not in TILES:
        return None
    for one in program.variant.push_constants:
        if one.name == "groups" and step.push[one.offset : one.offset + 4] != b"\1\0\0\0":
            return None  # with several groups, neighbouring workgroups may belong to different products
    values = program.variant.integers(program.constants)
    rows, columns = (_parsed(text).evaluate(values) for text in TILES[program.variant.shader])
    return rows, columns


@functools.cache
def _parsed(text: str) -> Expression:
    return Expression(text)
