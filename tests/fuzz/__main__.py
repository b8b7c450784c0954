"""``python -m tests.fuzz --seconds 3600 [TARGET ...]``: fuzz each target for this many seconds, guided by the
branches of vkq that the inputs reach (`guided`). The exit code is 1 if a defect was found.

A folder holds the inputs that reached new branches, and a log with an entry for each time that a target was
fuzzed. The next run continues with these inputs.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .engine import MOST_BYTES, checking
from .targets import ROOT, TARGETS

LINE = re.compile(r"^#(\d+)\s+(\w+)\s+cov: (\d+) ft: ", re.MULTILINE)
EXECUTED = re.compile(r"^stat::number_of_executed_units: (\d+)", re.MULTILINE)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument(
        "targets", nargs="*", metavar="TARGET", help=f"of {', '.join(TARGETS)} (default: all)"
    )
    parser.add_argument(
        "--seconds", type=int, default=60, help="of processor time of each target (default: %(default)s)"
    )
    parser.add_argument("--turn", type=int, default=120, help="of these at a time (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=ROOT / "build" / "fuzz", help="(default: build/fuzz)")
    options = parser.parse_args()
    defects = 0
    for begun in range(0, options.seconds, options.turn):
        for name in options.targets or TARGETS:
            defects += turn(name, options.folder.resolve(), min(options.turn, options.seconds - begun))
    print(table([json.loads(line) for line in (options.folder / "turns.jsonl").read_text().splitlines()]))
    return 1 if defects else 0


def turn(name: str, folder: Path, seconds: int) -> int:
    """Fuzz a target for *seconds*, or until an input fails. Return the number of failing inputs that also
    fail when they are run alone."""
    told, found = process(name, folder, seconds)
    defects = {path: tried(name, path.read_bytes()) for path in found}
    for path, defect in defects.items():
        kind = f"DEFECT in {name}, to be kept in tests/fuzz/corpus/{name}" if defect else "not seen again"
        print(f"{kind}: {path}\n{defect}", flush=True)
    with (folder / "turns.jsonl").open("a") as log:
        log.write(json.dumps({**told, "found": [path.name for path in found]}) + "\n")
    return sum(map(bool, defects.values()))


def process(name: str, folder: Path, seconds: int) -> tuple[dict[str, Any], list[Path]]:
    """Run `guided` in a process; return its statistics and the inputs that failed."""
    corpus, seeds, found = (folder / name / kind for kind in ("corpus", "seeds", "found"))
    for path in (corpus, seeds, found):
        path.mkdir(parents=True, exist_ok=True)
    for i, data in enumerate(TARGETS[name].corpus(name)):
        (seeds / str(i)).write_bytes(data)
    before, begun = set(found.iterdir()), _processor_s()
    argv = [
        sys.executable, "-m", "tests.fuzz.guided", name, str(seconds), str(corpus), str(seeds),
        f"-max_len={MOST_BYTES}", f"-artifact_prefix={found}/", "-timeout=300", "-report_slow_units=300",
        "-print_final_stats=1",
    ]  # fmt: skip
    said = subprocess.run(argv, cwd=ROOT, capture_output=True, check=False).stderr.decode(errors="replace")
    (folder / name / "said.txt").write_text(said)
    executed = EXECUTED.search(said)
    lines = [(int(at), kind, int(branches)) for at, kind, branches in LINE.findall(said)]
    if not executed or not lines:
        raise SystemExit(
            f"{name}: the fuzzer ran not or counted nothing; it needs the package atheris:\n{said[-2000:]}"
        )
    # before INITED, libFuzzer reads the inputs of earlier runs
    first = next((at for at, kind, _ in lines if kind == "INITED"), 0)
    told = {
        "target": name,
        "at": time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime()),
        "processor_s": round(_processor_s() - begun, 1),
        "executions": int(executed[1]) - first,
        "branches": lines[-1][2],
        "last_new_at": max(0, next(at for at, _, branches in lines if branches == lines[-1][2]) - first),
    }
    return told, sorted(set(found.iterdir()) - before)


def _processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tried(name: str, data: bytes) -> str:
    """Run the target on one input, without coverage counters, which would slow the target down. Return the
    traceback of a defect, or ""."""
    try:
        with checking(TARGETS[name]) as check:
            check(data)
    except Exception:
        return traceback.format_exc()
    return ""


def table(turns: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with each target's totals over all entries of a log."""
    lines = [
        f"{'target':8} {'executions':>12} {'processor s':>12} {'branches':>9}  executions since a new one"
    ]
    for name in dict.fromkeys(turn["target"] for turn in turns):
        own, most, since = [turn for turn in turns if turn["target"] == name], 0, 0
        for each in own:
            grown = each["branches"] > most
            most = max(most, each["branches"])
            since = each["executions"] - each["last_new_at"] if grown else since + each["executions"]
        executions, seconds = (sum(turn[key] for turn in own) for key in ("executions", "processor_s"))
        lines.append(f"{name:8} {executions:12,} {seconds:12,.0f} {most:9,}  {since:,}")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
