"""Pack x for products on float16 and bfloat16 matrix units, in a dispatch before the product."""

from __future__ import annotations

from ..layout.extent import Spec
from ..runtime.builder import Builder, Value
from ..shader.catalog import catalog
from ..shader.spec import Variant

RUN = 8  # float16 elements of a uvec4
X_PARTS = 3  # bfloat16 parts that add up to a float32 value


def halves(
    b: Builder,
    x: Value,
    images: int,
    groups: int,
    channels: int,
    plane: int,
    of: str = "images",
    whole: int = RUN,
) -> Value:
    """Pack x, float32 or float16, in runs of 8 float16 values along channels
    (shaders/gemm/runs_q8csw.comp). The channels of a group are padded with zeros to a multiple of *whole*."""
    variant = catalog().find("halves_q8csw__runs", x=x.spec.dtype, of=of)
    return _in_runs(b, x, variant, 1, images, groups, channels, plane, whole)


def parts_of(b: Builder, x: Value, images: int, groups: int, channels: int, plane: int, of: str) -> Value:
    """Pack float32 x in three bfloat16 parts (shaders/gemm/runs_q8csw.comp)."""
    variant = catalog().find("parts_q8csw__runs", of=of)
    return _in_runs(b, x, variant, X_PARTS, images, groups, channels, plane)


def _in_runs(
    b: Builder,
    x: Value,
    variant: Variant,
    parts: int,
    images: int,
    groups: int,
    channels: int,
    plane: int,
    whole: int = RUN,
) -> Value:
    runs = -(-channels // whole) * whole // RUN
    y = b.new(Spec((4 * parts * images * groups * runs * plane,), "int32"))
    push: dict[str, int | float] = {
        "images": images, "groups": groups, "group_channels": channels, "runs": runs, "plane": plane,
    }  # fmt: skip
    b.dispatch(b.device.program(variant), [x, y], push)
    return y
