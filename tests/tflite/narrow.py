"""Models with 8-bit activations and 4-bit weights."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from .operators import ACTIVATIONS, Case, One, Random


def _packed(numbers: np.ndarray) -> bytes:
    """Return 4-bit values packed in bytes. The first value of each pair is in the lower half of a byte."""
    halves = np.append(numbers.reshape(-1).astype(np.uint8) & 15, np.zeros(numbers.size % 2, np.uint8))
    return bytes((halves[::2] | halves[1::2] << 4).astype(np.uint8))


def narrow(op: str) -> Callable[[Random, str], Case]:
    """Return a function that makes models of a layer with 4-bit weights and a bias. The weights have one
    scale, or one per channel. A CONV_2D may have two groups."""

    def make(rng: Random, dtype: str) -> Case:
        one, dense, apart = One(rng, dtype), op == "FULLY_CONNECTED", op == "DEPTHWISE_CONV_2D"
        n, h, w, _ = one.shape(5, 14)
        groups = int(rng.integers(1, 3)) if op == "CONV_2D" else 1
        inner, outer = (int(v) * groups for v in rng.integers(2, 24, 2))
        outer, k = inner if apart else outer, [1, 1] if dense else [int(v) for v in rng.integers(1, 4, 2)]
        shape = (outer, inner) if dense else (1, *k, outer) if apart else (outer, *k, inner // groups)
        scales = np.float32(10 ** rng.uniform(-3, -1, outer if rng.integers(0, 2) else 1))
        numbers, x_scale = rng.integers(-8, 8, shape), one.scale()
        weight = one.w.tensor(shape, "int4", scales, 0, 3 if apart else 0, _packed(numbers))
        bias = one.w.constant(rng.integers(-500, 500, outer).astype(np.int32), scales * np.float32(x_scale))
        x = one.input((n * h, inner) if dense else (n, h, w, inner), x_scale, one.zero())
        terms = k[0] * k[1] * (1 if apart else inner // groups)
        y_shape = (n * h, outer) if dense else (n, h - k[0] + 1, w - k[1] + 1, outer)
        y = one.output(y_shape, float(np.float32(x_scale * scales.mean() * 4 * terms**0.5)), one.zero())
        fused = {"fused_activation_function": int(rng.choice(ACTIVATIONS))}
        window = {"padding": 1, "stride_w": 1, "stride_h": 1} if not dense else {}
        more = {"depth_multiplier": 1} if apart else {}
        kind = {"C": "Conv2D", "D": "DepthwiseConv2D", "F": "FullyConnected"}[op[0]]
        inputs, version = [x, weight, bias], 10 if dense else 7
        one.w.operator(op, inputs, [y], f"{kind}Options", version, **fused, **window, **more)
        return one.case(y)

    return make


NARROW: dict[str, Callable[[Random, str], Case]] = {
    f"{op}-int4": narrow(op) for op in ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED")
}
