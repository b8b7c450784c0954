"""Reads pictures safely: only a few formats are accepted, and the size is checked before the pixels are
read."""

from __future__ import annotations

import contextlib
import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vkq.errors import ArgumentError

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".tif", ".tiff")
# The only formats that Pillow may read, whatever the file's name. For others it starts programs (Ghostscript
# for EPS).
FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "PPM", "TIFF")
MOST_PIXELS = 1 << 27  # maximum number of pixels of a picture
# Exceptions that Pillow raises for a broken file.
_BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    EOFError,
    LookupError,
    TypeError,
    OverflowError,
    struct.error,
    zlib.error,
)


@contextlib.contextmanager
def opened_picture(path: Path) -> Iterator[Any]:
    """Context manager: yield the picture in a file as a Pillow image whose pixels were read.

    Raises ArgumentError if the format is none of `FORMATS`, the file is broken, the picture has more than
    `MOST_PIXELS`, or Pillow is not installed.
    """
    try:
        from PIL import Image
    except ImportError:
        raise ArgumentError("reading pictures needs the package pillow: pip install pillow") from None
    with contextlib.ExitStack() as stack:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", Image.DecompressionBombWarning)
                image = stack.enter_context(Image.open(path, formats=FORMATS))
                _check_size(path, image.size)
                image.load()
        except FileNotFoundError:
            raise
        except (*_BROKEN, Image.DecompressionBombError) as error:
            raise _broken(path, error) from error
        yield image


def _check_size(path: Path, size: tuple[int, int]) -> None:
    width, height = size
    if width * height > MOST_PIXELS:
        raise ArgumentError(f"{path} has {width} x {height} pixels; at most {MOST_PIXELS} are read")


def _broken(path: Path, error: Exception) -> ArgumentError:
    if isinstance(error, ArgumentError):
        return error
    return ArgumentError(
        f"{path} is not a picture that can be read ({str(error)[:200] or type(error).__name__}); it must be"
        f" a whole {', '.join(FORMATS[:-1])} or {FORMATS[-1]} file of at most {MOST_PIXELS} pixels"
    )
