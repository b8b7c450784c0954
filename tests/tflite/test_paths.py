"""Tests of networks on every path of int8 products: results have the same bytes as LiteRT's. (``python -m
tests.tflite.paths`` runs all networks on all paths.)"""

from __future__ import annotations

import pytest

import vkq

from .answers import network_case
from .paths import PATHS, forced
from .test_operators import check

NETWORKS = ("torch_mobile3", "torch_vit")
# path -> part of a kernel's name that occurs only on this path
KERNELS = {"staged": "staged", "texels": "texels", "coopmat": "coopmat"}


def check_on(path: str, name: str, device: vkq.Device) -> None:
    """Check that a network gives LiteRT's bytes on a path, and that only kernels of this path ran."""
    with forced(device, path):
        session = check(network_case(name), device)
    (executable,) = session._executables.kept.values()
    names = " ".join(executable.plan.variants)
    found = {form for form, _ in PATHS.values() if f":{form}" in names or f".{form}" in names}
    assert found == {PATHS[path][0]}
    assert KERNELS.get(path, "") in names


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("path", [path for path in PATHS if path != "coopmat"])
def test_network_on_a_path(path: str, name: str, device: vkq.Device) -> None:
    check_on(path, name, device)


@pytest.mark.parametrize("name", ["torch_mobile3", "torch_resnet"])
def test_network_on_matrix_units(name: str, strict_device: vkq.Device) -> None:
    """Networks on matrix units, real or emulated, give LiteRT's bytes."""
    check_on("coopmat", name, strict_device)
