"""Which path an int8 operation takes on a device, and why.

A path is a dot-product form (shaders/common/dot4x8.glslh). All give the same bits; they differ in speed and in what they need.
"""

from __future__ import annotations

import dataclasses

from ..errors import ArgumentError, PathError
from ..runtime.device import Device
from . import coopmat, selftest

# path -> the dot form of the shaders, in order of preference among accelerated ones (the mixed and the unsigned form pay for
# shifting their operands)
FORMS = {"coopmat": coopmat.FORM, "dot_s8s8": "s8s8", "dot_u8s8": "u8s8", "dot_u8u8": "u8u8", "portable": "float"}
PATHS = ("auto", "dot", *FORMS)
_ACCELERATED = {
    "dot_s8s8": "integerDotProduct4x8BitPackedSignedAccelerated",
    "dot_u8s8": "integerDotProduct4x8BitPackedMixedSignednessAccelerated",
    "dot_u8u8": "integerDotProduct4x8BitPackedUnsignedAccelerated",
}


@dataclasses.dataclass(frozen=True)
class Choice:
    """A path by name, the dot form that the shaders know it by, and the reason in words."""

    path: str
    form: str
    reason: str


def refusal(device: Device, path: str) -> str | None:
    """Why the device cannot take a path: the missing feature under its Vulkan name, or what the self-test found. None: it can."""
    if path == "coopmat":
        return coopmat.refusal(device) or selftest.report(device).failures.get("requantize")
    if path != "portable" and not device.capabilities.features["shaderIntegerDotProduct"]:
        return "shaderIntegerDotProduct is false"
    report = selftest.report(device)
    return report.failures.get(FORMS[path]) or report.failures.get("requantize")


def choose(device: Device, path: str = "auto") -> Choice:
    """The path for this device.

    ``auto`` takes the first accelerated dot product that passes the self-test, else the portable path; ``dot`` takes a dot
    product even where none is accelerated; a path by its full name is taken or refused.

    Raises:
        ArgumentError: an unknown path.
        PathError: the device cannot take it; the message names the missing feature or the failed test.
    """
    if path not in PATHS:
        raise ArgumentError(f"path is {path!r}; it must be one of {', '.join(PATHS)}")
    if path in FORMS:
        reason = refusal(device, path)
        if reason:
            raise PathError(f"path {path} cannot run on {device.name}: {reason}; path='auto' chooses one that can")
        return Choice(path, FORMS[path], "asked for by name")
    refused = {p: refusal(device, p) for p in FORMS}
    if path == "auto" and refused["coopmat"] is None:
        return Choice("coopmat", FORMS["coopmat"], f"cooperative matrices of {coopmat.advertised(device.capabilities)[0]}")
    for candidate, flag in _ACCELERATED.items():
        if refused[candidate] is None and device.capabilities.properties[flag]:
            return Choice(candidate, FORMS[candidate], f"{flag} and the self-test passed")
    if path == "dot":
        for candidate in _ACCELERATED:
            if refused[candidate] is None:
                return Choice(candidate, FORMS[candidate], "asked for; this device accelerates no packed dot product")
        raise PathError(f"path dot cannot run on {device.name}: {refused['dot_s8s8']}; path='portable' needs no dot product")
    if refused["portable"] is not None:
        raise PathError(f"no int8 path can run on {device.name}: {refused['portable']}")
    why = refused["dot_s8s8"] or "no packed dot product is accelerated"
    return Choice("portable", FORMS["portable"], why)
