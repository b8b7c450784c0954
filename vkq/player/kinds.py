"""Devices, other than the device at hand, for which `vkq export` makes plans: the portable device, which has
only what every Vulkan device has, and absent devices, which are known only from a description."""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any

from ..device.capabilities import Capabilities, CooperativeMatrix, MemoryType
from ..device.reported import NAMES, reported
from ..device.verdict import Verdict
from ..errors import ArgumentError, did_you_mean
from ..files import parse_json, read
from ..runtime.device import Device
from ..runtime.program import Program, require
from ..shader.spec import Value, Variant

# The largest alignment of a buffer's offset that Vulkan allows a device to require.
ALIGNMENT = 256
# The values that Vulkan 1.1 guarantees for limits on which shaders depend.
LEAST = {
    "maxComputeSharedMemorySize": 16384,
    "maxComputeWorkGroupInvocations": 128,
    "maxComputeWorkGroupCount_x": 65535,
    "maxComputeWorkGroupCount_y": 65535,
    "maxComputeWorkGroupCount_z": 65535,
    "maxComputeWorkGroupSize_x": 128,
    "maxComputeWorkGroupSize_y": 128,
    "maxComputeWorkGroupSize_z": 64,
    "maxStorageBufferRange": 1 << 27,
    "maxTexelBufferElements": 65536,
    "maxPushConstantsSize": 128,
    "maxPerStageDescriptorStorageBuffers": 4,
    "minStorageBufferOffsetAlignment": ALIGNMENT,
    "minTexelBufferOffsetAlignment": ALIGNMENT,
}
LLVMPIPE_ROUNDS = 65_535  # llvmpipe ends the loops of an invocation after this many iterations
KEPT = ("maxMemoryAllocationCount", "maxMemoryAllocationSize", "maxBufferSize", "timestampPeriod")
MOST_BYTES = 1 << 22  # maximum bytes of a file that describes devices


class AbsentDevice(Device):
    """A device for which plans are made, but which is not present to run them.

    real: the capabilities of an available device, which is opened because planning needs a driver;
    believed: those of the absent device."""

    def __init__(self, real: Capabilities, believed: Capabilities, verdict: Verdict):
        super().__init__(real.index, tune="off", capabilities=least(real))
        self.capabilities, self.verdict = believed, verdict
        self._named: dict[Hashable, Program] = {}

    def program(
        self, variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        """Return a program without a pipeline."""
        given = dict(constants or {})
        if "SOFT_FLOAT" in variant.specialization:
            given.setdefault("SOFT_FLOAT", self.soft_float)
        values = variant.constants(given)
        require(variant, values, self.capabilities)
        made = Program(variant, values, None, subgroup_size=subgroup_size)
        return self._named.setdefault((variant, tuple(values.items()), subgroup_size), made)


class PortableDevice(Device):
    """An available device reduced to Vulkan 1.1's guarantees, so that its plans run on any Vulkan device."""

    verdict = Verdict({}, soft_float=True, loop_limit=LLVMPIPE_ROUNDS)

    def __init__(self, real: Capabilities):
        super().__init__(real.index, tune="off", capabilities=least(real))

    def close(self) -> None:
        """Free everything. Do not write the driver's pipeline cache, because its file belongs to the device
        with all of its capabilities."""
        self.programs.clear()
        super().close()


def described(real: Capabilities, kind: str) -> AbsentDevice:
    """Return an absent device. Its self-test cannot run here, but the exported file has a known answer, which
    detects wrong results on the device itself.

    - real: see `AbsentDevice`
    - kind: a name in `vkq.device.reported`, or the path of a file that `vkq devices --json` wrote. The first
      device in the file is used, with its measured rates.

    Raises ArgumentError if *kind* is neither a name nor such a file."""
    if kind in NAMES:
        c = reported(kind)
        # Other drivers for this kind of device may require a larger alignment than the reported driver.
        properties = {**c.properties, "minStorageBufferOffsetAlignment": ALIGNMENT}
        return AbsentDevice(
            real, dataclasses.replace(c, properties=properties), Verdict({}, soft_float=False)
        )
    path = Path(kind)
    if not path.exists():
        raise ArgumentError(
            f"there is neither a kind nor a file {kind!r}{did_you_mean(kind, NAMES)};"
            f" kinds: {', '.join(NAMES)}"
        )
    try:
        found = parse_json(read(path, MOST_BYTES))["devices"][0]
        capabilities = capabilities_of(found["capabilities"])
        rates = {str(name): float(rate) for name, rate in (found.get("rates") or {}).items()}
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise ArgumentError(f"{path}: it is not a file of `vkq devices --json` ({error!r})") from error
    return AbsentDevice(real, capabilities, Verdict({}, soft_float=False, rates=rates))


def capabilities_of(data: Mapping[str, Any]) -> Capabilities:
    """Return capabilities from the data that `Capabilities.as_dict` returned."""
    fields = {field.name for field in dataclasses.fields(Capabilities)}
    if set(data) != fields:
        raise ValueError(f"its fields must be {sorted(fields)}")
    read = dict(data)
    read["extensions"] = frozenset(data["extensions"])
    read["memory_types"] = tuple(
        MemoryType(frozenset(each["flags"]), int(each["heap_bytes"])) for each in data["memory_types"]
    )
    read["cooperative_matrices"] = tuple(CooperativeMatrix(**row) for row in data["cooperative_matrices"])
    read["choices"] = tuple((str(name), _frozen(value)) for name, value in data["choices"])
    return Capabilities(**read)


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def least(c: Capabilities) -> Capabilities:
    """Return the capabilities *c* reduced to Vulkan 1.1's guarantees."""
    properties = {name: LEAST.get(name, value if name in KEPT else 0) for name, value in c.properties.items()}
    return dataclasses.replace(
        c, name="any Vulkan 1.1 device", device_uuid="00" * 16,
        device_type="other", vendor_id=0, device_id=0, driver="",
        api_version="1.1.0", features=dict.fromkeys(c.features, False), properties=properties,
        cooperative_matrices=(), choices=(),
    )  # fmt: skip
