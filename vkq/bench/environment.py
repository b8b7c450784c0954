"""Describe the device and the host in a result file."""

from __future__ import annotations

import contextlib
import os
import platform
from typing import Any

import numpy as np

from vkq.runtime.device import Device


def describe(device: Device) -> dict[str, Any]:
    """Return the field ``device`` of a result."""
    c = device.capabilities
    return {
        "name": c.name, "type": c.device_type, "software": c.device_type == "cpu", "driver": c.driver,
        "driver_version": c.driver_version, "uuid": c.device_uuid, "vulkan": c.api_version, "index": c.index,
        "vendor_id": c.vendor_id, "device_id": c.device_id,
        "timestamp_period_ns": c.timestamp_period_ns, "timestamp_valid_bits": c.timestamp_valid_bits,
    }  # fmt: skip


def host() -> dict[str, Any]:
    """Return the field ``host`` of a result."""
    model = platform.processor()
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        model = next(
            (line.partition(":")[2].strip() for line in file if line.startswith("model name")), model
        )
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": model,
        "cpus": usable,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
    }
