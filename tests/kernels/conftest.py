"""Fixtures for tests of kernels."""

import pytest

import vkq
from tests.device.reported import reported, with_h200_costs
from vkq.device import verdict
from vkq.probe.matrices import lacking

from . import emulated


@pytest.fixture(autouse=True)
def found_nothing_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the simulated H200 a passed self-test, because the self-test would run on the device that is
    present."""
    found = verdict.Verdict({}, soft_float=False)
    monkeypatch.setitem(verdict._reports, reported("nvidia-h200").key, found)


@pytest.fixture(params=["by instructions", "in integers"])
def conversions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test twice: as the device converts float16 by default (in integers if its instructions failed
    their test), and in integers."""
    if request.param == "in integers":
        monkeypatch.setattr(vkq.Device, "converts", False)


@pytest.fixture
def matrices(strict_device: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    """Return a device with matrix units: real ones if it has them, else emulated ones."""
    if lacking(strict_device.capabilities) is not None:
        emulated.emulate(strict_device, monkeypatch)
    return strict_device


@pytest.fixture
def costed_matrices(matrices: vkq.Device, monkeypatch: pytest.MonkeyPatch) -> vkq.Device:
    """Return a device with matrix units and an H200's core count and costs, which decide tiles and
    methods."""
    monkeypatch.setattr(matrices, "capabilities", with_h200_costs(matrices.capabilities))
    return matrices
