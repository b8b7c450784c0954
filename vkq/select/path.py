"""The path of an int8 operation on a device, and the reason for the choice.

A path is one way to compute the inner product (shaders/common/dot4x8.glslh). All paths give the same bits.
They differ in speed, and in the device features that they need. Their speed is measured (rates.py), because
the flags by which drivers report acceleration are unreliable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from logging import INFO

from ..device.profiles import profile
from ..errors import ArgumentError, PathError
from ..log import LOG
from ..probe import float16, selftest
from ..probe.float16 import FLOAT16
from ..probe.matrices import HALF, advertised, advertised_half, lacking, lacking_half
from ..runtime.device import Device

# Another path replaces the portable path only if its rate is at least WORTH times as high.
WORTH = 1.1
# Rates whose ratio is below SAME count as equal. Among equal rates, the first path of TABLE is chosen.
# TABLE is in the order of extra cost: the mixed form shifts x; the unsigned form shifts both operands and
# adds row sums.
SAME = 1.05


@dataclasses.dataclass(frozen=True)
class Path:
    """A path: one row of `TABLE`. ``refusal`` returns any reason besides ``needs`` why a device cannot use
    the path."""

    name: str
    form: str  # the path's name in the shaders, the self-test and the rates
    needs: str | None = None  # the required Vulkan feature
    flag: str | None = None  # by which the driver claims a fast path; used only without a measured rate
    refusal: Callable[[Device], str | None] = lambda device: None


_SIGNED, _MIXED, _UNSIGNED = (
    f"integerDotProduct4x8BitPacked{sign}Accelerated" for sign in ("Signed", "MixedSignedness", "Unsigned")
)
TABLE = (
    Path("dot_s8s8", "s8s8", "shaderIntegerDotProduct", _SIGNED),
    Path("dot_u8s8", "u8s8", "shaderIntegerDotProduct", _MIXED),
    Path("dot_u8u8", "u8u8", "shaderIntegerDotProduct", _UNSIGNED),
    Path("portable", "float"),
)
FORMS = {path.name: path.form for path in TABLE}
COOPMAT = "coopmat"  # matrix units for large products, a dot form for smaller products
_logged: set[str] = set()  # devices whose refused paths are in the log
PATHS = ("auto", "dot", *FORMS, COOPMAT)


@dataclasses.dataclass(frozen=True)
class Choice:
    """The name of a path, its form in the shaders, and the reason for the choice."""

    path: str
    form: str
    reason: str


def _row(name: str) -> Path:
    return next(row for row in TABLE if row.name == name)


def refusal(device: Device, path: str) -> str | None:
    """Return the reason why the device cannot use a path: the missing feature by its Vulkan name, or the
    result of the failed self-test. Return None if it can."""
    if path == COOPMAT:
        return lacking(device.capabilities) or _failed(device, selftest.OPENING, "matrices", "requantize")
    row = _row(path)
    if row.needs and not device.capabilities.features.get(row.needs):
        return f"{row.needs} is false"
    if reason := row.refusal(device):
        return reason
    return _failed(device, selftest.OPENING, row.form, "requantize", "quantize")


def half_refusal(device: Device, form: str = HALF) -> str | None:
    """Return the reason why the device cannot multiply float16 matrices (or matrices of another *form*):
    the missing features, or the result of the failed self-test. Return None if it can."""
    test = next(name for name, tested in selftest.HALVES.items() if tested == form)
    return lacking_half(device.capabilities, form) or _failed(device, selftest.OPENING, test)


def float16_refusal(device: Device) -> str | None:
    """Return the reason why products of float16 values should not use float16 arithmetic: missing features,
    no gain in speed, or the result of the failed self-test. Return None if they should."""
    missing = float16.lacking(device.capabilities)
    return missing or _failed(device, selftest.OPENING, FLOAT16)


def half_choice(device: Device) -> Choice:
    """Return the path for products of float activations with compute="float16"."""
    if why := half_refusal(device):
        if other := float16_refusal(device):
            said = f"compute='float16' uses float32 on this device: {why}; {other}"
            return Choice("float", "float", said)
        return Choice("float", FLOAT16, "compute='float16': float16 arithmetic, 16 products at a time")
    shape = advertised_half(device.capabilities)[0]
    return Choice("float", HALF, f"compute='float16': matrices of float16, {shape}, sums in float32")


def float_sums(device: Device, compute: str) -> str:
    """Return the arithmetic of products of float activations for a layer's *compute*: "float32"; "float16"
    (float16 products, float32 sums); or "float16 sums" (16 products are added in float16)."""
    if compute == "float32" or half_refusal(device) is None:
        return compute
    return "float16 sums" if float16_refusal(device) is None else "float32"


def pairs_refusal(device: Device, form: str = HALF) -> str | None:
    """Return the error of the self-test in which invocations assemble float16 matrices (or matrices of
    another *form*) from pairs of elements, or None."""
    return _failed(device, selftest.PAIRS[form])


def signs_refusal(device: Device, form: str = HALF) -> str | None:
    """Return the error of the self-test that multiplies the smallest values of float16 (or of another
    *form*), or None."""
    return _failed(device, selftest.SMALLS[form])


def _failed(device: Device, *tests: str) -> str | None:
    """Return the result of the first failed self-test, or None."""
    failures = selftest.report(device).failures
    return next((failures[test] for test in tests if test in failures), None)


def choose_path(device: Device, path: str = "auto") -> Choice:
    """Return the path for this device, with the reason.

    ``auto`` considers the paths that pass the self-test. It chooses matrix units if there are any, else the
    path in the device's profile. If the profile has none, it chooses the path with the highest measured
    rate, or the portable path if no other path is at least 1.1 times as fast.

    ``dot`` chooses the fastest dot product even if the portable path is faster. A path requested by its
    full name is used or refused.

    Raises:
        ArgumentError: an unknown path.
        PathError: the device cannot use the path; the message has the missing feature or the failed test.
    """
    if path not in PATHS:
        raise ArgumentError(f"path is {path!r}; it must be one of {', '.join(PATHS)}")
    if LOG.isEnabledFor(INFO) and device.capabilities.key not in _logged:
        _log(device)
    if path in FORMS or path == COOPMAT:
        reason = refusal(device, path)
        if reason:
            raise PathError(
                f"path {path} cannot run on {device.name}: {reason}; path='auto' chooses one that can"
            )
        return Choice(path, FORMS.get(path) or without_matrices(device).form, "requested by name")
    if path == "auto" and refusal(device, COOPMAT) is None:
        matrices = advertised(device.capabilities)[0]
        return Choice(COOPMAT, without_matrices(device).form, f"cooperative matrices of {matrices}")
    return without_matrices(device, path)


def _log(device: Device) -> None:
    """Log the paths that a device cannot use, with the reasons, once."""
    _logged.add(device.capabilities.key)
    for path in (*FORMS, COOPMAT):
        if reason := refusal(device, path):
            LOG.info("%s: path %s is refused: %s", device.name, path, reason)


def without_matrices(device: Device, path: str = "auto") -> Choice:
    """Return the choice for products without matrix units. *path*: "auto" or "dot", as for `choose_path`."""
    refused = {row.name: refusal(device, row.name) for row in TABLE}
    able = [row for row in TABLE if refused[row.name] is None and row.name != "portable"]
    if path == "dot":
        return _dot(device, [row for row in able if row.name.startswith("dot_")], refused)
    known = profile(device.capabilities)
    told = next((row for row in able if row.form == known.form), None)
    if told:
        return Choice(told.name, told.form, f"the fastest form on such devices ({known.names[-1]})")
    found = _faster_than_portable(device, able)
    if found:
        return found
    if refused["portable"] is not None:
        if able:
            return Choice(able[0].name, able[0].form, f"portable cannot run: {refused['portable']}")
        raise PathError(f"no int8 path can run on {device.name}: {refused['portable']}")
    return Choice("portable", FORMS["portable"], _why_portable(device, able, refused))


def _rate(device: Device, row: Path) -> float:
    """Return the measured rate in TOPS, or 0 without a measurement."""
    return selftest.report(device).rates.get(row.form, 0.0) / 1e12


def _claimed(device: Device, row: Path) -> bool:
    return bool(row.flag and device.capabilities.facts.get(row.flag))


def _fastest(device: Device, rows: list[Path]) -> Path:
    """Return the first path in the table's order whose rate is at least (highest rate / `SAME`)."""
    best = max(_rate(device, row) for row in rows)
    return next(row for row in rows if _rate(device, row) * SAME >= best)


