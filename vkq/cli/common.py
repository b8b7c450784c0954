"""Functions that the subcommands share: parsers with examples, types of options, texts, and progress on a
terminal."""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import re
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from vkq.errors import ArgumentError, did_you_mean

Item = TypeVar("Item")
# A number followed by a word, such as its unit.
_NUMBER = re.compile(r"(?<!\S)(\[?\d[\d.,]*(?<!,)\]?) (?=\S)")
Parsers = Any  # argparse keeps the type of add_subparsers() private


class Parser(argparse.ArgumentParser):
    """argparse's parser. The error for a wrong choice also names the most similar choice."""

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            message += did_you_mean(match[1], re.findall(r"[\w.-]+", match[2]))
        super().error(message)

    def option_names(self) -> list[str]:
        """Return all long options (``--...``) that the help contains."""
        return sorted(set(re.findall(r"--[a-z][a-z-]*", self.format_help())))


class Help(argparse.HelpFormatter):
    """Help formatter: descriptions are wrapped at the terminal's width; examples keep their lines, so that
    users can copy them."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        prose, begin, examples = text.partition("examples:\n")
        told = super()._fill_text(prose, width, indent)
        return "\n\n".join(filter(None, [told, (begin + examples).rstrip()]))


def show_help(options: argparse.Namespace) -> int:
    """Print the help of a command that was called without a subcommand."""
    options.parser.print_help()
    return 0


def add_command(
    commands: Parsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    examples: Sequence[str],
) -> Parser:
    """Add a subcommand to *commands*. Its ``--help`` ends with the examples. *run*: the function that runs
    the subcommand and returns the exit code."""
    parser: Parser = commands.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=Help,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def integer_option(least: int, most: int = 2**31 - 1) -> Callable[[str], int]:
    """Return an argparse type (a function that converts a text): integers from *least* to *most*."""

    def convert(text: str) -> int:
        if not re.fullmatch("[+-]?[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a whole number from {least} to {most}")
        return int(text)

    return convert


def number(least: float, most: float = 1e6, above: bool = False) -> Callable[[str], float]:
    """Return an argparse type: numbers from *least* to *most*. *above*: exclude *least* itself."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not least <= value <= most or (above and value == least):
            rule = f"above {least:g} and at most" if above else f"from {least:g} to"
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a number {rule} {most:g}")
        return value

    return convert


def output_file(text: str) -> Path:
    """Return the path of a file to write (an argparse type). Raise ArgumentTypeError if the file cannot be
    written, so that a wrong name is reported before the work begins."""
    path = Path(text)
    if text == "-":
        raise argparse.ArgumentTypeError("'-': this is not written to standard output; name a file")
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text!r}: there is no folder {str(path.parent)!r}; make it first")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be written; choose another place")
    return path


def output(text: str) -> Path:
    """Return the path of a file to write, or of ``-`` for standard output (an argparse type)."""
    return Path(text) if text == "-" else output_file(text)


def refuse_overwriting(options: argparse.Namespace) -> None:
    """Raise ArgumentError if a file to write is also an input of the command: a value of another option, or
    the file in a value NAME=FILE."""
    writes = {one.dest for one in options.parser._actions if one.type in (output, output_file)}
    given = {name: value if isinstance(value, list) else [value] for name, value in vars(options).items()}
    texts = [str(x) for name in given.keys() - writes - {"argv"} for x in given[name]]
    names = [name for text in texts for name in (text, text.partition("=")[2])]
    read = {os.path.realpath(name) for name in names if os.path.isfile(name)}
    for path in [path for name in writes for path in given.get(name, []) if path]:
        if os.path.realpath(path) in read:
            raise ArgumentError(f"{path} is an input of this command, too; name another file to write")


def counted(count: int, what: str, plural: str = "") -> str:
    """Return a count with its noun in singular or plural: ``1 path``, ``2 paths``."""
    return f"{count} {what if count == 1 else plural or what + 's'}"


def columns() -> int | None:
    """Return the width of the terminal; None if standard output is a file or a pipe, where lines may have any
    length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def folded(line: str, indent: int, width: int | None = None) -> str:
    """Wrap a line of prose at *width* (by default the terminal's width). Continuation lines are indented, and
    a number stays on one line with the word after it. For a file or a pipe, the line is not wrapped."""
    width = width or columns()
    if width is None:
        return line
    return textwrap.fill(
        _NUMBER.sub("\\1\0", line), max(width, indent + 30), subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False, replace_whitespace=False,
    ).replace("\0", " ")  # fmt: skip


def device_argument(parser: argparse.ArgumentParser) -> None:
    """Add the option ``--device``, whose value is an argument of `vkq.Device`."""
    parser.add_argument(
        "--device",
        metavar="WHICH",
        help="an index of `vkq devices`, or a part of a name (default: VKQ_DEVICE, else the best)",
    )


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield the items, and show progress on stderr if it is a terminal: after 2 s, a line with *what*, the
    number of the item, and *total* (0: not known). The line disappears at the end."""
    start, shown = time.monotonic(), False
    try:
        for number, item in enumerate(items, 1):
            if sys.stderr.isatty() and time.monotonic() - start > 2:
                shown = True
                print(
                    f"\r\x1b[K{what} {number}{f'/{total}' if total else ''}",
                    end="",
                    file=sys.stderr,
                    flush=True,
                )
            yield item
    finally:
        if shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Context manager: yield a function that shows a text in one line on stderr, if stderr is a terminal. The
    line disappears at the end."""
    shown = False

    def show(what: str) -> None:
        nonlocal shown
        if sys.stderr.isatty():
            width = shutil.get_terminal_size().columns - 1
            shown = bool(what)
            print(f"\r\x1b[K{what[:width]}", end="", file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown:
            show("")
