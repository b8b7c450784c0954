"""Stored capabilities of devices that this machine need not have (``reported/NAME.json``). Drivers reported
them on other machines.

A file has the supported features and all properties under Vulkan's names, the driver's name and version,
and the date (``taken``) and the origin (``source``) of the report.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

from .capabilities import Capabilities, CooperativeMatrix, MemoryType
from .structs import CORE, FEATURES

FOLDER = Path(__file__).with_name("reported")
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


@functools.cache
def _file(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text())
    return found


def description(name: str) -> str:
    """Return one line with the device's name, its driver, and the origin and date of the report."""
    found = _file(name)
    return f"{found['name']}, {found['driver']}; {found['source']}, {found['taken']}"


def reported(name: str) -> Capabilities:
    """Return the capabilities of the device *name*, one of `NAMES`."""
    found = _file(name)
    known = {field for each in (CORE, *FEATURES) for field in each.fields}
    return Capabilities(
        index=0,
        name=found["name"],
        device_type=found["device_type"],
        vendor_id=found["vendor_id"],
        device_id=found["device_id"],
        api_version=found["api_version"],
        driver=found["driver"],
        driver_version=found["driver_version"],
        device_uuid="00" * 16,
        pipeline_cache_uuid="00" * 16,
        extensions=frozenset(),
        features={field: field in found["features"] for field in known},
        properties=found["properties"],
        memory_types=tuple(
            MemoryType(frozenset(each["flags"]), each["heap_bytes"]) for each in found["memory_types"]
        ),
        cooperative_matrices=tuple(CooperativeMatrix(**each) for each in found["cooperative_matrices"]),
        compute_family=found["compute_family"],
        timestamp_valid_bits=found["timestamp_valid_bits"],
        timestamp_period_ns=found["timestamp_period_ns"],
    )
