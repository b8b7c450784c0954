"""``python -m tests.mutants [PART]``: remove the guards of mutants.yaml one at a time, and run the test
that must then fail. The exit code is 1 if one of these tests passes. PART selects the guards for which PART
occurs in the text of the guard or in the name of the test.

A guard is removed in the source file itself, which is always restored: run nothing else in this checkout
meanwhile.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from vkq import yamlfile

ROOT = Path(__file__).resolve().parents[1]
LIST = Path(__file__).with_name("mutants.yaml")
TIMEOUT_S = 300


@dataclass(frozen=True)
class Mutant:
    """A guard: the text in a file, its replacement, and the test that must fail with the replacement."""

    file: Path
    guard: str
    becomes: str
    test: str

    def __str__(self) -> str:
        return f"{self.file.relative_to(ROOT)}: {' '.join(self.guard.split())[:70]}"

    def applied(self) -> str:
        """Return the file's text without the guard; raises an error unless the guard occurs exactly once."""
        text = self.file.read_text()
        count = text.count(self.guard)
        if count != 1:
            raise ValueError(f"{self}: the guard stands there {count} times; write mutants.yaml again")
        return text.replace(self.guard, self.becomes)


def mutants() -> list[Mutant]:
    """Return all guards of mutants.yaml, which lists pairs of guard and replacement by file and test."""
    found = []
    for entry in yamlfile.load(LIST).sequence():
        keys = entry.mapping({"file", "test", "guard"}, {"becomes"})
        becomes = keys["becomes"].str() if "becomes" in keys else ""
        found.append(Mutant(ROOT / keys["file"].str(), keys["guard"].str(), becomes, keys["test"].str()))
    return found


def seen(mutant: Mutant) -> bool:
    """Return True if the test fails without the guard."""
    before = mutant.file.read_bytes()
    try:
        mutant.file.write_text(mutant.applied())
        return not passes(mutant.test)
    finally:
        mutant.file.write_bytes(before)


def passes(test: str) -> bool:
    """Return True if a test passes. A test that exceeds the time limit, or does not exist, counts as
    failed."""
    argv = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", test]
    env = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "VKQ_REQUIRE_DEVICE": "1"}
    try:
        done = subprocess.run(argv, cwd=ROOT, env=env, capture_output=True, timeout=TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    # exit codes 2 to 5: pytest could not run the test
    if done.returncode not in (0, 1) and done.returncode > 0:
        text = (done.stdout + done.stderr).decode(errors="replace")
        if "ERROR collecting" not in text and "error" not in text.lower():
            raise RuntimeError(f"{test} cannot be run:\n{text}")
    return done.returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutants")
    parser.add_argument("part", nargs="?", default="", help="only those whose text or test holds it")
    part = parser.parse_args().part
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended"))  # raises SystemExit, so `finally` runs
    chosen = [m for m in mutants() if part in str(m) or part in m.test]
    for test in dict.fromkeys(m.test for m in chosen):
        if not passes(test):
            raise SystemExit(f"{test} does not pass with the guard in place")
    missed, begun = 0, time.monotonic()
    for mutant in chosen:
        found = seen(mutant)
        missed += not found
        print(f"{'seen' if found else 'NOT SEEN':8} {mutant}  {mutant.test}", flush=True)
    print(f"{len(chosen) - missed} of {len(chosen)} seen, {time.monotonic() - begun:.0f} s")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
