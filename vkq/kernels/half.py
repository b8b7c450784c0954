"""Products of float activations with int8 or float weights on matrix units, with float32 sums. The matrices
are float16 (compute="float16") or bfloat16. With bfloat16 matrices, weights are int8, and each float32
value of x is split exactly into the sum of three bfloat16 values."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profiles import picks, profile
from ..device.tuner import is_asked, ranked
from ..errors import PathError
from ..probe.matrices import BRAIN, HALF, Matrices
from ..problem.conv2d import Conv2dProblem
from ..runtime.builder import Builder, Value
from ..runtime.plan import Resident
from ..runtime.program import Program
from ..select.path import pairs_refusal
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from ..shader.spec import Variant
from . import half_gemv
from .cast import converted
from .floats import FloatGemm
from .half_configs import (
    FLOAT16,
    GATHERED,
    K_SPLITS,
    LEAST_COLUMNS,
    STRAIGHT,
    WORDS,
    GemmConfig,
    OperandKind,
)
from .half_loaders import Loaders
from .half_operands import RUN, X_PARTS, halves, parts_of
from .pixels import window_constants
from .split import counters

MOST_ROWS = 64  # maximum number of rows that the kernel packs; more rows are packed by a separate dispatch
MOST_READ = 1 << 22  # maximum number of float32 values of x that all column tiles together convert
# Minimum number of multiply-adds: with fewer, splitting x into parts takes longer than the matrix units
# save.
LEAST_MACS = {HALF: 0, BRAIN: 1 << 26}
BYTES = {HALF: 2, BRAIN: 2 * X_PARTS}  # bytes of one element of x


class HalfMatrices:
    """The product *gemm* on matrix units, of a linear layer or of a convolution as implicit GEMM.
    *channels*: the number of input channels of a group (k for a linear layer). *elements*: how operands are
    loaded. The device must list matrices of their type (`vkq.probe.matrices.advertised_half`). *floats*:
    None, or a float weight (OC, channels, KH, KW) that replaces the int8 weight."""

    def __init__(
        self,
        gemm: FloatGemm,
        channels: int,
        elements: OperandKind = FLOAT16,
        floats: npt.NDArray[Any] | None = None,
    ):
        self.gemm, self.channels, self.elements = gemm, channels, elements
        self.gathering = GATHERED[elements.form]  # how a convolution loads its operands
        self.tile: str | None = None  # tests and measurements set it to force a tile
        self.parts: int | None = None  # tests and measurements set it to force a number of parts of k
        self.loaders = Loaders(gemm, channels, floats)
        self.runs, self.k, self.floats = self.loaders.runs, self.loaders.k, self.loaders.floats
        self.counters = counters(gemm.device)

    @property
    def signed(self) -> bool:
        """True if weights that are loaded directly into matrices have no zero points (`Loaders.signed`)."""
        return self.loaders.signed

    def worth(self, rows: int, n: int, dtype: str) -> bool:
        """Return True if matrix units are faster than other kernels for *rows* rows of this dtype and *n*
        columns."""
        facts, numbers = self.gemm.device.capabilities, self.gemm.groups * rows * self.k
        form = self.elements.form
        few = n >= LEAST_COLUMNS and self._fitting(rows, dtype) is not None
        if self.floats is not None:  # a float32 product would read twice as many bytes of weights
            rows = max(rows, half_gemv.LEAST_ROWS[form])
        return few or worth(form, facts, rows, n, numbers * n, numbers, LEAST_MACS[form])

    def writes(self, x: Value, rows: int) -> str:
        """Return the dtype of a product's results."""
        whole = self.elements == FLOAT16 and self.gemm.channels % 4 == 0
        return x.spec.dtype if whole or self._fitting(rows, x.spec.dtype) else "float32"

    def build(self, b: Builder, x: Value, y: Value, rows: int) -> None:
        """Add a product of *rows* rows to a plan."""
        gemm, push = self.gemm, {**self.gemm.push(rows), "k": self.k}
        if few := self._few(x, y, rows):
            program, weights = few
            slots = [x, b.constant(weights), b.constant(self.parameters(STRAIGHT)), y]
            b.dispatch(program, slots, push, gemm.macs(rows))
            return
        config = self.config(rows, as_words=self._as_words(x, y))
        tile = config.variant.axes["tile"]
        if in_place := self._in_place(config, x, y, rows):
            operand, variant = x, in_place
        else:
            operand, more = self._operand(b, x, 1, 1, rows, "rows")
            push |= more
            whole = "any" if gemm.channels % 4 else "half" if y.spec.dtype == "float16" else "four"
            shader = config.of.split if config.parts > 1 else config.of.product
            variant = catalog().find(shader, tile=tile, y=whole)
        config = dataclasses.replace(config, variant=variant)
        shared, steps = config.sharing(b, self.counters, rows, 4 * gemm.n4, self.k, gemm.groups)
        if config.of == WORDS:
            constants = [
                b.constant(self.loaders.prepacked.words(config.matrices)),
                b.constant(self.parameters(WORDS)),
            ]
        else:
            constants = self.constants(b, config.of)
        slots = [operand, *constants, y, *shared]
        b.dispatch(self.program(variant, config.matrices), slots, push | steps, gemm.macs(rows))

    def _few(self, x: Value, y: Value, rows: int) -> tuple[Program, Resident] | None:
        """Return (pipeline for few rows, weights in the order that it reads). Return None if the tiles for
        many rows are faster, or if a tile or a number of parts is forced."""
        if self.tile or self.parts or kind_of(self.elements) in picks() or x.spec.dtype != y.spec.dtype:
            return None
        if found := self._fitting(rows, x.spec.dtype):
            variant, values, matrices = found
            as_words = half_gemv.long(self.gemm, variant, rows) and self._as_words(x, y)
            if as_words and self.config(rows, as_words=True).of == WORDS:
                return None
            values |= {**self.gemm.affine.constants, "SIGNED": self.signed}
            loaders = self.loaders
            weights = loaders.prepacked.runs(matrices) if variant.shader == half_gemv.RUNS else loaders.direct
            return self.gemm.device.program(variant, values, matrices.subgroup), weights
        return None

    def _fitting(self, rows: int, dtype: str) -> tuple[Variant, dict[str, Constant], Matrices] | None:
        return None if self.floats else half_gemv.fitting(self.gemm, rows, dtype, self.elements.form)

    def _whole(self, x: Value, y: Value) -> bool:
        """Return True if a row of x has whole runs of 8 elements, the number of outputs is a multiple of 4,
        and x and y have the same dtype."""
        return self.channels % RUN == 0 and self.gemm.channels % 4 == 0 and x.spec.dtype == y.spec.dtype

    def _as_words(self, x: Value, y: Value) -> bool:
        """Return True if the shader WORDS supports these rows and weights. WORDS needs matrices in which an
        invocation holds pairs of elements along k (`pairs_refusal`)."""
        gemm, known = self.gemm, profile(self.gemm.device.capabilities)
        rows = self._whole(x, y) and x.spec.dtype == "float16" and gemm.groups == 1
        here = known.matrix_pairs and not pairs_refusal(gemm.device)
        return self.elements == FLOAT16 and rows and here and self.signed and not self.floats

    def _in_place(self, config: GemmConfig, x: Value, y: Value, rows: int) -> Variant | None:
        """Return the variant that reads x without a dispatch that packs it: for few rows, or with weights
        loaded directly into matrices. Return None if there is no such variant."""
        dtype, tile = x.spec.dtype, config.variant.axes["tile"]
        shader = config.of.split if config.parts > 1 else config.of.product
        if config.of == WORDS:
            return catalog().find(shader, tile=tile)
        if dtype == "float32":
            columns = -(-4 * self.gemm.n4 // int(config.variant.sizes["BN"]))
            taken = rows <= MOST_ROWS and rows * self.k * columns <= MOST_READ
        else:
            taken = rows <= MOST_ROWS or config.of == STRAIGHT
        axes = {"y": f"{dtype}_rows", "tile": tile}
        found = taken and self._whole(x, y) and catalog().shaders[shader].having(**axes)
        return catalog().find(shader, **axes) if found else None

    def convolve(self, b: Builder, p: Conv2dProblem, x: Value, y: Value) -> None:
        """Add a convolution to a plan. The kernel gathers the rows from the image."""
        gemm, config = self.gemm, self.config(p.gemm_m, self.gathering, y.spec.dtype)
        operand, push = self._operand(b, x, p.n, p.groups, p.h * p.w, "images")
        push |= gemm.push(p.gemm_m, p.oh * p.ow) | window_constants(p) | {
            "c": p.groups * self.runs, "group_channels": self.runs, "ow": p.ow, "kh": p.kh, "k": self.k,
        }  # fmt: skip
        variant = config.variant
        if self.elements == FLOAT16:
            whole = "half" if y.spec.dtype == "float16" else "any"
            shader = config.of.split if config.parts > 1 else config.of.product
            variant = catalog().find(shader, tile=variant.axes["tile"], y=whole)
        shared, steps = config.sharing(b, self.counters, p.gemm_m, 4 * gemm.n4, self.k, gemm.groups)
        slots = [operand, *self.constants(b), y, *shared]
        b.dispatch(self.program(variant, config.matrices), slots, push | steps, gemm.macs(p.gemm_m))

    def gathered_cycles(self, p: Conv2dProblem, dtype: str = "float32") -> float:
        """Return the estimated cycles of a convolution with results of this dtype, including the conversion
        of x (`gathered_before_cycles`)."""
        known = profile(self.gemm.device.capabilities)
        sizes, before = (p.gemm_m, 4 * self.gemm.n4, self.k, self.gemm.groups), known.gathered_before_cycles
        product = self.config(p.gemm_m, self.gathering, dtype).cycles(known, *sizes)
        return product + before["once"] + before[self.elements.form] * math.prod(p.x_shape)

    def _operand(
        self, b: Builder, x: Value, images: int, groups: int, plane: int, of: str
    ) -> tuple[Value, dict[str, int | float]]:
        """Return x packed for the kernels (`runs_q8csw`), and the push constants of the packed array. x has
        *images* images of *plane* pixels, in *groups* groups of channels. *of*: "images" or "rows", the
        layout of x."""
        if self.elements == FLOAT16:
            whole = "whole_" * (of == "rows" and self.channels % RUN == 0)
            return halves(b, x, images, groups, self.channels, plane, whole + of), {}
        x = converted(b, x, "float32")
        return parts_of(b, x, images, groups, self.channels, plane, of), {
            "x_part": images * groups * self.runs * plane
        }

    def constants(self, b: Builder, of: OperandKind = FLOAT16) -> list[Value]:
        """Return the values that a kernel binds: the weights in the kernel's order, and the parameters of
        the epilogue."""
        weights = self.loaders.direct if of == STRAIGHT else self.loaders.staged
        return [b.constant(weights), b.constant(self.parameters(of))]

    def parameters(self, of: OperandKind) -> Resident:
        return self.loaders.parameters(of in (STRAIGHT, WORDS))

    def program(self, variant: Variant, matrices: Matrices) -> Program:
        """Return the pipeline of a variant with these matrices."""
        values = {**matrices.constants(variant), **self.gemm.affine.constants}
        told = self.loaders.constants
        values |= {name: told[name] for name in told if name in variant.specialization}
        return self.gemm.device.program(variant, values, matrices.subgroup)

    def config(
        self, rows: int, of: OperandKind | None = None, dtype: str = "float32", as_words: bool = False
    ) -> GemmConfig:  # fmt: skip
        """Return the tile with the lowest estimated time for *rows* rows of a product, or of a convolution
        if *of* is in `GATHERED`. *as_words*: also consider the tiles of WORDS. For a convolution, split-K
        is considered only with float16 results: it has not been timed for other dtypes."""
        gemm, known, of = self.gemm, profile(self.gemm.device.capabilities), of or self.elements
        sizes, shader = (rows, 4 * gemm.n4, self.k, gemm.groups), of.product
        whole = of == self.gathering and dtype != "float16"
        parts = (1,) if whole else (self.parts,) if self.parts else K_SPLITS
        facts = gemm.device.capabilities
        able = of.able(facts, self.tile)
        if of == FLOAT16:
            more = (STRAIGHT, WORDS) if as_words else (STRAIGHT,)
            able = itertools.chain(able, *(one.able(facts, self.tile) for one in more))
        found = [
            dataclasses.replace(one, parts=count)
            for one in able
            if one.takes(self.k)
            for count in parts
            if count == 1 or one.may_split(rows, 4 * gemm.n4, gemm.groups)
        ]
        if not found:
            forced = f"tile {self.tile or 'any'}, {self.parts or 'any'} parts of k"
            size = f"{rows} rows x {sizes[1]} columns x {self.k} of k"
            raise PathError(f"{shader} cannot compute {size} ({forced}) here: leave tile and parts open")
        kind = kind_of(of)
        if not is_asked(kind):
            return min(found, key=lambda config: config.cycles(known, *sizes))
        best_first = sorted(found, key=lambda config: config.cycles(known, *sizes))
        return ranked(kind, best_first, lambda config: f"{config.variant.name}, k in {config.parts}")[0]


def kind_of(elements: OperandKind) -> str:
    """Return the name of these operands in the tuner's rankings (`vkq.device.tuner`)."""
    return f"tile of {elements.form} matrices"


def worth(form: str, facts: Capabilities, rows: int, n: int, macs: int, numbers: int, least: int) -> bool:
    """Return True if matrices of this element type are faster than other kernels for a product with *macs*
    multiply-adds and *numbers* elements of x. *least*: the smallest *macs* for which they are faster."""
    large = BYTES[form] * numbers > facts.properties["maxStorageBufferRange"]
    return not large and rows >= half_gemv.LEAST_ROWS[form] and n >= LEAST_COLUMNS and macs >= least
