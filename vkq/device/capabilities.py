"""What a Vulkan device can do, as a frozen value under Vulkan's own names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

DEVICE_TYPES = ("other", "integrated", "discrete", "virtual", "cpu")  # VkPhysicalDeviceType
# The packed 4x8 dot products: plain and saturating, unsigned, signed and mixed. Flags of speed, not of
# support.
_PACKED = ("Unsigned", "Signed", "MixedSignedness")
DOT_ACCELERATED = tuple(
    f"integerDotProduct{saturating}4x8BitPacked{sign}Accelerated"
    for saturating in ("", "AccumulatingSaturating")
    for sign in _PACKED
)


@dataclasses.dataclass(frozen=True)
class CooperativeMatrix:
    """One row of vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR: D[m,n] = A[m,k] B[k,n] + C[m,n]."""

    m: int
    n: int
    k: int
    a: str
    b: str
    c: str
    d: str
    saturating: bool
    scope: str


@dataclasses.dataclass(frozen=True)
class MemoryType:
    """A memory type: its flags under Vulkan's names in lower case, and the size of its heap in bytes."""

    flags: frozenset[str]
    heap_bytes: int


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """What a device says of itself. ``features`` and ``properties`` carry Vulkan's own names; sizes are in
    bytes.

    ``facts`` joins them for the ``requires`` of a shader. What a driver claims is believed only after the
    self-test.
    """

    index: int
    name: str
    device_type: str  # discrete, integrated, virtual, cpu, other
    vendor_id: int
    device_id: int
    api_version: str
    driver: str  # name and version text, as the driver gives it
    driver_version: int
    device_uuid: str
    pipeline_cache_uuid: str
    extensions: frozenset[str]
    features: Mapping[str, bool]
    properties: Mapping[str, int]
    memory_types: tuple[MemoryType, ...]
    cooperative_matrices: tuple[CooperativeMatrix, ...]
    compute_family: int | None
    timestamp_valid_bits: int
    timestamp_period_ns: float
    choices: tuple[tuple[str, Any], ...] = ()  # what was measured on it, in place of its profile's fields

    def __hash__(self) -> int:
        return hash(self.key)

    @functools.cached_property
    def facts(self) -> Mapping[str, int | bool]:
        """Features and properties in one mapping, as ``requires`` in the shaders' YAML names them."""
        return {**self.features, **self.properties}

    def as_dict(self) -> dict[str, Any]:
        """Every field in types that JSON has; sets are sorted."""
        return dataclasses.asdict(self) | {
            "extensions": sorted(self.extensions),
            "memory_types": [
                {"flags": sorted(t.flags), "heap_bytes": t.heap_bytes} for t in self.memory_types
            ],
        }

    @functools.cached_property
    def key(self) -> str:
        """Names the device and driver in caches."""
        return f"{self.device_uuid}-{self.driver_version:08x}-{self.device_id:04x}"

    @property
    def max_workgroups(self) -> tuple[int, int, int]:
        """maxComputeWorkGroupCount in x, y and z."""
        p = self.properties
        return (
            p["maxComputeWorkGroupCount_x"],
            p["maxComputeWorkGroupCount_y"],
            p["maxComputeWorkGroupCount_z"],
        )

    @property
    def buffer_alignment(self) -> int:
        """Where a range of a buffer may begin: a multiple of so many bytes, whatever a shader reads it as."""
        p = self.properties
        return max(p["minStorageBufferOffsetAlignment"], p["minTexelBufferOffsetAlignment"])

    def refusal(self) -> str | None:
        """Why vkq cannot run on this device, or None."""
        if self.compute_family is None:
            return "it has no queue that computes"
        if tuple(int(v) for v in self.api_version.split(".")[:2]) < (1, 1):
            return f"it offers Vulkan {self.api_version}, vkq needs 1.1"
        return None
