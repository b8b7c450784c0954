"""Tests, in NumPy only, that strided and dilated correlations equal plain correlations on rearranged
images."""

import numpy as np
import pytest

from vkq.integer.phases import Axis, pack_taps

CASES = [  # (size, taps, stride, dilation, padding before, padding after)
    (9, 3, 1, 1, 0, 0),
    (9, 3, 1, 1, 2, 1),
    (10, 4, 2, 1, 1, 1),  # two phases (sub-images that are summed)
    (11, 3, 1, 3, 0, 2),  # three residues (independent sub-images of the outputs)
    (23, 5, 3, 2, 4, 0),  # stride and dilation without a common divisor
    (23, 4, 4, 2, 1, 3),  # stride and dilation with a common divisor: some positions are never read
    (23, 3, 6, 4, 5, 5),
    (7, 2, 5, 1, 0, 0),  # the stride is larger than the number of taps
    (1, 1, 1, 1, 6, 6),  # some outputs see only padding
    (2, 6, 2, 2, 9, 9),  # a window larger than the image
    (8, 2, 1, 7, 0, 0),  # fewer outputs than residues
]


def axis_of(size: int, taps: int, stride: int, dilation: int, before: int, after: int) -> Axis:
    return Axis(
        size,
        taps,
        (size + before + after - dilation * (taps - 1) - 1) // stride + 1,
        stride,
        dilation,
        before,
    )


def direct(x: np.ndarray, w: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    y = np.zeros((rows.out, columns.out), np.int64)
    for o, p, a, b in np.ndindex(rows.out, columns.out, rows.taps, columns.taps):
        i = o * rows.stride + a * rows.dilation - rows.pad
        j = p * columns.stride + b * columns.dilation - columns.pad
        if 0 <= i < rows.size and 0 <= j < columns.size:
            y[o, p] += x[i, j] * w[a, b]
    return y


def rearranged(x: np.ndarray, w: np.ndarray, rows: Axis, columns: Axis) -> np.ndarray:
    """Return the correlation, computed as the sum of plain correlations on sub-images."""
    taps = pack_taps(w[None, None], rows, columns)[0, 0]
    y = np.zeros((rows.out, columns.out), np.int64)
    for rh, rw, oy, ox in np.ndindex(rows.residues, columns.residues, rows.plain_out, columns.plain_out):
        at = rh + rows.residues * oy, rw + columns.residues * ox
        if at[0] >= rows.out or at[1] >= columns.out:
            continue  # with this residue, there is no output at this position
        for ph, pw, ky, kx in np.ndindex(taps.shape):
            i = rows.start(rh, ph) + (oy + ky) * rows.step
            j = columns.start(rw, pw) + (ox + kx) * columns.step
            if 0 <= i < rows.size and 0 <= j < columns.size:
                y[at] += x[i, j] * taps[ph, pw, ky, kx]
    return y


@pytest.mark.parametrize("case", CASES)
def test_rearranged(case: tuple[int, ...]) -> None:
    rows, columns = axis_of(*case), axis_of(*CASES[(CASES.index(case) + 4) % len(CASES)])
    rng = np.random.default_rng(sum(case))
    x, w = rng.integers(-9, 10, (rows.size, columns.size)), rng.integers(-9, 10, (rows.taps, columns.taps))
    np.testing.assert_array_equal(rearranged(x, w, rows, columns), direct(x, w, rows, columns))


@pytest.mark.parametrize("case", CASES)
def test_stored_range_is_tight(case: tuple[int, ...]) -> None:
    axis = axis_of(*case)
    holds = set()
    for r, b in np.ndindex(axis.residues, axis.phases):
        for q in range(axis.plain_out + axis.plain_taps - 1):
            if 0 <= axis.start(r, b) + q * axis.step < axis.size:
                holds.add(q)
    assert axis.stored() == ((min(holds), max(holds) + 1) if holds else (0, 0))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("lines", [1, 2, 5])
def test_parts(case: tuple[int, ...], lines: int) -> None:
    """Bands of outputs, each computed from its part of the image, together give the whole result."""
    rows, columns = axis_of(*case), axis_of(*CASES[1])
    rng = np.random.default_rng(sum(case) + lines)
    x, w = rng.integers(-9, 10, (rows.size, columns.size)), rng.integers(-9, 10, (rows.taps, columns.taps))
    bands = []
    for top in range(0, rows.out, lines):
        part, axis = rows.part(top, min(top + lines, rows.out))
        bands.append(rearranged(x[part], w, axis, columns))
        np.testing.assert_array_equal(bands[-1], rearranged(x, w, rows.band(top, top + axis.out), columns))
    np.testing.assert_array_equal(np.concatenate(bands), direct(x, w, rows, columns))
