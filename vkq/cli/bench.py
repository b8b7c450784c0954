"""``vkq bench``: verify and time operators and whole models, and compare their rates with the device's
measured ceilings."""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from vkq import files
from vkq._version import __version__
from vkq.bench import cases, ceilings, contest, data, network, nodes, plot, report, selftest
from vkq.bench.environment import describe, host
from vkq.bench.peers import PEERS, find_peer, installed_peers
from vkq.bench.result import INTERRUPTED, MOST_SAMPLES, Result
from vkq.bench.run import Request, Runner, paths_of
from vkq.bench.timer import CLOCKS, Settings
from vkq.bench.totals import totals
from vkq.check.cases import SCALES, SCHEMES, Case
from vkq.check.tuning import variant_names
from vkq.cli.common import (
    Parsers,
    add_command,
    columns,
    folded,
    integer_option,
    number,
    output,
    output_file,
    status_line,
)
from vkq.errors import ArgumentError
from vkq.runtime.device import Device
from vkq.select.path import PATHS
from vkq.tflite.either import SUFFIXES

Model = network.Network | contest.Contest
EXAMPLES = [
    "vkq bench   # prints the case lists",
    "vkq bench seed gemv --json seed.json  # case lists",
    "vkq bench 'linear[M=1,K=4096,N=4096]' --path all --device 0",
    "vkq bench 'linear[M=64:1024:64,K=1024,N=1024]' --vs portable --plot m.png",
    "vkq bench resnet50 --peer ort --md resnet50.md",
    "vkq bench model.onnx --batch 8 --json model.json  # a whole model, by node and by kernel",
    "vkq bench model.onnx --peer ort  # compares it with ONNX Runtime on this machine",
    "vkq bench --self-test  # can timings on this machine show a difference of 10 %?",
    "vkq compare old.json new.json --fail-above 5%",
]


def register(commands: Parsers) -> None:
    parser = add_command(
        commands, "bench", run, "measure operations, each verified first against the reference", EXAMPLES
    )
    parser.usage = "%(prog)s [CASE ...] [options]"
    # Show the examples in the description, because it comes before the long list of options.
    parser.description, parser.epilog = f"{parser.description}\n\n{parser.epilog}", None
    parser.add_argument(
        "cases", nargs="*", metavar="CASE",
        help="a problem (a size may have several values: M=1,8,64), a list, a .yaml file, a model",
    )  # fmt: skip
    parser.set_defaults(several="cases")
    _what(parser.add_argument_group("what").add_argument)
    _how(parser.add_argument_group("how").add_argument)
    kept = "Ctrl-C ends a run early. Finished cases are printed and written; the others count as not run."
    _output(parser.add_argument_group("output", kept).add_argument)


def _what(add: Callable[..., object]) -> None:
    add("--device", help="an index of `vkq devices`, or part of a name (default: the best)")
    add("--path", default="auto", help=f"the paths: all, or some of {', '.join(PATHS)} (default: auto)")
    add("--vs", metavar="PATH", help="also measure this path, alternately, and print the ratios to it")
    peers = f"also measure another library if it is installed: {', '.join(PEERS)}, or all"
    add("--peer", action="append", default=[], help=peers)
    said = f"the quantization of x, weight and y (shaders/README.md): {', '.join(SCHEMES)}"
    add("--scheme", choices=SCHEMES, metavar="SCHEME", help=said)
    add("--scale", choices=SCALES, help="one weight scale for each channel, or for the tensor")
    add("--batch", type=integer_option(1, 1 << 20), action="append", help="the batch size of a model")
    add("--shape", action="append", default=[], metavar="NAME=1x128", help="the shape of an input of a model")
    add(
        "--ids", action="append", default=[], metavar="NAME=0:30000",
        help="the range of the random integers of an input (default: the rows of its table, or 0 and 1)",
    )  # fmt: skip
    add("--method", help="the method of the layer, by name (see vkq.Conv2d)")
    add("--variant", metavar="SHADER", help="run this shader: its name, or part of it (`vkq shaders list`)")


