"""``vkq doctor``: print the installed versions, the device's capabilities and the results of its probe. Then
replay recorded workloads many times, and check that every run gives the reference's results."""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from vkq._version import __version__
from vkq.bench.fitted import above, distinct
from vkq.check.cases import FLOAT
from vkq.check.catalogue import check_of
from vkq.check.compare import usable_paths
from vkq.check.replay import SECONDS, TIMES, replays
from vkq.cli.common import (
    Parsers,
    add_command,
    columns,
    counted,
    device_argument,
    folded,
    integer_option,
    number,
    progress,
)
from vkq.cli.devices import measured_on, show_capabilities, show_measured
from vkq.device import vulkan
from vkq.device.capabilities import Capabilities
from vkq.device.choose import choose_device
from vkq.device.extension import native_module
from vkq.device.profiles import profile
from vkq.errors import CompileError, PathError, VkqError
from vkq.probe import selftest
from vkq.runtime.device import Device
from vkq.select.path import choose_path
from vkq.shader.catalog import PACKAGED
from vkq.shader.glslang import find_compiler

# Used in place of a path's name: ALL for workloads that do not depend on the path, TEXELS for those that
# read texels.
ALL, TEXELS = "all", "texels"
# For each answer of `texels_read`: the remedy if workloads that read texels give wrong results.
TEXELS_READ = {
    "unread": "vkq's layers read no texels on this device. Report it",
    "measured": "layers read them because that was fastest here. Set VKQ_TUNE=off, and report it",
    "profile": "layers read them on every device of this kind, and nothing turns that off. Report it, and"
    " take another device until then: VKQ_DEVICE=<index or part of a name>",
}


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "doctor",
        run,
        "probe a device again, and replay layers of every scheme, casts, pools, sum, softmax, resize, matmul,"
        " chains and large problems; exit code 1 if any byte differs, 3 without a device",
        ["vkq doctor", "vkq doctor --device 1 --seconds 120", "vkq doctor --json > report.json"],
    )
    device_argument(parser)
    parser.add_argument(
        "--times",
        type=integer_option(1, 100_000),
        default=TIMES,
        metavar="N",
        help=f"number of runs of each operator (default: {TIMES})",
    )
    parser.add_argument(
        "--seconds",
        type=number(0, 86_400),
        default=SECONDS,
        metavar="S",
        help=f"approximate time for all runs; small operators run at least a few times (default:"
        f" {SECONDS:g})",
    )
    parser.add_argument(
        "--json", action="store_true", help="print JSON: {versions, device, probe, path, replays, healthy}"
    )


def run(options: argparse.Namespace) -> int:
    report = examine(options.device, options.times, options.seconds)
    if options.json:
        print(json.dumps(report, indent=2))
    else:
        _show(report)
    return 0 if report["healthy"] else 1


def examine(which: str | None, times: int, seconds: float = SECONDS) -> dict[str, Any]:
    """Probe a device again, and replay every workload at most *times* times, in about *seconds*. Return what
    `vkq doctor --json` prints. *which*: the device, as in `vkq.Device`."""
    # probed=False also accepts a device whose last probe failed. `probe_again` repeats the probe.
    _, capabilities = choose_device(which, probed=False)
    probe = selftest.probe_again(capabilities)
    report: dict[str, Any] = {"versions": versions(), "device": capabilities.as_dict()}
    report |= {"probe": dataclasses.asdict(probe), "path": None, "reason": probe.refusal}
    report["measured"] = measured_on(capabilities)
    report |= {"paths": [], "refused_paths": {}, "texels": "unread", "replays": []}
    if probe.refusal is None:
        with Device(capabilities.index) as device:
            paths, refused = usable_paths(device)
            report |= _chosen(device) | {"paths": paths, "refused_paths": refused}
            report["texels"] = texels_read(device.capabilities)
            if report["path"]:
                for replay in progress(replays(device, paths, times, seconds), 0, "replaying"):
                    report["replays"].append(dataclasses.asdict(replay))
    report["healthy"] = bool(report["path"]) and not any(replay["wrong"] for replay in report["replays"])
    report["advice"] = advice(report)
    return report


def advice(report: dict[str, Any]) -> list[str]:
    """Return texts with remedies for wrong results; an empty list if all results are correct."""
    wrong = [replay for replay in report["replays"] if replay["wrong"]]
    if not wrong:
        return []
    bad = {replay["path"] for replay in wrong}
    good = [path for path in report["paths"] if path not in bad]
    on_paths = sorted(bad - {TEXELS, ALL})
    # True if a workload that does not depend on the path is wrong: a cast, another operator without weights,
    # or a product of float activations.
    common = ALL in bad or any(r["path"] == "auto" and _floats(r["operator"]) for r in wrong)
    said = [f"texels: wrong, and the probe did not refuse them; {TEXELS_READ[report['texels']]}"] * (
        TEXELS in bad
    )
    if on_paths and good and not common:
        said.append(
            f"{', '.join(on_paths)}: wrong; right on this device: {', '.join(good)}. Give layers"
            f" path={good[0]!r}"
        )
    if common or {"auto", report["path"]} & bad or (on_paths and not good):
        said.append("use another device until this one is right: VKQ_DEVICE=<index or part of a name>")
    said.append(f"look for a newer driver than {report['device']['driver']}, and run vkq doctor again")
    said.append("attach what `vkq report` writes to an issue")
    return said


