"""What a driver's compiler made of a variant: registers, spills, occupancy, instructions.

Through VK_KHR_pipeline_executable_properties, where the device has it; Mesa's driver for Mali has not, and
prints its figures where ``BIFROST_MESA_DEBUG=shaderdb`` asks for them. Nothing is run and no memory is
allocated, so drivers that compile for a GPU that is not there serve as well as real ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any

from ..device import vulkan
from ..device.choose import choose_device
from ..errors import DeviceError, PathError
from ..shader.compile import spirv
from ..shader.spec import Value, Variant
from .program import code, require

# VK_PIPELINE_CREATE_CAPTURE_{STATISTICS,INTERNAL_REPRESENTATIONS}_BIT_KHR
CAPTURE_STATISTICS, CAPTURE_TEXT = 0x40, 0x80
# "MESA_SHADER_COMPUTE shader: 994 inst, 17.4 cycles, ..., 1 threads, 2 loops, 37:119 spills:fills"
PRINTED = re.compile(r"([\d.]+) (\w+(?: \w+)*)(?:,|$)")
PRINTED_SPILLS = re.compile(r"(\d+):(\d+) spills:fills")


@dataclasses.dataclass(frozen=True)
class PipelineExecutable:
    """One program of a pipeline. ``statistics`` under the driver's own names; ``texts`` its compiler's forms
    by name (the last is usually the machine code); ``seconds``: what making the pipeline took."""

    name: str
    subgroup_size: int
    statistics: Mapping[str, int | float | bool]
    texts: Mapping[str, str]
    seconds: float

    def value(self, *words: str) -> int | None:
        """The first statistic whose name holds all *words*, in any case; None where the driver gives none."""
        for name, value in self.statistics.items():
            if all(word in name.lower() for word in words):
                return int(value)
        return None

    @property
    def spills(self) -> int | None:
        """Registers or bytes spilled to memory, under whatever names the driver counts them."""
        counted = ("spill", "scratch", "stp count")
        found = [int(v) for n, v in self.statistics.items() if any(word in n.lower() for word in counted)]
        return max(found) if found else None


class Compiler:
    """A device opened to compile alone. It is a context manager.

    Raises:
        NoDeviceError: no loader, no driver, or no device that fits.
    """

    def __init__(self, which: int | str | None = None):
        physical, self.capabilities = choose_device(which, probed=False)  # runs nothing
        family, refusal = self.capabilities.compute_family, self.capabilities.refusal()
        if refusal or family is None:
            raise DeviceError(f"{self.capabilities.name} cannot run vkq: {refusal}")
        features, extensions = dict(self.capabilities.features), set(self.capabilities.extensions)
        self.handle, _ = vulkan.open_device(physical, family, features, extensions)

    def __enter__(self) -> Compiler:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        vulkan.binding().lib.vkDestroyDevice(self.handle, vulkan.binding().ffi.NULL)

    @property
    def tells(self) -> bool:
        """Whether the driver says what its compiler did."""
        return bool(self.capabilities.features.get("pipelineExecutableInfo")) or self._prints

    @property
    def _prints(self) -> bool:
        return "shaderdb" in os.environ.get("BIFROST_MESA_DEBUG", "") and "panvk" in self.capabilities.driver

    def executables(
        self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> list[PipelineExecutable]:
        """Compiles the variant and asks what came out.

        Raises PathError where the driver does not tell, or the device cannot run the variant.
        """
        values = variant.constants(constants or {})
        require(variant, values, self.capabilities)
        if not self.tells:
            raise PathError(
                f"{self.capabilities.name} has no VK_KHR_pipeline_executable_properties"
                " (pipelineExecutableInfo is false)"
            )
        began = time.monotonic()
        with _stderr() as printed, self._pipeline(variant, values, subgroup_size) as pipeline:
            seconds = time.monotonic() - began
            if self._prints:
                return _printed(printed(), seconds)
            return list(self._captured(pipeline, seconds))

    @contextlib.contextmanager
    def _pipeline(self, variant: Variant, values: dict[str, Value], subgroup_size: int) -> Iterator[Any]:
        """The VkPipeline, as `vkq.Device.program` makes it."""
        vk = vulkan.binding()
        ffi, lib, none = vk.ffi, vk.lib, vk.ffi.NULL
        with contextlib.ExitStack() as made:

            def make(kind: str, info: Any) -> Any:
                out = ffi.new(f"Vk{kind}*")
                vulkan.check(
                    getattr(lib, f"vkCreate{kind}")(self.handle, ffi.addressof(info), none, out), kind
                )
                made.callback(getattr(lib, f"vkDestroy{kind}"), self.handle, out[0], none)
                return out[0]

            binary, constants = code(variant, spirv(variant), values, self.capabilities)
            module = make("ShaderModule", vk.VkShaderModuleCreateInfo(codeSize=len(binary), pCode=binary))
            layout = _layout(vk, make, variant)
            stage = vk.VkPipelineShaderStageCreateInfo(
                pNext=_subgroup(subgroup_size), stage=vk.VK_SHADER_STAGE_COMPUTE_BIT, module=module,
                flags=vk.VK_PIPELINE_SHADER_STAGE_CREATE_REQUIRE_FULL_SUBGROUPS_BIT if subgroup_size else 0,
                pName="main", pSpecializationInfo=_specialization(vk, constants),
            )  # fmt: skip
            flags = 0 if self._prints else CAPTURE_STATISTICS | CAPTURE_TEXT
            info = vk.VkComputePipelineCreateInfo(flags=flags, stage=stage, layout=layout)
            out = ffi.new("VkPipeline*")
            call = "vkCreateComputePipelines"
            vulkan.check(getattr(lib, call)(self.handle, none, 1, ffi.addressof(info), none, out), call)
            made.callback(lib.vkDestroyPipeline, self.handle, out[0], none)
            yield out[0]

    def _captured(self, pipeline: Any, seconds: float) -> Iterator[PipelineExecutable]:
        ffi = vulkan.binding().ffi
        info = vulkan.struct("PipelineInfoKHR")
        info.pipeline = pipeline
        programs = self._all("vkGetPipelineExecutablePropertiesKHR", "PipelineExecutableProperties", info)
        for number, one in enumerate(programs):
            of = vulkan.struct("PipelineExecutableInfoKHR")
            of.pipeline, of.executableIndex = pipeline, number
            statistics = self._all("vkGetPipelineExecutableStatisticsKHR", "PipelineExecutableStatistic", of)
            values = {ffi.string(s.name).decode(): _value(s) for s in statistics}
            name = ffi.string(one.name).decode()
            yield PipelineExecutable(name, int(one.subgroupSize), values, self._texts(of), seconds)

    def _all(self, call: str, kind: str, info: Any) -> Any:
        """The two-call idiom: how many there are, then an array of all of them (which owns its elements)."""
        ffi = vulkan.binding().ffi
        query, count = vulkan.instance().function(call), ffi.new("uint32_t*")
        vulkan.check(query(self.handle, info, count, ffi.NULL), call)
        out = ffi.new(f"Vk{kind}KHR[]", count[0])
        for one in out:
            one.sType = vulkan.struct(f"{kind}KHR").sType
        vulkan.check(query(self.handle, info, count, out), call)
        return out

    def _texts(self, info: Any) -> dict[str, str]:
        ffi, call = vulkan.binding().ffi, "vkGetPipelineExecutableInternalRepresentationsKHR"
        out = self._all(call, "PipelineExecutableInternalRepresentation", info)
        query, count = vulkan.instance().function(call), ffi.new("uint32_t*", len(out))
        texts = [ffi.new("char[]", int(one.dataSize) + 1) for one in out]
        for one, text in zip(out, texts, strict=True):
            one.pData = text
        vulkan.check(query(self.handle, info, count, out), call)
        pairs = zip(out, texts, strict=True)
        return {
            ffi.string(one.name).decode(): ffi.string(text).decode(errors="replace")
            for one, text in pairs
            if one.isText
        }


def _subgroup(size: int) -> Any:
    """What asks for this size of the subgroups; nothing where the driver may choose."""
    if not size:
        return None
    asked = vulkan.struct("PipelineShaderStageRequiredSubgroupSizeCreateInfo")
    asked.requiredSubgroupSize = size
    return asked


def _value(statistic: Any) -> int | float | bool:
    kinds = {0: ("b32", bool), 1: ("i64", int), 2: ("u64", int), 3: ("f64", float)}
    field, kind = kinds[int(statistic.format)]
    result: int | float | bool = kind(getattr(statistic.value, field))
    return result


@contextlib.contextmanager
def _stderr() -> Iterator[Any]:
    """What libraries print on stderr in the block, as a function; it is not shown."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)

        def read() -> str:
            file.seek(0)
            return file.read().decode(errors="replace")

        try:
            yield read
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _printed(text: str, seconds: float) -> list[PipelineExecutable]:
    """The figures of panvk's ``shaderdb`` lines.

    >>> _printed("MESA_SHADER_COMPUTE shader: 9 inst, 2 threads, 1:2 spills:fills", 0)[0].statistics
    {'inst': 9, 'threads': 2, 'spills': 1, 'fills': 2}
    """
    found = []
    for line in text.splitlines():
        name, colon, figures = line.partition(" shader: ")
        if not colon:
            continue
        values = {word: float(n) if "." in n else int(n) for n, word in PRINTED.findall(figures)}
        if spilled := PRINTED_SPILLS.search(figures):
            values |= {"spills": int(spilled[1]), "fills": int(spilled[2])}
        found.append(PipelineExecutable(name, 0, values, {}, seconds))
    return found


