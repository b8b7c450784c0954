"""The trial of drivers, in a child process (drivers.py): loads them, enumerates their devices and asks each
what it can do."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import spawn
from ..errors import VkqError
from . import vulkan
from .query import read


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 where nothing crashed; a driver that says that it has no device is a good one."""
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
