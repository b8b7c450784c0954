"""Exact integer correlation on a device. An object `Correlation` keeps its templates in device memory, and
one plan for each shape and dtype of images."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..layout.extent import Spec
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.caches import keep
from ..runtime.device import Device
from ..runtime.eager import run
from ..runtime.plan import Plan, Resident
from ..runtime.tensor import Tensor
from ..select.path import COOPMAT, Choice, choose_path
from . import matrix, work
from .checks import extremes, range_of
from .images import Images, Part
from .phases import Axis, pack_taps
from .tiles import Tiles
from .transform import TRANSFORM, Transform, blocks_for, primes_for
from .work import DigitArithmetic, Place, Range, Sizes, arithmetic, multiplies


class Correlator(Protocol):
    """A kernel with its templates on a device. `build` adds steps to a plan, which correlate images with
    the templates."""

    def cost(self, s: Sizes) -> float:
        """Return the estimated cost. The unit is the time of one multiply-add in `Tiles`."""

    def describe(self, s: Sizes) -> str:
        """Return a text on the kernel."""

    def numbers(self) -> str:
        """Return a text on the arithmetic."""

    def scratch_bytes(self, part: Part, s: Sizes) -> int:
        """Return the bytes of the kernel's scratch memory, without the images, the templates and the
        results."""

    def adds(self, s: Sizes) -> bool:
        """Return True if workgroups add to the results, which an earlier step must set to zero."""

    def build(self, b: Builder, x: Value, part: Part, s: Sizes, y: Value, to: Place) -> None:
        """Add the correlation of the images *part* of x to a plan. *to*: where *y* has the results."""


@dataclasses.dataclass(frozen=True)
class Sums:
    """The ranges of x, of w and of the sums of their products. Every range includes 0."""

    x_range: Range
    w_range: Range
    range: Range
    wide: bool  # whether the sums need 64 bits

    @classmethod
    def of(cls, x_range: Range, w: npt.NDArray[Any], wide: bool) -> Sums:
        """Return the `Sums` of the templates *w* with images whose values are in *x_range*."""
        least, most = extremes(x_range, w)
        return cls(x_range, range_of(w), (min(least, default=0), max(most, default=0)), wide)


@dataclasses.dataclass(frozen=True)
class Band:
    """Work that is computed at once: the images [first, last), and the result rows from *top* on."""

    first: int
    last: int
    top: int
    rows: Axis  # the vertical axis with only these rows


class Correlation:
    """Templates on a device, and the plans that correlate images with them.

    - *w*: the templates (OC, IC/groups, KH, KW).
    - *bias*: int64 (OC,).
    - *p*: the problem, for its stride, dilation, padding and groups.

    The number and size of the images may differ between calls, so every call gets the axes *rows* and
    *columns* of its images.
    """

    def __init__(
        self, device: Device, path: str, p: Conv2dProblem, w: npt.NDArray[Any], bias: npt.NDArray[np.int64],
        sums: Sums
    ):  # fmt: skip
        self.device, self.path, self.sums, self.groups = device, path, sums, p.groups
        self.choice = choice_of(device, path)
        self._transforms = (p.stride, p.dilation, p.groups) == ((1, 1), (1, 1), 1)
        self.templates = len(w)
        self._w, self._bias, self._axes = w, bias, axes(p)
        self._kernels: dict[str, Correlator] = {}
        self._plans: dict[tuple[Images, Axis, Axis], Plan] = {}

    def shape(self, images: int, rows: Axis, columns: Axis) -> Sizes:
        """Return the sizes of the plain correlation (`phases`) that computes *images* images."""
        return Sizes(
            images=images * rows.residues * columns.residues, groups=self.groups,
            templates=self.templates // self.groups,
            channels=self._w.shape[1] * rows.phases * columns.phases, kh=rows.plain_taps,
            kw=columns.plain_taps, oh=rows.plain_out, ow=columns.plain_out,
        )  # fmt: skip

    def tiles(self) -> Tiles:
        """Return the kernel without matrix units. The path chooses its arithmetic: a dot product, float
        lanes or 32-bit multiplies."""
        return self._tiles(arithmetic(self.sums.x_range, self.sums.w_range, self.sums.wide, self.choice.form))

    def _tiles(self, how: DigitArithmetic) -> Tiles:
        found: Tiles = self._kernel(how.form, lambda *given: Tiles(self.device, *given), how)
        return found

    def matrix(self) -> matrix.Matrix:
        """Return the kernel on matrix units."""
        how = matrix.arithmetic(
            self.sums.x_range, self.sums.w_range, self.sums.wide, self.device.capabilities
        )
        found: matrix.Matrix = self._kernel("matrix", lambda *given: matrix.Matrix(self.device, *given), how)
        return found

    def kernel(self, s: Sizes) -> Correlator:
        """Return the kernel that computes these sizes (`chosen`)."""
        return self.chosen(s)[0]

    def transform(self) -> Transform:
        """Return the kernel of number-theoretic transforms."""
        if TRANSFORM not in self._kernels:
            self._kernels[TRANSFORM] = Transform(
                self.device, self._w, self._bias, self.sums.range, self.sums.wide
            )
        found: Any = self._kernels[TRANSFORM]
        return found  # type: ignore[no-any-return]

    def chosen(self, s: Sizes) -> tuple[Correlator, str]:
        """Return (kernel for these sizes, text with the reason): the kernel that the path requests if it
        can compute these sizes, else the kernel with the lowest estimated cost."""
        if self.path not in ("auto", COOPMAT, TRANSFORM):
            return self.tiles(), f"{self.tiles()}: {self.choice.path}, {self.choice.reason}"
        able = dict(self._able(s))
        if self.path in able:
            return able[self.path], f"{able[self.path].describe(s)}: requested by name"
        costs = sorted((kernel.cost(s), name) for name, kernel in able.items())
        best = able[costs[0][1]]
        compared = ", ".join(f"{cost / 1e6:,.1f} million by {name}" for cost, name in costs)
        path = f" ({self.choice.path}: {self.choice.reason})" if isinstance(best, Tiles) else ""
        return best, f"{best.describe(s)}{path}; cost in multiply-adds of the dot product: {compared}"

    def _able(self, s: Sizes) -> Iterator[tuple[str, Correlator]]:
        """Yield (name, kernel) for each kernel that can compute these sizes."""
        yield self.tiles().how.form, self.tiles()
        multiplied = multiplies(self.sums.x_range, self.sums.w_range, self.sums.wide)
        if multiplied and self.choice.form != "float":
            yield "mul32", self._tiles(multiplied)
        if self.choice.path == COOPMAT and self.matrix().best(s) is not None:
            yield COOPMAT, self.matrix()
        if self._transforms and primes_for(self.sums.range) and blocks_for(s) is not None:
            yield TRANSFORM, self.transform()

    def _kernel(self, name: str, make: Any, how: DigitArithmetic) -> Any:
        if name not in self._kernels:
            taps = pack_taps(self._w, *self._axes)
            taps = taps.reshape(self.groups, self.templates // self.groups, -1, *taps.shape[-2:])
            numbers = how.constants(self._w, self._bias)
            constants = Resident(self.device, numbers.nbytes, lambda: numbers)
            self._kernels[name] = make(taps, how, constants)
        return self._kernels[name]

    def run(self, x: Tensor, images: Images, rows: Axis, columns: Axis) -> Tensor:
        """Return the result, int32 (N, OC, OH, OW). 64-bit sums are (N, OC, OH, OW, 2): two words, the low
        word first."""
        return run(self.plan(images, rows, columns), [x])

    def plan(self, images: Images, rows: Axis, columns: Axis) -> Plan:
        """Return the plan for images of this shape and dtype. The first call creates it."""
        key = images, rows, columns
        found = self._plans.get(key)
        if found is None:
            b = Builder(self.device)
            y = self.build(b, b.input(images.spec), images, rows, columns)
            found = keep(self._plans, key, b.plan(y))
        return found

    def build(self, b: Builder, x: Value, images: Images, rows: Axis, columns: Axis) -> Value:
        """Add the correlation to a plan, in bands of images and rows. Return the result."""
        n, oc = images.shape[0], self.templates
        shape = (n, oc, rows.out, columns.out)
        y = b.new(Spec((*shape, 2) if self.sums.wide else shape, "int32"))
        kernel, reason = self.chosen(self.shape(n, rows, columns))
        b.why("kernel", reason)
        bands = self.bands(kernel, images, rows, columns)
        if any(kernel.adds(self.shape(one.last - one.first, one.rows, columns)) for one in bands):
            b.fill(y, 0)
        plane = rows.out * columns.out
        for band in bands:
            first = band.first * oc * plane + band.top * columns.out
            self.add(b, kernel, x, images, band, columns, y, first, plane)
        return y

    def add(
        self, b: Builder, kernel: Correlator, x: Value, images: Images, band: Band, columns: Axis, y: Value,
        first: int, plane: int
    ) -> None:  # fmt: skip
        """Add one band to a plan. Its results begin at element *first* of y. The results of consecutive
        templates are *plane* elements apart."""
        rows, count = band.rows, band.last - band.first
        residues = rows.residues, columns.residues
        to = Place(residues, first, rows.out, columns.out, self.templates, plane)
        part = Part(images, band.first, count, rows, columns)
        kernel.build(b, x, part, self.shape(count, rows, columns), y, to)

    def bands(
        self, kernel: Correlator, images: Images, rows: Axis, columns: Axis, result_bytes: int = 0
    ) -> list[Band]:
        """Divide the images and rows into bands with scratch memory of at most `BAND_BYTES`.
        *result_bytes*: additional scratch bytes for each result position."""
        total = n = images.shape[0]
        lines = rows.out

        def fits() -> bool:
            part = Part(images, 0, n, rows.band(0, lines), columns)
            used = kernel.scratch_bytes(part, self.shape(n, part.rows, columns))
            return used + result_bytes * n * lines * columns.out <= work.BAND_BYTES

        while not fits() and n > 1:
            n = -(-n // 2)
        while not fits() and lines > 1:
            lines = -(-lines // 2)
        return [
            Band(first, min(first + n, total), top, rows.band(top, min(top + lines, rows.out)))
            for first in range(0, total, n)
            for top in range(0, rows.out, lines)
        ]


def choice_of(device: Device, path: str) -> Choice:
    """Return the `Choice` for a path. `choose_path` does not know the path `TRANSFORM`, which gets the
    choice for "auto". Raises an error for an unknown path."""
    return choose_path(device, "auto" if path == TRANSFORM else path)


def axes(p: Conv2dProblem) -> tuple[Axis, Axis]:
    """Return (vertical axis, horizontal axis) of a problem."""
    rows = Axis(p.h, p.kh, p.oh, p.stride[0], p.dilation[0], p.padding[0])
    return rows, Axis(p.w, p.kw, p.ow, p.stride[1], p.dilation[1], p.padding[1])
