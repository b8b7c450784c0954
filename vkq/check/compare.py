"""Runs checks on a device and compares every byte with the reference; what differs becomes a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DeviceLostError, VkqError
from ..ops.conv2d import Conv2d
from ..ops.linear import Linear
from ..problem.linear import LinearProblem
from ..problem.names import Problem
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..select.path import COOPMAT, FORMS, refusal
from .catalogue import Check
from .data import Data

Array = npt.NDArray[Any]
TILE = 4  # rows and columns of one character of the map, where it need not shrink
MAP_ROWS, MAP_COLUMNS = 32, 64
FIRST = 5  # differing elements that are listed


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A check that failed on a path: ``wrong`` of ``total`` elements, or an ``error``."""

    case: str
    path: str
    wrong: int
    total: int
    first: tuple[str, ...] = ()
    map: str = ""
    error: str = ""

    def __str__(self) -> str:
        if self.error:
            return f"MISMATCH {self.case} path={self.path}: {self.error}"
        listed = "\n".join(f"  {line}" for line in (*self.first, *self.map.splitlines()))
        return (
            f"MISMATCH {self.case} path={self.path}: {self.wrong} of {self.total} elements differ\n{listed}"
        )


def usable_paths(device: Device, asked: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """(paths that the device can take, the others with the reason); *asked* narrows them, "auto" and "dot" as
    they are."""
    wanted = list(asked) or [*FORMS, COOPMAT]
    refused = {path: refusal(device, path) for path in wanted if path in FORMS or path == COOPMAT}
    return [p for p in wanted if refused.get(p) is None], {p: why for p, why in refused.items() if why}


def run_check(device: Device, check: Check, paths: Iterable[str]) -> list[Mismatch]:
    """One check on several paths: all are asked for first and read afterwards, so that they are one
    submission."""
    data = check.data()
    given = check.input(data)
    want = check.expected(data, given)
    found: list[Mismatch] = []
    results: list[tuple[str, Tensor]] = []
    x = Tensor.from_numpy(given, device)
    for path in paths:
        try:
            results.append((path, layer(device, check, data, path)(x)))
        except DeviceLostError:
            raise
        except VkqError as error:
            found.append(
                Mismatch(check.name, path, want.size, want.size, error=f"{type(error).__name__}: {error}")
            )
    for path, y in results:
        wrong = compare(check, path, y.numpy(), want)
        if wrong:
            found.append(wrong)
    return found


def layer(device: Device, check: Check, data: Data, path: str) -> Linear | Conv2d:
    """The layer of a check."""
    options: dict[str, Any] = {
        "x_qparams": data.x_q, "y_qparams": data.y_q if check.out == "q8to" else None, "bias": data.bias,
        "w_zero_point": data.w_zero_point, "activation": check.activation, "path": path, "device": device,
    }  # fmt: skip
    if isinstance(check.problem, LinearProblem):
        return Linear(data.w, data.w_scale, **options)
    return Conv2d(data.w, data.w_scale, method=check.method, **data.options, **options)


def compare(check: Check, path: str, got: Array, want: Array) -> Mismatch | None:
    """None where every bit is the same."""
    if got.shape != want.shape or got.dtype != want.dtype:
        said = f"the result is {got.dtype} {got.shape}, it must be {want.dtype} {want.shape}"
        return Mismatch(check.name, path, want.size, want.size, error=said)
    bits = {1: np.uint8, 4: np.uint32}[want.dtype.itemsize]
    wrong = np.asarray(got).view(bits) != np.ascontiguousarray(want).view(bits)
    if not wrong.any():
        return None
    places = [tuple(int(i) for i in place) for place in np.argwhere(wrong)[:FIRST]]
    first = tuple(f"y{list(place)} is {got[place]}, must be {want[place]}" for place in places)
    return Mismatch(check.name, path, int(wrong.sum()), want.size, first, draw(check.problem, wrong))


def draw(problem: Problem, wrong: npt.NDArray[np.bool_]) -> str:
    """The result as a matrix (rows: output pixels; columns: channels), a character for each tile: . right, +
    partly, # wrong."""
    matrix = wrong.reshape(problem.gemm_m, problem.gemm_n)
    if not isinstance(problem, LinearProblem):
        matrix = np.moveaxis(wrong, 1, -1).reshape(problem.gemm_m, problem.gemm_n)
    rows, columns = (
        TILE * max(1, -(-size // (TILE * most)))
        for size, most in zip(matrix.shape, (MAP_ROWS, MAP_COLUMNS), strict=True)
    )
    lines = [f"{rows}x{columns} results each (rows: pixels, columns: channels):"]
    for top in range(0, matrix.shape[0], rows):
        tiles = [
            matrix[top : top + rows, left : left + columns] for left in range(0, matrix.shape[1], columns)
        ]
        lines.append("".join("#" if tile.all() else "+" if tile.any() else "." for tile in tiles))
    return "\n".join(lines)
