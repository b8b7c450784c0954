"""Devices that are not here (`vkq.device.reported`), with changes that a test asks for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from vkq.device.capabilities import Capabilities
from vkq.device.costs import shipped
from vkq.device.profiles import profile
from vkq.device.reported import NAMES
from vkq.device.reported import reported as shipped_report

__all__ = ["NAMES", "as_h200", "profile_says", "reported", "with_h200_costs"]


def reported(file: str, **changes: Any) -> Capabilities:
    """The capabilities that a file holds, with fields replaced."""
    return dataclasses.replace(shipped_report(file), **changes)


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
