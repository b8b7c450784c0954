"""Removes private data from reports: folders, users, and identifiers of a single device."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

UNITS = {"uuid", "device_uuid", "pipeline_cache_uuid"}  # drivers may derive these from a serial number
# An absolute path: it begins with a separator that does not follow a word (GB/s), a scheme (https://) or
# another separator.
_PATH = re.compile(
    r"""(?<![\w.:/\\])(?:[A-Za-z]:|~)?[\\/](?:[^\s\\/:'",;()<>]+[\\/]+)+([^\s\\/:'",;()<>]*)"""
)


def without_private(value: Any) -> Any:
    """Return a JSON value without identifiers of a single device, and with only the last part of each
    absolute path."""
    if isinstance(value, dict):
        return {key: without_private(one) for key, one in value.items() if key not in UNITS}
    if isinstance(value, (list, tuple)):
        return [without_private(one) for one in value]
    return shortened_paths(value) if isinstance(value, str) else value


def shortened_paths(text: str) -> str:
    """Replace each absolute path in a text by ``.../name``. Names with spaces are recognized only in the
    folders of Python, the user and this process."""
    for folder in (Path(sys.prefix), Path.cwd(), Path.home()):
        if folder != Path(folder.anchor):
            text = text.replace(str(folder), "...")
    return _PATH.sub(r".../\1", text)
