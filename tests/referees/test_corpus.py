"""A part of the corpus on each driver; ``python -m tests.referees.corpus`` runs as much of it as is asked
for."""

from vkq.runtime.device import Device

from .corpus import compare


def test_random_cases_equal_onnx_runtime(device: Device) -> None:
    assert compare(device, count=15, seed=99) == []