def _specialization(vk: Any, constants: Sequence[tuple[int, int]]) -> Any:
    words = b"".join(bits.to_bytes(4, "little") for _, bits in constants)
    entries = [
        vk.VkSpecializationMapEntry(constantID=number, offset=4 * i, size=4)
        for i, (number, _) in enumerate(constants)
    ]
    return vk.VkSpecializationInfo(pMapEntries=entries, dataSize=len(words), pData=vk.ffi.from_buffer(words))


def _layout(vk: Any, make: Callable[[str, Any], Any], variant: Variant) -> Any:
    """The VkPipelineLayout of a variant; *make* creates what an info describes."""
    storage, texels = vk.VK_DESCRIPTOR_TYPE_STORAGE_BUFFER, vk.VK_DESCRIPTOR_TYPE_UNIFORM_TEXEL_BUFFER
    slots = [
        vk.VkDescriptorSetLayoutBinding(
            binding=i, descriptorType=texels if binding.texels else storage, descriptorCount=1,
            stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT,
        )
        for i, binding in enumerate(variant.bindings)
    ]  # fmt: skip
    slots_of = make("DescriptorSetLayout", vk.VkDescriptorSetLayoutCreateInfo(pBindings=slots))
    push = vk.VkPushConstantRange(
        stageFlags=vk.VK_SHADER_STAGE_COMPUTE_BIT, offset=0, size=4 * len(variant.push_constants)
    )
    info = vk.VkPipelineLayoutCreateInfo(pSetLayouts=[slots_of], pPushConstantRanges=[push])
    return make("PipelineLayout", info)
