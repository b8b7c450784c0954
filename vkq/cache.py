"""The user's cache folder. Its files can be made again; each file is checked when it is read.

A file has a magic number, a SHA-256 checksum and the data. The checksum includes the file's name, so a
renamed file is invalid. A file that is truncated, changed, renamed, empty, too large, unreadable or not a
regular file is ignored with one `CacheWarning`, and the caller makes the data again. Writing is atomic:
readers in other processes never see half a file. If the folder grows above `MOST_BYTES`, the least recently
used files are deleted.

The checksum detects damage and mistakes; it is not a signature. Anyone who can write into the folder can
choose what this user computes with: docs/trust.md.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import platformdirs

from vkq import files

MAGIC = b"vkqcache2\n"
MOST_FILE_BYTES = 64 << 20  # maximum bytes of one file; a driver's pipeline cache can have a few MiB
MOST_BYTES = 512 << 20  # maximum bytes of all files in the folder
# Subfolders of the cache; files are deleted only in these.
KINDS = ("drivers", "pipelines", "probe", "spirv", "tune")
_TOUCH_S = 86400.0  # resolution of the time of the last use, in seconds
_HEADER = len(MAGIC) + hashlib.sha256().digest_size

Value = TypeVar("Value")
_warned: set[Path] = set()
_sizes: dict[Path, int] = {}  # {cache folder: its bytes at the last count + bytes written since then}


class CacheWarning(UserWarning):
    """A cache file was ignored, or could not be written. Results are correct; work is repeated."""


def cache_dir() -> Path:
    """Return the folder in which vkq stores files between runs: ``VKQ_CACHE_DIR`` if set, else a folder in
    the platform's cache folder."""
    chosen = os.environ.get("VKQ_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("vkq", appauthor=False))


def seal(data: bytes, name: str) -> bytes:
    """Return *data* behind the header that `unseal` checks (`MAGIC` and the checksum), for a file of this
    name."""
    return MAGIC + _sum(data, name) + data


def unseal(blob: bytes, name: str) -> bytes | None:
    """Return the data of a sealed blob, or None if the blob is not a result of `seal` for this name."""
    data = blob[_HEADER:]
    return data if blob[:_HEADER] == MAGIC + _sum(data, name) else None


def _sum(data: bytes, name: str) -> bytes:
    named = name.encode()
    return hashlib.sha256(len(named).to_bytes(8, "little") + named + data).digest()


def read(path: Path) -> bytes | None:
    """Return the data of the cache file *path*. Return None if there is no file, or, with one warning, if
    the file is damaged."""
    try:
        data = unseal(files.read(path, MOST_FILE_BYTES), path.name)
        problem = "its checksum is wrong"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        data, problem = None, error.strerror or str(error)
    if data is None:
        ignore(path, problem)
    else:
        _touch(path)
    return data


def read_json(path: Path, parse: Callable[[Any], Value]) -> Value | None:
    """Return the result of *parse* for the JSON value in the cache file *path*. Return None if `read`
    returns None, or, with one warning, if the data is not JSON or *parse* raises ValueError, TypeError or
    LookupError."""
    data = read(path)
    if data is None:
        return None
    try:
        return parse(files.parse_json(data))
    except (ValueError, TypeError, LookupError) as error:
        ignore(path, f"{type(error).__name__}: {error}")
        return None


def ignore(path: Path, problem: str) -> None:
    """Warn once that the cache file *path* is not used."""
    warn(path, f"the cache file {path} is ignored and made again: {problem}.")


def write(path: Path, data: bytes) -> None:
    """Write *data* to the cache file *path*; if the file system refuses, warn once and continue."""
    try:
        write_sealed(path, data)
    except OSError as error:
        if path not in _warned:  # `read` has warned of a damaged file already
            warn(path.parent, f"the cache folder {path.parent} cannot be written: {error.strerror or error}.")
    else:
        _evict(path.parent.parent, len(data) + _HEADER)


def write_sealed(path: Path, data: bytes) -> None:
    """Do the same as `write`, but raise ``OSError`` if the file system refuses: for build outputs, which
    are not a cache."""
    _make_folder(path.parent)
    with files.replacing(path) as beside:
        beside.write_bytes(seal(data, path.name))


def _make_folder(folder: Path) -> None:
    """Make a folder and its missing parents, all accessible only to this user. ``Path.mkdir`` would apply
    the mode only to the folder itself."""
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for one in reversed(missing):
        one.mkdir(mode=0o700, exist_ok=True)


def warn(key: Path, message: str) -> None:
    """Issue a `CacheWarning`, once for each *key*."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, CacheWarning, stacklevel=3)


def _touch(path: Path) -> None:
    """Set the file's time of use, at most once a day. `_evict` deletes the least recently used files."""
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _TOUCH_S:
            os.utime(path)


def _evict(folder: Path, added: int) -> None:
    """If the folder is larger than `MOST_BYTES`, delete the least recently used files until at most three
    quarters of `MOST_BYTES` remain."""
    if folder != cache_dir():
        return
    if folder in _sizes and _sizes[folder] + added <= MOST_BYTES:
        _sizes[folder] += added
        return
    found = sorted(_sealed(folder))
    total = sum(size for _, size, _ in found)
    if total > MOST_BYTES:
        for _, size, path in found:
            if total <= MOST_BYTES * 3 // 4:
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
                total -= size
    _sizes[folder] = total


def _sealed(folder: Path) -> Iterator[tuple[float, int, str]]:
    """Yield (time of the last use, size, path) of every file of vkq in the cache folder. Other files must
    not be deleted: VKQ_CACHE_DIR may be any folder."""
    for kind in KINDS:
        with contextlib.suppress(OSError), os.scandir(folder / kind) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    facts = entry.stat(follow_symlinks=False)
                    if files.read_start(Path(entry.path), len(MAGIC)) == MAGIC:
                        yield facts.st_mtime, facts.st_size, entry.path
