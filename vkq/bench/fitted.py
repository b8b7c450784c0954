"""Shorten names and lines until they fit into a terminal."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Sequence


def shortened(name: str, letters: int) -> str:
    """Return the name. If it has more than *letters* letters, ``..`` replaces its middle; the start (the
    operator) and the end (the options) remain."""
    if len(name) <= letters:
        return name
    tail = (letters - 2) // 2
    return f"{name[: letters - 2 - tail]}..{name[-tail:]}"


def clipped(line: str, columns: int | None) -> str:
    """Return the line. If it is longer than *columns*, cut it between words, but not inside a shape, and
    append ``..``."""
    if columns is None or len(line) <= columns:
        return line
    ends = [found.start() for found in re.finditer(r" (?!\d)", line) if found.start() <= columns - 3]
    return (line[: ends[-1]] if ends else line[: columns - 3]).rstrip(" ->+,:") + " .."


def shown_names(names: Sequence[str], letters: int) -> dict[str, str]:
    """Return a dict from each name that is longer than *letters* to a shorter name.

    The shorter name omits the sizes that all names of the same operator share:
    ``linear[M=1,K=4096,N=4096]`` and ``linear[M=8,K=4096,N=4096]`` become ``linear[M=1,..]`` and
    ``linear[M=8,..]``.
    """
    kinds: dict[str, list[list[str]]] = {}
    for name in dict.fromkeys(names):
        operator, sizes, _ = _parts(name)
        kinds.setdefault(operator, []).append(sizes)
    shown = {}
    for name in names:
        operator, sizes, rest = _parts(name)
        if len(name) <= letters or not sizes:
            continue
        others = kinds[operator]
        shared = set.intersection(*map(set, others)) if len(others) > 1 else set()
        own = [size for size in sizes if size not in shared]
        shown[name] = f"{operator}[{','.join([*own, *(['..'] if shared else [])])}]{rest}"
    return shown


def _parts(name: str) -> tuple[str, list[str], str]:
    """Split a name into (operator, sizes in the brackets, text after the brackets, such as ``/seed=3``)."""
    operator, _, rest = name.partition("[")
    sizes, bracket, behind = rest.rpartition("]")
    return (operator, sizes.split(","), behind) if bracket else (name, [], "")


def distinct(names: Sequence[str], letters: int) -> dict[str, str | None]:
    """Return a dict from each name to a short name of at most *letters* letters; None if two names share
    the short name."""
    shown = shown_names(names, letters)
    forms = {name: shortened(shown.get(name, name), letters) for name in names}
    counts = Counter(forms.values())
    return {name: form if counts[form] == 1 else None for name, form in forms.items()}


def above(label: str, columns: int | None) -> str:
    """Return a label as lines to print above the rows, wrapped at *columns*, the terminal's width."""
    return textwrap.fill(label, columns, subsequent_indent="  ", break_on_hyphens=False) if columns else label