def _how(add: Callable[..., object]) -> None:
    add("--clock", default=",".join(CLOCKS), help="use some of gpu, submit, call, host (default: all)")
    add(
        "--samples", type=integer_option(1, MOST_SAMPLES), default=Settings.samples,
        help="the minimum number of samples of each path or library, and clock (default: %(default)s)",
    )  # fmt: skip
    add(
        "--time", type=number(0, 3600, above=True), default=Settings.time_s, metavar="S",
        help="the maximum number of seconds for a case and clock (default: %(default)g)",
    )  # fmt: skip
    stacked = "put dispatches into a submission until it takes this many ms (default: %(default)g)"
    add(
        "--submission-ms", type=number(0, 10_000), default=Settings.submission_us / 1000, metavar="MS",
        help=stacked,
    )  # fmt: skip
    unmeasured = "do not measure the device's peak rates first; inputs may then stay in the device's cache"
    add("--no-ceilings", action="store_true", help=unmeasured)
    tested = "test that equal work is reported as equal and 10 %% more work as slower; exit code 1 if not"
    add("--self-test", action="store_true", help=tested)


def _output(add: Callable[..., object]) -> None:
    add("--wide", action="store_true", help="print all clocks and rates, and the command of each row")
    files = {"json": "everything, with raw samples", "csv": "a line for each row", "md": "a Markdown table"}
    for option, text in files.items():
        said = f"write {text} (- for standard output, without the table)"
        add(f"--{option}", type=output, metavar="FILE", help=said)
    drawn = "draw GOP/s and time over a size, or a roofline (.svg, .png, .pdf; needs matplotlib)"
    add("--plot", type=output_file, metavar="FILE", help=drawn)
    add("--theme", choices=list(plot.THEMES), default="light", help="the plot's colours (default: light)")


def run(options: argparse.Namespace) -> int:
    """Run the benchmark or the self-test. Return exit code 1 if a result differs from the reference, if
    nothing could be measured, or if the self-test fails."""
    if not options.cases and not options.self_test:
        listed = [folded(f"  {name:20} {summary}", 23) for name, summary in cases.lists().items()]
        print("case lists:", *listed, sep="\n")
        print("examples:", *(f"  {example}" for example in EXAMPLES), sep="\n")
        return 0
    if options.plot:
        plot.check(options.plot)  # raises errors before anything is measured
    targets = [file for file in (options.json, options.csv, options.md, options.plot) if file]
    if len({file.absolute() for file in targets}) < len(targets):
        raise ArgumentError("--json, --csv, --md and --plot name the same file; each needs one of its own")
    models = [word for word in options.cases if word.endswith(SUFFIXES)]
    if models and (options.vs or options.variant or options.path != "auto"):
        raise ArgumentError("a model chooses its paths and shaders: leave --path, --vs and --variant out")
    if options.variant:
        variant_names(options.variant)
    if models:
        contest.sides_of(options.peer)  # an unknown name is refused before anything is measured
    words = [word for word in options.cases if word not in models]
    chosen = cases.select(words, options.scheme, options.scale, options.method)
    # Lists repeat a case for each method. Measure a case without methods only once.
    if options.method is None:
        chosen = list(
            dict.fromkeys(c if data.has_methods(c) else dataclasses.replace(c, method=None) for c in chosen)
        )
    with Device(options.device) as device:
        if options.self_test:
            return _self_test(device)
        request = _request(options, device)
        # Read all models before anything is measured, so that errors are reported at once.
        networks = [*_networks(options, models, device)]
        result = _measure(options, device, request, chosen, networks)
    for option, text in (("json", Result.to_json), ("csv", report.comma_separated), ("md", report.markdown)):
        if target := getattr(options, option):
            _write(target, text(result))
    if options.plot:
        plot.draw(result, chosen, options.plot, options.theme)
    if result.interrupted:
        raise KeyboardInterrupt
    return 1 if result.mismatches or not result.rows else 0


def _networks(options: argparse.Namespace, models: list[str], device: Device) -> Iterator[Model]:
    kind = contest.Contest if options.peer else network.Network
    for model in models:
        for batch in options.batch or [None]:
            yield kind(model, batch, device, options.device, options.shape, options.ids)


