"""Devices with modified capabilities, and with a modified report of the self-test."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

import vkq
from vkq.probe import selftest

SIGNED, MIXED, UNSIGNED = (
    f"integerDotProduct4x8BitPacked{sign}Accelerated" for sign in ("Signed", "MixedSignedness", "Unsigned")
)
# The minimum limits that Vulkan requires. Many devices have no larger ones.
SMALLEST_LIMITS = {
    "maxComputeWorkGroupInvocations": 128,
    "maxComputeWorkGroupSize_x": 128,
    "maxComputeWorkGroupSize_y": 128,
    "maxComputeWorkGroupSize_z": 64,
    "maxComputeSharedMemorySize": 16384,
    "maxComputeWorkGroupCount_x": 65535,
    "maxComputeWorkGroupCount_y": 65535,
    "maxComputeWorkGroupCount_z": 65535,
    "maxStorageBufferRange": 128 << 20,
    "maxPushConstantsSize": 128,
    "maxPerStageDescriptorStorageBuffers": 4,
}


def capabilities(of: vkq.Device, **changes: Any) -> vkq.Capabilities:
    """Return the device's capabilities with features, properties (both by Vulkan's names) and fields of
    `vkq.Capabilities` replaced.

    Matrix units are removed unless requested, because all layers would use them. Measured choices are
    removed, because they do not hold for the modified device.
    """
    real = of.capabilities
    changes.setdefault("choices", ())
    changes.setdefault("cooperativeMatrix", False)
    features = {name: changes.pop(name) for name in list(changes) if name in real.features}
    properties = {name: changes.pop(name) for name in list(changes) if name in real.properties}
    return dataclasses.replace(
        real, features={**real.features, **features}, properties={**real.properties, **properties}, **changes
    )


def report(
    monkeypatch: pytest.MonkeyPatch, rates: Mapping[str, float] | None = None, **failures: str
) -> None:
    """Replace the self-test report of every device. *rates*: the measured TOPS of each dot form.
    *failures*: the error text of each failed test."""
    found = selftest.Verdict(
        failures, False, {form: 1e12 * rate for form, rate in (rates or {}).items()}, "gpu"
    )
    monkeypatch.setattr(selftest, "report", lambda device: found)
