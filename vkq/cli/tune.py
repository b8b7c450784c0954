"""``vkq tune``: verify and time the choices of kernels for given shapes on this device, and store the fastest
choice. With ``--regret``, compare the choice in use with the fastest. With ``--export``, write the measured
costs of the device's tiles to a file."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Hashable, Iterator
from pathlib import Path
from typing import Any

from vkq.bench import cases
from vkq.check import catalogue, tuning
from vkq.check.awake import Awake
from vkq.check.cases import FLOAT
from vkq.check.catalogue import Check
from vkq.check.tile_costs import measured_costs
from vkq.check.tuning import Trial
from vkq.cli.common import Parsers, add_command, columns, counted, device_argument, output_file, progress
from vkq.device.profiles import profile
from vkq.device.tuner import store, stored, subject
from vkq.errors import ArgumentError
from vkq.graph.executable import Executable
from vkq.ops.layer import Layer
from vkq.ops.linears import JoinedLinears
from vkq.runtime.device import Device
from vkq.select.path import PATHS, choose_path
from vkq.tflite.either import SUFFIXES, session_of

SHOWN = 8  # number of the fastest choices that the printed table has; --json prints all


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "tune",
        run,
        "measure kernels for shapes on this device and keep the fastest; results never change",
        [
            "vkq tune 'linear[M=256,K=2048,N=2048]'",
            "vkq tune 'conv2d[N=1,IC=64,H=56,W=56,OC=64,KH=3,KW=3,padding=1]' --path dot --device 0",
            "vkq tune model.onnx",
            "vkq tune --regret 'linear[M=1,K=4096,N=4096]/scheme=q8csw'",
            "vkq tune --export device.json",
        ],
    )
    parser.add_argument(
        "problem", nargs="*", metavar="PROBLEM",
        help="a problem, as `vkq check --list` writes it; a model, whose layers are tuned; or a list of"
        " `vkq bench`, such as regret",
    )  # fmt: skip
    device_argument(parser)
    parser.add_argument("--path", choices=PATHS, default="auto", help="tune this path (default: auto)")
    parser.add_argument(
        "--regret",
        action="store_true",
        help="time all choices, and print how much slower the default and the tuned one are than the best",
    )
    parser.add_argument(
        "--export", type=output_file, metavar="FILE",
        help="measure the costs of the tiles of matrix units, and write a file for vkq/device/tuned",
    )  # fmt: skip
    parser.add_argument("--dry-run", action="store_true", help="measure and print, but keep nothing")
    parser.add_argument("--json", action="store_true", help="print JSON, one object per problem")


def run(options: argparse.Namespace) -> int:
    if not (options.problem or options.export):
        raise ArgumentError("vkq tune: a PROBLEM or --export is needed; `vkq check --list` names problems")
    with Device(options.device) as device:
        if options.export:
            _export(device, options.export)
        names = [name for each in options.problem for name in _names(device, each)]
        checks = [catalogue.check_of(name) for name in dict.fromkeys(names)]
        found = list(progress(_each(device, checks, options), len(checks), "tuning"))
    if not found:
        return 0
    if options.json:
        print(json.dumps(found, indent=2))
    else:
        for one in found:
            _show(one, options.dry_run)
        if options.regret:
            _show_regret(found)
    return 1 if any(trial["error"] for one in found for trial in one["trials"]) else 0


def _names(device: Device, given: str) -> list[str]:
    """Return the names of the problems that an argument stands for. The argument is a problem, the file of a
    model (for the problems of its layers), or a case list of `vkq bench`."""
    if "[" in given:
        return [given]
    if not given.endswith(SUFFIXES):
        return [f"{case.name}/scheme={case.scheme}" for case in cases.select([given])]
    session = session_of(given)(given, device)
    layers: dict[Hashable, Any] = {}
    Executable(session.lowered(session.trial_shapes()), device, layers)
    found = [layer for layer in layers.values() if isinstance(layer, Layer | JoinedLinears)]
    return [name for layer in found for name in layer.problems]


def _export(device: Device, file: Path) -> None:
    """Measure the costs of the device's tiles, and write them to *file* in the form that
    `vkq.device.costs.Tuned` reads."""
    c = device.capabilities
    costs = measured_costs(device, lambda tile: print(tile, file=sys.stderr))
    found = {
        "devices": [f"{c.vendor_id:04x}-{c.device_id:04x}"], "driver": c.driver,
        "cores": profile(c).multiprocessors, "costs": costs,
    }  # fmt: skip
    file.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{file}: {sum(map(len, costs.values()))} tiles of {c.name}, {found['cores']} cores")


def _each(device: Device, checks: list[Check], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    awake = Awake(device)
    for check in checks:
        taken = "auto" if check.scheme in FLOAT else options.path
        trials = tuning.trials(device, check, taken, None if options.regret else tuning.CANDIDATES, awake)
        if options.regret:
            yield _regret(device, check, taken, trials)
        else:
            yield _tuned(device, check, taken, trials, options.dry_run)


def _tuned(device: Device, check: Check, path: str, trials: list[Trial], dry: bool) -> dict[str, Any]:
    best = tuning.best(trials)
    if not dry:
        store(device.capabilities, check.problem.name, check.scheme, best.choice)
    return _report(device, check, path, trials, best)


def _regret(device: Device, check: Check, path: str, trials: list[Trial]) -> dict[str, Any]:
    """Return the report of *trials*, which are of all choices, with two regrets (time / fastest time - 1).
    "regret" is that of the choice in use: the stored choice, or the default. "regret_tuned" is that of the
    choice which `vkq tune` would store: the best of the first `tuning.CANDIDATES` correct choices."""
    right = [trial for trial in trials if trial.time_us is not None]
    if not right:
        raise ArgumentError(f"{check.name}: no choice of kernels gives right results: {trials[0].error}")
    kept = stored(device.capabilities).problems.get(subject(check.problem.name, check.scheme), {})
    chosen = next((trial for trial in right if trial.choice == kept), right[0])
    first = [dataclasses.replace(trial, final=True) for trial in right[: tuning.CANDIDATES]]
    tuned = tuning.best(first)
    return _report(device, check, path, trials, chosen) | {
        "regret": tuning.regret(right, chosen), "regret_tuned": tuning.regret(right, tuned),
        "choices": len(right),
    }  # fmt: skip


def _report(device: Device, check: Check, path: str, trials: list[Trial], best: Trial) -> dict[str, Any]:
    usual, path = trials[0].time_us, choose_path(device, path).path
    return {
        "problem": check.name, "path": path, "device": device.name, "kept": best.name,
        "speedup": round(usual / best.time_us, 3) if usual and best.time_us else None,
        "trials": [dataclasses.asdict(trial) | {"name": trial.name} for trial in trials],
    }  # fmt: skip


def _show(one: dict[str, Any], dry: bool = False) -> None:
    print(f"{one['problem']} path={one['path']} on {one['device']}")
    names = max(len(trial["name"]) for trial in one["trials"])
    digits = max(len(f"{trial['time_us'] or 0.0:.1f}") for trial in one["trials"])
    ordered = sorted(one["trials"], key=lambda trial: (bool(trial["error"]), trial["time_us"] or 0.0))
    for place, trial in enumerate(ordered):
        mark = "*" if trial["name"] == one["kept"] else " "
        if place < SHOWN or mark == "*" or trial["error"]:
            once = "" if trial["final"] else "  (one round)"
            said = trial["error"] or f"{trial['time_us']:{digits}.1f} us{once}"
            line, variants = f" {mark} {trial['name']:<{names}} {said}", " + ".join(trial["variants"])
            apart = len(line) + 2 + len(variants) > (columns() or 10_000)
            print(line, variants, sep="\n     " if apart else "  ")
    if len(ordered) > SHOWN:
        print(f"   {len(ordered)} choices (--json has all)")
    if "regret" in one:
        print(f"  regret {one['regret']:.1%}, tuned {one['regret_tuned']:.1%}, of {one['choices']} choices")
    elif one["speedup"]:
        said = "best (not kept, as --dry-run asks)" if dry else "kept"
        print(f"  {said}: {one['kept']}, {one['speedup']:.2f}x the default")


def _show_regret(found: list[dict[str, Any]]) -> None:
    for name, said in (("regret", "of the choice"), ("regret_tuned", "after vkq tune")):
        regrets = [one[name] for one in found]
        mean = tuning.mean_regret(regrets)
        shapes = counted(len(found), "shape")
        print(f"regret {said}: {mean:.1%} geometric mean, {max(regrets):.1%} at worst, {shapes}")
