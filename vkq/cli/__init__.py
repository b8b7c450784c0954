"""The command ``vkq``. Each subcommand is a module of this package, whose function ``register`` adds the
subcommand to the parser. Only modules of this package print."""

from __future__ import annotations

import argparse
import io
import os
import sys
import warnings
from collections.abc import Callable, Sequence

from vkq._version import __version__
from vkq.cli import (
    bench,
    check,
    compare,
    completion,
    devices,
    doctor,
    evaluate,
    export,
    inspect,
    layers,
    match,
    plot,
    quantize,
    report,
    run,
    shaders,
    tune,
)
from vkq.cli.common import Parser, Parsers, refuse_overwriting, show_help
from vkq.errors import NoDeviceError, VkqError, did_you_mean

COMMANDS: list[Callable[[Parsers], None]] = [
    devices.register,
    doctor.register,
    check.register,
    inspect.register,
    run.register,
    quantize.register,
    evaluate.register,
    layers.register,
    export.register,
    match.register,
    tune.register,
    bench.register,
    compare.register,
    plot.register,
    report.register,
    shaders.register,
    completion.register,
]


def parser() -> Parser:
    """Return the parser of the whole command line. ``vkq`` without a command prints the help."""
    top = Parser(prog="vkq", description="Exact int8 inference on any Vulkan device.")
    top.add_argument("--version", action="version", version=f"vkq {__version__}")
    top.set_defaults(run=show_help, parser=top)
    commands = top.add_subparsers(title="commands", metavar="COMMAND")
    for register in COMMANDS:
        register(commands)
    return top


def _parsed(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line. The error for an unknown option also names the most similar option."""
    whole = parser()
    options, unknown = whole.parse_known_args(argv)
    several = getattr(options, "several", None)  # name of the argument that takes any number of words
    # If options come between these words, argparse returns the later words as unknown.
    if several and not any(word.startswith("-") for word in unknown):
        setattr(options, several, [*getattr(options, several), *unknown])
    elif unknown:
        word = unknown[0].partition("=")[0]
        options.parser.error(
            f"unrecognized arguments: {' '.join(unknown)}{did_you_mean(word, options.parser.option_names())}"
        )
    options.whole = whole
    options.argv = list(sys.argv[1:] if argv is None else argv)
    return options


def _open_standard_streams() -> None:
    """Open the standard streams that were closed before the process began (by ``>&-``). Otherwise the next
    opened file would get the descriptor of a standard stream, and drivers would write messages into it."""
    while (opened := os.open(os.devnull, os.O_RDWR)) < 3:
        pass
    os.close(opened)
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line *argv* (by default that of the process), and return the exit code.

    0: done. 1: done, but a check failed. 2: an error, which one line on stderr describes. 3: no device can
    run vkq. 130: the user interrupted the command.
    """
    _open_standard_streams()
    # Names of files and nodes may have characters that the terminal's encoding cannot represent.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        told = warnings.formatwarning
        try:
            warnings.formatwarning = lambda message, *_, **__: f"vkq: warning: {message}\n"
            options = _parsed(argv)
            refuse_overwriting(options)
            return int(options.run(options))
        finally:
            # Restore Python's format of warnings only if *argv* is given, that is, for a caller in this
            # process. The command keeps vkq's format, because writing caches at the exit may warn, too.
            if argv is not None:
                warnings.formatwarning = told
            sys.stdout.flush()  # if the pipe is closed, raise the error now, and not at the exit
    # The program that reads the pipe, such as `head`, has ended. Write the rest of the output to the null
    # device, so that Python reports no error at the exit.
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("vkq: interrupted", file=sys.stderr)
        return 130
    except (VkqError, OSError, MemoryError, argparse.ArgumentTypeError) as error:
        print(f"vkq: error: {_said(error) or 'out of memory; use smaller sizes'}", file=sys.stderr)
        return 3 if isinstance(error, NoDeviceError) else 2


def _said(error: BaseException) -> str:
    """Return the message of an error. For an OSError with a file: the file's name and the reason, without the
    error number."""
    if (
        isinstance(error, OSError)
        and error.strerror
        and isinstance(error.filename, str | bytes | os.PathLike)
    ):
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)
