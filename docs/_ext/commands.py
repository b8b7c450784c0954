"""``vkq-help``: a directive that shows the help of every command of vkq."""

from __future__ import annotations

import contextlib
import io
import os
import re
from typing import Any

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

from vkq.cli import main


def help_of(*words: str) -> str:
    """Return the output of ``vkq WORDS --help`` in 80 columns."""
    text = io.StringIO()
    os.environ["COLUMNS"] = "80"
    with contextlib.redirect_stdout(text), contextlib.suppress(SystemExit):
        main([*words, "--help"])
    return text.getvalue()


def commands(*words: str) -> list[tuple[str, ...]]:
    """Return the subcommands that a command's help lists."""
    listed = help_of(*words).partition("COMMAND\n")[2]
    return [(*words, name) for name in re.findall(r"^    ([a-z][a-z-]+)(?: |$)", listed, re.MULTILINE)]


class Help(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        found: list[nodes.Node] = []
        for words in [(), *commands(), *commands("shaders")]:
            title = " ".join(("vkq", *words))
            section = nodes.section(ids=[nodes.make_id(title)], names=[title])
            section += nodes.title(title, title)
            block = nodes.literal_block(help_of(*words), help_of(*words))
            block["language"] = "none"
            section += block
            found.append(section)
        return found


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("vkq-help", Help)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
