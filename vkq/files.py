"""Read files that other programs wrote (only regular files up to a given size), and write files atomically.

Only regular files are read: a pipe may block for ever, and ``/dev/zero`` never ends. If a file grows during
the read, the added bytes are not read. JSON is parsed with bounded depth and integers.
"""

from __future__ import annotations

import contextlib
import errno
import json
import mmap
import os
import secrets
import stat
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .turns import Turns

MAX_DIGITS = 20  # maximum number of digits of an integer in JSON; 2**64 has 20
# Maximum number of lists and objects of a JSON text: each takes far more memory than its text.
MAX_CONTAINERS = 200_000
_FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)

_LOCK = Turns("the list of memory maps")
_MAPS: dict[tuple[int, ...], weakref.ref[mmap.mmap]] = {}


def read(path: Path, most_bytes: int) -> bytes:
    """Return the bytes of a regular file (or of a link to one).

    Raises:
        OSError: it cannot be read, is not a regular file, or is larger than *most_bytes*; ``strerror`` says
        which.
    """
    data = read_start(path, most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"it is larger than {most_bytes} bytes", str(path))
    return data


def read_start(path: Path, count: int) -> bytes:
    """Return the first *count* bytes of a regular file, fewer if the file is shorter. Raises the errors of
    `read`."""
    handle = os.open(path, _FLAGS)  # O_NONBLOCK: opening a pipe must not wait for its writer
    try:
        size = _regular(handle, path).st_size
        with os.fdopen(handle, "rb", closefd=False) as file:
            return file.read(min(count, size + 1))
    finally:
        os.close(handle)


def _regular(handle: int, path: Path) -> os.stat_result:
    """Return the status (``os.fstat``) of an open file. Raises OSError if it is not a regular file."""
    facts = os.fstat(handle)
    if not stat.S_ISREG(facts.st_mode):
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return facts


def mapped(path: Path) -> mmap.mmap:
    """Return a read-only memory map of a regular file that is not empty. Calls for an unchanged file return
    the same map. Raises OSError like `read`."""
    handle = os.open(path, _FLAGS)
    try:
        facts = _regular(handle, path)
        key = facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns
        with _LOCK:
            known = _MAPS.get(key)
            found = None if known is None else known()
            if found is None:
                for dead in [one for one, map_ in _MAPS.items() if map_() is None]:
                    del _MAPS[dead]
                found = mmap.mmap(handle, 0, access=mmap.ACCESS_READ)
                _MAPS[key] = weakref.ref(found)
            return found
    finally:
        os.close(handle)


def release_maps() -> None:
    """Release the memory of all memory maps. The system reads the pages again when they are needed."""
    with _LOCK:
        for known in _MAPS.values() if hasattr(mmap, "MADV_DONTNEED") else []:
            if (one := known()) is not None:
                one.madvise(mmap.MADV_DONTNEED)


@contextlib.contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[Path]:
    """Context manager: yield a temporary file, in the folder of *path* and with its suffix. It replaces
    *path* at the end of the block. If anything fails, it is deleted, and the old file stays. If *path* is a
    link, the link is replaced, not its target.

    *mode*: the permissions of a new file. An existing file keeps its permissions.

    Raises:
        OSError: it cannot be written; ``filename`` is *path*, not the temporary file.
    """
    beside = path.parent / f".vkq-{secrets.token_hex(8)}{path.suffix}"
    try:
        os.close(os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode))
        if path.is_file() and not path.is_symlink():
            beside.chmod(stat.S_IMODE(path.stat().st_mode))
        yield beside
        with beside.open("rb+") as file:  # a full disk may be reported only by this call
            os.fsync(file.fileno())
        os.replace(beside, path)
    except OSError as error:
        if error.errno is None or error.filename not in (None, str(beside)):
            raise
        raise OSError(error.errno, error.strerror, str(path)) from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


def output(path: Path) -> contextlib.AbstractContextManager[Path]:
    """Return a context manager like `replacing`, for a file that the user names. If it is a link, its
    target is replaced. A file that is not regular, belongs to a process (``/dev/stdout``) or is in a
    read-only folder is written in place."""
    target = Path(os.path.realpath(path))
    if not path.exists():
        return replacing(target, 0o666)
    fit = path.is_file() and os.access(path, os.W_OK) and os.access(target.parent, os.W_OK)
    of_a_process = path.is_symlink() and path.is_relative_to("/dev")
    return replacing(target) if fit and not of_a_process else contextlib.nullcontext(path)


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

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
