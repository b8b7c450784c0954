"""``python -m tests.fuzz --seconds 600 [TARGET ...]``: fuzzes each target for so long; exit code 1 on a
defect."""

from __future__ import annotations

import argparse
import random
import time
import traceback

from .engine import fuzz
from .targets import TARGETS

BATCH = 500  # inputs of one seed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)"
    )
    parser.add_argument("--seconds", type=float, default=60, help="of each target (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30), help="the first seed")
    options = parser.parse_args()
    failed = 0
    for name in options.targets or TARGETS:
        tried, seed, begun, error = 0, options.seed, time.monotonic(), ""
        while time.monotonic() - begun < options.seconds and not error:
            try:
                tried += fuzz(name, TARGETS[name], BATCH, seed)
            except Exception:
                error = traceback.format_exc()
            seed += 1
        took = time.monotonic() - begun
        print(f"{name:8} {tried:8} inputs in {took:6.0f} s, seeds {options.seed} to {seed - 1}", flush=True)
        if error:
            failed += 1
            print(f"DEFECT in {name} at seed {seed - 1}; keep its input in tests/fuzz/corpus/{name}\n{error}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
