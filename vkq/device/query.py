"""Asking Vulkan what each device can do."""

from __future__ import annotations

import math
from typing import Any

from ..errors import DeviceError
from . import vulkan
from .capabilities import DEVICE_TYPES, DOT_ACCELERATED, Capabilities, CooperativeMatrix, MemoryType

LIMITS = (
    "maxComputeSharedMemorySize",
    "maxComputeWorkGroupInvocations",
    "maxComputeWorkGroupCount",
    "maxComputeWorkGroupSize",
    "maxStorageBufferRange",
    "minStorageBufferOffsetAlignment",
    "maxTexelBufferElements",
    "minTexelBufferOffsetAlignment",
    "maxPushConstantsSize",
    "maxPerStageDescriptorStorageBuffers",
    "maxMemoryAllocationCount",
    "timestampPeriod",
)
PROPERTIES: tuple[tuple[str, tuple[int, int] | None, str | None, tuple[str, ...]], ...] = (
    ("ShaderIntegerDotProductProperties", (1, 3), "VK_KHR_shader_integer_dot_product", DOT_ACCELERATED),
    (
        "FloatControlsProperties",
        (1, 2),
        "VK_KHR_shader_float_controls",
        (
            "shaderRoundingModeRTEFloat32",
            "shaderDenormPreserveFloat32",
            "shaderSignedZeroInfNanPreserveFloat32",
        ),
    ),
    ("SubgroupProperties", (1, 1), None, ("subgroupSize", "supportedOperations")),
    (
        "SubgroupSizeControlProperties",
        (1, 3),
        "VK_EXT_subgroup_size_control",
        ("minSubgroupSize", "maxSubgroupSize", "requiredSubgroupSizeStages"),
    ),
    ("Maintenance3Properties", (1, 1), None, ("maxMemoryAllocationSize",)),
    ("Maintenance4Properties", (1, 3), "VK_KHR_maintenance4", ("maxBufferSize",)),
    ("ShaderSMBuiltinsPropertiesNV", None, "VK_NV_shader_sm_builtins", ("shaderSMCount",)),
    ("ShaderCoreProperties2AMD", None, "VK_AMD_shader_core_properties2", ("activeComputeUnitCount",)),
    ("ShaderCoreBuiltinsPropertiesARM", None, "VK_ARM_shader_core_builtins", ("shaderCoreCount",)),
)
COMPONENT_TYPES = {
    0: "f16",
    1: "f32",
    2: "f64",
    3: "s8",
    4: "s16",
    5: "s32",
    6: "s64",
    7: "u8",
    8: "u16",
    9: "u32",
    1000141000: "bf16",
}
SCOPES = {1: "device", 2: "workgroup", 3: "subgroup", 5: "queue_family"}


def devices() -> list[Capabilities]:
    """The capabilities of every device that the loader shows. Raises NoDeviceError where there is no loader
    or instance."""
    return [read(handle, index) for index, handle in enumerate(vulkan.instance().physical_devices())]


def read(physical: Any, index: int) -> Capabilities:
    """Asks Vulkan about one physical device."""
    vk = vulkan.binding()
    ffi, lib = vk.ffi, vk.lib
    base = ffi.new("VkPhysicalDeviceProperties*")
    lib.vkGetPhysicalDeviceProperties(physical, base)
    version = (base.apiVersion >> 22 & 0x7F, base.apiVersion >> 12 & 0x3FF, base.apiVersion & 0xFFF)
    extensions = _extensions(physical)
    properties = _limits(base.limits)
    uuid, driver = "", ""
    if version >= (1, 1):
        chained = _query_properties(physical, version, extensions)
        properties |= chained
        uuid, driver = _identity(physical, version, extensions)
    family, bits = _compute_family(physical)
    features = _query_features(physical, version, extensions)
    return Capabilities(
        index=index,
        name=ffi.string(base.deviceName).decode(errors="replace"),
        device_type=DEVICE_TYPES[base.deviceType] if base.deviceType < len(DEVICE_TYPES) else "other",
        vendor_id=base.vendorID,
        device_id=base.deviceID,
        api_version=".".join(map(str, version)),
        driver=driver,
        driver_version=base.driverVersion,
        pipeline_cache_uuid=bytes(base.pipelineCacheUUID).hex(),
        device_uuid=uuid or bytes(base.pipelineCacheUUID).hex(),
        extensions=extensions,
        features=features,
        properties=properties,
        memory_types=_memory_types(physical),
        cooperative_matrices=_cooperative_matrices(physical) if features.get("cooperativeMatrix") else (),
        compute_family=family,
        timestamp_valid_bits=bits if math.isfinite(base.limits.timestampPeriod) else 0,
        timestamp_period_ns=float(base.limits.timestampPeriod),
    )


def _limits(limits: Any) -> dict[str, int]:
    out: dict[str, int] = {}
    for name in LIMITS:
        value = getattr(limits, name)
        if isinstance(value, (int, float)):
            out[name] = (
                int(value) if math.isfinite(value) else 0
            )  # a driver without hardware has an infinite timestampPeriod
        else:
            out |= {f"{name}_{axis}": int(value[i]) for i, axis in enumerate("xyz")}
    return out


def _extensions(physical: Any) -> frozenset[str]:
    vk = vulkan.binding()
    count = vk.ffi.new("uint32_t*")
    call = "vkEnumerateDeviceExtensionProperties"
    vulkan.check(vk.lib.vkEnumerateDeviceExtensionProperties(physical, vk.ffi.NULL, count, vk.ffi.NULL), call)
    out = vk.ffi.new("VkExtensionProperties[]", max(1, count[0]))
    vulkan.check(vk.lib.vkEnumerateDeviceExtensionProperties(physical, vk.ffi.NULL, count, out), call)
    return frozenset(vk.ffi.string(out[i].extensionName).decode() for i in range(count[0]))


