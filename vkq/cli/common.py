"""Functions shared by the subcommands: parsers with examples, and progress on a terminal."""

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

from vkq.errors import did_you_mean

Item = TypeVar("Item")
# A number that is followed by its unit or by a noun.
_NUMBER = re.compile(r"(?<!\S)(\[?\d[\d.,]*(?<!,)\]?) (?=\S)")
Parsers = Any  # argparse keeps the type of add_subparsers() private


class Parser(argparse.ArgumentParser):
    """argparse's parser, with errors that name the likely intended option."""

    def error(self, message: str) -> NoReturn:
        if match := re.search(r"invalid choice: '([^']*)' \(choose from (.*)\)", message):
            message += did_you_mean(match[1], re.findall(r"[\w.-]+", match[2]))
        super().error(message)

    def option_names(self) -> list[str]:
        """Return the long options in the help."""
        return sorted(set(re.findall(r"--[a-z][a-z-]*", self.format_help())))


class Help(argparse.HelpFormatter):
    """Wraps descriptions to the terminal's width, and keeps examples as lines to copy."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        prose, begin, examples = text.partition("examples:\n")
        told = super()._fill_text(prose, width, indent)
        return "\n\n".join(filter(None, [told, (begin + examples).rstrip()]))


def show_help(options: argparse.Namespace) -> int:
    """Show the help of a command that was called without one of its subcommands."""
    options.parser.print_help()
    return 0


def add_command(
    commands: Parsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    examples: Sequence[str],
) -> Parser:
    """Add a subcommand whose ``--help`` ends with examples."""
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
    """Return the argparse type of integers from *least* to *most*."""

    def convert(text: str) -> int:
        if not re.fullmatch("[+-]?[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text[:60]!r} is not a whole number from {least} to {most}")
        return int(text)

    return convert


def number(least: float, most: float = 1e6, above: bool = False) -> Callable[[str], float]:
    """Return the argparse type of numbers from *least* (excluded if *above*) to *most*."""

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
    """Return the file that an option names for writing. Raise ArgumentTypeError, before the work begins, if
    the file cannot be written."""
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
    """Return the file that an option names for writing, or ``-`` for standard output."""
    return Path(text) if text == "-" else output_file(text)


def counted(count: int, what: str, plural: str = "") -> str:
    """Return a count with its noun: ``1 path``, ``2 paths``."""
    return f"{count} {what if count == 1 else plural or what + 's'}"


def columns() -> int | None:
    """Return the terminal's columns; None for a file or a pipe, whose lines may have any length."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def folded(line: str, indent: int, width: int | None = None) -> str:
    """Wrap a line of prose to the terminal's width, with continuation lines indented; unchanged in a file or
    pipe. A number and the word after it are not separated."""
    width = width or columns()
    if width is None:
        return line
    return textwrap.fill(
        _NUMBER.sub("\\1\0", line), max(width, indent + 30), subsequent_indent=" " * indent,
        break_long_words=False, break_on_hyphens=False, replace_whitespace=False,
    ).replace("\0", " ")  # fmt: skip


def device_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--device``, as in `vkq.Device`."""
    parser.add_argument(
        "--device",
        metavar="WHICH",
        help="an index of `vkq devices`, or a part of a name (default: VKQ_DEVICE, else the best)",
    )


def progress(items: Iterable[Item], total: int, what: str) -> Iterator[Item]:
    """Yield the items. On a terminal, work longer than 2 s shows a progress line on stderr: *what*, and how
    many of *total* items are done. The line disappears at the end."""
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
    """Context manager: yield a function that shows the current work in one line on stderr, only on a
    terminal; the line disappears at the end."""
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
