"""Tests of a device's capabilities: every field has its declared type, is read-only and fits into JSON."""

import dataclasses
import json

import pytest

import vkq
from vkq.device import vulkan
from vkq.device.capabilities import DEVICE_TYPES, Capabilities
from vkq.device.query import devices
from vkq.device.structs import CORE, FEATURES, PROPERTIES
from vkq.device.verdict import with_choices

LIMITS = {
    "maxComputeSharedMemorySize", "maxComputeWorkGroupInvocations", "maxStorageBufferRange",
    "minStorageBufferOffsetAlignment", "maxTexelBufferElements", "minTexelBufferOffsetAlignment",
    "maxPushConstantsSize", "maxPerStageDescriptorStorageBuffers", "maxMemoryAllocationCount",
    "timestampPeriod", *(f"maxComputeWorkGroup{what}_{axis}" for what in ("Count", "Size") for axis in "xyz"),
}  # fmt: skip


def test_every_field_is_read(device: vkq.Device) -> None:
    c = device.capabilities
    assert c.name == device.name
    assert c.device_type in DEVICE_TYPES
    assert c.vendor_id > 0
    assert c.driver
    assert c.driver_version > 0
    assert tuple(int(v) for v in c.api_version.split(".")) >= (1, 1, 0)
    assert len(bytes.fromhex(c.device_uuid)) == 16
    assert len(bytes.fromhex(c.pipeline_cache_uuid)) == 16
    assert all(e.startswith("VK_") for e in c.extensions)
    assert set(c.features) == {field for each in (CORE, *FEATURES) for field in each.fields}
    assert all(type(v) is bool for v in c.features.values())
    assert c.features["shaderIntegerDotProduct"], "both software drivers have it"
    assert set(c.properties) == LIMITS | {field for each in PROPERTIES for field in each.fields}
    assert all(type(v) is int for v in c.properties.values())
    assert min(c.max_workgroups) >= 65535
    assert c.properties["maxStorageBufferRange"] >= 1 << 27
    assert c.properties["subgroupSize"] > 0
    assert c.memory_types
    assert any({"host_visible", "host_coherent"} <= t.flags for t in c.memory_types)
    assert all(t.heap_bytes > 0 for t in c.memory_types)
    assert c.compute_family is not None
    assert 36 <= c.timestamp_valid_bits <= 64
    assert c.timestamp_period_ns > 0
    assert c.refusal() is None


def test_software_drivers_say_that_they_are(software_device: vkq.Device) -> None:
    assert {(c.device_type, c.compute_family) for c in devices()} == {("cpu", 0)}


def test_two_drivers_differ(device: vkq.Device) -> None:
    keys = {c.key for c in devices()}
    assert len(keys) == len(devices())
    assert device.capabilities.key in keys
    again = with_choices(devices()[device.capabilities.index])
    assert device.capabilities == again, "reading again gives the same"


def test_frozen_and_ready_for_json(device: vkq.Device) -> None:
    c = device.capabilities
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.name = "other"  # type: ignore[misc]
    back = json.loads(json.dumps(c.as_dict()))
    assert set(back) == {f.name for f in dataclasses.fields(Capabilities)}
    assert back["extensions"] == sorted(c.extensions)
    assert back["memory_types"][0]["heap_bytes"] == c.memory_types[0].heap_bytes
    assert back["features"] == dict(c.features)


def test_features_of_old_versions_come_from_extensions_alone() -> None:
    """A Vulkan 1.1 device is queried for a feature of Vulkan 1.3 only if it has the feature's extension;
    otherwise the query would be an error. The device is simulated, because both software drivers are
    newer."""
    known = {each.name: each for each in FEATURES}
    maintenance, matrices = known["Maintenance4Features"], known["CooperativeMatrixFeaturesKHR"]
    assert maintenance.present((1, 3, 0), frozenset())
    assert not maintenance.present((1, 2, 200), frozenset())
    assert maintenance.present((1, 1, 0), frozenset({"VK_KHR_maintenance4"}))
    assert not matrices.present((1, 3, 0), frozenset())


def test_refusals(any_device: vkq.Device) -> None:
    c = any_device.capabilities
    assert dataclasses.replace(c, compute_family=None).refusal() == "it has no queue that computes"
    assert dataclasses.replace(c, api_version="1.0.68").refusal() == "it offers Vulkan 1.0.68, vkq needs 1.1"
    assert dataclasses.replace(c, api_version="1.10.0").refusal() is None


def test_a_failed_call_is_a_typed_error() -> None:
    with pytest.raises(
        vkq.OutOfMemoryError, match=r"vkCreateDevice failed with VK_ERROR_OUT_OF_HOST_MEMORY \(-1\)"
    ):
        vulkan.check(-1, "vkCreateDevice")
    with pytest.raises(vkq.DeviceLostError):
        vulkan.check(-4, "vkQueueSubmit")
    with pytest.raises(vkq.DeviceError, match="VK_ERROR_FEATURE_NOT_PRESENT") as caught:
        vulkan.check(-8, "vkCreateDevice")
    assert (caught.value.result, caught.value.call) == (-8, "vkCreateDevice")
    vulkan.check(0, "")
    vulkan.check(5, "")  # result 5 is VK_INCOMPLETE, which is no error