def _floats(operator: str) -> bool:
    """Return True if an operator has float activations, so that it does not depend on the path."""
    return "[" in operator and check_of(operator).scheme in FLOAT


def texels_read(c: Capabilities) -> str:
    """Return why layers on this device read texels, as a key of `TEXELS_READ`: "profile" (on every device of
    this kind), "measured" (it was fastest in a measurement), or "unread" (they do not read texels)."""

    def reads(c: Capabilities) -> bool:
        known = profile(c)
        return known.texels or known.lane_loads

    if not reads(c):
        return "unread"
    return "profile" if reads(dataclasses.replace(c, choices=())) else "measured"


def versions() -> dict[str, str]:
    """Return a dict from the name of each component to its installed version, or to the reason why the
    version is not known."""
    asked: dict[str, Callable[[], str]] = {
        "vkq": lambda: __version__,
        "python": lambda: f"{platform.python_version()} ({sys.executable})",
        "system": platform.platform,
        "numpy": lambda: np.__version__,
        "kompute": lambda: str(native_module().kompute_version),
        "vulkan loader": vulkan.loader_version,
        "shader compiler": lambda: find_compiler().name,
    }
    found = {}
    for name, ask in asked.items():
        try:
            found[name] = ask()
        except CompileError as error:
            found[name] = "none; vkq needs none, because its shaders are compiled already"
            if not PACKAGED.is_dir():
                found[name] = f"none ({error})"
        except (VkqError, ImportError, AttributeError) as error:
            found[name] = f"unknown ({error})"
    return found


def _chosen(device: Device) -> dict[str, Any]:
    try:
        choice = choose_path(device)
    except PathError as error:
        return {"path": None, "reason": str(error)}
    return {"path": choice.path, "reason": choice.reason}


def _show(report: dict[str, Any]) -> None:
    width = max(map(len, report["versions"]))
    for name, version in report["versions"].items():
        print(f"{name:<{width}}  {version}")
    print()
    show_capabilities(report["device"])
    show_probe(report["probe"])
    show_measured(report["measured"])
    print(folded(f"   int8 path      {report['path'] or 'none'}: {report['reason']}", 18))
    for path, why in report["refused_paths"].items():
        print(folded(f"     {path:<10} {why}", 16))
    print()
    _show_replays(report["replays"])
    for one in report["advice"]:
        print(folded(f"do: {one}", 4))
    print(
        "healthy" if report["healthy"] else "NOT HEALTHY: results on this device cannot be trusted; see above"
    )


def _show_replays(replays: list[dict[str, Any]]) -> None:
    """Print a line for each workload. If the shortened names of two workloads are equal, their full names are
    printed on separate lines above."""
    cases = list(dict.fromkeys(replay["case"] for replay in replays))
    lines = {}
    for case in cases:
        runs = [replay for replay in replays if replay["case"] == case]
        wrong = [f"{one['path']}: DIFFERENT in {one['wrong']} runs" for one in runs if one["wrong"]]
        paths = f"{counted(len(runs), 'path'):<{len('9 paths')}}"
        said = f"{min(one['times'] for one in runs)} x {paths}"
        lines[case] = f"{said}  {'; '.join(wrong) or 'the same bytes'}  "
    names = distinct(cases, max(20, (columns() or 200) - max(map(len, lines.values()), default=0)))
    for case, line in lines.items():
        if names[case] is None:
            print(above(case, columns()))
        print(f"{line}{names[case] or ''}".rstrip())
        for one in (replay for replay in replays if replay["case"] == case and replay["wrong"]):
            print(folded(f"     {one['path']}, {one['state']}: {one['operator']}: {one['said']}", 10))


def show_probe(probe: dict[str, Any]) -> None:
    """Print the result of the self-test, and the measured rates."""
    where = "in a child process" if probe["isolated"] else "in this process"
    print(f"   self-test      {'passed' if not probe['failures'] else 'FAILED'} ({where})")
    for test, why in probe["failures"].items():
        print(f"     {test:<10} {why}")
    if probe["soft_float"]:
        print("   floats         rounded in integers: the device does not round to nearest even")
    if probe["loop_limit"] is not None:
        print(
            f"   loops          the driver ends them after {probe['loop_limit']} iterations of an invocation"
        )
    units = {"fma": (1e12, "TFLOPS"), "copy": (1e9, "GB/s")}
    rates = [
        f"{name} {rate / units.get(name, (1e12,))[0]:.3g} {units.get(name, (0, 'TOPS'))[1]}"
        for name, rate in probe["rates"].items()
    ]
    clock = " (host clock)" if probe["clock"] == "host" else ""
    print(folded(f"   rates          {', '.join(rates) or 'not measured'}{clock}", 18))
