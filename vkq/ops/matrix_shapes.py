"""The int8 matrices that a device's units multiply, and what it lacks for the shaders that use them."""

from __future__ import annotations

from ..device.capabilities import Capabilities, CooperativeMatrix

SUBGROUP = 32
SHAPES = ("16x16x32", "16x8x32", "16x16x16", "8x8x16")  # in order of preference: those that the shaders have
FEATURES = ("cooperativeMatrix", "vulkanMemoryModel", "shaderInt8", "subgroupSizeControl", "computeFullSubgroups")


def advertised(capabilities: Capabilities) -> tuple[str, ...]:
    """The shapes of the shaders that the device lists for int8 times int8 into int32, subgroup scope, not saturating.

    Only these may be used: a shape that is not listed makes a pipeline that computes nothing, without an error.
    """

    def fits(c: CooperativeMatrix) -> bool:
        types = (c.a, c.b, c.c, c.d) == ("s8", "s8", "s32", "s32")
        return types and c.scope == "subgroup" and not c.saturating

    listed = {f"{c.m}x{c.n}x{c.k}" for c in capabilities.cooperative_matrices if fits(c)}
    return tuple(shape for shape in SHAPES if shape in listed)


def lacking(capabilities: Capabilities) -> str | None:
    """What the device lacks to multiply int8 matrices: a feature, a shape or the subgroup size. None: nothing."""
    for feature in FEATURES:
        if not capabilities.features.get(feature):
            return f"{feature} is false"
    if not advertised(capabilities):
        return f"it lists no s8 x s8 + s32 cooperative matrix of {', '.join(SHAPES)} in subgroup scope"
    least, most = capabilities.properties["minSubgroupSize"], capabilities.properties["maxSubgroupSize"]
    if not least <= SUBGROUP <= most:
        return f"its subgroups have {least} to {most} invocations, not {SUBGROUP}"
    return None
