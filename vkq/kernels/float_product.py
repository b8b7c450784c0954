"""Products of two float matrices. The order of the sum over k is fixed, so every device gives the same
bits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.profiles import profile
from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..runtime.plan import Resident
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .cast import converted
from .floats import Matrices
from .gemm import INVOCATIONS, Rows
from .weights import ceil4

# With at most FEW_ROWS rows, k is divided into up to MOST_SLICES parts of at least PART elements, which
# different invocations of a workgroup sum. So few rows still occupy the whole device.
FEW_ROWS = 8
PART, MOST_SLICES = 64, 16
LONGEST = 1 << 15  # longest k that an invocation sums in one dispatch; drivers may stop longer loops
NO_BIAS, OF_COLUMNS, OF_ROWS = 0, 1, 2


def slices(m: int, k: int) -> int:
    """Return the number of parts into which k is divided. It depends only on m and k, because it decides
    the bits of the result: the parts' sums are added in order.

    >>> slices(1, 768), slices(9, 768), slices(8, 100)
    (8, 1, 1)
    """
    parts = 1
    while m <= FEW_ROWS and 2 * parts <= MOST_SLICES and 2 * parts * PART <= k:
        parts *= 2
    return parts


@dataclasses.dataclass(frozen=True)
class Extents:
    """The sizes of y = a @ b. A stride between matrices is 0 if all products share the matrix."""

    matrices: int  # number of products
    m: int  # rows of y
    n: int  # columns of y
    k: int  # columns of a
    a_matrix: int  # stride in elements between the matrices of a
    b_matrix: int  # stride in elements between the matrices of b
    b_row: int  # stride in elements between the rows of b


def product(
    b: Builder,
    operands: tuple[Value, Value],
    y: Value,
    sizes: Extents,
    bias: Value | None = None,
    of: int = OF_COLUMNS,
    bounds: tuple[float, float] = (-np.inf, np.inf),
) -> None:
    """Add y = a @ b + bias, clamped to *bounds*, to a plan. y is float32.

    - *operands*: a and b, each float32 or a float16 constant.
    - *of*: whether the bias has one number for each column (OF_COLUMNS) or for each row (OF_ROWS) of y.

    Each product and sum is rounded to nearest even. k is divided into `slices` parts. Each part is summed
    in order, and then the parts' sums are added in order. A part of more than LONGEST elements takes
    several dispatches. Subnormal values may count as zero.
    """
    left, right = operands
    known, parts = profile(b.device.capabilities), slices(sizes.m, sizes.k)
    rows, columns = 1 if sizes.m == 1 else 4, 2 if sizes.m > 1 and sizes.n >= 64 else 1
    n4, tall = ceil4(sizes.n), -(-sizes.m // rows)
    down = 1
    while down < 8 and down < tall:
        down *= 2
    across, down = known.local(INVOCATIONS // down, INVOCATIONS, INVOCATIONS) if parts == 1 else (1, 1)
    if parts > 1:
        across = min(8, INVOCATIONS // parts)
    constants: dict[str, Constant] = {
        "LOCAL_X": across, "LOCAL_Y": down, "SLICES": parts, "TILE_M": rows, "TILE_N4": columns,
        "HALF_A": left.spec.dtype == "float16", "HALF_B": right.spec.dtype == "float16",
        "WHOLE_B": sizes.b_row % 4 == 0 and sizes.b_row >= 4 * n4,
    }  # fmt: skip
    push = dataclasses.asdict(sizes) | {"y_low": bounds[0], "y_high": bounds[1]}
    slots = [left, right, left if bias is None else bias, y]
    for first in range(0, max(sizes.k, 1), parts * LONGEST):
        end = min(first + parts * LONGEST, sizes.k)
        constants["CONTINUE"] = first > 0
        if end == sizes.k:
            constants |= {"BIAS": NO_BIAS if bias is None else of, "CLAMPED": bounds != (-np.inf, np.inf)}
        program = b.device.program(catalog().find("gemm_f32__tiled"), constants)
        macs = sizes.matrices * sizes.m * sizes.n * (end - first)
        b.dispatch(program, slots, push | {"first_k": first, "end_k": end}, macs, in_place=first > 0)


class FloatProduct:
    """The product of float rows with a weight (N, K), float32 or float16, plus a float32 bias (N,). The
    weight keeps its dtype in device memory."""

    kernel = "auto"

    def __init__(
        self,
        device: Device,
        weight: npt.NDArray[Any],
        bias: npt.NDArray[np.float32],
        bounds: tuple[float, float],
    ):
        self.device, self.bounds, self.dtype = device, bounds, weight.dtype.name
        self.n, self.k = weight.shape
        self.b_row = 4 * ceil4(self.n)
        lines = max(self.k, 1)  # a buffer must not be empty
        n, k, row = self.n, self.k, self.b_row  # packed() must not refer to self (a reference cycle)

        def packed() -> npt.NDArray[Any]:
            columns = np.zeros((lines, row), weight.dtype)
            columns[:k, :n] = weight.T
            return columns

        self.weights = Resident(device, lines * self.b_row * weight.itemsize, packed)
        self.bias = Resident(device, bias.nbytes, lambda: bias)

    def writes(self, x: Value, m: int) -> str:
        return "float32"

    def build(self, b: Builder, x: Value, y: Value, rows: Rows, extra: Sequence[Value] = ()) -> None:
        sizes = Extents(1, rows.count, self.n, self.k, 0, 0, self.b_row)
        weight = b.view(b.constant(self.weights), Spec((self.weights.bytes,), self.dtype))
        operands = converted(b, x, "float32"), weight
        product(b, operands, y, sizes, b.constant(self.bias), OF_COLUMNS, self.bounds)


class HalfProduct(FloatProduct):
    """A product with compute="float16". *matrices* computes it, on matrix units or in float16 arithmetic,
    if this is faster than float32 arithmetic. Otherwise it is computed in float32."""

    def __init__(
        self,
        device: Device,
        weight: npt.NDArray[Any],
        bias: npt.NDArray[np.float32],
        bounds: tuple[float, float],
        matrices: Matrices,
    ):
        super().__init__(device, weight, bias, bounds)
        self.matrices = matrices

    def _worth(self, m: int, dtype: str) -> bool:
        return self.kernel == "auto" and self.k > 0 and self.matrices.worth(m, self.n, dtype)

    def writes(self, x: Value, m: int) -> str:
        taken = self._worth(m, x.spec.dtype)
        return self.matrices.writes(x, m) if taken else super().writes(x, m)

    def build(self, b: Builder, x: Value, y: Value, rows: Rows, extra: Sequence[Value] = ()) -> None:
        if self._worth(rows.count, x.spec.dtype):
            self.matrices.build(b, x, y, rows.count)
        else:
            super().build(b, x, y, rows, extra)
