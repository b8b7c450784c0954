"""What a driver's compiler made of a variant: registers, spills, occupancy, instructions.

Through VK_KHR_pipeline_executable_properties, where the device has it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from ..device import vulkan
from ..errors import PathError
from ..shader.spec import Value, Variant
from .device import Device

CAPTURE_STATISTICS, CAPTURE_TEXT = (
    0x40,
    0x80,
)  # VK_PIPELINE_CREATE_CAPTURE_{STATISTICS,INTERNAL_REPRESENTATIONS}_BIT_KHR


@dataclasses.dataclass(frozen=True)
class Executable:
    """One program of a pipeline. ``statistics`` under the driver's own names; ``texts`` its compiler's forms
    by name (the last is usually the machine code)."""

    name: str
    subgroup_size: int
    statistics: Mapping[str, int | float | bool]
    texts: Mapping[str, str]

    def value(self, *words: str) -> int | None:
        """The first statistic whose name holds all *words*, in any case; None where the driver gives none."""
        for name, value in self.statistics.items():
            if all(word in name.lower() for word in words):
                return int(value)
        return None

    @property
    def spills(self) -> int | None:
        """Registers or bytes spilled to memory, under whatever names the driver counts them."""
        found = [int(v) for n, v in self.statistics.items() if "spill" in n.lower() or "scratch" in n.lower()]
        return sum(found) if found else None


def executables(
    device: Device, variant: Variant, constants: Mapping[str, Value] | None = None
) -> list[Executable]:
    """Compiles the variant on the device and asks what came out; nothing is run.

    Raises PathError where the device has no ``pipelineExecutableInfo`` or cannot run the variant.
    """
    if not device.capabilities.features.get("pipelineExecutableInfo"):
        raise PathError(
            f"{device.name} has no VK_KHR_pipeline_executable_properties (pipelineExecutableInfo is false)"
        )
    values = variant.constants(constants or {})
    program = device._make_program(variant, values, 0, CAPTURE_STATISTICS | CAPTURE_TEXT)
    ffi = vulkan.binding().ffi
    info = vulkan.struct("PipelineInfoKHR")
    info.pipeline = ffi.cast("VkPipeline", program.native.pipeline)
    found = []
    for number, one in enumerate(
        _all("vkGetPipelineExecutablePropertiesKHR", "PipelineExecutableProperties", device, info)
    ):
        of = vulkan.struct("PipelineExecutableInfoKHR")
        of.pipeline, of.executableIndex = info.pipeline, number
        statistics = _all("vkGetPipelineExecutableStatisticsKHR", "PipelineExecutableStatistic", device, of)
        found.append(
            Executable(
                ffi.string(one.name).decode(),
                int(one.subgroupSize),
                {ffi.string(s.name).decode(): _value(s) for s in statistics},
                _texts(device, of),
            )
        )
    return found


def _all(call: str, kind: str, device: Device, info: Any) -> Any:
    """The two-call idiom: how many there are, then an array of all of them (which owns its elements)."""
    ffi = vulkan.binding().ffi
    query, count = vulkan.instance().function(call), ffi.new("uint32_t*")
    vulkan.check(query(device.handle, info, count, ffi.NULL), call)
    out = ffi.new(f"Vk{kind}KHR[]", count[0])
    for one in out:
        one.sType = vulkan.struct(f"{kind}KHR").sType
    vulkan.check(query(device.handle, info, count, out), call)
    return out


def _value(statistic: Any) -> int | float | bool:
    kinds = {0: ("b32", bool), 1: ("i64", int), 2: ("u64", int), 3: ("f64", float)}
    field, kind = kinds[int(statistic.format)]
    result: int | float | bool = kind(getattr(statistic.value, field))
    return result


def _texts(device: Device, info: Any) -> dict[str, str]:
    ffi, call = vulkan.binding().ffi, "vkGetPipelineExecutableInternalRepresentationsKHR"
    out = _all(call, "PipelineExecutableInternalRepresentation", device, info)
    query, count = vulkan.instance().function(call), ffi.new("uint32_t*", len(out))
    texts = [ffi.new("char[]", int(one.dataSize) + 1) for one in out]
    for one, text in zip(out, texts, strict=True):
        one.pData = text
    vulkan.check(query(device.handle, info, count, out), call)
    pairs = zip(out, texts, strict=True)
    return {
        ffi.string(one.name).decode(): ffi.string(text).decode(errors="replace")
        for one, text in pairs
        if one.isText
    }
