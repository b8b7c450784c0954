"""The Vulkan structs with a device's capabilities. A struct is described by its VkStructureType and the
positions of its fields. So the compiled extension can also query structs that its Vulkan headers lack.

The names omit the prefix ``VkPhysicalDevice``. Positions count 32-bit words from the first word after sType
and pNext.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from .capabilities import DOT_ACCELERATED


@dataclasses.dataclass(frozen=True)
class Struct:
    """A struct of Vulkan."""

    name: str
    number: int  # the VkStructureType
    words: int  # the size in 32-bit words
    fields: Mapping[str, int]  # the positions of the fields that vkq uses
    core: tuple[int, int] | None = None  # the first Vulkan version that includes the struct
    extension: str | None = None  # the extension that provides it in older versions
    wide: bool = False  # True if the fields have 64 bits

    def present(self, version: tuple[int, ...], extensions: frozenset[str]) -> bool:
        """Return True if a device of this version, with these extensions, supports the struct."""
        return (self.core is not None and version[:2] >= self.core) or self.extension in extensions

    @property
    def asked(self) -> tuple[int, bytes]:
        """(VkStructureType, zero bytes of the struct's size). The extension passes both to Vulkan, which
        fills the struct."""
        return self.number, bytes(4 * self.words)

    def enabling(self, fields: Mapping[str, bool]) -> tuple[int, bytes]:
        """Return (VkStructureType, bytes of the struct), with 1 for the fields that are True in *fields*
        and 0 in all other words."""
        words = [0] * self.words
        for name, place in self.fields.items():
            words[place] = int(fields.get(name, False))
        return self.number, b"".join(word.to_bytes(4, "little") for word in words)

    def read(self, content: bytes) -> dict[str, int]:
        """Return {field: value}. *content*: the bytes of the struct, which Vulkan filled."""
        size = 8 if self.wide else 4
        return {
            name: int.from_bytes(content[4 * place : 4 * place + size], "little")
            for name, place in self.fields.items()
        }


def _flags(*names: str) -> dict[str, int]:
    """Return the positions 0, 1, 2, ... for the fields *names*: the first fields of the struct, in order,
    each a VkBool32."""
    return {name: place for place, name in enumerate(names)}


# VkPhysicalDeviceFeatures, which has neither sType nor pNext.
CORE = Struct("Features", 0, 55, {"shaderInt64": 40, "shaderInt16": 41})

# Structs with features. vkq queries each struct that the device supports, and enables its features when it
# opens the device. Devices of Vulkan 1.1 and 1.2 may have these features through extensions; so vkq uses
# the structs of single features, not VkPhysicalDeviceVulkan1xFeatures.
FEATURES = (
    Struct(
        "ShaderIntegerDotProductFeatures", 1000280000, 1, _flags("shaderIntegerDotProduct"), (1, 3),
        "VK_KHR_shader_integer_dot_product",
    ),
    Struct("Maintenance4Features", 1000413000, 1, _flags("maintenance4"), (1, 3), "VK_KHR_maintenance4"),
    Struct(
        "SubgroupSizeControlFeatures", 1000225002, 2, _flags("subgroupSizeControl", "computeFullSubgroups"),
        (1, 3), "VK_EXT_subgroup_size_control",
    ),
    Struct(
        "8BitStorageFeatures", 1000177000, 3, {"storageBuffer8BitAccess": 0}, (1, 2), "VK_KHR_8bit_storage"
    ),
    Struct("16BitStorageFeatures", 1000083000, 4, {"storageBuffer16BitAccess": 0}, (1, 1)),
    Struct(
        "ShaderFloat16Int8Features", 1000082000, 2, _flags("shaderFloat16", "shaderInt8"), (1, 2),
        "VK_KHR_shader_float16_int8",
    ),
    Struct(
        "VulkanMemoryModelFeatures", 1000211000, 3,
        _flags("vulkanMemoryModel", "vulkanMemoryModelDeviceScope"), (1, 2), "VK_KHR_vulkan_memory_model",
    ),
    Struct(
        "CooperativeMatrixFeaturesKHR", 1000506000, 2, {"cooperativeMatrix": 0}, None,
        "VK_KHR_cooperative_matrix",
    ),
    Struct(
        "ShaderBfloat16FeaturesKHR", 1000141000, 3,
        {"shaderBFloat16Type": 0, "shaderBFloat16CooperativeMatrix": 2}, None, "VK_KHR_shader_bfloat16",
    ),
    Struct(
        "PipelineExecutablePropertiesFeaturesKHR", 1000269000, 1, _flags("pipelineExecutableInfo"), None,
        "VK_KHR_pipeline_executable_properties",
    ),
)  # fmt: skip

# Structs with properties and limits.
PROPERTIES = (
    Struct(
        "ShaderIntegerDotProductProperties", 1000280001, 30,
        dict(zip(DOT_ACCELERATED, (3, 4, 5, 18, 19, 20), strict=True)), (1, 3),
        "VK_KHR_shader_integer_dot_product",
    ),
    Struct(
        "FloatControlsProperties", 1000197000, 17,
        {
            "shaderRoundingModeRTEFloat32": 12,
            "shaderDenormPreserveFloat32": 6,
            "shaderSignedZeroInfNanPreserveFloat32": 3,
        },
        (1, 2), "VK_KHR_shader_float_controls",
    ),
    Struct("SubgroupProperties", 1000094000, 4, {"subgroupSize": 0, "supportedOperations": 2}, (1, 1)),
    Struct(
        "SubgroupSizeControlProperties", 1000225000, 4,
        {"minSubgroupSize": 0, "maxSubgroupSize": 1, "requiredSubgroupSizeStages": 3}, (1, 3),
        "VK_EXT_subgroup_size_control",
    ),
    Struct("Maintenance3Properties", 1000168000, 4, {"maxMemoryAllocationSize": 2}, (1, 1), wide=True),
    Struct(
        "Maintenance4Properties", 1000413001, 2, {"maxBufferSize": 0}, (1, 3), "VK_KHR_maintenance4",
        wide=True,
    ),
    Struct(
        "ShaderSMBuiltinsPropertiesNV", 1000154001, 2, {"shaderSMCount": 0}, None, "VK_NV_shader_sm_builtins"
    ),
    Struct(
        "ShaderCoreProperties2AMD", 1000227000, 2, {"activeComputeUnitCount": 1}, None,
        "VK_AMD_shader_core_properties2",
    ),
    Struct(
        "ShaderCoreBuiltinsPropertiesARM", 1000497001, 4, {"shaderCoreCount": 2}, None,
        "VK_ARM_shader_core_builtins",
    ),
)  # fmt: skip

# Structs with texts or arrays of bytes. The position of a field is that of its first word.
IDENTITY = Struct("IDProperties", 1000071004, 12, {"deviceUUID": 0}, (1, 1))
DRIVER = Struct(
    "DriverProperties",
    1000196000,
    130,
    {"driverName": 1, "driverInfo": 65},
    (1, 2),
    "VK_KHR_driver_properties",
)