def _request(options: argparse.Namespace, device: Device) -> Request:
    clocks = tuple(clock for clock in CLOCKS if clock in options.clock.split(","))
    if not set(options.clock.split(",")) <= set(CLOCKS):
        raise ArgumentError(
            f"--clock is {options.clock!r}; it must be some of {', '.join(CLOCKS)}, with commas between"
        )
    if options.vs is not None:
        paths_of([options.vs], device)
    # With --peer, and if all cases are files of models, only complete calls of the models are timed.
    if options.peer and all(word.endswith(SUFFIXES) for word in options.cases):
        settings = Settings(options.samples, options.submission_ms * 1000, options.time)
        return Request(clocks=(contest.CLOCK,), settings=settings, device_option=options.device)
    peers = installed_peers() if "all" in options.peer else tuple(find_peer(name) for name in options.peer)
    settings = Settings(options.samples, options.submission_ms * 1000, options.time)
    return Request(
        paths_of(options.path.split(","), device),
        clocks,
        options.vs,
        peers,
        settings,
        options.device,
        options.variant,
    )


def _measure(
    options: argparse.Namespace, device: Device, request: Request, chosen: list[Case],
    networks: list[Model],
) -> Result:  # fmt: skip
    begin = time.perf_counter()
    quiet = any(str(getattr(options, option)) == "-" for option in ("json", "csv", "md"))
    say: Callable[[list[str]], None] = (
        (lambda lines: None)
        if quiet
        else (lambda lines: print(*lines, sep="\n", end="\n" if lines else "", flush=True))
    )
    with status_line() as status:
        command = shlex.join(["vkq", *(options.argv or [])])
        # Times of complete calls of models are not compared with the ceilings.
        ceiled = not options.no_ceilings and (bool(chosen) or not options.peer)
        result = empty(device, request, command, status, ceiled)
        names: list[Case | str] = [*chosen, *(one.name for one in networks)]
        table = report.Table(names, columns(), options.wide, request.clocks[0])
        status("")
        say([*(folded(line, 9) for line in report.header(result)), "", table.head()])
        runner = Runner(device, request, result, status)
        work: list[Case | Model] = [*chosen, *networks]
        for number, one in enumerate(work, 1):
            rows, ratios = len(result.rows), len(result.comparisons)
            failures, known = len(result.failures), len(result.nodes)
            try:
                runner.progress = _numbered(status, number, len(work))
                _one(runner, one, options)
            except KeyboardInterrupt:
                _leave(runner, work[number - 1 :])
                break
            status("")
            say(table.lines(result.rows[rows:], result.comparisons[ratios:], result.failures[failures:]))
            say(nodes.tables(result.nodes[known:], columns(), options.wide))
    words = [word for word in options.cases if not word.endswith(SUFFIXES)]
    result.totals = totals(cases.networks(words), result.rows, result.ceilings)
    result.seconds = round(time.perf_counter() - begin, 1)
    say([folded(line, 9) for line in [*table.totals(result.totals), *report.footer(result)]])
    return result


def _one(runner: Runner, one: Case | Model, options: argparse.Namespace) -> None:
    if isinstance(one, Case):
        runner.run(one)
    elif isinstance(one, contest.Contest):
        peers = contest.sides_of(options.peer)
        contest.measure(one, peers, runner.request, runner.result, runner.progress)
    else:
        network.measure(one, runner.device, runner.request, runner.result, runner.progress)


def _numbered(status: Callable[[str], None], number: int, count: int) -> Callable[[str], None]:
    """Return a function that calls *status* with "number/count" before the text."""
    return lambda what: status(f"{number}/{count} {what}")


def _leave(runner: Runner, work: Sequence[Case | Model]) -> None:
    """Add a failure for each case and model of *work*, because the user interrupted the run. If nothing was
    measured before, end the command."""
    if not runner.result.rows:
        raise KeyboardInterrupt
    for one in work:
        if isinstance(one, Case):
            runner.skip(one, INTERRUPTED)
        elif isinstance(one, contest.Contest):
            contest.skip(one, runner.result, INTERRUPTED)
        else:
            network.skip(one, runner.result, INTERRUPTED)


def empty(
    device: Device, request: Request, command: str, status: Callable[[str], None], with_ceilings: bool = True
) -> Result:
    """Return a result without rows, with the descriptions of device and host and the measured ceilings."""
    rates = ceilings.measure(device, lambda what: status(f"ceilings: {what}")) if with_ceilings else {}
    names = ("samples", "submission_us", "time_s", "precision")
    settings = {name: getattr(request.settings, name) for name in names}
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    return Result(describe(device), host(), __version__, command, now, settings, rates)


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
        with files.output(target) as file:
            file.write_text(text, encoding="utf-8")
