"""Capabilities of devices that this machine does not have (`vkq.device.reported`), changed for tests."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import pytest

from vkq.device.capabilities import Capabilities
from vkq.device.costs import shipped
from vkq.device.profiles import preference, preferred, profile
from vkq.device.reported import NAMES
from vkq.device.reported import reported as shipped_report
from vkq.device.tuner import says
from vkq.select import registers

__all__ = ["NAMES", "as_h200", "picked", "profile_says", "reported", "with_h200_costs"]


def reported(file: str, **changes: Any) -> Capabilities:
    """Return the capabilities of a stored report, with some fields replaced."""
    return dataclasses.replace(shipped_report(file), **changes)


def with_h200_costs(c: Capabilities) -> Capabilities:
    """Return a copy of *c* with the core count and tile costs of an H200."""
    known = shipped()["10de-2335"]
    return dataclasses.replace(c, choices=(("multiprocessors", known.cores), *known.costs.items()))


def as_h200(c: Capabilities) -> Capabilities:
    """Return a copy of *c* as a discrete NVIDIA device with an H200's core count and tile costs. The copy
    keeps the device id of *c*."""
    return dataclasses.replace(with_h200_costs(c), device_type="discrete", vendor_id=0x10DE)


def profile_says(monkeypatch: pytest.MonkeyPatch, module: Any, **changes: Any) -> None:
    """Replace `profile` in *module*, so that the profile of each device has the fields *changes*."""
    monkeypatch.setattr(module, "profile", lambda c: dataclasses.replace(profile(c), **changes))


def picked(setting: registers.Setting) -> contextlib.AbstractContextManager[None]:
    """Context manager: use this setting for every product in register tiles, as a tuned choice does."""
    return preferred({**dict(preference() or ()), **says({registers.KIND: str(setting)})})
