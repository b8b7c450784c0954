"""The operators without weights that `vkq doctor` replays. Each has several inputs, which the replays
alternate, and the reference's result for each input."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from .. import reference
from ..numerics.elementwise import binary
from ..numerics.qparams import QParams
from ..numerics.quantize import dequantize, quantize
from ..numerics.requantize import multipliers, requantize
from ..ops.elementwise import add
from ..ops.matmul import matmul
from ..ops.pool import avg_pool2d, max_pool2d
from ..ops.quantize import dequantize as dequantized
from ..ops.quantize import quantize as quantized
from ..ops.resize import resize
from ..ops.softmax import softmax
from ..problem.resize import Resize
from ..problem.window import Window
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from .compare import Array
from .data import Data

# The shapes of the inputs. Channels, rows and columns are not multiples of four.
IMAGE, ROWS = (2, 6, 11, 9), (7, 37)
Q, OTHER = QParams(0.05, 3), QParams(0.03, -20)
SUM, PRODUCT, SHARES = QParams(0.07, -5), QParams(1.1, 4), QParams(1 / 256, -128)
Replayed = tuple[str, Sequence[Array], Sequence[Array], Callable[[Tensor], Tensor]]


def weightless(device: Device, turns: int) -> Iterator[Replayed]:
    """Yield (operator's name, inputs, expected results, function to call) for each operator. *turns*: the
    number of inputs, and of expected results."""
    rng = np.random.default_rng(41)

    def some(*shape: int) -> Array:
        return rng.integers(-128, 128, shape).astype(np.int8)

    images, rows = ([some(*shape) for _ in range(turns)] for shape in (IMAGE, ROWS))
    z, columns = some(*IMAGE), some(ROWS[1], 13)
    z_here, columns_here = (Tensor.from_numpy(one, device) for one in (z, columns))
    window = Window.of("max_pool2d", IMAGE, 3, 2, 1, 1, False)
    averages = Window.of("avg_pool2d", IMAGE, 3, 2, 1, 1, False)
    larger = Resize.of(IMAGE, scale=2, mode="linear")
    yield (
        "max_pool2d", images, [reference.max_pool2d(x, window) for x in images],
        lambda x: max_pool2d(x, 3, 2, 1),
    )  # fmt: skip
    yield (
        "avg_pool2d", images, [reference.avg_pool2d(x, averages, Q, Q, False) for x in images],
        lambda x: avg_pool2d(x, 3, 2, 1, count_include_pad=False, x_qparams=Q),
    )  # fmt: skip
    yield (
        "resize", images, [reference.resize(x, larger) for x in images],
        lambda x: resize(x, scale=2, mode="linear"),
    )  # fmt: skip
    yield (
        "add", images, [binary("add", x, z, Q, OTHER, SUM) for x in images],
        lambda x: add(x, z_here, SUM, a_qparams=Q, b_qparams=OTHER),
    )  # fmt: skip
    yield (
        "softmax", rows, [reference.softmax(x, Q, -1, SHARES) for x in rows],
        lambda x: softmax(x, -1, SHARES, x_qparams=Q),
    )  # fmt: skip
    yield (
        "matmul", rows, [_product(x, columns) for x in rows],
        lambda x: matmul(x, columns_here, PRODUCT, a_qparams=Q, b_qparams=OTHER),
    )  # fmt: skip


def _product(a: Array, b: Array) -> Array:
    acc = (a.astype(np.int64) - Q.zero_point) @ (b.astype(np.int64) - OTHER.zero_point)
    return requantize(acc, multipliers(Q.scale, OTHER.scale, PRODUCT.scale)[0], PRODUCT)


def casts(data: Data, xs: Sequence[Array]) -> Iterator[Replayed]:
    """Yield (operator's name, inputs, expected results, function to call) for quantize and for dequantize.
    *xs*: the 8-bit inputs, from which the float inputs are made."""
    numbers = [dequantize(x, data.x_q) * np.float32(1.01) for x in xs]
    stored = [quantize(one, data.x_q) for one in numbers]
    back = [dequantize(q, data.x_q) for q in stored]
    yield "quantize", numbers, stored, lambda x: quantized(x, data.x_q)
    yield "dequantize", stored, back, lambda q: dequantized(q, data.x_q)
