"""Run the self-test of a device and measure its rates, in a child process that vkq.device.verdict starts.

The child sends its parent a JSON object on each line: ``{"device": key, "stages": names}``, then for each
stage ``{"begin": stage}`` and ``{"end": stage, "result": ...}``. Errors go to stderr. The exit code is 1 if
the device cannot be opened or a stage raises.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from .. import spawn
from ..errors import VkqError
from ..runtime.device import Device
from . import selftest


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Probe one Vulkan device.")
    parser.add_argument("index", type=int, help="the device's index, as in `vkq devices`")
    parser.add_argument("--skip", action="append", default=[], help="a stage to leave out")
    options = parser.parse_args(argv)
    say = spawn.begin()
    try:
        with Device(options.index) as device:
            stages = selftest.stages(device)
            say(device=device.capabilities.key, stages=list(stages))
            for stage, run in stages.items():
                if stage not in options.skip:
                    say(begin=stage)
                    say(end=stage, result=run())
    except VkqError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 1
    return 0
