"""Hints for this machine on the packages to install if there is no Vulkan loader or no driver."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path

from .drivers import NAMED

# ID or ID_LIKE of /etc/os-release: (the command, the loader's package, the package of Mesa's drivers). One of
# Mesa's drivers runs on the CPU.
PACKAGES = {
    "debian": ("apt-get install", "libvulkan1", "mesa-vulkan-drivers"),
    "fedora": ("dnf install", "vulkan-loader", "mesa-vulkan-drivers"),
    "arch": ("pacman -S", "vulkan-icd-loader", "vulkan-swrast"),
    "alpine": ("apk add", "vulkan-loader", "mesa-vulkan-swrast"),
}
NVIDIA = Path("/dev/nvidiactl")  # a file that exists if NVIDIA's kernel driver is loaded
TEGRA = Path("/etc/nv_tegra_release")  # a file that exists only on a Jetson


def loader() -> str:
    """Return how to install libvulkan, as a command if it is known."""
    if _termux():
        return "pkg install vulkan-loader-android (the phone's driver) or vulkan-loader-generic"
    if sys.platform == "darwin":
        return "brew install vulkan-loader molten-vk (vkq was not tested on macOS)"
    if sys.platform == "win32":
        return "your GPU vendor's driver brings vulkan-1.dll"
    command, package, _ = _packages()
    return f"{command} {package}" if command else "your distribution's Vulkan loader (libvulkan.so.1)"


def no_driver() -> str:
    """Return the remedy if the loader finds no driver. If an environment variable lists drivers, say that the
    loader ignores all others."""
    for name in NAMED:
        given = os.environ.get(name)
        if given and given != os.devnull:  # vkq itself sets this value if no driver is good
            return (
                f"{name} is {given!r} and the loader looks nowhere else: unset it, or name a driver's .json"
                " file there"
            )
    return f"install a driver: {driver()}"


def driver() -> str:
    """Return how to install a Vulkan driver."""
    if _termux():
        return (
            "pkg install vulkan-loader-android for the phone's own, mesa-vulkan-icd-freedreno for Adreno, or"
            " mesa-vulkan-icd-swrast for the CPU"
        )
    if TEGRA.exists():
        return "NVIDIA's, which JetPack brings: apt-get install nvidia-l4t-core nvidia-l4t-3d-core"
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
