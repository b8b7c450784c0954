"""Choose the physical device that ``vkq.Device`` opens: by index, by a part of its name, by VKQ_DEVICE, or
the best device."""

from __future__ import annotations

import os
import re

from ..errors import DTypeError, NoDeviceError
from . import install_hint, verdict, vulkan
from .capabilities import Capabilities
from .query import read

PREFERENCE = ("discrete", "integrated", "virtual", "cpu", "other")


def choose_device(which: int | str | None, probed: bool = True) -> tuple[int, Capabilities]:
    """Return (handle of the physical device, its capabilities).

    *which* is an index in the loader's order, or a part of a name in upper or lower case. None means the
    device that VKQ_DEVICE names. If VKQ_DEVICE is not set, None means the best device: discrete before
    integrated before virtual before CPU.

    *probed*: choose only among devices that passed their probe, and refuse a device that *which* names if
    it failed. A child process runs the probe once for each driver version.

    Raises:
        NoDeviceError: there is no loader, no driver, or no suitable device; the message lists the devices.
        DTypeError: *which* has another type.
    """
    if isinstance(which, bool) or not isinstance(which, (int, str, type(None))):
        raise DTypeError(
            f"Device: which is {which!r}; it must be an index, a part of a device's name, or None"
        )
    if isinstance(which, int) and abs(which) >= 2**31:
        raise NoDeviceError(f"no device has an index of {which.bit_length()} bits")
    handles = vulkan.instance().physical_devices()
    found = [(handle, read(handle, index)) for index, handle in enumerate(handles)]
    source = ""
    if which is None and os.environ.get("VKQ_DEVICE"):
        which, source = os.environ["VKQ_DEVICE"], " (from VKQ_DEVICE)"
    able = [pair for pair in found if pair[1].refusal() is None]
    if which is not None and which != "":
        able = [pair for pair in able if _matches(which, pair[1], len(found))]
    else:
        able.sort(key=lambda pair: (PREFERENCE.index(pair[1].device_type), pair[1].index))
    refused: dict[int, str] = {}
    for pair in able:
        reason = verdict.refusal(pair[1]) if probed else None
        if reason is None:
            return pair
        refused[pair[1].index] = reason
    listed = [_described(c, refused.get(c.index)) for _, c in found]
    listed += [str(driver) for driver in vulkan.refused_drivers()]
    if which is not None and which != "":
        raise NoDeviceError(
            f"no device matches {which!r}{source} and can run vkq; there are: {'; '.join(listed) or 'none'}"
        )
    raise NoDeviceError(
        f"no Vulkan device can run vkq: {'; '.join(listed) or 'the loader shows no device'};"
        f" {f'install a driver: {install_hint.driver()}' if listed else install_hint.no_driver()}"
    )


def _matches(which: int | str, c: Capabilities, count: int) -> bool:
    if (
        isinstance(which, str)
        and re.fullmatch("[0-9]{1,9}", which)
        and (len(which) < 3 or int(which) < count)
    ):
        which = int(which)  # a longer number that is not an index, such as 3060, is a part of a name
    return c.index == which if isinstance(which, int) else which.lower() in c.name.lower()


def _described(c: Capabilities, probe: str | None) -> str:
    refusal = c.refusal() or probe
    return f"{c.index}: {c.name}" + (f" ({refusal})" if refusal else "")
