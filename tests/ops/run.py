"""Run a test problem through vkq's public functions."""

from typing import Any

import numpy as np
import numpy.typing as npt

import vkq
from vkq.problem.linear import LinearProblem

from ..cases import Data

# All int8 paths: tests force each of them, and all must give the same bits.
PATHS = ("dot_s8s8", "dot_u8s8", "dot_u8u8", "portable")


def run(
    data: Data, y: vkq.QParams | None, device: vkq.Device, path: str = "auto", **changes: Any
) -> npt.NDArray[Any]:
    """Return the layer's result for the operands. Callers compare it with ``data.expected(y)``."""
    op = vkq.linear if isinstance(data.problem, LinearProblem) else vkq.conv2d
    arguments: dict[str, Any] = {
        "x_qparams": data.x_q, "y_qparams": y, "bias": data.bias, "w_zero_point": data.w_zero_point,
        "path": path, "device": device, "overflow": data.overflow, **data.options,
    }  # fmt: skip
    result: npt.NDArray[Any] = op(data.x, data.w, data.w_scale, **(arguments | changes))
    return result


def assert_same_bits(got: npt.NDArray[Any], want: npt.NDArray[Any]) -> None:
    """Check that dtype, shape and every byte are equal (so -0.0 is not 0.0). The error shows the first
    difference."""
    assert (got.dtype, got.shape) == (want.dtype, want.shape)
    if got.tobytes() == want.tobytes():
        return
    view = np.dtype(f"u{got.dtype.itemsize}")
    wrong = np.argwhere(got.view(view) != want.view(view))
    first = tuple(wrong[0])
    raise AssertionError(
        f"{len(wrong)} of {got.size} differ; first at {first}: {got[first]!r}, must be {want[first]!r}"
    )
