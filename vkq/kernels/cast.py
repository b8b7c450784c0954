"""Convert between float16 and float32 in a plan, and pad rows with zeros."""

from __future__ import annotations

from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..shader.catalog import catalog


def converted(b: Builder, x: Value, dtype: str) -> Value:
    """Convert x, float16 or float32, to *dtype*. Return x itself if it has this dtype."""
    if x.spec.dtype == dtype:
        return x
    y = b.new(Spec(x.spec.shape, dtype))
    if y.spec.size:
        program = b.device.program(catalog().find("cast_float16__words", to=dtype))
        b.dispatch(program, [x, y], {"elements": y.spec.size})
    return y


def filled_rows(b: Builder, x: Value, k: int) -> Value:
    """Pad the K columns of x (..., K), float16 or float32, with zeros to k columns, a multiple of 8. A plan
    pads each x once."""
    if x.spec.shape[-1] == k:
        return x

    def make() -> Value:
        y = b.new(Spec((*x.spec.shape[:-1], k), x.spec.dtype))
        if y.spec.size:
            program = b.device.program(catalog().find("fill_rows__words", x=x.spec.dtype))
            sizes = {"vectors": y.spec.nbytes // 16, "x_k": x.spec.shape[-1], "y_k": k}
            b.dispatch(program, [x, y], sizes)
        return y

    return b.once(x, ("filled_rows", k), make)


def result_dtype(device: Device, x: Value) -> str:
    """Return the dtype of a layer's results: the dtype of x if shaders can store 16-bit values, else
    float32."""
    return x.spec.dtype if device.capabilities.features["storageBuffer16BitAccess"] else "float32"
