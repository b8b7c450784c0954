"""What a report must not tell: where files lie, whose they are, and which unit of a device it is."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

UNITS = {"uuid", "device_uuid", "pipeline_cache_uuid"}  # may be made from a serial number
# An absolute path: from a separator that follows no word (GB/s), scheme (https://) or other separator on.
_PATH = re.compile(
    r"""(?<![\w.:/\\])(?:[A-Za-z]:|~)?[\\/](?:[^\s\\/:'",;()<>]+[\\/]+)+([^\s\\/:'",;()<>]*)"""
)


def without_private(value: Any) -> Any:
    """A JSON value without identifiers of a unit; of each absolute path its last part alone."""
    if isinstance(value, dict):
        return {key: without_private(one) for key, one in value.items() if key not in UNITS}
    if isinstance(value, (list, tuple)):
        return [without_private(one) for one in value]
    return shortened_paths(value) if isinstance(value, str) else value


def shortened_paths(text: str) -> str:
    """The text with ``.../name`` in place of each absolute path. Folders that are known here may hold
    spaces."""
    for folder in (Path(sys.prefix), Path.cwd(), Path.home()):
        if folder != Path(folder.anchor):
            text = text.replace(str(folder), "...")
    return _PATH.sub(r".../\1", text)
