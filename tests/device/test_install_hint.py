"""Tests of the installation hints for several simulated machines."""

import platform
import sys
from pathlib import Path

import pytest

from vkq.device import install_hint

# system -> (fields of its /etc/os-release, the command that installs the loader, that for the drivers)
DISTRIBUTIONS = {
    "debian": ({"ID": "debian"}, "apt-get install libvulkan1", "apt-get install mesa-vulkan-drivers"),
    "ubuntu": (
        {"ID": "ubuntu", "ID_LIKE": "debian"},
        "apt-get install libvulkan1",
        "apt-get install mesa-vulkan-drivers",
    ),
    "raspberry pi os": (
        {"ID": "raspbian", "ID_LIKE": "debian"},
        "apt-get install libvulkan1",
        "apt-get install mesa-vulkan-drivers",
    ),
    "rocky": (
        {"ID": "rocky", "ID_LIKE": "rhel centos fedora"},
        "dnf install vulkan-loader",
        "dnf install mesa-vulkan-drivers",
    ),
    "arch": ({"ID": "arch"}, "pacman -S vulkan-icd-loader", "pacman -S vulkan-swrast"),
    "alpine": ({"ID": "alpine"}, "apk add vulkan-loader", "apk add mesa-vulkan-swrast"),
    "another": ({"ID": "plan9"}, "your distribution's Vulkan loader", "Mesa's (one is for the CPU)"),
}


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Simulate an ordinary Linux machine."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(install_hint, "NVIDIA", tmp_path / "nvidia")
    monkeypatch.setattr(install_hint, "TEGRA", tmp_path / "tegra")
    monkeypatch.delenv("TERMUX_VERSION", raising=False)


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_distributions(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    release, loader, driver = DISTRIBUTIONS[name]
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    assert install_hint.loader().startswith(loader)
    assert install_hint.driver().startswith(driver)
    assert install_hint.driver().endswith("or your GPU vendor's")


def test_without_os_release(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise OSError("Unable to read files /etc/os-release, /usr/lib/os-release")

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    assert "libvulkan.so.1" in install_hint.loader()


def test_termux(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERMUX_VERSION", "0.118.3")
    assert "pkg install vulkan-loader-android" in install_hint.loader()
    assert "mesa-vulkan-icd-freedreno" in install_hint.driver()


def test_jetson_and_nvidia_in_a_container(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(install_hint, "NVIDIA", tmp_path)
    assert "NVIDIA_DRIVER_CAPABILITIES=all" in install_hint.driver()
    monkeypatch.setattr(install_hint, "TEGRA", tmp_path)
    assert "JetPack" in install_hint.driver()


@pytest.mark.parametrize(("system", "loader", "driver"), [
    ("darwin", "vulkan-loader molten-vk", "molten-vk"), ("win32", "vulkan-1.dll", "your GPU vendor's"),
])  # fmt: skip
def test_other_systems(monkeypatch: pytest.MonkeyPatch, system: str, loader: str, driver: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert loader in install_hint.loader()
    assert driver in install_hint.driver()
