"""The shapes of int8 matrices that a device's matrix units multiply, and the features that it lacks for
them."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator

from ..device.capabilities import Capabilities, CooperativeMatrix
from ..device.profiles import profile
from ..runtime.program import refusals
from ..shader.spec import Value, Variant

FEATURES = (
    "cooperativeMatrix",
    "vulkanMemoryModel",
    "shaderInt8",
    "subgroupSizeControl",
    "computeFullSubgroups",
)
HALF, BRAIN = "f16", "bf16"  # forms with float operands and float32 sums
FLOAT_FEATURES = {HALF: "shaderFloat16", BRAIN: "shaderBFloat16CooperativeMatrix"}
# types of A, B, C and D -> form of the product; the first form is preferred
FORMS = {("s8", "s8", "s32", "s32"): "s8s8", ("u8", "u8", "u32", "u32"): "u8u8"}
LEAST_SHARED = 32768  # bytes of shared memory with which every shape has a tile
SUBGROUP = 32  # the subgroup size that the shaders' WGM and WGN assume


@dataclasses.dataclass(frozen=True)
class Matrices:
    """A shape of matrices for a product: m outputs x n rows x k."""

    m: int
    n: int
    k: int
    form: str = "s8s8"  # the form of the product: s8s8, u8u8, f16 or bf16
    subgroup: int = SUBGROUP  # the size of a subgroup

    def __str__(self) -> str:
        """Return ``16x16x32``, or ``16x16x32 u8u8`` for unsigned elements."""
        return f"{self.m}x{self.n}x{self.k}" + (f" {self.form}" if self.form != "s8s8" else "")

    @property
    def shape_constants(self) -> dict[str, Value]:
        """The specialization constants for the shape of one matrix."""
        return {"MM": self.m, "MN": self.n, "MK": self.k, "SUBGROUP": self.subgroup}

    def constants(self, variant: Variant) -> dict[str, Value]:
        """Return the specialization constants of a shader for these matrices.

        A tile declares its numbers of subgroups, WGM down and WGN across, for subgroups of 32 invocations.
        Smaller subgroups double WGM first, then WGN. Larger subgroups halve WGN first, then WGM. So a
        workgroup always has the same number of invocations.
        """
        found = self.shape_constants
        if "WGM" not in variant.specialization:
            return found
        down, across = (int(variant.specialization[name].default) for name in ("WGM", "WGN"))
        doubled, size = 0, SUBGROUP
        while size > self.subgroup:
            size, doubled = size // 2, doubled + 1
            down, across = (down * 2, across) if doubled % 2 else (down, across * 2)
        while size < self.subgroup:
            size *= 2
            down, across = (down, across // 2) if across > 1 else (down // 2, across)
        return {**found, "WGM": down, "WGN": across}

    def runs(self, variant: Variant, capabilities: Capabilities, **constants: Value) -> bool:
        """Return True if the device can run a shader with these matrices and constants, with or without
        zero points of the weight."""
        values = {**self.constants(variant), "ROW_SUMS": True, **constants}
        return not refusals(variant, variant.constants(values), capabilities)

    def fit(self, variant: Variant, rows: int) -> bool:
        """Return True if each subgroup of a tile of *rows* rows has whole matrices and whole iterations of
        the epilogue."""
        constants = self.constants(variant)
        down, across = int(constants["WGM"]), int(constants["WGN"])
        if not (down and across):
            return False
        sm, sn = rows // down, int(variant.sizes["BN"]) // across
        # Rows of 16 channels that a subgroup stores at once (coopmat_epilogue.glslh).
        at_once = 16 * self.subgroup // sn
        return sm % 16 == 0 and sn % 16 == 0 and sn % self.m == 0 and at_once > 0 and 16 % at_once == 0


def advertised(capabilities: Capabilities) -> tuple[Matrices, ...]:
    """Return the matrices that the device lists for int8 times int8 into int32 (subgroup scope, not
    saturating) and that the shaders support.

    Signed elements come before unsigned elements; otherwise the order is that of the device's list, its
    preference. Only listed shapes may be used: a pipeline with any other shape computes nothing and reports
    no error.
    """
    return _advertised(capabilities.cooperative_matrices, *_subgroups(capabilities))


@functools.lru_cache(maxsize=64)
def _advertised(
    listed: tuple[CooperativeMatrix, ...], wanted: int | None, least: int, most: int
) -> tuple[Matrices, ...]:
    found = dict.fromkeys(_listed(listed, wanted, least, most))
    return tuple(sorted(found, key=lambda matrices: list(FORMS.values()).index(matrices.form)))


def _listed(
    listed: tuple[CooperativeMatrix, ...], wanted: int | None, least: int, most: int
) -> Iterator[Matrices]:
    for c in listed:
        form = FORMS.get((c.a, c.b, c.c, c.d))
        if form and c.scope == "subgroup" and not c.saturating:
            matrices = Matrices(c.m, c.n, c.k, form, _subgroup(c, wanted, least, most))
            if _supported(matrices):
                yield matrices


def advertised_half(
    capabilities: Capabilities, form: str = HALF, sums: bool = False
) -> tuple[Matrices, ...]:  # fmt: skip
    """Return the listed shapes of matrices with operands of type *form* and float32 sums that the shaders
    support; 8 elements along k fill one uvec4. *sums*: only shapes that the device also lists with sums of
    type *form*."""
    narrow = {(c.m, c.n) for c in capabilities.cooperative_matrices if (c.c, c.d) == (form, form)}
    found = (
        Matrices(c.m, c.n, c.k, form, _subgroup(c, *_subgroups(capabilities)))
        for c in capabilities.cooperative_matrices
        if (c.a, c.b, c.c, c.d) == (form, form, "f32", "f32")
        and c.scope == "subgroup"
        and not c.saturating
        and (not sums or (c.m, c.n) in narrow)
    )
    return tuple(
        dict.fromkeys(
            one for one in found
            if one.m in (8, 16, 32) and one.n in (8, 16) and one.k in (8, 16, 32)
            and 8 <= one.subgroup <= 64
        )
    )  # fmt: skip


def counted(capabilities: Capabilities) -> bool:
    """Return True if the device's compiler needs constant trip counts for loops over matrices. Only int8
    linear layers and convolutions can give them, as pipeline constants."""
    return profile(capabilities).matrix_literals == "trips"


def lacking_half(capabilities: Capabilities, form: str = HALF) -> str | None:
    """Return the missing feature for products of matrices of this form with float32 sums, or None."""
    if counted(capabilities):
        return f"its compiler crashes on loops over {form} matrices whose trip counts are not constants"
    features = (*FEATURES[:2], FLOAT_FEATURES[form], *FEATURES[3:])
    return _lacking(
        capabilities, features, functools.partial(advertised_half, form=form),
        f"{form} x {form} + f32 cooperative matrix in subgroup scope with M of 8 to 32, N of 8 or 16, K of 8"
        " to 32",
    )  # fmt: skip


def _supported(a: Matrices) -> bool:
    """Return True if the shaders support the shape: 16 elements along k are one uvec4 of the layouts, and
    epilogues store 16 rows at once."""
    return (
        a.m in (4, 8, 16, 32, 64)
        and a.n in (8, 16)
        and a.k in (16, 32)
        and 8 <= a.subgroup <= 64
        and a.m <= 2 * a.subgroup
    )


def _subgroups(capabilities: Capabilities) -> tuple[int | None, int, int]:
    """Return three subgroup sizes: the profile's (or None), the smallest, the largest."""
    least, most = (int(capabilities.properties[name]) for name in ("minSubgroupSize", "maxSubgroupSize"))
    return profile(capabilities).matrix_subgroup, least, most


def _subgroup(c: CooperativeMatrix, wanted: int | None, least: int, most: int) -> int:
    """Return the subgroup size for a shape: the profile's, else the shape's n, clamped to the device's
    range."""
    return min(max(c.n if wanted is None else wanted, least), most)


def lacking(capabilities: Capabilities) -> str | None:
    """Return the missing feature, shape or shared memory for products of int8 matrices, or None."""
    return _lacking(
        capabilities, FEATURES, advertised,
        "s8 x s8 + s32 or u8 x u8 + u32 cooperative matrix in subgroup scope with M of 4 to 64 (and at most"
        " two subgroups), N of 8 or 16, K of 16 or 32",
    )  # fmt: skip


def _lacking(
    capabilities: Capabilities,
    features: Iterable[str],
    shapes: Callable[[Capabilities], tuple[Matrices, ...]],
    what: str,
) -> str | None:
    for feature in features:
        if not capabilities.features.get(feature):
            return f"{feature} is false"
    if not shapes(capabilities):
        return f"it lists no {what}"
    shared = capabilities.properties["maxComputeSharedMemorySize"]
    if shared < LEAST_SHARED:
        return f"maxComputeSharedMemorySize is {shared}, needs {LEAST_SHARED}"
    return None
