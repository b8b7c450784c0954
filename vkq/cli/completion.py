"""``vkq completion``: print a script with which a shell completes vkq's commands, options and values."""

from __future__ import annotations

import argparse

from vkq.cli.common import Parsers, add_command
from vkq.errors import ArgumentError

SHELLS = ("bash", "zsh", "tcsh")


def register(commands: Parsers) -> None:
    parser = add_command(
        commands,
        "completion",
        run,
        "print a shell's completion script (made by the package shtab: pip install 'vkq[completion]')",
        [
            "vkq completion bash > ~/.local/share/bash-completion/completions/vkq",
            "vkq completion zsh > ~/.zsh/completions/_vkq    # a folder of $fpath",
        ],
    )
    parser.add_argument("shell", choices=SHELLS)


def run(options: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        raise ArgumentError(
            "vkq completion needs the package shtab; install it: pip install 'vkq[completion]'"
        ) from None
    print(shtab.complete(options.whole, options.shell))
    return 0
