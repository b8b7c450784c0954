"""``python -m tests.check.all`` tests `vkq doctor` with emulated faults of drivers (`faulty.FAULTS`, after
published bugs). It runs all replays of the doctor once for each driver and fault, and once without a fault,
each time on a newly opened device and with the doctor's usual budget of 30 s. It prints a table in Markdown.
The exit code is 1 if the doctor misses a fault, if a fault changes no result, or if the doctor raises an
alarm without a fault.

The emulation submits each step of a recording separately, also without a fault, so it is slower than a real
driver.

    python -m tests.check.all --driver swiftshader --fault zeros --fault "partial writes"
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import time

import pytest

if __name__ == "__main__":  # set these variables before tests.conftest sets its defaults
    os.environ.setdefault("VKQ_EVERY_DRIVER", "1")
    os.environ.setdefault("VKQ_VALIDATION", "0")

from tests.check import faulty
from tests.conftest import DRIVERS
from vkq.check.compare import usable_paths
from vkq.check.replay import SECONDS, TIMES, Replay, replays
from vkq.runtime.device import Device

HEALTHY = "none"
FAULTS = {HEALTHY: faulty.Driver, **faulty.FAULTS}
HEAD = ("fault", "driver", "times shown", "workloads wrong", "first found after", "all after", "it says")


@dataclasses.dataclass(frozen=True)
class Examined:
    """The doctor's findings on a driver with a fault. ``shown``: how often the fault changed a result;
    ``found_s``: seconds until the end of the first workload with wrong results."""

    fault: str
    driver: str
    shown: int
    replays: list[Replay]
    found_s: float | None
    seconds: float

    @property
    def right(self) -> bool:
        """True if the doctor's verdict on the driver is correct. If the driver has a fault, the fault must
        also have changed a result."""
        return (self.fault != HEALTHY) == (self.found_s is not None) == (self.shown > 0)

    def cells(self) -> tuple[str, ...]:
        wrong = [one for one in self.replays if one.wrong]
        return (
            self.fault,
            self.driver,
            f"{self.shown:,}",
            f"{len(wrong)} of {len(self.replays)}",
            "-" if self.found_s is None else f"{self.found_s:.1f} s",
            f"{self.seconds:.0f} s",
            f"{wrong[0].operator}: {wrong[0].said}" if wrong else "no alarm",
        )


def examined(which: str, fault: str, times: int = TIMES, seconds: float = SECONDS) -> Examined:
    """Return the results of all replays of `vkq doctor` on a driver with this fault."""
    done: list[Replay] = []
    found_s = None
    with Device(DRIVERS.get(which, which)) as device, pytest.MonkeyPatch.context() as patch:
        paths, _ = usable_paths(device)
        begin = time.monotonic()
        with faulty.driver(patch, FAULTS[fault]) as driver:
            for one in replays(device, paths, times, seconds):
                done.append(one)
                if one.wrong and found_s is None:
                    found_s = time.monotonic() - begin
        return Examined(fault, which, driver.changed, done, found_s, time.monotonic() - begin)


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--driver", action="append", metavar="NAME", help=f"(default: {', '.join(DRIVERS)})")
    parser.add_argument("--fault", action="append", choices=FAULTS, metavar="FAULT", help="(default: all)")
    options = parser.parse_args()
    print(_line(HEAD), _line(("---",) * len(HEAD)), sep="\n", flush=True)
    good = True
    for which in options.driver or DRIVERS:
        for fault in options.fault or FAULTS:
            one = examined(which, fault)
            good &= one.right
            print(_line(one.cells()) + ("" if one.right else "  <- WRONG"), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
