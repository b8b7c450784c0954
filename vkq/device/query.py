"""Query Vulkan for the capabilities of each device."""

from __future__ import annotations

import math
from typing import Any

from . import vulkan
from .capabilities import DEVICE_TYPES, Capabilities, CooperativeMatrix, MemoryType
from .structs import CORE, DRIVER, FEATURES, IDENTITY, PROPERTIES, Struct

QUEUE_GRAPHICS, QUEUE_COMPUTE = 1, 2  # VkQueueFlagBits
MEMORY_FLAGS = {
    "device_local": 1, "host_visible": 2, "host_coherent": 4, "host_cached": 8, "lazily_allocated": 16,
    "protected": 32, "device_coherent_amd": 64, "device_uncached_amd": 128, "rdma_capable_nv": 256,
}  # fmt: skip
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
    """Return the capabilities of every device that the loader lists. Raises NoDeviceError if the loader is
    missing or no VkInstance can be created."""
    return [read(handle, index) for index, handle in enumerate(vulkan.instance().physical_devices())]


def read(physical: int, index: int) -> Capabilities:
    """Return the capabilities of one physical device."""
    native = vulkan.instance().native
    base = native.properties(physical)
    packed = base["apiVersion"]
    version = (packed >> 22 & 0x7F, packed >> 12 & 0x3FF, packed & 0xFFF)
    extensions = frozenset(_text(name) for name in native.extensions(physical))
    properties = _limits(base["limits"])
    uuid, driver = "", ""
    if version >= (1, 1):
        properties |= _query_properties(physical, version, extensions)
        uuid, driver = _identity(physical, version, extensions)
    family, bits = _compute_family(native.queue_families(physical))
    features = _query_features(physical, version, extensions)
    period = base["limits"]["timestampPeriod"]
    return Capabilities(
        index=index,
        name=_text(base["deviceName"]),
        device_type=DEVICE_TYPES[base["deviceType"]] if base["deviceType"] < len(DEVICE_TYPES) else "other",
        vendor_id=base["vendorID"],
        device_id=base["deviceID"],
        api_version=".".join(map(str, version)),
        driver=driver,
        driver_version=base["driverVersion"],
        pipeline_cache_uuid=base["pipelineCacheUUID"].hex(),
        device_uuid=uuid or base["pipelineCacheUUID"].hex(),
        extensions=extensions,
        features=features,
        properties=properties,
        memory_types=tuple(
            MemoryType(frozenset(n for n, bit in MEMORY_FLAGS.items() if flags & bit), heap_bytes)
            for flags, heap_bytes in native.memory_types(physical)
        ),
        cooperative_matrices=_cooperative_matrices(physical) if features.get("cooperativeMatrix") else (),
        compute_family=family,
        timestamp_valid_bits=bits if math.isfinite(period) else 0,
        timestamp_period_ns=float(period),
    )


def _text(content: bytes) -> str:
    """Return the text before the first NUL byte."""
    return content.split(b"\0", 1)[0].decode(errors="replace")


def _limits(limits: dict[str, Any]) -> dict[str, int]:
    out: dict[str, int] = {}
    for name, value in limits.items():
        if isinstance(value, tuple):
            out |= {f"{name}_{axis}": each for axis, each in zip("xyz", value, strict=True)}
        else:  # a software driver may report an infinite timestampPeriod
            out[name] = int(value) if math.isfinite(value) else 0
    return out


def _query_features(
    physical: int, version: tuple[int, int, int], extensions: frozenset[str]
) -> dict[str, bool]:
    table = [each for each in FEATURES if version >= (1, 1) and each.present(version, extensions)]
    found = vulkan.instance().native.features(physical, [each.asked for each in table])
    out = {field: False for each in FEATURES for field in each.fields}
    for each, content in zip((CORE, *table), found, strict=True):
        out |= {field: bool(value) for field, value in each.read(content).items()}
    return out


def _more(physical: int, table: list[Struct]) -> list[bytes]:
    found: list[bytes] = vulkan.instance().native.more_properties(physical, [each.asked for each in table])
    return found


def _query_properties(
    physical: int, version: tuple[int, int, int], extensions: frozenset[str]
) -> dict[str, int]:
    table = [each for each in PROPERTIES if each.present(version, extensions)]
    out = {field: 0 for each in PROPERTIES for field in each.fields}
    for each, content in zip(table, _more(physical, table), strict=True):
        out |= each.read(content)
    return out


def _identity(physical: int, version: tuple[int, int, int], extensions: frozenset[str]) -> tuple[str, str]:
    """Return (the device's UUID in hexadecimal, a text with the driver's name and version)."""
    table = [each for each in (IDENTITY, DRIVER) if each.present(version, extensions)]
    uuid, *driver = _more(physical, table)
    starts = DRIVER.fields.values()
    parts = [_text(content[4 * at : 4 * at + 256]) for content in driver for at in starts]
    return uuid[:16].hex(), " ".join(part for part in parts if part)


def _compute_family(families: list[tuple[int, int]]) -> tuple[int | None, int]:
    """Return (index of a queue family for compute, number of its valid timestamp bits), preferably of a
    family without graphics. Return (None, 0) if no family can compute."""
    able = [i for i, (flags, _) in enumerate(families) if flags & QUEUE_COMPUTE]
    if not able:
        return None, 0
    family = min(able, key=lambda i: (bool(families[i][0] & QUEUE_GRAPHICS), i))
    return family, families[family][1]


def _cooperative_matrices(physical: int) -> tuple[CooperativeMatrix, ...]:
    def component(value: int) -> str:
        return COMPONENT_TYPES.get(value, f"type{value}")

    return tuple(
        CooperativeMatrix(
            m, n, k, component(a), component(b), component(c), component(d), bool(saturating),
            SCOPES.get(scope, str(scope)),
        )
        for m, n, k, a, b, c, d, saturating, scope in vulkan.instance().native.cooperative_matrices(physical)
    )  # fmt: skip
