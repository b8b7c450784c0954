"""float16 and float32 numbers as each other, as steps of a plan."""

from __future__ import annotations

from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from ..runtime.device import Device
from ..shader.catalog import catalog


def converted(b: Builder, x: Value, dtype: str) -> Value:
    """float16 or float32 x as the one or the other *dtype*: itself where it is of that type."""
    if x.spec.dtype == dtype:
        return x
    y = b.new(Spec(x.spec.shape, dtype))
    if y.spec.size:
        program = b.device.program(catalog().find("cast_float16__words", to=dtype))
        b.dispatch(program, [x, y], {"elements": y.spec.size})
    return y


def kept(device: Device, x: Value) -> str:
    """The type of a layer's results: of x, where shaders may write single numbers of float16, or float32."""
    return x.spec.dtype if device.capabilities.features["storageBuffer16BitAccess"] else "float32"
