"""Runs the probe of a device in a child process, so that a driver that crashes or hangs in it takes nothing
else along.

The child (child.py) says a line of JSON before and after each stage. Where it dies, the stage that it was in
is what the driver cannot do; it is started again without that stage.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

CHILD = "VKQ_PROBE_CHILD"  # set in the child, which must not start another
TIMEOUT_S = 60.0
RESTARTS = 4
OPENING = "open"  # the stage before the first: loading the driver, opening the device, compiling


def command(index: int) -> list[str] | None:
    """The child's command line; None where there is no Python to start (an embedded or frozen interpreter),
    or in the child."""
    if CHILD in os.environ or not sys.executable or getattr(sys, "frozen", False):
        return None
    if not Path(sys.executable).name.lower().startswith("python"):
        return None  # an application that embeds Python would start a second self
    return [sys.executable, "-m", "vkq.probe.child", str(index)]


def ask(index: int, key: str) -> tuple[dict[str, Any], dict[str, str]] | None:
    """(results by stage, crashed or hung stages with the reason) of a device.

    None where no child can be started, and where it finds another device under the index than the one with
    this *key* (`Capabilities.key`): it knows nothing of that one.
    """
    results: dict[str, Any] = {}
    failed: dict[str, str] = {}
    for _ in range(RESTARTS + 1):
        argv = command(index)
        if argv is None:
            return None
        try:
            ended, text = _run([*argv, *(f"--skip={stage}" for stage in (*results, *failed))])
        except OSError:
            return None
        said = _stages(text, key)
        if said is None:
            return None
        stage, found = said
        results |= found
        if ended is None and stage is None:
            return results, failed
        failed[stage or OPENING] = ended or "the probe ended without a result"
        if stage in (None, OPENING):
            break
    return results, failed


def _stages(text: str, key: str) -> tuple[str | None, dict[str, Any]] | None:
    """(the stage that was begun and not ended, results), None for another device; a line cut short counts as
    not said."""
    stage: str | None = OPENING
    found: dict[str, Any] = {}
    for line in text.splitlines():
        try:
            said: Mapping[str, Any] = json.loads(line)
        except ValueError:
            continue  # a driver that prints
        if not isinstance(said, dict):
            continue
        if said.get("device", key) != key:
            return None
        stage = said.get("begin")
        if "end" in said:
            found[said["end"]] = said["result"]
    return stage, found


def _run(argv: list[str]) -> tuple[str | None, str]:
    """(why the child failed, or None; what it printed)."""
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=_environment(), text=True,
        errors="replace"
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        try:
            out, _ = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:  # stuck in the kernel: leave it
            out = ""
        return f"the driver did not answer within {TIMEOUT_S:g} s", out
    if process.returncode == 0:
        return None, out
    if process.returncode < 0:
        return f"the driver crashed ({_signal(-process.returncode)})", out
    last = (err.strip().splitlines() or ["no message"])[-1]
    return f"the probe failed (exit code {process.returncode}): {last}", out


def _environment() -> dict[str, str]:
    """The parent's, so that the same loader and driver are found, without what would change the probe
    itself."""
    environment = {
        k: v for k, v in os.environ.items() if k not in ("VKQ_DEVICE", "VKQ_VALIDATION", "PYTHONINSPECT")
    }
    environment[CHILD] = "1"
    environment["PYTHONPATH"] = os.pathsep.join(p or os.getcwd() for p in sys.path)
    return environment


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
