"""Rewrites DFT and STFT as products with a constant matrix of cosines and sines."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from ..operators.operator import axis_of
from .words import FLOATS, Words

Matrix = npt.NDArray[np.float64]

MOST_NUMBERS = 1 << 24  # maximum number of elements of a matrix (64 MB in float32)


def waves(given: int, length: int, parts: int, results: int, inverse: bool = False) -> Matrix:
    """Return the matrix (given * parts, results * 2) of a discrete Fourier transform of *length* points.

    Only the first *given* points are inputs, the others are 0. A point has *parts* values: 1 if it is real,
    2 for its real and imaginary part. The outputs are the real and imaginary parts of the first *results*
    frequencies. The inverse transform has the factor 1 / length."""
    turns = np.outer(np.arange(given), np.arange(results)) % length
    angle = turns * (2 * math.pi / length) * (1 if inverse else -1)
    cos, sin = np.cos(angle), np.sin(angle)
    made: Matrix = np.stack([np.stack([cos, sin], -1), np.stack([-sin, cos], -1)][:parts], 1)
    return made.reshape(given * parts, results * 2) / (length if inverse else 1)


def real_waves(given: int, length: int) -> Matrix:
    """Return the matrix (given * 2, length) that maps the first half of a spectrum to a real signal.
    Frequencies count twice, because the second half of the spectrum mirrors the first. Only the frequencies 0
    and length / 2 count once: they have no mirror image."""
    both = waves(given, length, 2, length, inverse=True)[:, ::2].reshape(given, 2, length)
    alone = np.isin(np.arange(given) * 2, (0, length))
    return (both * np.where(alone, 1, 2)[:, None, None]).reshape(given * 2, length)


def dft(w: Words) -> bool:
    """DFT: move the transformed axis directly before the axis of real and imaginary parts, and multiply by a
    matrix. With ``onesided``, the spectrum of a real signal is stored as its first half."""
    spec, rank = w.spec(0), len(w.spec(0).shape)
    axis = _axis(w, rank)
    if axis is None:
        return False
    parts, inverse = spec.shape[-1], bool(w.attributes.get("inverse", 0))
    # True if only the first half of the spectrum is stored, because the signal is real
    half = bool(w.attributes.get("onesided", 0))
    whole = 2 * (spec.shape[axis] - 1) if half and inverse else spec.shape[axis]
    asked = w.given(1) if w.node.input(1) else np.array(whole)
    if asked is None or 0 in spec.shape or (half and parts != 1 + inverse):
        return False
    length = int(asked.reshape(-1)[0])
    results = length // 2 + 1 if half and not inverse else length
    given = min(spec.shape[axis], length // 2 + 1 if half and inverse else length)
    if not _can(w, parts, length, given * parts * results * 2):
        return False
    perm = (*(i for i in range(rank) if i not in (axis, rank - 1)), axis, rank - 1)
    x = w.node.inputs[0]
    x = x if given == spec.shape[axis] else w.part(x, axis, 0, given)
    x = w.wide(w.emit("Transpose", [x], perm=perm))
    lines = math.prod(w.of(x).shape[:-2])
    back = half and inverse
    matrix = real_waves(given, length) if back else waves(given, length, parts, results, inverse)
    y = w.emit("MatMul", [w.reshape(x, (lines, given * parts)), w.constant(matrix, "float32")])
    y = w.reshape(y, (*(spec.shape[i] for i in perm[:-2]), results, 1 if back else 2))
    y = w.emit("Transpose", [y], perm=tuple(int(i) for i in np.argsort(perm)))
    w.cast(y, spec.dtype, w.node.outputs[0])
    return True


def stft(w: Words) -> bool:
    """STFT: gather the frames and multiply them by a matrix. A constant window is folded into the matrix."""
    spec, step, own = w.spec(0), w.given(1), w.node.input(2)
    window = w.given(2) if own else None
    asked = w.given(3) if w.node.input(3) else np.array(w.spec(2).shape[0] if own else 0)
    if step is None or asked is None or len(spec.shape) not in (2, 3) or 0 in spec.shape:
        return False
    batch, samples, parts = (*spec.shape, 1)[:3]  # real samples may lack the last axis
    length, stride = int(asked.reshape(-1)[0]), int(step.reshape(-1)[0])
    half = bool(w.attributes.get("onesided", 1))
    results = length // 2 + 1 if half else length
    if not _can(w, parts, length, length * parts * results * 2) or stride < 1 or samples < length:
        return False
    if (own and w.spec(2).shape != (length,)) or (half and parts == 2):
        return False
    firsts = np.arange(0, samples - length + 1, stride)
    places = w.constant(firsts[:, None] + np.arange(length), "int64")
    x = w.emit("Gather", [w.wide(w.node.inputs[0]), places], axis=1)
    if own and window is None:
        x = w.emit("Mul", [x, w.reshape(w.wide(own), (length, 1))])
    matrix = waves(length, length, parts, results)
    if window is not None:
        matrix *= np.repeat(window.astype(np.float64), parts)[:, None]
    frames = w.reshape(x, (batch * len(firsts), length * parts))
    y = w.emit("MatMul", [frames, w.constant(matrix, "float32")])
    w.cast(w.reshape(y, (batch, len(firsts), results, 2)), spec.dtype, w.node.outputs[0])
    return True


def _axis(w: Words, rank: int) -> Any:
    """Return the axis of a DFT; None if it is computed at run time. The axis is an attribute before opset
    20 (default 1), and an input from opset 20 on (default -2)."""
    if w.node.attributes["opset"] < 20:
        return axis_of(w.node, rank, int(w.attributes.get("axis", 1)), "")
    if not w.node.input(2):
        return rank - 2
    given = w.given(2)
    return None if given is None else axis_of(w.node, rank, int(given.reshape(-1)[0]), "")


def _can(w: Words, parts: int, length: int, numbers: int) -> bool:
    return w.spec(0).dtype in FLOATS and parts in (1, 2) and length > 0 and numbers <= MOST_NUMBERS
