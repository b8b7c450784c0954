"""``vkq tune``: the fastest kernels for given shapes on this device, and the fastest setting of the int8
matrix product in registers; each is right before it is timed."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

from vkq.check import catalogue, tuning
from vkq.check.cases import FLOAT
from vkq.check.catalogue import Check
from vkq.cli.common import Parsers, add_command, device_argument, progress
from vkq.device.profiles import preferred
from vkq.runtime.device import Device
from vkq.select import tune
from vkq.select.kernels import says, store
from vkq.select.path import PATHS, choose_path

SLOWER_SHOWN = 5  # of settings that are measured once, as they were slower then


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "tune",
        run,
        "measure kernels, tiles and workgroup sizes for shapes on this device and keep the fastest; results"
        " never change",
        [
            "vkq tune 'linear[M=256,K=2048,N=2048]'",
            "vkq tune 'conv2d[N=1,IC=64,H=56,W=56,OC=64,KH=3,KW=3,padding=1]' --path dot --device 0",
        ],
    )
    parser.add_argument(
        "problem", nargs="+", metavar="PROBLEM", help="a shape, as `vkq check --list` writes them"
    )
    device_argument(parser)
    parser.add_argument("--path", choices=PATHS, default="auto", help="tune this path (default: auto)")
    parser.add_argument("--dry-run", action="store_true", help="measure and print, and keep nothing")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per problem")


def run(options: argparse.Namespace) -> int:
    checks = [catalogue.check_of(name) for name in options.problem]
    with Device(options.device) as device:
        path = choose_path(device, options.path).path
        found = [
            _tune(device, check, "auto" if check.scheme in FLOAT else path, options.dry_run)
            for check in checks
        ]
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for each in found:
            _show(each)
    return 1 if any(one["error"] for each in found for one in (*each["results"], *each["kernels"])) else 0


def _tune(device: Device, check: Check, path: str, dry: bool) -> dict[str, Any]:
    report: dict[str, Any] = {
        "problem": check.name,
        "path": path,
        "device": device.name,
        "kernels": [],
        "results": [],
        "kept": None,
    }
    kernels = tuning.tuned_kernels(device, check, path)
    best = tuning.best_kernels(kernels)
    report["kernels"] = [
        dataclasses.asdict(each) | {"name": each.name, "kept": each is best} for each in kernels
    ]
    if not dry:
        store(device.capabilities, check.problem.name, check.scheme, best.choice)
    with preferred(says(best.choice)):
        return report | _settings(device, check, path, dry)


def _settings(device: Device, check: Check, path: str, dry: bool) -> dict[str, Any]:
    """The settings of the matrix product in registers, where the kernels are that."""
    report: dict[str, Any] = {}
    shapes = tuning.shapes_of(device, check, path)
    if not shapes:
        return report
    standard = tune.default(device.capabilities, shapes[0])
    settings = {standard, *tune.candidates(device.capabilities)}
    total = len(settings) + min(len(settings), tuning.FINALISTS + 1)  # the finalists, and the default
    results = list(progress(tuning.tuned(device, check, path), total, "tuning"))
    best = tuning.winner(results, standard)
    if not dry:
        tune.store(device.capabilities, dict.fromkeys(shapes, best))
    last = {result.setting: result for result in results}
    report["kept"], report["default"] = str(best), str(standard)
    report["results"] = [dataclasses.asdict(r) | {"setting": str(s)} for s, r in last.items()]
    times = {setting: result.time_us for setting, result in last.items()}
    report["speedup"] = round((times[standard] or float("inf")) / (times[best] or float("inf")), 3)
    return report


def _show(each: dict[str, Any]) -> None:
    print(f"{each['problem']} path={each['path']} on {each['device']}")
    for kernel in each["kernels"]:
        said = kernel["error"] or (f"{kernel['time_us']:.1f} us" if kernel["time_us"] else "the only one")
        print(
            f" {'*' if kernel['kept'] else ' '} {kernel['name']:<50} {said}  {' + '.join(kernel['variants'])}"
        )
    if not each["results"]:
        return
    ordered = sorted(each["results"], key=lambda r: (not r["final"], r["time_us"] or float("inf")))
    slower = [result for result in ordered if not (result["final"] or result["error"])][SLOWER_SHOWN:]
    slower = [result for result in slower if result["setting"] not in (each["kept"], each["default"])]
    for result in ordered:
        if result in slower:
            continue
        mark = "*" if result["setting"] == each["kept"] else " "
        said = (
            result["error"]
            or f"{result['time_us']:.1f} us{'' if result['final'] else '  (first round only)'}"
        )
        print(
            f" {mark} {result['setting']:<30}"
            f" {said}{'  (default)' if result['setting'] == each['default'] else ''}"
        )
    if slower:
        print(f"   {len(slower)} more, slower in the first round (--json has them)")
    print(f"  kept: {each['kept']}, {each['speedup']:.2f}x the default")
