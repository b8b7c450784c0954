"""Devices that vkq opens itself: the default device, and devices given by an index or a name."""

from __future__ import annotations

from ..arguments import RULES, Rule, either, integer, of, optional
from ..device.choose import choose_device
from ..turns import Turns
from .device import Device

_default: Device | None = None
_default_lock = Turns("opening a device")


def default_device() -> Device:
    """Return the default device. Open it as ``Device()`` if none is open or it was lost."""
    global _default
    with _default_lock:
        if _default is None or _default.closed or _default.context.lost:
            _default = Device()
        return _default


_named: dict[int | str, Device] = {}  # {index or name: device that `named_device` opened}


def named_device(which: int | str) -> Device:
    """Return the device with this index or part of its name. The first call opens it as ``Device(which)``.
    Operators use it for their *device* argument."""
    with _default_lock:
        found = _named.get(which)
        if found is None or found.closed or found.context.lost:
            index = choose_device(which)[1].index
            same = [d for d in (*_named.values(), _default) if d and d.capabilities.index == index]
            usable = [d for d in same if not (d.closed or d.context.lost)]
            found = _named[which] = usable[0] if usable else Device(index)
        return found


def opened(given: Device | int | str | None) -> Device:
    """Return the device for an operator's *device* argument; None: the default device."""
    if isinstance(given, Device):
        return given
    return default_device() if given is None else named_device(given)


_known, _forms = either(of(Device, str), integer), "a vkq.Device, an index or a part of a device's name"
RULES |= {
    "Device | int | str": Rule(_known, _forms),
    "Device | int | str | None": Rule(optional(_known), f"{_forms}, or None"),
}
