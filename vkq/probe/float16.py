"""Test of float16 arithmetic without matrix units (shaders/common/tiled_halves.glslh)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..runtime.device import Device
from ..runtime.tensor import Tensor
from ..shader.catalog import catalog

FLOAT16 = "float16"  # the form of products in float16, and the name of the test
K, ROWS, COLUMNS = 16, 36, 20  # sizes that are not multiples of the tile of 8 x 8
# Bounds of float16 arithmetic in any rounding mode:
# - ROUNDOFF: largest relative error of an operation
# - NORMAL: smaller values may become zero
ROUNDOFF, NORMAL = 2.0**-10, 2.0**-14


def lacking(capabilities: Capabilities) -> str | None:
    """Return the reason why products should not use float16 arithmetic (a missing feature, or no gain in
    speed), or None."""
    if not capabilities.features.get("shaderFloat16"):
        return "shaderFloat16 is false"
    known = profile(capabilities)
    return None if known.float16_k else f"float16 arithmetic is no faster than float32 ({known.names[-1]})"


def test(device: Device) -> str | None:
    """Return an error text if sums of 16 products are wrong, else None. Sums of integers must be exact. In
    other sums, each product and each addition may have the relative error `ROUNDOFF`."""
    rng = np.random.default_rng(2028)
    for whole in (True, False):
        x, w = (_numbers(rng, (size, K), whole) for size in (ROWS, COLUMNS))
        got = _products(device, x, w)
        x64, w64 = x.astype(np.float64), w.astype(np.float64)
        want, size = x64 @ w64.T, np.abs(x64) @ np.abs(w64).T
        bound = 0.0 if whole else ((1 + ROUNDOFF) ** (K + 1) - 1) * size + 2 * K * NORMAL
        wrong = ~(np.abs(got - want) <= bound)
        if wrong.any():
            m, n = (int(i) for i in np.unravel_index(int(np.argmax(wrong)), wrong.shape))
            first = f"row {m}, column {n} gave {got[m, n]!r}, must be {want[m, n]!r}"
            return f"{int(wrong.sum())} of {wrong.size} sums of {K} products are wrong; {first}"
    return None


def _numbers(rng: np.random.Generator, shape: tuple[int, int], whole: bool) -> npt.NDArray[np.float16]:
    if whole:
        return rng.integers(-8, 9, shape).astype(np.float16)
    return (rng.normal(size=shape) * 2.0 ** rng.integers(-6, 6, shape)).astype(np.float16)


def _products(
    device: Device, x: npt.NDArray[np.float16], w: npt.NDArray[np.float16]
) -> npt.NDArray[np.float64]:
    """Return the shader's result of x @ w.T."""
    known, (rows, columns) = profile(device.capabilities), (len(x), len(w))
    runs = np.ascontiguousarray(x.reshape(rows, K // 8, 8).swapaxes(0, 1))
    affine = np.zeros((columns // 4, 3, 4), np.float32)
    affine[:, 0] = 1
    given = [runs.view(np.int32), np.ascontiguousarray(w.T).view(np.int32), affine]
    ones = "lines oh groups plane h kh kw stride_h stride_w dilation_h dilation_w"
    push: dict[str, Any] = dict.fromkeys(ones.split(), 1)
    push |= {"ow": rows, "x_plane": rows, "w": rows, "n4": columns // 4, "k4": K // 4, "channels": columns}
    push |= {"pad_t": 0, "pad_l": 0, "unit": 1.0, "y_low": -np.inf, "y_high": np.inf}
    constants = {"LOCAL_X": 4, "LOCAL_Y": 2, "AT_ONCE": known.float16_k == K}
    whole = known.float16_words or not device.capabilities.features["storageBuffer16BitAccess"]
    variant = catalog().find("gemm_f16__tiled", x="words" if whole else "halves", y="float32")
    program = device.program(variant, constants)
    tensors = [Tensor.from_numpy(v.reshape(-1), device) for v in given]
    out = Tensor(device, (rows, columns), "float32")
    with device.operation() as recording:
        recording.dispatch(program, [t.buffer for t in (*tensors, out)], push)
    return out.numpy().astype(np.float64)
