"""Read the cases of a benchmark. A case is given as the name of a problem, as a sweep over sizes, or in a
list from the folder ``benchmarks``.

linear[M=1,K=512,N=512]              one case
linear[M=1,8,64,K=512,N=512]         three cases: M is a list
linear[M=64:1024:64,K=512,N=512]     sixteen cases: M is first:last:step, both ends included
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from vkq.check.cases import CASES, SCALES, SCHEMES, TRANSPOSED, Case
from vkq.errors import ArgumentError, did_you_mean
from vkq.problem.mover import TAKES, Mover, mover
from vkq.problem.names import MOST_LETTERS, Problem, check_work, parse
from vkq.yamlfile import Node, load

MAX_CASES = 10_000  # maximum number of cases of one sweep, or of one list and all lists that it includes
MAX_LISTS = 100  # maximum number of lists that a list may include
MAX_DEPTH = 16  # maximum number of levels of includes
# Lists without a file, for the ``include`` of other lists: the cases of `vkq check` and of the tests.
CHECKED: Mapping[str, list[Case]] = {
    f"checked_{op}": [case for case in (*CASES, *TRANSPOSED) if case.op == op and case.problem.macs]
    for op in ("linear", "conv2d", "conv_transpose2d")
}

_NAME = re.compile(r"(\w+)\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,18}):([0-9]{1,18})(?::([0-9]{1,18}))?")


def expand(text: str) -> list[Problem | Mover]:
    """Return the problems that a name stands for. Each size in the name may be a list or a range. The last
    size varies fastest.

    >>> [p.name for p in expand("linear[M=1,8,K=16:32:16,N=4]")][1:3]
    ['linear[M=1,K=32,N=4]', 'linear[M=8,K=16,N=4]']
    """
    if len(text) > MOST_LETTERS:
        raise ArgumentError(f"{text[:60]!r}... has {len(text)} letters; a sweep has at most {MOST_LETTERS}")
    match = _NAME.fullmatch(text.strip())
    if match is None:
        parse(text)  # raises an error that explains the form of names
        raise ArgumentError(f"{text!r} is not a problem with sizes in brackets")
    keys: list[str] = []
    values: list[list[str]] = []
    for token in match[2].split(","):
        key, equals, value = token.strip().partition("=")
        if equals:
            keys.append(key)
            values.append([])
        elif not values:
            raise ArgumentError(
                f"{text!r}: {token!r} comes before any size; write NAME=value, as in linear[M=1,8,K=64,N=32]"
            )
        values[-1] += _numbers(text, value if equals else token.strip())
    count = 1
    for each in values:
        count *= len(each)
    if count > MAX_CASES:
        raise ArgumentError(
            f"{text!r} gives {count} cases; at most {MAX_CASES} are allowed: use larger steps"
        )
    read = mover if match[1] in TAKES else parse
    return [
        read(f"{match[1]}[{','.join(map('='.join, zip(keys, one, strict=True)))}]")
        for one in itertools.product(*values)
    ]


def _numbers(text: str, value: str) -> list[str]:
    match = _RANGE.fullmatch(value)
    if match is None:
        return [value]
    first, last, step = int(match[1]), int(match[2]), int(match[3] or 1)
    if step < 1 or last < first:
        raise ArgumentError(
            f"{text!r}: the range {value} is empty; write first:last:step with last >= first and step >= 1"
        )
    if (last - first) // step >= MAX_CASES:
        raise ArgumentError(f"{text!r}: the range {value} has more than {MAX_CASES} sizes; use a larger step")
    return [str(n) for n in range(first, last + 1, step)]


def swept(cases: Sequence[Case]) -> str | None:
    """Return the name of the size in which the cases differ (``M``, ``IC``, ...). Return None if no size
    differs or several sizes differ."""
    sizes = [dict(item.split("=") for item in case.name.partition("[")[2][:-1].split(",")) for case in cases]
    if len({case.op for case in cases}) != 1:
        return None
    keys = {key for one in sizes for key in one}
    differing = [key for key in keys if len({one.get(key) for one in sizes}) > 1]
    return differing[0] if len(differing) == 1 else None


def benchmarks_folder() -> Path:
    """Return the folder of the case lists: in the package if it was installed from a wheel, else in the
    checkout."""
    package = Path(__file__).parent.parent
    packaged = package / "benchmarks"
    return packaged if packaged.is_dir() else package.parent / "benchmarks"


def lists(folder: Path | None = None) -> dict[str, str]:
    """Return a dict from the name of each case list in the folder to its summary."""
    return {
        path.stem: _top(path)["summary"].str()
        for path in sorted((folder or benchmarks_folder()).glob("*.yaml"))
    }


def load_list(path: Path) -> list[Case]:
    """Return the cases of a YAML file in the file's order, without duplicates.

    Keys of the file:

    - ``summary``;
    - ``network``: the network's name, if the cases are all layers of one network (see `networks`);
    - ``include``: the names of other lists, in the same folder or in `CHECKED`;
    - ``cases``.

    Keys of a case:

    - ``case``: a name whose sizes may be swept;
    - ``reason``;
    - ``times``: how often the network has this layer (default 1);
    - ``schemes``, ``scales``, ``methods``: lists, of which every combination is measured. A list that is not
      given has one default value.

    Raises SpecError with file and line.
    """
    found: list[Case] = []
    _load(path, (), set(), found)
    return list(dict.fromkeys(found))


def _load(path: Path, including: tuple[str, ...], seen: set[str], found: list[Case]) -> None:
    """Append the cases of a list, and of the lists that it includes, to *found*. *including*: the names of
    the lists that led to this list. *seen*: the names of all lists read so far; each list is read only
    once."""
    seen.add(path.stem)
    top = _top(path)
    for node in top["include"].sequence() if "include" in top else []:
        name = node.str()
        if name in CHECKED:
            found += CHECKED[name]
            continue
        inside = re.fullmatch(r"[\w-]{1,100}", name)  # the name must not be a path to another folder
        if not inside or name in (*including, path.stem) or not (path.parent / f"{name}.yaml").is_file():
            raise node.error(
                f"cannot include '{name}': no such list in {path.parent}, or it includes itself."
            )
        if len(seen) > MAX_LISTS or len(including) > MAX_DEPTH:
            raise node.error(
                f"more than {MAX_LISTS} lists are included, or they are nested more than {MAX_DEPTH} deep."
            )
        if name not in seen:
            _load(path.parent / f"{name}.yaml", (*including, path.stem), seen, found)
    for node in top["cases"].sequence() if "cases" in top else []:
        found += _cases(node)
        if len(found) > MAX_CASES:
            raise node.error(f"the list has more than {MAX_CASES} cases; use larger steps, or several lists.")


def _top(path: Path) -> dict[str, Node]:
    return load(path).mapping({"summary"}, {"include", "cases", "network"})


def _cases(node: Node) -> list[Case]:
    keys = node.mapping({"case", "reason"}, {"schemes", "scales", "methods", "times"})
    try:
        problems = expand(keys["case"].str())
    except ArgumentError as error:
        raise keys["case"].error(str(error)) from error
    schemes = _choices(keys.get("schemes"), SCHEMES)
    scales = _choices(keys.get("scales"), SCALES)
    methods = (
        list(dict.fromkeys(each.str() for each in keys["methods"].sequence()))
        if "methods" in keys
        else [None]
    )
    count = len(problems) * len(schemes) * len(scales) * len(methods)
    if count > MAX_CASES:
        raise keys["case"].error(
            f"{count} cases are given; at most {MAX_CASES} are allowed: use larger steps."
        )
    reason, times = keys["reason"].str(), keys["times"].int() if "times" in keys else 1
    # Problems vary faster than schemes: neighbouring cases then share weights, which are slow to generate.
    return [
        Case(p, s, c, m, reason, times) for s in schemes for c in scales for p in problems for m in methods
    ]


def _choices(node: Node | None, known: Sequence[str]) -> list[str]:
    if node is None:
        return [known[0]]
    for each in node.sequence():
        if each.str() not in known:
            raise each.error(f"'{each.str()}' is not one of {', '.join(known)}.")
    return list(dict.fromkeys(each.str() for each in node.sequence()))


def select(
    words: Sequence[str], scheme: str | None = None, scale: str | None = None, method: str | None = None
) -> list[Case]:
    """Return the cases that the command line names. Each word is a problem, the name of a list, or the path
    of a YAML file.

    *scheme*, *scale* and *method*, if not None, replace those of every case. Raises ArgumentError if a list
    does not exist; the message names the existing lists.
    """
    found = [case for word in words for case in _named(word)]
    chosen = list(dict.fromkeys(changed(case, scheme, scale, method) for case in found))
    if len(chosen) > MAX_CASES:
        raise ArgumentError(f"{len(chosen)} cases are selected; at most {MAX_CASES} are allowed")
    for case in chosen:
        check_work(case.problem)
    return chosen


def networks(words: Sequence[str]) -> dict[str, list[Case]]:
    """Return {name of the network: its layers} for each of the *words* that names the case list of a whole
    network."""
    tops = {path: _top(path) for word in words if (path := _list_path(word))}
    return {top["network"].str(): load_list(path) for path, top in tops.items() if "network" in top}


def changed(case: Case, scheme: str | None, scale: str | None, method: str | None) -> Case:
    """Return the case with its scheme, scale and method replaced by the arguments that are not None."""
    return replace(
        case, scheme=scheme or case.scheme, scale=scale or case.scale, method=method or case.method
    )


def _named(word: str) -> list[Case]:
    if "[" in word:
        return [Case(problem) for problem in expand(word)]
    path = _list_path(word)
    if path is None:
        names = sorted(path.stem for path in benchmarks_folder().glob("*.yaml"))
        known = ", ".join(names) or f"none in {benchmarks_folder()}"
        raise ArgumentError(
            f"{word!r} is neither a problem such as 'linear[M=1,K=64,N=32]' nor a list; the lists are:"
            f" {known}{did_you_mean(word, names)}"
        )
    return load_list(path)


def _list_path(word: str) -> Path | None:
    """Return the file of a list. *word*: the path of a YAML file, or the name of a list in the folder
    ``benchmarks``. Return None if there is no list of this name."""
    if word.endswith((".yaml", ".yml")):
        return Path(word)
    path = benchmarks_folder() / f"{word}.yaml"
    return path if re.fullmatch(r"[\w-]{1,100}", word) and path.is_file() else None