def _faster_than_portable(device: Device, able: list[Path]) -> Choice | None:
    unmeasured = [row for row in able if not _rate(device, row) and _claimed(device, row)]
    portable = _rate(device, _row("portable"))
    if unmeasured:
        row = unmeasured[0]
        return Choice(row.name, row.form, f"{row.flag}, and the self-test passed; its rate is not measured")
    fast = (
        [row for row in able if _rate(device, row) >= WORTH * portable and _rate(device, row)]
        if portable
        else []
    )
    if not fast:
        return None
    row = _fastest(device, fast)
    claim = "" if _claimed(device, row) else f" ({row.flag} is false)"
    return Choice(row.name, row.form, f"{_measured(device, row)}{claim}")


def _measured(device: Device, row: Path) -> str:
    """Return the rate as text: ``97.1 TOPS measured, 3.9x portable``."""
    rate, portable = _rate(device, row), _rate(device, _row("portable"))
    compared = f", {rate / portable:.3g}x portable" if portable and row.name != "portable" else ""
    return f"{rate:.3g} TOPS measured{compared}"


def _why_portable(device: Device, able: list[Path], refused: dict[str, str | None]) -> str:
    if not able:
        reasons = dict.fromkeys(f"{why}" for name, why in refused.items() if name != "portable" and why)
        return "; ".join(reasons) or "there is no other"
    measured = [row for row in able if _rate(device, row)]
    if not measured:
        return "no packed dot product is accelerated, and no rate is measured"
    row = max(measured, key=lambda row: _rate(device, row))
    claim = f", although {row.flag}" if _claimed(device, row) else ""
    return f"the fastest other is {row.name}: {_measured(device, row)}{claim}; {WORTH:g}x is needed"


def _dot(device: Device, able: list[Path], refused: dict[str, str | None]) -> Choice:
    if not able:
        raise PathError(
            f"path dot cannot run on {device.name}: {refused['dot_s8s8']}; path='portable' needs no dot"
            " product"
        )
    claimed = (
        [row for row in able if _claimed(device, row)]
        if not any(_rate(device, row) for row in able)
        else able
    )
    row = _fastest(device, claimed or able)
    return Choice(
        row.name, row.form, f"asked for; {_measured(device, row)}" if _rate(device, row) else "asked for"
    )
