"""``python -m vkq.probe.child INDEX``: the self-test and the rates of one device, for the process that
started it (isolate.py).

On stdout one JSON object a line: ``{"device": key}``, then for each stage ``{"begin": stage}`` and
``{"end": stage, "result": ...}``. Warnings and errors go to stderr; exit code 1 where the device could not be
opened.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..errors import VkqError
from ..runtime.device import Device
from . import selftest

FAULT = "VKQ_PROBE_FAULT"  # for tests: "stage=crash", "stage=hang" or "stage=exit"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m vkq.probe.child", description="Probe one Vulkan device.")
    parser.add_argument("index", type=int, help="the device's index, as in `vkq devices`")
    parser.add_argument(
        "--skip", action="append", default=[], metavar="STAGE", help="a stage that is not run"
    )
    options = parser.parse_args(argv)
    _fault("open")
    try:
        with Device(options.index) as device:
            _say(device=device.capabilities.key, begin=None)
            for stage, run in selftest.stages(device).items():
                if stage not in options.skip:
                    _say(begin=stage)
                    _fault(stage)
                    _say(end=stage, result=run())
    except VkqError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 1
    return 0


def _say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def _fault(stage: str) -> None:
    """Does what the environment asks for in this stage: how tests see that a driver's crash stays in the
    child."""
    at, _, what = os.environ.get(FAULT, "").partition("=")
    if at != stage:
        return
    if what == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if what == "hang":
        time.sleep(3600)
    sys.exit(7)


if __name__ == "__main__":
    sys.exit(main())
