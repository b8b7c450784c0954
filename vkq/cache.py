"""The user's cache folder: files that can be made again, each checked when it is read.

A file is a magic number, the SHA-256 of its data, and the data. A file that is truncated, changed, empty,
unreadable or not a file at all is ignored with one `CacheWarning`, and the caller makes the data again.
Writing is atomic, so a reader in another process never sees half a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
import warnings
from pathlib import Path

import platformdirs

MAGIC = b"vkqcache1\n"
_HEADER = len(MAGIC) + hashlib.sha256().digest_size

_warned: set[Path] = set()


class CacheWarning(UserWarning):
    """A cache file was ignored, or could not be written; results are right, but work is repeated."""


def cache_dir() -> Path:
    """The folder for everything vkq keeps between runs: ``VKQ_CACHE_DIR`` where set, else the platform's
    own."""
    chosen = os.environ.get("VKQ_CACHE_DIR")
    return Path(chosen) if chosen else Path(platformdirs.user_cache_dir("vkq", appauthor=False))


def seal(data: bytes) -> bytes:
    """*data* with the header that `unseal` checks."""
    return MAGIC + hashlib.sha256(data).digest() + data


def unseal(blob: bytes) -> bytes | None:
    """The data inside a sealed blob, or None where the blob is not exactly what `seal` made."""
    data = blob[_HEADER:]
    return data if blob[:_HEADER] == MAGIC + hashlib.sha256(data).digest() else None


def read(path: Path) -> bytes | None:
    """The data of the cache file *path*; None where there is none, or where it is damaged (warned of
    once)."""
    try:
        data = unseal(path.read_bytes())
        problem = "its checksum is wrong"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        data, problem = None, error.strerror or str(error)
    if data is None:
        warn(path, f"the cache file {path} is ignored and made again: {problem}.")
    return data


def write(path: Path, data: bytes) -> None:
    """Put *data* into the cache file *path*; where the file system refuses, warn once and go on."""
    try:
        write_sealed(path, data)
    except OSError as error:
        if path not in _warned:  # else the file was reported already when it was read
            warn(path.parent, f"the cache folder {path.parent} cannot be written: {error.strerror or error}.")


def write_sealed(path: Path, data: bytes) -> None:
    """As `write`, but an ``OSError`` reaches the caller: for files that are a product and not a cache."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(seal(data))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def warn(key: Path, message: str) -> None:
    """Warns with a `CacheWarning`, once for each *key*."""
    if key not in _warned:
        _warned.add(key)
        warnings.warn(message, CacheWarning, stacklevel=3)
