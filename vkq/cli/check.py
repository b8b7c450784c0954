"""``vkq check``: run the catalogue of checks on all paths of a device, and compare the results with the
reference."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import subprocess
import time
from collections.abc import Sequence
from typing import Any

from vkq import spawn
from vkq._version import __version__
from vkq.check import catalogue, integer, windows
from vkq.check.catalogue import Check
from vkq.check.compare import Mismatch, run_check, usable_paths
from vkq.cli.common import Parsers, add_command, counted, device_argument, folded, integer_option, progress
from vkq.device import vulkan
from vkq.errors import ArgumentError, DeviceError, PathError
from vkq.integer.transform import TRANSFORM
from vkq.runtime.device import Device
from vkq.select.path import PATHS
from vkq.shader import compile as shader_compile
from vkq.shader.glslang import find_compiler

INTEGER = "integer"  # the FILTER that checks exact integer convolutions
WINDOWS = "windows"  # the FILTER that checks pools, means and softmaxes
SHOWN = 5  # maximum number of mismatches that are printed in full
LISTED = 50  # maximum number of mismatches that are printed, in full or as a name
EXAMPLES = [
    "vkq check",
    "vkq check 'linear[M=9,K=9,N=9]'",
    "vkq check groups=3 --path portable",
    "vkq check 'linear[M=5,K=9,N=6]/seed=0' --path portable --debug",
    "vkq check --count 1000 --seed 7 --device 0 --json",
    "vkq check integer --count 10",
    "vkq check windows --count 100",
]
_MESSAGE_HEAD = re.compile(r"^.*?MessageID = 0x[0-9a-f]+ \| ", re.DOTALL)


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "check",
        run,
        "compare every path with the reference, bit for bit; exit code 1 if anything differs",
        EXAMPLES,
    )
    parser.add_argument(
        "filter",
        nargs="?",
        default="",
        metavar="FILTER",
        help="the name of a case, a part of names, or a glob (default: all cases);"
        " integer checks vkq.integer; windows checks pools, means and softmaxes",
    )
    device_argument(parser)
    paths = (*PATHS, TRANSFORM)
    alone = f"check only this path, one of {', '.join(paths)}; may be repeated (default: all that can run)"
    parser.add_argument("--path", action="append", choices=paths, metavar="PATH", help=alone)
    parser.add_argument(
        "--count", type=integer_option(0, 1_000_000), default=0, metavar="N",
        help="add N random cases; without FILTER, check only these",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=integer_option(0), default=0, help="the seed of the random cases (default: 0)"
    )
    parser.add_argument(
        "--debug",
        action="store_true",
        help="build the shaders with DEBUG defined, and show their output (needs the validation layer)",
    )
    parser.add_argument("--list", action="store_true", help="print the names of the cases, and run nothing")
    says = "print JSON: {summary: {cases, mismatches, ...}, mismatches: [...]}"
    parser.add_argument("--json", action="store_true", help=says)


def run(options: argparse.Namespace) -> int:
    if options.filter in (INTEGER, WINDOWS):
        return _random(options)
    if TRANSFORM in (options.path or ()):
        raise ArgumentError(f"check: --path {TRANSFORM} is only for `check {INTEGER}`")
    checks = _chosen(options)
    if options.list:
        print(*(check.name for check in checks), sep="\n")
        return 0
    if options.debug:
        return _debug(options, checks)
    with Device(options.device) as device:
        summary, mismatches = compared(device, checks, options.path or ())
    if options.json:
        print(
            json.dumps(
                {"schema": 1, "summary": summary, "mismatches": [dataclasses.asdict(m) for m in mismatches]},
                indent=2,
            )
        )
    else:
        _show(summary, mismatches)
    return 1 if mismatches else 0


def compared(
    device: Device, checks: Sequence[Check], wanted: Sequence[str] = ()
) -> tuple[dict[str, Any], list[Mismatch]]:
    """Run the checks. Return (summary, mismatches); the summary is the one that `vkq check --json` prints.
    *wanted*: the paths to check; empty: all paths that the device supports."""
    start = time.perf_counter()
    paths, refused = usable_paths(device, wanted)
    if not paths:
        raise PathError(
            f"no path can be checked on {device.name}:"
            f" {'; '.join(f'{p}: {why}' for p, why in refused.items())}"
        )
    found = [run_check(device, check, paths) for check in progress(checks, len(checks), "checking")]
    mismatches = [mismatch for outcome in found for mismatch in outcome.mismatches]
    return {
        "cases": len(checks),
        "comparisons": sum(outcome.compared for outcome in found),
        "refused_by_method": sum(len(outcome.refused) for outcome in found),
        "mismatches": len(mismatches),
        "paths": paths,
        "refused_paths": refused,
        "device": device.name,
        "driver": device.capabilities.driver,
        "vkq": __version__,
        "seconds": round(time.perf_counter() - start, 2),
    }, mismatches


def _random(options: argparse.Namespace) -> int:
    """Run random cases of `vkq.check.integer` or `vkq.check.windows`, and print the mismatches. Each integer
    case runs on one path, and the paths take turns. Pools, means and softmaxes have only one path."""
    kind = options.filter
    if not options.count:
        raise ArgumentError(f"check {kind}: --count is 0; give the number of random cases, 1 or more")
    if kind == WINDOWS and options.path:
        raise ArgumentError(f"check {WINDOWS}: --path is for layers; these operators have only one path")
    start = time.perf_counter()
    with Device(options.device) as device:
        paths = (options.path or [*usable_paths(device)[0], TRANSFORM]) if kind == INTEGER else []
        seeds = range(options.seed, options.seed + options.count)
        outcomes = (
            integer.check(device, seed, paths[seed % len(paths)]) if paths else windows.check(device, seed)
            for seed in progress(seeds, len(seeds), "checking")
        )
        found = [text for text in outcomes if text]
        summary = {
            "cases": len(seeds), "mismatches": len(found), "paths": paths, "device": device.name,
            "driver": device.capabilities.driver, "vkq": __version__,
            "seconds": round(time.perf_counter() - start, 2),
        }  # fmt: skip
    if options.json:
        print(json.dumps({"schema": 1, "summary": summary, "mismatches": found}, indent=2))
    else:
        said = f"integer correlations on {', '.join(paths)}" if paths else WINDOWS
        print(*found[:LISTED], f"device {summary['device']} ({summary['driver']})", sep="\n")
        print(f"{len(seeds)} random {said}: {len(found)} mismatches, {summary['seconds']:.1f} s")
    return 1 if found else 0


def _chosen(options: argparse.Namespace) -> list[Check]:
    named = catalogue.select(options.filter) if options.filter or not options.count else []
    chosen = [*named, *catalogue.random_checks(options.count, options.seed)]
    if not chosen:
        raise ArgumentError("no case is left to check; name one, or give --count 1 or more")
    return chosen


def _debug(options: argparse.Namespace, checks: list[Check]) -> int:
    """Run the checks with debug shaders, and print the output of the shaders' printf. This needs a new
    process, because the validation layer is configured when the Vulkan instance is created."""
    if os.environ.get(shader_compile.DEBUG_VARIABLE, "0") in ("", "0"):
        find_compiler()  # reports a missing compiler here, instead of as a mismatch in every check
        again = ["check", options.filter, "--debug", f"--count={options.count}", f"--seed={options.seed}"]
        again += [f"--device={options.device}"] if options.device else []
        again += [f"--path={path}" for path in options.path or ()]
        argv = spawn.command("vkq.cli", *again)
        if argv is None:
            raise DeviceError("--debug starts Python again, but it is embedded in a program: run vkq itself")
        environment = {**os.environ, shader_compile.DEBUG_VARIABLE: "1", "VKQ_VALIDATION": "printf"}
        return subprocess.run(argv, env=environment, check=False).returncode
    wrong = 0
    with Device(options.device) as device:
        paths, _ = usable_paths(device, options.path or ())
        for check, path in ((check, path) for check in checks for path in paths):
            before = len(vulkan.validation_messages())
            mismatches = run_check(device, check, [path]).mismatches
            print(f"{check.name} path={path}: {'MISMATCH' if mismatches else 'equal'}")
            for message in vulkan.validation_messages()[before:]:
                print(f"  {_MESSAGE_HEAD.sub('', message)}")
            print(*mismatches, sep="\n", end="\n" if mismatches else "")
            wrong += len(mismatches)
    return 1 if wrong else 0


def _show(summary: dict[str, Any], mismatches: list[Mismatch]) -> None:
    for mismatch in mismatches[:SHOWN]:
        print(mismatch)
        print(f"  again: vkq check '{mismatch.case}' --path {mismatch.path} --device '{summary['device']}'")
    for mismatch in mismatches[SHOWN:LISTED]:
        print(f"MISMATCH {mismatch.case} path={mismatch.path}")
    if len(mismatches) > LISTED:
        print(f"... and {len(mismatches) - LISTED} more")
    for path, why in summary["refused_paths"].items():
        print(folded(f"not checked: {path}: {why}", 4))
    print(f"device {summary['device']} ({summary['driver']})")
    said = (
        f"{counted(summary['cases'], 'case')} on {counted(len(summary['paths']), 'path')}"
        f" ({', '.join(summary['paths'])}), {counted(summary['comparisons'], 'comparison')},"
        f" {summary['refused_by_method']} that a method cannot compute:"
        f" {counted(summary['mismatches'], 'mismatch', 'mismatches')}, {summary['seconds']:.1f} s"
    )
    print(folded(said, 4))
