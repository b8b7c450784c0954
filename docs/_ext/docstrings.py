"""Convert docstrings to reStructuredText. Indented lines are formulas or tables and stay as they are. Stars
and bars in prose are escaped (``2**-126``)."""

from __future__ import annotations

import re
from typing import Any

SECTION = re.compile(r"(Args|Returns|Raises|Yields|Attributes):$")
CODE = re.compile(r"(``.*?``|`[^`]+`|\*[A-Za-z_]\w*\*)")  # code and *emphasis*, which are not escaped
LITERAL = re.compile(r"``?([^`]+)``?")


def escaped(line: str) -> str:
    """Escape the characters of a line's prose that have a meaning in reStructuredText."""
    parts = CODE.split(line)
    return "".join(
        part if number % 2 else re.sub(r"([*|\\])|_(?=\W|$)", lambda m: "\\" + m[0], part)
        for number, part in enumerate(parts)
    )


def indent_of(line: str) -> int:
    return len(line) - len(line.lstrip())


def converted(lines: list[str]) -> list[str]:
    """Return a docstring without its own indentation, ready for reStructuredText."""
    out: list[str] = []
    section = literal = example = table = False
    for line in lines:
        if not line.strip():
            out.append("")
            example = table = False
            continue
        indent = indent_of(line)
        if literal and not indent:
            literal = False
            if out[-1]:
                out.append("")
        if not indent:
            section = bool(SECTION.match(line))
        if line.lstrip().startswith(">>>"):
            if not example and out and out[-1]:
                out.append("")
            example = True
        if example or (section and indent_of(line) <= 0):
            out.append(line)
        elif line.startswith("|") or table:
            if not table:
                out += ([""] if out and out[-1] else []) + ["::", ""]
            table = True
            out.append("    " + LITERAL.sub(r"\1", line))
        elif indent and not section:
            if not literal:
                out += ([""] if out and out[-1] else []) + ["::", ""]
            literal = True
            out.append(LITERAL.sub(r"\1", line))
        else:
            out.append(escaped(line))
    return out


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    lines[:] = converted(lines)


def setup(app: Any) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", process, priority=400)  # runs before napoleon reads the sections
    return {"parallel_read_safe": True, "parallel_write_safe": True}
