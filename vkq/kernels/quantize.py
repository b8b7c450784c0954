"""Quantization and dequantization per tensor, in a plan."""

from __future__ import annotations

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..errors import DTypeError
from ..layout.extent import BLOCKED, MATRIX, PIXELS, Spec, extent_of, layout_number
from ..numerics.qparams import QParams
from ..numerics.stored import signed_zero_point
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from ..shader.spec import Value as Constant
from .weights import ceil4

# The shader multiplies by 1 / scale for scales in this range, and divides exactly for others.
INVERSES = (2.0**-100, 2.0**100)
SAFE = 0.5 - 2.0**-20  # a product farther than this from the nearest integer is recomputed by division
# {layout: its name in the shader variants of dequantize_q8ta__rows}
VECTORS = {MATRIX: "4h4w", BLOCKED: "16c"}


def quantized(b: Builder, x: Value, q: QParams, layout: str | None = None) -> Value:
    """Quantize float32 values to 8 bits. *layout*: the layout of the result; None: the default layout."""
    if x.spec.dtype != "float32":
        raise DTypeError(f"quantize: x has dtype {x.spec.dtype}; it must be float32")
    y = b.new(Spec(x.spec.shape, q.dtype, layout, q))
    if y.spec.size:
        n, c, h, w = extent_of(x.spec.shape, y.spec.layout)
        push: dict[str, int | float] = {"n": n, "c": c, "h": h, "w": w, **steps(q)}
        if y.spec.layout in PIXELS:
            variant = catalog().find("quantize_q8ta__pixels", layout=PIXELS[y.spec.layout])
            line = w if y.spec.layout == BLOCKED else 4 * ceil4(w)
            program = b.device.program(variant, quantize_constants(b.device.capabilities))
            push["threads"] = -(-c // 16) * n * h * line
        else:
            constants = {"LAYOUT": layout_number(y.spec.layout)}
            program = b.device.program(catalog().find("quantize_q8ta__word"), constants)
            push["words"] = y.spec.nbytes // 4
        b.dispatch(program, [x, y], push)
    return y


def quantize_constants(c: Capabilities) -> dict[str, Constant]:
    """Return the specialization constants of quantize_pixels.comp for a device."""
    return {"LOAD_AHEAD": profile(c).unrolled_loops}


def steps(q: QParams) -> dict[str, int | float]:
    """Return the push constants of shaders/common/quantized.glslh for quantization parameters."""
    return steps_of(q.scale, signed_zero_point(q))


def steps_of(scale: float, zero: int) -> dict[str, int | float]:
    """Return the push constants of shaders/common/quantized.glslh for a scale and the stored (int8) zero
    point."""
    usual = INVERSES[0] <= scale <= INVERSES[1]
    return {
        "scale": scale, "zero_point": zero, "inverse": 1.0 / scale if usual else 0.0,
        "low": -128.0 - zero, "high": 127.0 - zero, "safe": SAFE if usual else -1.0,
    }  # fmt: skip


def dequantized(b: Builder, x: Value, q: QParams) -> Value:
    """Dequantize 8-bit values to float32."""
    y, s = b.new(Spec(x.spec.shape, "float32")), x.spec
    if y.spec.size:
        n, c, h, w = s.extent
        push: dict[str, int | float] = {"scale": q.scale, "zero_point": signed_zero_point(q)}
        constants: dict[str, Constant] = {}
        if rows := _rows(s):
            variant = catalog().find("dequantize_q8ta__rows", layout=VECTORS[s.layout])
            push |= rows
        elif s.layout in PIXELS:
            variant = catalog().find("dequantize_q8ta__pixels", layout=PIXELS[s.layout])
            push |= {"n": n, "c": c, "h": h, "w": w, "threads": -(-c // 16) * n * h * w}
        else:
            variant = catalog().find("dequantize_q8ta__element")
            constants["LAYOUT"] = layout_number(s.layout)
            push |= {"n": n, "c": c, "h": h, "w": w, "elements": s.size}
        b.dispatch(b.device.program(variant, constants), [x, y], push)
    return y


def _rows(x: Spec) -> dict[str, int | float]:
    """Return the push constants of dequantize_rows.comp; empty if x has no rows of whole words."""
    n, c, h, w = x.extent
    rows, columns = (n, c) if x.layout == BLOCKED else (h, w)
    if x.layout not in VECTORS or columns % 4 or (x.layout == BLOCKED and (h, w) != (1, 1)):
        return {}
    lines = rows if x.layout == BLOCKED else ceil4(rows)
    return {"rows": rows, "width": columns // 4, "threads": lines * (columns // 4)}
