"""Run a module of vkq in a new Python process, in which a driver that crashes or hangs affects nothing
else.

The child runs isolated (``python -I``): neither the working directory nor a ``PYTHON*`` variable decides
what it imports. Its import path is the folders of this process's ``sys.path`` without the working
directory, then the folder of vkq. Its messages are JSON objects, one a line, on a separate channel that a
driver's output cannot garble.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

# Environment variable of a child: the seconds after which it ends itself. A process with this variable
# starts no children.
CHILD = "VKQ_CHILD"
KEPT_BYTES = 1 << 20  # number of bytes kept from the end of a child's output
_GRACE_S = 30  # seconds after its time limit at which a child ends itself, if its parent was killed
_ROOT = Path(__file__).resolve().parents[1]  # the folder with vkq
_BOOT = (
    "import json, sys; path = json.loads(sys.argv[1]);"
    " sys.path[:] = path + [p for p in sys.path if p not in path];"
    " from importlib import import_module; sys.exit(import_module(sys.argv[2]).main(sys.argv[3:]))"
)
# Signals from outside. A process that any other signal ended has crashed.
_SENT = {
    getattr(signal, name, None) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP", "SIGALRM", "SIGQUIT")
}

Kind = Literal["done", "crashed", "ended", "late", "failed"]


@dataclass(frozen=True)
class Ended:
    """How a child ended. The kinds are

    - "done": exit code 0
    - "crashed": by its own signal, or an exit code that vkq does not use
    - "ended": by a signal from outside
    - "late": killed after the time limit
    - "failed": exit code 1 or 2
    """

    kind: Kind
    reason: str  # empty for "done"
    started: bool  # whether the child reached vkq's code; if not, its end says nothing about a driver
    said: Sequence[Mapping[str, Any]]  # the JSON objects of its channel, in order


def in_child() -> bool:
    """Return True if `run` started this process."""
    return CHILD in os.environ


def command(module: str, *arguments: str) -> list[str] | None:
    """Return the command line that runs ``main`` of a module of vkq. Return None if there is no Python to
    start: in an embedded or frozen interpreter, or in a child process."""
    if in_child() or not sys.executable or getattr(sys, "frozen", False):
        return None
    if not Path(sys.executable).name.lower().startswith("python"):
        return None  # the executable of an application that embeds Python
    return [sys.executable, "-I", "-c", _BOOT, json.dumps(_path()), module, *arguments]


def _path() -> list[str]:
    """Return the child's import path: this process's folders, without the working directory under any of
    its names."""
    try:
        here = os.path.realpath(os.getcwd())
    except FileNotFoundError:  # the working directory was deleted
        here = ""
    kept = [p for p in sys.path if os.path.isabs(p) and os.path.realpath(p) != here]
    return [*kept, str(_ROOT)]


def run(argv: Sequence[str], timeout_s: float, environment: Mapping[str, str] | None = None) -> Ended | None:
    """Run a `command` to its end, or kill it after *timeout_s*. Return None if it cannot be started.

    The child gets *environment* and this process's environment variables, except VKQ_DEVICE and
    VKQ_VALIDATION.
    """
    left_out = ("VKQ_DEVICE", "VKQ_VALIDATION")
    env = {key: value for key, value in os.environ.items() if key not in left_out}
    env |= {**(environment or {}), CHILD: str(int(timeout_s + _GRACE_S))}
    pipe = subprocess.PIPE
    try:
        process = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=env, start_new_session=True
        )
    except OSError:
        return None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        out, err = _Drain(process.stdout), _Drain(process.stderr)
        try:
            process.wait(timeout_s)
            late = False
        except subprocess.TimeoutExpired:
            late = True
    finally:  # a signal that ends this process must end the child, too
        if process.poll() is None:
            _kill(process)
    said = _objects(out.text())
    kind, reason = _how(process.returncode, late, timeout_s, err.text())
    return Ended(
        kind, reason, any("started" in each for each in said), [s for s in said if "started" not in s]
    )


class _Drain:
    """The reader of a pipe in a thread, which keeps the last `KEPT_BYTES`."""

    def __init__(self, pipe: IO[bytes]):
        self._pipe, self._data = pipe, b""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        while chunk := os.read(self._pipe.fileno(), 1 << 16):
            self._data = (self._data + chunk)[-KEPT_BYTES:]
        self._pipe.close()

    def text(self) -> str:
        self._thread.join(5)  # a process that the child started may still hold the pipe open
        return self._data.decode(errors="replace")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if hasattr(os, "killpg"):
        # End the whole session, with all processes of the driver.
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    # A process that does not end within 5 s is stuck in the kernel: do not wait for it.
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(5)


def _how(code: int | None, late: bool, timeout_s: float, err: str) -> tuple[Kind, str]:
    if late:
        return "late", f"the driver did not answer within {timeout_s:g} s"
    if code == 0:
        return "done", ""
    if code is None or code < 0:
        number = -(code or 0)
        return ("ended" if number in _SENT else "crashed"), f"the driver crashed ({_signal(number)})"
    last = (err.strip().splitlines() or ["no message"])[-1][:500]
    # vkq never exits with such a code: the driver ended the process (on Windows, an exception did).
    if code > 2:
        return "crashed", f"the driver ended the process (exit code {code}): {last}"
    return "failed", f"the probe failed (exit code {code}): {last}"


def _signal(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _objects(text: str) -> list[dict[str, Any]]:
    """Return the JSON objects among the lines; an incomplete line is ignored."""
    found = []
    for line in text.splitlines():
        try:
            said = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(said, dict):
            found.append(said)
    return found


# -------------------------------------------------------------------------------------------------- the child


def begin() -> Callable[..., None]:
    """Return a function that sends a JSON object to the parent. Call it in a child before it uses a driver.

    All later output goes to stderr. In case the parent was killed, the child ends itself some time after
    its time limit.
    """
    channel = os.fdopen(os.dup(1), "w", encoding="ascii")
    os.dup2(2, 1)
    if hasattr(signal, "alarm"):
        signal.alarm(int(os.environ.get(CHILD, "0")))  # 0 (no alarm): a user started this process

    def say(**what: Any) -> None:
        channel.write(json.dumps(what) + "\n")
        channel.flush()

    say(started=True)
    return say
