"""Tests that run a part of the corpus on each driver; ``python -m tests.referees.corpus`` runs more."""

from vkq.runtime.device import Device

from .corpus import compare


def test_random_cases_equal_onnx_runtime(device: Device) -> None:
    assert compare(device, count=15, seed=99) == []
