"""The driver's pipeline cache, stored between processes. It is checked before the driver reads it."""

from __future__ import annotations

import contextlib
import struct
from pathlib import Path
from typing import Any

from .. import cache
from ..device.capabilities import Capabilities
from ..errors import DeviceError, DeviceLostError, OutOfMemoryError

_HEADER = struct.Struct("<IIII16s")  # VkPipelineCacheHeaderVersionOne


def path(c: Capabilities) -> Path:
    """Return the path of the cache file for a device and driver version."""
    return cache.cache_dir() / "pipelines" / f"{c.key}.bin"


def foreign(data: bytes, c: Capabilities) -> str | None:
    """Return the reason why cache data are not from this device and driver, or None.

    Drivers must ignore foreign data, but some crash on it, so the header is checked first.
    """
    if len(data) < _HEADER.size:
        return f"it has {len(data)} bytes and no header"
    size, version, vendor, device, uuid = _HEADER.unpack_from(data)
    want = (version, vendor, device, uuid.hex()) == (1, c.vendor_id, c.device_id, c.pipeline_cache_uuid)
    return None if want and _HEADER.size <= size <= len(data) else "its header names another device or driver"


def load(context: Any, c: Capabilities) -> int:
    """Give the data of the cache file to the driver. Return the number of bytes. Unusable data are ignored
    with a warning."""
    data = cache.read(path(c))
    if data is None:
        return 0
    problem = foreign(data, c)
    if problem is None:
        try:
            context.load_cache(data)
            return len(data)
        except (OutOfMemoryError, DeviceLostError):
            raise  # the device failed, not the cache
        except DeviceError as error:
            problem = str(error)
    cache.warn(path(c), f"the pipeline cache {path(c)} is ignored and made again: {problem}.")
    return 0


def save(context: Any, c: Capabilities, loaded_bytes: int) -> None:
    """Write the driver's cache to the file if it has grown. If the driver cannot return its cache, write
    nothing: later processes compile their pipelines again."""
    with contextlib.suppress(DeviceError):
        data = context.cache_data()
        if len(data) > loaded_bytes:
            cache.write(path(c), data)