def _present(
    version: tuple[int, int, int], core: tuple[int, int] | None, extension: str | None, have: frozenset[str]
) -> bool:
    return (core is not None and version[:2] >= core) or extension in have


def _query_features(
    physical: Any, version: tuple[int, int, int], extensions: frozenset[str]
) -> dict[str, bool]:
    table = [
        row for row in vulkan.FEATURES if version >= (1, 1) and _present(version, row[1], row[2], extensions)
    ]
    structs = [vulkan.struct(f"PhysicalDevice{row[0]}") for row in table]
    top = vulkan.struct("PhysicalDeviceFeatures2")
    vk = vulkan.binding()
    if version >= (1, 1):
        vulkan.chain([top, *structs])
        vk.lib.vkGetPhysicalDeviceFeatures2(physical, top)
    else:
        vk.lib.vkGetPhysicalDeviceFeatures(physical, vk.ffi.addressof(top, "features"))
    out = {field: False for row in vulkan.FEATURES for field in row[3]}
    out |= {field: bool(getattr(top.features, field)) for field in vulkan.CORE_FEATURES}
    for row, one in zip(table, structs, strict=True):
        out |= {field: bool(getattr(one, field)) for field in row[3]}
    return out


def _query_properties(
    physical: Any, version: tuple[int, int, int], extensions: frozenset[str]
) -> dict[str, int]:
    table = [row for row in PROPERTIES if _present(version, row[1], row[2], extensions)]
    structs = [vulkan.struct(f"PhysicalDevice{row[0]}") for row in table]
    top = vulkan.struct("PhysicalDeviceProperties2")
    vulkan.chain([top, *structs])
    vulkan.binding().lib.vkGetPhysicalDeviceProperties2(physical, top)
    out = {field: 0 for row in PROPERTIES for field in row[3]}
    for row, one in zip(table, structs, strict=True):
        out |= {field: int(getattr(one, field)) for field in row[3]}
    return out


def _identity(physical: Any, version: tuple[int, int, int], extensions: frozenset[str]) -> tuple[str, str]:
    """(device UUID as hex, driver name and version text)."""
    vk = vulkan.binding()
    ids = vulkan.struct("PhysicalDeviceIDProperties")
    top = vulkan.struct("PhysicalDeviceProperties2")
    structs = [top, ids]
    driver = None
    if _present(version, (1, 2), "VK_KHR_driver_properties", extensions):
        driver = vulkan.struct("PhysicalDeviceDriverProperties")
        structs.append(driver)
    vulkan.chain(structs)
    vk.lib.vkGetPhysicalDeviceProperties2(physical, top)
    text = ""
    if driver is not None:
        parts = (vk.ffi.string(driver.driverName).decode(), vk.ffi.string(driver.driverInfo).decode())
        text = " ".join(p for p in parts if p)
    return bytes(ids.deviceUUID).hex(), text


def _compute_family(physical: Any) -> tuple[int | None, int]:
    """(queue family that computes, its timestamp bits); a family without graphics is kept for vkq where there
    is one."""
    vk = vulkan.binding()
    count = vk.ffi.new("uint32_t*")
    vk.lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, vk.ffi.NULL)
    out = vk.ffi.new("VkQueueFamilyProperties[]", max(1, count[0]))
    vk.lib.vkGetPhysicalDeviceQueueFamilyProperties(physical, count, out)
    able = [i for i in range(count[0]) if out[i].queueFlags & vk.VK_QUEUE_COMPUTE_BIT]
    if not able:
        return None, 0
    family = min(able, key=lambda i: (bool(out[i].queueFlags & vk.VK_QUEUE_GRAPHICS_BIT), i))
    return family, out[family].timestampValidBits


def _memory_types(physical: Any) -> tuple[MemoryType, ...]:
    vk = vulkan.binding()
    out = vk.ffi.new("VkPhysicalDeviceMemoryProperties*")
    vk.lib.vkGetPhysicalDeviceMemoryProperties(physical, out)
    names = {
        "device_local": 1, "host_visible": 2, "host_coherent": 4, "host_cached": 8, "lazily_allocated": 16,
        "protected": 32, "device_coherent_amd": 64, "device_uncached_amd": 128, "rdma_capable_nv": 256,
    }  # fmt: skip
    return tuple(
        MemoryType(
            frozenset(n for n, bit in names.items() if out.memoryTypes[i].propertyFlags & bit),
            int(out.memoryHeaps[out.memoryTypes[i].heapIndex].size),
        )
        for i in range(out.memoryTypeCount)
    )


def _cooperative_matrices(physical: Any) -> tuple[CooperativeMatrix, ...]:
    ffi = vulkan.binding().ffi
    try:
        query = vulkan.instance().function("vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    except DeviceError:
        return ()
    count = ffi.new("uint32_t*")
    vulkan.check(query(physical, count, ffi.NULL), "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")
    out = ffi.new("VkCooperativeMatrixPropertiesKHR[]", max(1, count[0]))
    for i in range(count[0]):
        out[i].sType = vulkan.struct("CooperativeMatrixPropertiesKHR").sType
    vulkan.check(query(physical, count, out), "vkGetPhysicalDeviceCooperativeMatrixPropertiesKHR")

    def component(value: int) -> str:
        return COMPONENT_TYPES.get(value, f"type{value}")

    return tuple(
        CooperativeMatrix(
            p.MSize, p.NSize, p.KSize,
            component(p.AType), component(p.BType), component(p.CType), component(p.ResultType),
            bool(p.saturatingAccumulation), SCOPES.get(p.scope, str(p.scope)),
        )
        for p in out[0 : count[0]]
    )  # fmt: skip
