"""Texts on the packages to install on this machine if the Vulkan loader or a driver is missing."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from .drivers import NAMED

# {ID or ID_LIKE in /etc/os-release: (command that installs packages, package of the loader, package of
# Mesa's drivers)}. One of Mesa's drivers runs on the CPU.
PACKAGES = {
    "debian": ("apt-get install", "libvulkan1", "mesa-vulkan-drivers"),
    "fedora": ("dnf install", "vulkan-loader", "mesa-vulkan-drivers"),
    "arch": ("pacman -S", "vulkan-icd-loader", "vulkan-swrast"),
    "alpine": ("apk add", "vulkan-loader", "mesa-vulkan-swrast"),
}
NVIDIA = Path("/dev/nvidiactl")  # this file exists if NVIDIA's kernel driver is loaded
TEGRA = Path("/etc/nv_tegra_release")  # this file exists only on a Jetson


def loader() -> str:
    """Return a text on how to install libvulkan: a command, if the system is known."""
    if _termux():
        return "pkg install vulkan-loader-android (the phone's driver) or vulkan-loader-generic"
    if sys.platform == "darwin":
        return "brew install vulkan-loader molten-vk (vkq was not tested on macOS)"
    if sys.platform == "win32":
        return "the driver of your GPU's vendor, which installs vulkan-1.dll"
    command, package, _ = _packages()
    return f"{command} {package}" if command else "your distribution's Vulkan loader (libvulkan.so.1)"


def no_driver() -> str:
    """Return the remedy for a loader that finds no driver. The remedy depends on whether an environment
    variable lists drivers: the loader then looks nowhere else."""
    for name in NAMED:
        given = os.environ.get(name)
        if given and given != os.devnull:  # os.devnull is the value that vkq sets if no driver is good
            return (
                f"{name} is {given!r} and the loader looks nowhere else: unset it, or name a driver's .json"
                " file there"
            )
    return f"install a driver: {driver()}"


def driver() -> str:
    """Return a text on how to install a Vulkan driver."""
    if _termux():
        return (
            "pkg install vulkan-loader-android for the phone's own, mesa-vulkan-icd-freedreno for Adreno, or"
            " mesa-vulkan-icd-swrast for the CPU"
        )
    if TEGRA.exists():
        return "NVIDIA's, a part of JetPack: apt-get install nvidia-l4t-core nvidia-l4t-3d-core"
    if sys.platform == "darwin":
        return "brew install molten-vk (vkq was not tested on macOS)"
    if sys.platform == "win32":
        return "your GPU vendor's"
    command, _, package = _packages()
    mesa = f"{command} {package} (one is for the CPU)" if command else "Mesa's (one is for the CPU)"
    if NVIDIA.exists():
        return (
            "NVIDIA's kernel driver is loaded and its Vulkan driver is not seen: in a container set"
            f" NVIDIA_DRIVER_CAPABILITIES=all, elsewhere install the vendor's package; or {mesa}"
        )
    return f"{mesa}, or your GPU vendor's"


def _packages() -> tuple[str, str, str]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return ("", "", "")
    names = [release.get("ID", ""), *release.get("ID_LIKE", "").split()]
    return next((PACKAGES[name] for name in names if name in PACKAGES), ("", "", ""))


def _termux() -> bool:
    return "TERMUX_VERSION" in os.environ or sys.platform == "android"
