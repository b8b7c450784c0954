"""Removes private data from reports: names of folders and users, and identifiers of a single device."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

# Keys whose values may identify a single device: drivers may derive them from a serial number.
UNITS = {"uuid", "device_uuid", "pipeline_cache_uuid"}
# Matches an absolute path. Its first separator must not follow a word (as in GB/s), the scheme of a URL
# (https://) or another separator.
_PATH = re.compile(
    r"""(?<![\w.:/\\])(?:[A-Za-z]:|~)?[\\/](?:[^\s\\/:'",;()<>]+[\\/]+)+([^\s\\/:'",;()<>]*)"""
)


def without_private(value: Any) -> Any:
    """Return a JSON value without the keys `UNITS`, and with every absolute path shortened to its last
    part."""
    if isinstance(value, dict):
        return {key: without_private(one) for key, one in value.items() if key not in UNITS}
    if isinstance(value, (list, tuple)):
        return [without_private(one) for one in value]
    return shortened_paths(value) if isinstance(value, str) else value


def shortened_paths(text: str) -> str:
    """Replace each absolute path in a text by ``.../name``. A path with spaces is recognized only inside
    three folders: Python's, the user's home, and the current folder."""
    for folder in (Path(sys.prefix), Path.cwd(), Path.home()):
        if folder != Path(folder.anchor):
            text = text.replace(str(folder), "...")
    return _PATH.sub(r".../\1", text)
