"""The trial of drivers in a child process (drivers.py): load the drivers, enumerate their devices and query
the capabilities of each device."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import spawn
from ..errors import VkqError
from . import vulkan
from .query import read


def main(argv: Sequence[str] | None = None) -> int:
    """Return exit code 0 if nothing crashed; a driver that reports no device is good too."""
    say = spawn.begin()
    try:
        say(begin="loading")
        instance = vulkan.instance()
        say(begin="enumerating its devices")
        handles = instance.physical_devices()
        for index, handle in enumerate(handles):
            say(begin=f"reading the properties of device {index}")
            read(handle, index)
        say(begin="closing")
    except VkqError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0
