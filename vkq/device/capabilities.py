"""The capabilities of a Vulkan device: an immutable object with Vulkan's own names."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

DEVICE_TYPES = ("other", "integrated", "discrete", "virtual", "cpu")  # indexed by VkPhysicalDeviceType
# The properties of packed dot products (4 x 8 bits), plain and saturating, each unsigned, signed and mixed.
# True means that the dot product is fast; every device of the extension supports it.
_PACKED = ("Unsigned", "Signed", "MixedSignedness")
DOT_ACCELERATED = tuple(
    f"integerDotProduct{saturating}4x8BitPacked{sign}Accelerated"
    for saturating in ("", "AccumulatingSaturating")
    for sign in _PACKED
)


@dataclasses.dataclass(frozen=True)
class CooperativeMatrix:
    """A shape of cooperative matrices, for the product D[m,n] = A[m,k] B[k,n] + C[m,n], as
    vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR lists it."""

    m: int
    n: int
    k: int  # the element type of A; likewise b, c, d
    a: str
    b: str
    c: str
    d: str
    saturating: bool
    scope: str


@dataclasses.dataclass(frozen=True)
class MemoryType:
    """A memory type: the names of its flags (Vulkan's names in lower case) and its heap's size in bytes."""

    flags: frozenset[str]
    heap_bytes: int


@dataclasses.dataclass(frozen=True)
class Capabilities:
    """The capabilities that a device reports. The keys of ``features`` and ``properties`` are Vulkan's own
    names; sizes are in bytes. vkq uses a feature only after the self-test verified it."""

    index: int
    name: str
    device_type: str  # discrete, integrated, virtual, cpu, other
    vendor_id: int
    device_id: int
    api_version: str
    driver: str  # name and version text of the driver
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
    choices: tuple[tuple[str, Any], ...] = ()  # (profile field, value) pairs that were measured on the device

    def __hash__(self) -> int:
        return hash(self.key)

    @functools.cached_property
    def facts(self) -> Mapping[str, int | bool]:
        """The features and the properties in one mapping, for the conditions ``requires`` in the YAML of
        shaders."""
        return {**self.features, **self.properties}

    def as_dict(self) -> dict[str, Any]:
        """Return all fields as a dict of JSON types. Sets become sorted lists."""
        return dataclasses.asdict(self) | {
            "extensions": sorted(self.extensions),
            "memory_types": [
                {"flags": sorted(t.flags), "heap_bytes": t.heap_bytes} for t in self.memory_types
            ],
        }

    @functools.cached_property
    def key(self) -> str:
        """The key of the device and its driver in caches."""
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
        """The alignment in bytes of a buffer range that is bound as a storage or texel buffer."""
        p = self.properties
        return max(p["minStorageBufferOffsetAlignment"], p["minTexelBufferOffsetAlignment"])

    def refusal(self) -> str | None:
        """Return the reason why vkq cannot run on this device, or None if it can."""
        if self.compute_family is None:
            return "it has no queue that computes"
        if tuple(int(v) for v in self.api_version.split(".")[:2]) < (1, 1):
            return f"it offers Vulkan {self.api_version}, vkq needs 1.1"
        return None
