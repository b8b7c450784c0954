"""What drivers really report of devices, in ``reported/*.json``: true features and all properties
under Vulkan's names, with the driver's name and version. The mobile ones were read from Mesa 25.0.7 with the
render node of tests/mobile, gfx1030 and gfx1100 from RADV 22.3.6, the H200's from the machine itself."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from vkq.device.capabilities import Capabilities, CooperativeMatrix, MemoryType
from vkq.device.costs import shipped
from vkq.device.profiles import profile
from vkq.device.structs import CORE, FEATURES

FOLDER = Path(__file__).with_name("reported")
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))


def reported(file: str, **changes: Any) -> Capabilities:
    """The capabilities that a file holds, with fields replaced."""
    found = json.loads((FOLDER / f"{file}.json").read_text())
    known = {field for each in (CORE, *FEATURES) for field in each.fields}
    c = Capabilities(
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
    return dataclasses.replace(c, **changes)


def with_h200_costs(c: Capabilities) -> Capabilities:
    """The device with the cores and the costs of an H200."""
    known = shipped()["10de-2335"]
    return dataclasses.replace(c, choices=(("multiprocessors", known.cores), *known.costs.items()))


def as_h200(c: Capabilities) -> Capabilities:
    """A discrete NVIDIA device with the cores and the costs of an H200, under its own id."""
    return dataclasses.replace(with_h200_costs(c), device_type="discrete", vendor_id=0x10DE)


def profile_says(monkeypatch: pytest.MonkeyPatch, module: Any, **changes: Any) -> None:
    """*module* finds profiles with these fields replaced."""
    monkeypatch.setattr(module, "profile", lambda c: dataclasses.replace(profile(c), **changes))
