"""A pseudo-terminal with a given number of columns, and the text on its screen after a command has ended."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import struct
import sys
import termios
import threading
from collections.abc import Iterator

import pytest


class Terminal:
    """The output on a terminal. After `terminal` has ended, ``seen`` has the lines of the screen."""

    def __init__(self) -> None:
        self._bytes: list[bytes] = []
        self.seen: list[str] = []

    def read(self, master: int) -> None:
        """Read the output until the writing end is closed."""
        with contextlib.suppress(OSError):  # Linux raises this error when the other end is closed
            while piece := os.read(master, 4096):
                self._bytes.append(piece)
        self.seen = rendered(b"".join(self._bytes).decode())


@contextlib.contextmanager
def terminal(columns: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """Context manager: standard output and error are a terminal, for this process and for its children."""
    made = Terminal()
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    reader = threading.Thread(target=made.read, args=(master,))
    reader.start()
    kept = {number: os.dup(number) for number in (1, 2)}
    try:
        with monkeypatch.context() as patch:
            for name in ("COLUMNS", "LINES"):
                patch.delenv(name, raising=False)
            patch.setenv("NO_COLOR", "1")
            for number, name in ((1, "stdout"), (2, "stderr")):
                os.dup2(slave, number)
                stream = open(number, "w", buffering=1, encoding="utf-8", closefd=False)  # noqa: SIM115
                patch.setattr(sys, name, stream)
                patch.setattr(sys, f"__{name}__", stream)  # shutil asks this stream for the width
            yield made
            sys.stdout.flush()
    finally:
        for number, before in kept.items():
            os.dup2(before, number)
            os.close(before)
        os.close(slave)
        reader.join()
        os.close(master)


def rendered(text: str) -> list[str]:
    r"""Return the lines of a screen: ``\r`` moves to the line's start, ``\x1b[K`` erases to its end."""
    lines = []
    for line in text.replace("\r\n", "\n").split("\n"):
        shown = ""
        for part in line.split("\r"):
            wiped = part.rfind("\x1b[K") >= 0
            part = part.replace("\x1b[K", "")
            shown = part if wiped else part + shown[len(part) :]
        assert not re.search(r"[\x00-\x1f]", shown), f"not known to this terminal: {shown!r}"
        lines.append(shown.rstrip())
    return lines[:-1] if not lines[-1] else lines
