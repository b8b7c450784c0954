"""``vkq bench``: verified times of linear layers and convolutions, against ceilings measured in the same
run."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shlex
import sys
import time
from pathlib import Path

from vkq._version import __version__
from vkq.bench import cases, ceilings, data, plot, report, selftest
from vkq.bench.peers import PEERS, find_peer, installed_peers
from vkq.bench.result import MOST_SAMPLES, Result
from vkq.bench.run import Plan, Runner, describe, host, paths_of
from vkq.bench.timer import CLOCKS, Settings
from vkq.check.cases import SCALES, SCHEMES, Case
from vkq.cli.common import Parsers, add_command, number, status_line, whole
from vkq.errors import ArgumentError
from vkq.runtime.device import Device
from vkq.select.path import PATHS

EXAMPLES = [
    "vkq bench                                                   # the lists there are",
    "vkq bench seed gemv --json seed.json                        # case lists",
    "vkq bench 'linear[M=1,K=4096,N=4096]' --path all --device 0",
    "vkq bench 'linear[M=64:1024:64,K=1024,N=1024]' --vs portable --plot m.png",
    "vkq bench resnet50 --peer ort --md resnet50.md",
    "vkq bench --self-test                                       # can this machine tell 10 % from nothing?",
    "vkq compare old.json new.json --fail-above 5%",
]


def register(commands: Parsers) -> None:
    parser = add_command(
        commands, "bench", run, "measure operations, each verified first against the reference", EXAMPLES
    )
    parser.usage = "%(prog)s [CASE ...] [options]"
    parser.description, parser.epilog = (
        f"{parser.description}\n\n{parser.epilog}",
        None,
    )  # examples before forty lines of options
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE",
        help="a problem (sizes may be swept: M=1,8,64 or M=64:1024:64), a list, or a .yaml file",
    )
    what = parser.add_argument_group("what")
    what.add_argument("--device", help="index or part of the name (default: the best)")
    what.add_argument(
        "--path", default="auto", help=f"all, or some of {', '.join(PATHS)}, with commas (default: auto)"
    )
    what.add_argument(
        "--vs", metavar="PATH", help="measure this path too, in turn with the others, and give ratios to it"
    )
    what.add_argument(
        "--peer",
        action="append",
        default=[],
        help=f"measure another library too, where installed: {', '.join(PEERS)}, or all",
    )
    what.add_argument(
        "--scheme", choices=SCHEMES, help="int8 in and out, int8 in and float32 out, or weight-only"
    )
    what.add_argument("--scale", choices=SCALES, help="one weight scale per channel or per tensor")
    what.add_argument("--method", help="a way of the layer, by name (see vkq.Conv2d)")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--clock",
        default=",".join(CLOCKS),
        help="some of gpu, submit, call, host (default: all)",
    )
    how.add_argument(
        "--samples",
        type=whole(1, MOST_SAMPLES),
        default=Settings.samples,
        help="samples of each arm and clock, at least (default: %(default)s)",
    )
    how.add_argument(
        "--time",
        type=number(0, 3600, above=True),
        default=Settings.time_s,
        metavar="S",
        help="seconds for a case and clock, at most (default: %(default)g)",
    )
    stacked = "dispatches are stacked until a submission lasts so long (default: %(default)g)"
    how.add_argument(
        "--submission-ms",
        type=number(0, 10_000),
        default=Settings.submission_us / 1000,
        metavar="MS",
        help=stacked,
    )
    how.add_argument("--no-ceilings", action="store_true", help="do not measure the device's ceilings first")
    how.add_argument(
        "--self-test",
        action="store_true",
        help="check that equal arms are called equal and 10 %% more work is found; exit code 1 if not",
    )
    output = parser.add_argument_group("output")
    for option, text in (
        ("json", "everything, with raw samples"),
        ("csv", "a line for each row"),
        ("md", "a Markdown table"),
    ):
        output.add_argument(
            f"--{option}",
            type=Path,
            metavar="FILE",
            help=f"write {text} (- for standard output, without the table)",
        )
    output.add_argument(
        "--plot",
        type=Path,
        metavar="PNG",
        help="draw GOP/s and latency over the swept size, or a roofline (needs matplotlib)",
    )


def run(options: argparse.Namespace) -> int:
    """Exit code 1 where a result differs from the reference, the self-test fails, or nothing could be
    measured."""
    if not options.cases and not options.self_test:
        print("case lists:", *(f"  {name:20} {summary}" for name, summary in cases.lists().items()), sep="\n")
        print("examples:", *(f"  {example}" for example in EXAMPLES), sep="\n")
        return 0
    if options.plot:
        plot.library()  # refuses before an hour of measuring
    chosen = cases.select(options.cases, options.scheme, options.scale, options.method)
    if options.method is None:  # a list's methods, where the layers have none: each case once
        chosen = list(
            dict.fromkeys(c if data.has_methods(c) else dataclasses.replace(c, method=None) for c in chosen)
        )
    with Device(options.device) as device:
        if options.self_test:
            return _self_test(device)
        plan = _plan(options, device)
        result = _measure(options, device, plan, chosen)
    for option, text in (("json", Result.to_json), ("csv", report.comma_separated), ("md", report.markdown)):
        if target := getattr(options, option):
            _write(target, text(result))
    if options.plot:
        plot.draw(result, chosen, options.plot)
    return 1 if result.mismatches or not result.rows else 0


def _plan(options: argparse.Namespace, device: Device) -> Plan:
    clocks = tuple(clock for clock in CLOCKS if clock in options.clock.split(","))
    if not set(options.clock.split(",")) <= set(CLOCKS):
        raise ArgumentError(
            f"--clock is {options.clock!r}; it must be some of {', '.join(CLOCKS)}, with commas between"
        )
    if options.vs is not None:
        paths_of([options.vs], device)
    peers = installed_peers() if "all" in options.peer else tuple(find_peer(name) for name in options.peer)
    settings = Settings(options.samples, options.submission_ms * 1000, options.time)
    return Plan(
        paths_of(options.path.split(","), device),
        clocks,
        options.vs,
        peers,
        settings,
        options.device,
    )


def _measure(options: argparse.Namespace, device: Device, plan: Plan, chosen: list[Case]) -> Result:
    begin = time.perf_counter()
    quiet = any(str(getattr(options, option)) == "-" for option in ("json", "csv", "md"))
    with status_line() as status:
        rates = (
            {} if options.no_ceilings else ceilings.measure(device, lambda what: status(f"ceilings: {what}"))
        )
        settings = {
            name: getattr(plan.settings, name) for name in ("samples", "submission_us", "time_s", "precision")
        }
        now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
        command = shlex.join(["vkq", *(options.argv or [])])
        result = Result(describe(device), host(), __version__, command, now, settings, rates)
        runner = Runner(device, plan, result, status)
        if not quiet:
            print(*report.header(result), "", report.columns(), sep="\n")
        for number, case in enumerate(chosen, 1):
            rows, ratios, failures = len(result.rows), len(result.comparisons), len(result.failures)
            runner.progress = lambda what, n=number: status(f"{n}/{len(chosen)} {what}")  # type: ignore[misc]
            runner.run(case)
            status("")
            if not quiet:
                lines = report.case_lines(
                    result.rows[rows:], result.comparisons[ratios:], result.failures[failures:]
                )
                print(*lines, sep="\n", flush=True)
    result.seconds = round(time.perf_counter() - begin, 1)
    if not quiet:
        print(*report.footer(result), sep="\n")
    return result


def _self_test(device: Device) -> int:
    with status_line() as status:
        found = selftest.run(device, progress=status)
    for line in found.lines():
        print(line)
    return 0 if found.passed else 1


def _write(target: Path, text: str) -> None:
    if str(target) == "-":
        sys.stdout.write(text)
    else:
        target.write_text(text, encoding="utf-8")
