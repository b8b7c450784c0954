"""Reads files that something else wrote: regular files only, of a size that is known to be enough.

A pipe would wait for ever and ``/dev/zero`` never ends; both are refused before a byte is read, and what
grows while it is read is cut off. JSON is parsed with its depth and its integers bounded.
"""

from __future__ import annotations

import errno
import json
import os
import stat
from pathlib import Path
from typing import Any

MAX_DIGITS = 20  # of an integer in JSON: 2**64 has 20
MAX_CONTAINERS = 200_000  # lists and objects of a JSON text: what they take in memory is far above their text
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)


def read(path: Path, most_bytes: int) -> bytes:
    """The bytes of a regular file (or of a link to one).

    Raises:
        OSError: it cannot be read, is no regular file, or is larger than *most_bytes*; ``strerror`` says so.
    """
    data = read_start(path, most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return data


def read_start(path: Path, count: int) -> bytes:
    """As `read`: the first *count* bytes, fewer where the file ends before."""
    handle = os.open(path, _FLAGS)  # O_NONBLOCK: opening a pipe does not wait for its writer
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(min(count, facts.st_size + 1))
    finally:
        os.close(handle)


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is no JSON, nested too deeply, has more than `MAX_CONTAINERS` lists and objects, or an
            integer of more than `MAX_DIGITS` digits.
    """
    data = text if isinstance(text, bytes) else text.encode(errors="replace")
    if data.count(b"[") + data.count(b"{") > MAX_CONTAINERS:
        raise ValueError(f"it has more than {MAX_CONTAINERS} lists and objects")
    try:
        return json.loads(text, parse_int=_whole)
    except RecursionError:
        raise ValueError("its values are nested too deeply") from None


def _whole(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer of {len(digits)} digits; at most {MAX_DIGITS} are read")
    return int(digits)
