"""Converts the code blocks of a page of docs/ to one shell script.

The script has every line of ``sh`` blocks, the lines after ``$ `` of ``console`` blocks, the steps after
``run:`` of ``yaml`` blocks, and the commands that Docker would run for a ``dockerfile``. All ``python``
blocks of a page are one program, which runs at the position of the last block. A comment before a block,
``<!-- not typed: why -->``, excludes the block; readers of the page do not see comments.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from textwrap import dedent

TYPED = ("sh", "console", "python", "yaml", "dockerfile")
BLOCK = re.compile(
    r"(?:^<!-- not typed: (?P<why>[^>]+?) -->\n\n?)?^```(?P<kind>[a-z]+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)
NOT_FOLLOWED = re.compile(r"\*\*Not followed by `make guides`\*\*[:,] \S")


@dataclass(frozen=True)
class Block:
    """A block of code of a page. *why*: the reason why its commands are not run, or None."""

    kind: str
    text: str
    why: str | None = None


def blocks(text: str) -> list[Block]:
    """Return the blocks of a page in languages with commands."""
    found = [Block(m["kind"], m["text"], m["why"]) for m in BLOCK.finditer(text)]
    return [block for block in found if block.kind in TYPED]


def says_why_not(text: str) -> bool:
    """Return True if the line below the title states that the page's commands are not run, and why."""
    title, first, *_ = [line for line in text.splitlines() if line]
    return title.startswith("# ") and NOT_FOLLOWED.match(first) is not None


def script(text: str) -> str:
    """Return the commands of a page, from its first line to its last, as one script."""
    typed = [block for block in blocks(text) if block.why is None]
    programs = [index for index, block in enumerate(typed) if block.kind == "python"]
    parts = []
    for index, block in enumerate(typed):
        if block.kind != "python":
            parts.append(COMMANDS[block.kind](block.text))
        elif index == programs[-1]:
            parts.append(_program([typed[i].text for i in programs]))
    return "\n".join(parts)


def base(text: str) -> str | None:
    """Return the base image of a page's Dockerfile, or None."""
    found = re.search(r"^FROM (\S+)$", text, re.MULTILINE)
    return found[1] if found else None


def _program(texts: list[str]) -> str:
    return "python - <<'END_OF_PROGRAM'\n" + "".join(texts) + "END_OF_PROGRAM\n"


def _shell(text: str) -> str:
    return text


def _console(text: str) -> str:
    return "".join(line[2:] + "\n" for line in text.splitlines() if line.startswith("$ "))


def _steps(text: str) -> str:
    """Return the commands of the ``- run:`` keys: on the same line, or indented below it after ``|``."""
    found = re.findall(r"^( *)- run: (\|\n(?:\1  +.*\n)+|.*\n)", text, re.MULTILINE)
    return "".join(dedent(step.removeprefix("|\n")) for _, step in found)


def _image(text: str) -> str:
    """Return the shell commands of a Dockerfile. The script starts in the folder that has the files for
    COPY."""
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    made = []
    for word, _, rest in (line.partition(" ") for line in lines if line.strip()):
        match word:
            case "FROM":
                continue
            case "RUN":
                made.append(rest)
            case "COPY":
                made.append(f"cp -r {rest}")
            case "ENV":
                made.append(f"export {rest}")
            case "WORKDIR":
                made.append(f"mkdir -p {rest} && cd {rest}")
            case "CMD":
                made.append(shlex.join(re.findall(r'"([^"]*)"', rest)))
            case _:
                raise ValueError(f"a Dockerfile's {word} is not known here")
    return "".join(line + "\n" for line in made)


COMMANDS = {"sh": _shell, "console": _console, "yaml": _steps, "dockerfile": _image}
