"""SPIR-V in sealed files (`vkq.cache`), compressed to a quarter of its size (all modules of a wheel: 27 MB
uncompressed).

A file has the module's bytes, compressed with zlib, in four planes: the first bytes of all words, then the
second bytes, and so on. Most words in SPIR-V are below 65,536, so two of the planes are nearly all zeros.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from vkq import cache


def compressed(spirv: bytes) -> bytes:
    """Return the content of a file for the module *spirv*, whose size is a multiple of 4 bytes."""
    return zlib.compress(np.frombuffer(spirv, np.uint8).reshape(-1, 4).T.tobytes(), 9)


def write(path: Path, spirv: bytes) -> None:
    """Write a module to *path*. Raises ``OSError`` as `cache.write_sealed` does."""
    cache.write_sealed(path, compressed(spirv))


def read(path: Path) -> bytes | None:
    """Return the module in *path*. Return None if there is no file, or, with a warning, if it is damaged."""
    data = cache.read(path)
    if data is None:
        return None
    reading = zlib.decompressobj()
    try:
        planes = reading.decompress(data, cache.MOST_FILE_BYTES)
        if not reading.eof or reading.unused_data:
            raise ValueError("it does not end where its compressed data ends")
        found: bytes = np.frombuffer(planes, np.uint8).reshape(4, -1).T.tobytes()
        return found
    except (ValueError, zlib.error) as error:
        cache.ignore(path, str(error))
        return None
