"""Quantize and dequantize per tensor, as steps of a plan."""

from __future__ import annotations

from ..errors import DTypeError
from ..layout.extent import Spec, extent_of, layout_number
from ..numerics.qparams import QParams
from ..numerics.stored import signed_zero_point
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog


def quantized(b: Builder, x: Value, q: QParams, layout: str | None = None) -> Value:
    """float32 as 8-bit numbers in the given or default layout."""
    if x.spec.dtype != "float32":
        raise DTypeError(f"quantize: x has dtype {x.spec.dtype}; it must be float32")
    y = b.new(Spec(x.spec.shape, q.dtype, layout, q))
    if y.spec.size:
        program = b.device.program(
            catalog().find("quantize_q8ta__word"), {"LAYOUT": layout_number(y.spec.layout)}
        )
        n, c, h, w = extent_of(x.spec.shape, y.spec.layout)
        push: dict[str, int | float] = {
            "words": y.spec.nbytes // 4, "n": n, "c": c, "h": h, "w": w, "scale": q.scale,
            "zero_point": signed_zero_point(q),
        }  # fmt: skip
        b.dispatch(program, [x, y], push)
    return y


def dequantized(b: Builder, x: Value, q: QParams) -> Value:
    """8-bit numbers as float32."""
    y = b.new(Spec(x.spec.shape, "float32"))
    if y.spec.size:
        constants = {"LAYOUT": layout_number(x.spec.layout)}
        program = b.device.program(catalog().find("dequantize_q8ta__element"), constants)
        n, c, h, w = x.spec.extent
        push: dict[str, int | float] = {
            "elements": x.spec.size, "n": n, "c": c, "h": h, "w": w, "scale": q.scale,
            "zero_point": signed_zero_point(q),
        }  # fmt: skip
        b.dispatch(program, [x, y], push)
    return y
