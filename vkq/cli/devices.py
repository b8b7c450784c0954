"""``vkq devices``: list every Vulkan device, with its capabilities and the path that vkq chooses for int8
products."""

from __future__ import annotations

import argparse
import json
import os
from typing import Any

from vkq.cli.common import Parsers, add_command, device_argument, folded
from vkq.device import install_hint, vulkan
from vkq.device.capabilities import DOT_ACCELERATED, Capabilities
from vkq.device.choose import choose_device
from vkq.device.profiles import profile
from vkq.device.query import devices
from vkq.device.refused import refused
from vkq.device.tuner import stored
from vkq.device.verdict import with_choices
from vkq.errors import NoDeviceError, VkqError
from vkq.probe import selftest
from vkq.runtime.device import Device
from vkq.select.path import COOPMAT, FORMS, choose_path, refusal


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "devices",
        run,
        "list the Vulkan devices, what they can do, and the path chosen on each",
        ["vkq devices", "vkq devices --device 0 --why", "VK_DRIVER_FILES=/path/icd.json vkq devices"],
    )
    parser.add_argument(
        "--why",
        action="store_true",
        help="print the measurements by which vkq chose the kernels of each device",
    )
    device_argument(parser)
    parser.add_argument(
        "--json", action="store_true", help="print JSON: {devices: [...], drivers: [...], error: ...}"
    )


def run(options: argparse.Namespace) -> int:
    """Print the devices. Return exit code 3 if no device can run vkq."""
    found = described(options.device)
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for report in found["devices"]:
            _show(report, options.why)
        for driver in found["drivers"]:
            print(folded(driver, 3))
        if found["devices"]:
            print(folded(_default(), 3))
        if found["error"]:
            print(folded(f"no device: {found['error']}", 3))
    return 0 if any(report["path"] for report in found["devices"]) else 3


def described(which: str | None = None) -> dict[str, Any]:
    """Return what `--json` prints: "devices" (every device with its path and the reason), "drivers" (texts
    about drivers that are not used) and "error" (why there is no device). *which*: describe only this
    device."""
    left_out: list[str] = []
    try:
        found, error = devices(), None
        if which is not None:
            found = [choose_device(which, probed=False)[1]]
        left_out = [str(driver) for driver in vulkan.refused_drivers()]
    except NoDeviceError as reason:
        found, error = [], str(reason)
    if not found and error is None:
        error = f"the Vulkan loader shows no device; {install_hint.no_driver()}"
    return {"devices": [_report(c) for c in found], "drivers": left_out, "error": error}


def _default() -> str:
    """Return a text that names the default device and says why it is the default."""
    try:
        _, c = choose_device(None)
    except NoDeviceError as error:
        return f"default: none: {error}"
    return f"default: {c.index}, {'as VKQ_DEVICE says' if os.environ.get('VKQ_DEVICE') else 'the best'}"


def _report(c: Capabilities) -> dict[str, Any]:
    report: dict[str, Any] = {
        "capabilities": c.as_dict(), "path": None, "reason": c.refusal(), "paths": {}, "rates": {},
        "kernels": profile(c).reason, "measured": {}, "refused": {},
    }  # fmt: skip
    if report["reason"] is None:
        # The probe runs in a child process: if the driver crashes, only the child ends.
        probe = selftest.report_of(c)
        report |= {"rates": dict(probe.rates), "reason": probe.refusal, "refused": refused(probe.failures)}
        report |= {"kernels": profile(with_choices(c)).reason, "measured": measured_on(c)}
    if report["reason"] is None:
        try:
            with Device(c.index) as device:
                report["paths"] = {path: refusal(device, path) for path in (COOPMAT, *FORMS)}
                choice = choose_path(device)
                report |= {"path": choice.path, "reason": choice.reason}
        except VkqError as error:
            report["reason"] = str(error)
    return report


def _show(report: dict[str, Any], why: bool) -> None:
    show_capabilities(report["capabilities"])
    kernels, _, reasons = report["kernels"].partition("; ")
    print(folded(f"   int8 path      {report['path'] or 'none'}: {report['reason']}", 18))
    print(folded(f"   kernels        {kernels}{f'; {reasons}' if why else ' (--why prints more)'}", 18))
    show_measured(report["measured"], why)
    for feature, failure in report["refused"].items():
        print(folded(f"     without {feature}, which failed the self-test: {failure}", 16))
    for path, reason in report["paths"].items():
        rate = report["rates"].get(FORMS.get(path, path))
        measured = f", {rate / 1e12:.3g} TOPS measured" if rate else ""
        print(folded(f"     {path:<10} {'can run' if reason is None else reason}{measured}", 16))


def measured_on(c: Capabilities) -> dict[str, str]:
    """Return a dict from the name of each measured family of kernels to a text about its measurement."""
    return {family: str(one) for family, one in (stored(c).families or {}).items()}


def show_measured(found: dict[str, str], why: bool = True) -> None:
    """Print the result of `measured_on`: for each family, the chosen candidate and, with *why*, the other
    candidates and their times."""
    for family, said in found.items():
        print(folded(f"     measured: {family}: {said if why else said.partition(' (')[0]}", 16))


def show_capabilities(c: dict[str, Any]) -> None:
    """Print a device's name and capabilities."""
    limits = c["properties"]
    fast = [
        n.removeprefix("integerDotProduct").removesuffix("Accelerated")
        for n in DOT_ACCELERATED
        if limits.get(n)
    ]
    matrices = [
        f"{m['m']}x{m['n']}x{m['k']} {m['a']}*{m['b']}->{m['d']}"
        for m in c["cooperative_matrices"]
        if m["a"] in ("s8", "u8")
    ]
    dot = "yes" if c["features"]["shaderIntegerDotProduct"] else "no"
    print(
        folded(
            f"{c['index']}: {c['name']} ({c['device_type']}, Vulkan {c['api_version']},"
            f" {c['driver'] or 'driver unnamed'})",
            3,
        )
    )
    print(folded(f"   dot product    {dot}; accelerated: {', '.join(fast) or 'none'}", 18))
    print(folded(f"   int8 matrices  {', '.join(matrices) or 'none'}", 18))
    said = (
        f"   limits         subgroup {limits.get('subgroupSize', 0)},"
        f" workgroup {limits['maxComputeWorkGroupInvocations']},"
        f" shared memory {limits['maxComputeSharedMemorySize']} B,"
        f" buffer {limits['maxStorageBufferRange']} B,"
        f" timestamps {c['timestamp_valid_bits']} bits of {c['timestamp_period_ns']:g} ns"
    )
    print(folded(said, 18))
