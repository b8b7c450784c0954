"""Run checks on a device, and compare every byte of the results with the reference. A text picture shows
where the results differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DeviceLostError, MethodError, VkqError
from ..ops.conv2d import Conv2d
from ..ops.conv_transpose2d import ConvTranspose2d
from ..ops.linear import Linear
from ..problem.linear import LinearProblem
from ..problem.names import Problem
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..select.path import PATHS, refusal
from .cases import CHANNELS, DQ8CA, FLOAT, FLOAT_WEIGHTS, GROUPED, Q8TO
from .catalogue import Check
from .data import Data
from .expected import Expected

FIXED = PATHS[2:]  # the paths without "auto" and "dot", which are aliases of other paths
Array = npt.NDArray[Any]
TILE = 4  # a character of the picture covers a multiple of TILE rows and columns of the result
MAP_ROWS, MAP_COLUMNS = 32, 64  # maximum numbers of rows and columns of characters of the picture
FIRST = 5  # maximum number of differing elements that are listed


@dataclasses.dataclass(frozen=True)
class Mismatch:
    """A check that failed on a path: ``wrong`` of ``total`` elements differ, or an ``error`` was raised.
    ``first``: texts that describe the first differing elements. ``map``: the picture (`draw`)."""

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


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a check. ``compared``: the number of paths that were compared. ``refused``: a dict from a
    path to the reason why the check's method cannot compute the problem on this path."""

    compared: int
    mismatches: list[Mismatch]
    refused: dict[str, str]


def usable_paths(device: Device, asked: Sequence[str] = ()) -> tuple[list[str], dict[str, str]]:
    """Return (the paths that the device supports, {each path that it does not support: the reason}). *asked*:
    consider only these paths; "auto" and "dot" among them count as supported."""
    wanted = list(asked) or list(FIXED)
    refused = {path: refusal(device, path) for path in wanted if path in FIXED}
    return [p for p in wanted if refused.get(p) is None], {p: why for p, why in refused.items() if why}


def run_check(device: Device, check: Check, paths: Iterable[str]) -> Outcome:
    """Run one check on several paths. All calls are recorded before the first result is read, so that one
    submission runs them all. Checks with float activations run once, because they do not depend on the
    path."""
    data = check.data()
    given = check.input(data)
    want = check.expected(data, given, device)
    found: list[Mismatch] = []
    refused: dict[str, str] = {}
    results: list[tuple[str, Tensor]] = []
    x = Tensor.from_numpy(given, device)
    for path in paths if check.scheme not in FLOAT else ("auto",):
        try:
            results.append((path, layer(device, check, data, path)(x)))
        except DeviceLostError:
            raise
        except MethodError as error:
            refused[path] = str(error)
        except VkqError as error:
            found.append(_failed(check, path, want, f"{type(error).__name__}: {error}"))
    compared = len(results) + len(found)
    found += [wrong for path, y in results if (wrong := compare(check, path, y.numpy(), want))]
    return Outcome(compared, found, refused)


def layer(device: Device, check: Check, data: Data, path: str) -> Linear | Conv2d | ConvTranspose2d:
    """Return the layer that a check runs, with the operands *data*, on a path."""
    if check.scheme in GROUPED:
        return Linear(
            data.grouped(GROUPED[check.scheme]), bias=data.float_bias, activation=check.activation,
            method=check.method, path=path, device=device,
        )  # fmt: skip
    options: dict[str, Any] = {
        "x_qparams": data.x_q if check.integer else "dynamic" if check.scheme in DQ8CA else None,
        "y_qparams": data.y_q if check.scheme in Q8TO else None,
        "bias": data.bias if check.integer else data.float_bias, "w_zero_point": data.w_zero_point,
        "activation": check.activation, "overflow": data.overflow, "path": path, "device": device,
    }  # fmt: skip
    if check.scheme in CHANNELS:
        options["compute"] = CHANNELS[check.scheme]
    w: Array = data.w
    if check.scheme in FLOAT_WEIGHTS:
        w, options["w_zero_point"] = data.floats(FLOAT_WEIGHTS[check.scheme]), None
    scale = None if check.scheme in FLOAT_WEIGHTS else data.w_scale
    if check.op == "conv_transpose2d":
        return ConvTranspose2d(w, scale, **data.options, **options)
    kind = Linear if check.op == "linear" else Conv2d
    return kind(w, scale, method=check.method, **data.options, **options)


def compare(check: Check, path: str, got: Array, want: Expected) -> Mismatch | None:
    """Return the mismatch of a result, or None if it is right: all bits equal those of *want*, or, for float
    sums, all elements are within their bounds."""
    if said := want.unlike(got):
        return _failed(check, path, want, said)
    wrong = want.wrong(got)
    if not wrong.any():
        return None
    places = [tuple(int(i) for i in place) for place in np.argwhere(wrong)[:FIRST]]
    first = tuple(f"y{list(place)} is {got[place]}, must be {want.y[place]}" for place in places)
    return Mismatch(check.name, path, int(wrong.sum()), wrong.size, first, draw(check.problem, wrong))


def _failed(check: Check, path: str, want: Expected, error: str) -> Mismatch:
    return Mismatch(check.name, path, want.y.size, want.y.size, error=error)


def draw(problem: Problem, wrong: npt.NDArray[np.bool_]) -> str:
    """Return a text picture of the result, seen as a matrix with a row for each output pixel and a column for
    each channel. Each character stands for a tile of the matrix: ``.`` all elements right, ``+`` some wrong,
    ``#`` all wrong."""
    last = wrong if isinstance(problem, LinearProblem) else np.moveaxis(wrong, 1, -1)
    matrix = last.reshape(-1, problem.gemm_n)
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
