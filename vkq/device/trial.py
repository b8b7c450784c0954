"""Run by drivers.py in a child process: load the drivers, enumerate their devices, and query the
capabilities of each device."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from .. import spawn
from ..errors import VkqError
from . import vulkan
from .query import read


def main(argv: Sequence[str] | None = None) -> int:
    """Run the trial. Return the exit code: 0 if no error occurred. A driver without devices is no error."""
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
