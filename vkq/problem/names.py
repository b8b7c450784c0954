"""Problems by name: ``parse`` is the inverse of ``.name``. The name is also test id, benchmark row and
filter."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from vkq.errors import ArgumentError, did_you_mean
from vkq.problem.conv2d import Conv2dProblem
from vkq.problem.linear import LinearProblem
from vkq.problem.options import conv_padding, pair
from vkq.problem.transposed import TransposedConv2dProblem

Problem = LinearProblem | Conv2dProblem | TransposedConv2dProblem


class Sized(Protocol):
    """A problem that is measured or checked."""

    @property
    def name(self) -> str: ...
    @property
    def macs(self) -> int: ...
    def bytes(self) -> int: ...


_NUMBERS = r"\w+=[0-9]{1,18}(?:x[0-9]{1,18}){0,3}"
_NAME = re.compile(rf"(\w+)\[({_NUMBERS}(?:,{_NUMBERS})*)\]")
MOST_LETTERS = 500  # maximum number of letters of a problem's name
MOST_BYTES = 1 << 33  # maximum bytes of x, weight and y together, for a problem whose operands are generated
MOST_MACS = 1 << 42  # maximum multiply-adds of a compared problem: minutes on the slowest device
_IMAGE = ("N", "IC", "H", "W", "OC", "KH", "KW")
Takes = Mapping[str, tuple[Sequence[str], Sequence[str]]]
# {operation: (its sizes, its options)}. Options may be in any order and may be omitted.
_TAKES: Takes = {
    "linear": (("M", "K", "N"), ()),
    "conv2d": (_IMAGE, ("stride", "padding", "dilation", "groups")),
    "conv_transpose2d": (_IMAGE, ("stride", "padding", "output_padding", "dilation", "groups")),
}
_EXAMPLE = "conv2d[N=1,IC=3,H=8,W=8,OC=8,KH=3,KW=3,stride=2,padding=1]"


def parse(name: str) -> Problem:
    """Return the problem with this name; the inverse of ``.name``.

    >>> parse("linear[M=1,K=64,N=32]")
    LinearProblem(m=1, n=32, k=64, lead=(1,))
    >>> parse("conv2d[N=1,IC=3,H=8,W=9,OC=4,KH=3,KW=3,stride=2x1,padding=1]").y_shape
    (1, 4, 4, 9)
    >>> parse("conv_transpose2d[N=1,IC=4,H=5,W=6,OC=2,KH=3,KW=3,stride=2]").y_shape
    (1, 2, 11, 13)
    """
    op, sizes, given = read(name, _TAKES)
    if op == "linear":
        m, k, n = sizes
        return LinearProblem(m=m, k=k, n=n)
    n, ic, h, w, oc, kh, kw = sizes
    if op == "conv_transpose2d":
        weight = (ic, oc // max(1, given.get("groups", 1)), kh, kw)
        return TransposedConv2dProblem.of((n, ic, h, w), weight, **given)
    stride, dilation = (pair("conv2d", key, given.get(key, 1), 1) for key in ("stride", "dilation"))
    padding = conv_padding("conv2d", given.get("padding", 0), (kh, kw), stride, dilation)
    return Conv2dProblem(n, ic, h, w, oc, kh, kw, stride, padding, dilation, given.get("groups", 1))


def check_work(problem: Sized) -> None:
    """Raise an error, before operands are generated, if a problem is too large for a comparison: operands
    and result have more than `MOST_BYTES`, or there are more than `MOST_MACS` multiply-adds."""
    if problem.bytes() > MOST_BYTES or problem.macs > MOST_MACS:
        raise ArgumentError(
            f"{problem.name} has {problem.bytes()} bytes and {problem.macs} multiply-adds; at most"
            f" {MOST_BYTES} and {MOST_MACS} can be measured or checked: use smaller sizes."
        )


def _check_length(name: str) -> None:
    if len(name) > MOST_LETTERS:
        raise ArgumentError(
            f"{name[:60]!r}... has {len(name)} letters; the name of a problem has at most {MOST_LETTERS}."
        )


def read(name: str, takes: Takes) -> tuple[str, list[int], dict[str, Any]]:
    """Return the operation of a name, its sizes in order, and its options (numbers or tuples). Raises
    ArgumentError for an operation or a size that is not in *takes*."""
    _check_length(name)
    match = _NAME.fullmatch(name)
    if match is None or match[1] not in takes:
        kind = name.partition("[")[0]
        near = did_you_mean(kind, takes) if kind not in takes else ""
        raise ArgumentError(f"{name!r} is not a problem; write linear[M=1,K=64,N=32] or {_EXAMPLE}{near}")
    sizes, options = takes[match[1]]
    pairs = [item.split("=") for item in match[2].split(",")]
    values = {key: tuple(int(number) for number in text.split("x")) for key, text in pairs}
    missing, unknown = [key for key in sizes if key not in values], sorted(set(values) - {*sizes, *options})
    plural = [key for key in (*sizes, "groups") if len(values.get(key, (0,))) != 1]
    if len(values) != len(pairs) or missing or unknown or plural:
        twice = sorted({key for key, _ in pairs if [k for k, _ in pairs].count(key) > 1})
        said = {"missing": missing, "unknown": unknown, "not a single number": plural, "written twice": twice}
        wrong = "; ".join(f"{what}: {', '.join(keys)}" for what, keys in said.items() if keys)
        raise ArgumentError(f"{name!r}: {wrong}; {match[1]} takes {', '.join((*sizes, *options))}.")
    given = {key: values[key] for key in options if key in values}
    single = {key: value[0] if len(value) == 1 else value for key, value in given.items()}
    return match[1], [values[key][0] for key in sizes], single
