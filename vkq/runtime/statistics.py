"""A driver's compiler statistics of a variant: registers, spills, occupancy, instructions.

The statistics come from VK_KHR_pipeline_executable_properties. Mesa's driver for Mali lacks this extension,
but prints the statistics if ``BIFROST_MESA_DEBUG=shaderdb`` is set. Nothing runs and no memory is
allocated, so drivers that compile for an absent GPU can also be used.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import tempfile
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any

from ..device import vulkan
from ..device.choose import choose_device
from ..errors import DeviceError, PathError
from ..shader.compile import spirv
from ..shader.spec import Value, Variant
from .program import code, require

# A printed line: "MESA_SHADER_COMPUTE shader: 994 inst, 17.4 cycles, ..., 2 loops, 37:119 spills:fills"
PRINTED = re.compile(r"([\d.]+) (\w+(?: \w+)*)(?:,|$)")
PRINTED_SPILLS = re.compile(r"(\d+):(\d+) spills:fills")


@dataclasses.dataclass(frozen=True)
class PipelineExecutable:
    """One program of a pipeline."""

    name: str
    subgroup_size: int
    statistics: Mapping[str, int | float | bool]  # the values under the driver's own names
    texts: Mapping[str, str]  # the compiler's intermediate representations; the last is usually machine code
    seconds: float  # the compilation time

    def value(self, *words: str) -> int | None:
        """Return the first statistic whose name contains all *words*, ignoring case, or None."""
        for name, value in self.statistics.items():
            if all(word in name.lower() for word in words):
                return int(value)
        return None

    @property
    def spills(self) -> int | None:
        """The number of registers or bytes spilled to memory, whichever the driver reports; None if it
        reports neither."""
        counted = ("spill", "scratch", "stp count")
        found = [int(v) for n, v in self.statistics.items() if any(word in n.lower() for word in counted)]
        return max(found) if found else None


class Compiler:
    """A device opened only for compilation; a context manager.

    Raises:
        NoDeviceError: no loader, no driver, or no device that matches.
        DeviceError: the device cannot run vkq.
    """

    def __init__(self, which: int | str | None = None):
        physical, self.capabilities = choose_device(which, probed=False)  # nothing runs on this device
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
        vulkan.instance().native.destroy_device(self.handle)

    @property
    def has_statistics(self) -> bool:
        """True if the driver reports compiler statistics."""
        return bool(self.capabilities.features.get("pipelineExecutableInfo")) or self._prints

    @property
    def _prints(self) -> bool:
        return "shaderdb" in os.environ.get("BIFROST_MESA_DEBUG", "") and "panvk" in self.capabilities.driver

    def executables(
        self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> list[PipelineExecutable]:
        """Compile the variant and return its statistics.

        Raises PathError if the driver reports no statistics or the device cannot run the variant.
        """
        values = variant.constants(constants or {})
        require(variant, values, self.capabilities)
        if not self.has_statistics:
            raise PathError(
                f"{self.capabilities.name} has no VK_KHR_pipeline_executable_properties"
                " (pipelineExecutableInfo is false)"
            )
        binary, others = code(variant, spirv(variant), values, self.capabilities)
        began = time.monotonic()
        with _stderr() as printed:  # panvk prints its statistics to stderr
            made = vulkan.instance().native.compile(
                self.handle, binary, [binding.texels for binding in variant.bindings],
                4 * len(variant.push_constants), others, subgroup_size, capture=not self._prints,
            )  # fmt: skip
            seconds = time.monotonic() - began
            if self._prints:
                return _printed(printed(), seconds)
        return [
            PipelineExecutable(
                _text(name), size, {_text(n): value for n, value in statistics},
                {_text(n): _text(text) for n, text in texts}, seconds,
            )
            for name, size, statistics, texts in made
        ]  # fmt: skip


def _text(content: bytes) -> str:
    return content.decode(errors="replace")


@contextlib.contextmanager
def _stderr() -> Iterator[Any]:
    """Context manager: capture the output of libraries on stderr. Yield a function that returns it."""
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
    """Return the statistics in panvk's ``shaderdb`` lines.

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
