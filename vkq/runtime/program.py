"""A compute pipeline on a device: a shader variant with specialization constants."""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any

from ..device.capabilities import Capabilities
from ..device.profiles import profile
from ..errors import DeviceError, PathError
from ..shader.float_controls import with_float_controls
from ..shader.spec import Value, Variant
from ..shader.specialize import literals_of, specialized
from ..turns import FORKED, Turns


class LazyPipeline:
    """A native pipeline that is compiled at its first use: plans that never run compile nothing. *make*
    compiles it; if *make* raises an exception, the next caller tries again."""

    def __init__(self, what: str, make: Callable[[], Any]):
        self._make, self._turns = make, Turns(what)
        self._made: Any = None
        self._begun = False

    def begin(self, submit: Callable[[Callable[[], Any]], Any]) -> None:
        """Start the compilation in another thread through *submit*, unless it was started."""
        if not self._begun:
            self._begun = True
            submit(self.result)

    def result(self) -> Any:
        """Return the pipeline, after compiling it if necessary. Raises the exceptions of the compilation."""
        self._begun = True
        if self._made is None:
            with self._turns:
                if self._made is None:
                    self._made = self._make()
        return self._made


@dataclasses.dataclass(frozen=True, eq=False)
class Program:
    """The result of ``Device.program``: the variant, its constants, and the native pipeline. The pipeline
    may also be a `LazyPipeline`, or the future of a thread that compiles it."""

    variant: Variant
    constants: dict[str, Value]
    pipeline: Any
    pid: int = dataclasses.field(default_factory=os.getpid)
    subgroup_size: int = 0  # 0: the driver chooses the size

    @property
    def native(self) -> Any:
        """The native pipeline, after its compilation. Raises an error if it cannot be compiled."""
        if not isinstance(self.pipeline, Future | LazyPipeline):
            return self.pipeline
        # After a fork, the thread that compiles the pipeline does not exist.
        if isinstance(self.pipeline, Future) and self.pid != os.getpid():
            raise DeviceError(FORKED)
        return self.pipeline.result()

    def rounds(self, push: Mapping[str, int | float]) -> int:
        """Return the number of loop iterations of an invocation in a dispatch with these push constants
        (`Variant.iterations`)."""
        return self.variant.iterations_of(push, self._integers)

    def workgroups(self, push: Mapping[str, int | float]) -> int:
        """Return the number of workgroups of a dispatch with these push constants."""
        return self.variant.workgroups_of(push, self._integers)

    @functools.cached_property
    def _integers(self) -> dict[str, int]:
        return self.variant.integers(self.constants)

    def if_not_made(self, then: Callable[[], Any]) -> None:
        """Call *then* if the compilation of the pipeline fails."""
        if isinstance(self.pipeline, Future):
            self.pipeline.add_done_callback(lambda made: then() if made.exception() else None)

    @property
    def first_group_at(self) -> int:
        """The offset of first_group in the push constants, in bytes; -1 if the shader has none."""
        return next((c.offset for c in self.variant.push_constants if c.name == "first_group"), -1)


def code(
    variant: Variant, spirv: bytes, constants: Mapping[str, Value], capabilities: Capabilities
) -> tuple[bytes, list[tuple[int, int]]]:
    """Return (SPIR-V for the driver, specialization constants). In the SPIR-V, sizes and choices are
    literals (with the profile's `matrix_literals`, also shapes and strides of matrices), and the supported
    float controls are declared. The other specialization constants are returned as (``constant_id``, 32
    bits)."""
    packed = variant.pack_specialization(constants)
    bits = {number: int.from_bytes(word, "little") for number, word in packed.items()}
    literals = literals_of(variant, profile(capabilities).matrix_literals is not None)
    module = with_float_controls(
        specialized(spirv, {number: bits[number] for number in literals}, bits),
        rte=bool(capabilities.properties["shaderRoundingModeRTEFloat32"]),
        denorm_preserve=bool(capabilities.properties["shaderDenormPreserveFloat32"]),
    )
    return module, [(number, word) for number, word in bits.items() if number not in literals]


def refusals(variant: Variant, constants: dict[str, Value], capabilities: Capabilities) -> list[str]:
    """Return the reasons why the device cannot run the variant with these constants; empty if it can.

    Limits are checked before a pipeline is made: drivers may accept a shader that exceeds a limit, and one
    driver crashes on it.
    """
    limits = capabilities.properties
    reasons = variant.missing(capabilities.facts)
    size = variant.local_size(constants)
    invocations = size[0] * size[1] * size[2]
    asked = {
        "maxComputeWorkGroupInvocations": invocations,
        "maxComputeWorkGroupSize_x": size[0],
        "maxComputeWorkGroupSize_y": size[1],
        "maxComputeWorkGroupSize_z": size[2],
        "maxComputeSharedMemorySize": variant.shared_bytes(constants),
        "maxPushConstantsSize": 4 * len(variant.push_constants),
        "maxPerStageDescriptorStorageBuffers": sum(not binding.texels for binding in variant.bindings),
    }
    return reasons + [
        f"{name} is {limits[name]}, needs {need}" for name, need in asked.items() if need > limits[name]
    ]


def require(variant: Variant, constants: dict[str, Value], capabilities: Capabilities) -> None:
    """Raise PathError with every reason why the device cannot run the variant."""
    reasons = refusals(variant, constants, capabilities)
    if reasons:
        raise PathError(f"{variant.name} cannot run on {capabilities.name}: {'; '.join(reasons)}")
