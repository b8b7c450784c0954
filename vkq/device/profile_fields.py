"""How a field of profiles.yaml is read: by the text of its annotation in `vkq.device.profiles.Profile`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..yamlfile import Node

COSTS = {
    "matrix_conv_costs": {"step", "chunk", "strided", "lone", "end"},
    "half_pixel_costs": {"float32", "float16", "straight"},
    "gathered_before_cycles": {"once", "f16", "bf16"},
    "integer_costs": {"tiles", "multiply", "chunk", "part"},
}


def value_of(field: str, annotation: str, node: Node) -> Any:
    """The value of a field. Raises SpecError, with its line, where it is not what the annotation says."""
    if field in COSTS:
        return _numbers(node.mapping(COSTS[field]).items())
    return READERS[annotation](node)


def _numbers(named: Iterable[tuple[str, Node]]) -> Mapping[str, float]:
    return MappingProxyType({name: float(number.scalar()) for name, number in named})


def _sizes(node: Node) -> frozenset[tuple[int, ...]]:
    pairs = [tuple(number.int() for number in pair.sequence()) for pair in node.sequence()]
    if any(len(pair) != 2 for pair in pairs):
        raise node.error("a workgroup size has two numbers here: x and y")
    return frozenset(pairs)


def _cycles(node: Node, count: int) -> tuple[int, ...]:
    found = tuple(number.int() for number in node.sequence())
    if len(found) != count:
        raise node.error(f"{count} numbers of cycles stand here (see the head of this file)")
    return found


READERS: dict[str, Callable[[Node], Any]] = {
    "bool": Node.bool,
    "int": Node.int,
    "str": Node.str,
    "int | None": lambda node: None if node.scalar() == "rows" else node.int(),
    "str | None": lambda node: None if node.str() == "none" else node.str(),
    "frozenset[tuple[int, int]]": _sizes,
    "tuple[int, int, int]": lambda node: _cycles(node, 3),
    "Mapping[str, int]": lambda node: MappingProxyType({name: one.int() for name, one in node.items()}),
    "Mapping[int, int]": lambda node: MappingProxyType({int(name): one.int() for name, one in node.items()}),
    "Mapping[str, tuple[int, int]]": lambda node: MappingProxyType(
        {name: _cycles(pair, 2) for name, pair in node.items()}
    ),
    "Mapping[str, tuple[int, int, int]]": lambda node: MappingProxyType(
        {name: _cycles(three, 3) for name, three in node.items()}
    ),
    "Mapping[str, tuple[int, int, int, int]]": lambda node: MappingProxyType(
        {name: _cycles(four, 4) for name, four in node.items()}
    ),
    "tuple[tuple[int, int], ...]": lambda node: tuple((int(n), one.int()) for n, one in node.items()),
    "tuple[tuple[str, float], ...]": lambda node: tuple(_numbers(node.items()).items()),
}
