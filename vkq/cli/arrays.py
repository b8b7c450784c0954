"""Reads the arrays of .npy and .npz files safely: sizes are checked before elements are read, and no code in
a file is executed."""

from __future__ import annotations

import functools
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from vkq.errors import ArgumentError
from vkq.graph.graph import Array

MOST_BYTES = 1 << 30  # maximum number of bytes of one array
MOST_ARRAYS = 4096  # maximum number of arrays in one file
_ZIP = b"PK"  # the first two bytes of an .npz file, which is a zip file
# Exceptions of zipfile and numpy for a broken file. RuntimeError: the file has a password.
_BROKEN = (
    ValueError, EOFError, zipfile.BadZipFile, zlib.error, RuntimeError, NotImplementedError, KeyError,
    struct.error, tokenize.TokenError, SyntaxError, OverflowError, MemoryError, RecursionError, TypeError,
)  # fmt: skip
Wanted = Callable[[str, str, tuple[int, ...]], bool]


def arrays_of(path: Path, wanted: Wanted, forms: str) -> dict[str, Array]:
    """Return a dict from the names of the arrays in an .npz file to the arrays. The array of an .npy file has
    the name "".

    *wanted*: a function that is called with the name, dtype and shape of each array before the array is read.
    If it returns False, the array is skipped; it may also raise an error. *forms*: the other kinds of files
    that an input may be, for error messages.

    Raises ArgumentError for a file of another kind, a broken file, or an array of more than `MOST_BYTES`.
    """
    try:
        with path.open("rb") as file:
            if file.read(2) == _ZIP:
                return dict(_of_archive(path, wanted))
            file.seek(0)
            size = path.stat().st_size
            found = _array(file, size, f"{path}", functools.partial(wanted, ""))
            return {} if found is None else {"": found}
    except ArgumentError:
        raise
    except _BROKEN as error:
        raise ArgumentError(
            f"{path} holds no array of numbers ({str(error)[:200] or type(error).__name__}); an input is"
            f" {forms}, or what numpy.save or numpy.savez wrote"
        ) from error


def _of_archive(path: Path, wanted: Wanted) -> Iterator[tuple[str, Array]]:
    with zipfile.ZipFile(path) as packed:
        entries = packed.infolist()
        if len(entries) > MOST_ARRAYS:
            raise ArgumentError(f"{path} has {len(entries)} entries; at most {MOST_ARRAYS} are read")
        for entry in entries:
            name = entry.filename.removesuffix(".npy")
            with packed.open(entry) as file:
                found = _array(file, entry.file_size, f"{path}: {name!r}", functools.partial(wanted, name))
            if found is not None:
                yield name, found


def _array(
    file: IO[bytes], size: int, what: str, wanted: Callable[[str, tuple[int, ...]], bool]
) -> Array | None:
    """Read the array in a file of *size* bytes. Return None if *wanted* returns False for its dtype and
    shape. *what*: the array's name in error messages."""
    shape, fortran, dtype = _header(file)
    begin = file.tell()
    if dtype.hasobject or dtype.names or dtype.kind not in "biufc":
        raise ValueError(f"its type is {dtype}; it must be of numbers")
    count = math.prod(shape)
    if min(shape, default=0) < 0 or count * dtype.itemsize > size - begin:
        raise ValueError(f"its shape is {shape} of {dtype}, but only {max(0, size - begin)} bytes follow")
    if not wanted(dtype.newbyteorder("=").name, shape):
        return None
    if count * dtype.itemsize > MOST_BYTES:
        raise ArgumentError(
            f"{what} is {dtype}{list(shape)}, {count * dtype.itemsize} bytes; at most {MOST_BYTES} are read"
        )
    data = np.empty(count, dtype)
    if file.readinto(data.view(np.uint8)) != data.nbytes:  # type: ignore[attr-defined]
        raise EOFError("the file ends before its array")
    return data.reshape(shape, order="F" if fortran else "C")


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, Any]:
    form: Any = np.lib.format
    version = form.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"its format has version {version}; 1.0, 2.0 and 3.0 can be read")
    read = form.read_array_header_1_0 if version == (1, 0) else form.read_array_header_2_0
    shape, fortran, dtype = read(_Bounded(file))
    return shape, fortran, dtype


class _Bounded:
    """A file that refuses reads of more than `MOST_HEADER_BYTES`. numpy's reader of headers would allocate
    as many bytes as the header says."""

    def __init__(self, file: IO[bytes]):
        self._file = file

    def read(self, count: int) -> bytes:
        if count > MOST_HEADER_BYTES:
            raise ValueError(f"its header has {count} bytes; at most {MOST_HEADER_BYTES} are read")
        return self._file.read(count)


MOST_HEADER_BYTES = 1 << 14
