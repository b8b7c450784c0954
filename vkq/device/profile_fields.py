"""Read the values of fields in profiles.yaml, by the annotations of the fields in
`vkq.device.profiles.Profile`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any

from ..yamlfile import Node

Registers = str  # one of REGISTERS: how many registers kernels may use (see profiles.yaml)
FEW, SOME, ENOUGH, PLENTY = REGISTERS = ("few", "some", "enough", "plenty")


def value_of(annotation: str, node: Node) -> Any:
    """Return the value of a field with this annotation. Raises SpecError with the line if the type is
    wrong."""
    return READERS[annotation](node)


def _numbers(named: Iterable[tuple[str, Node]]) -> Mapping[str, float]:
    return MappingProxyType({name: float(number.scalar()) for name, number in named})


def _sizes(node: Node) -> frozenset[tuple[int, ...]]:
    pairs = [tuple(number.int() for number in pair.sequence()) for pair in node.sequence()]
    if any(len(pair) != 2 for pair in pairs):
        raise node.error("a workgroup size must have two numbers here: x and y")
    return frozenset(pairs)


def _registers(node: Node) -> Registers:
    if node.str() not in REGISTERS:
        raise node.error(f"registers is {node.str()}; it must be one of {', '.join(REGISTERS)}")
    return node.str()


def _pairs(node: Node) -> tuple[tuple[int, int], ...] | None:
    if node.node.value == "none":
        return None
    return tuple((int(number), one.int()) for number, one in node.items())


READERS: dict[str, Callable[[Node], Any]] = {
    "bool": Node.bool,
    "int": Node.int,
    "str": Node.str,
    "Registers": _registers,
    "int | None": lambda node: None if node.scalar() == "rows" else node.int(),
    "str | None": lambda node: None if node.str() == "none" else node.str(),
    "frozenset[tuple[int, int]]": _sizes,
    "Mapping[str, int]": lambda node: MappingProxyType({name: one.int() for name, one in node.items()}),
    "Mapping[int, int]": lambda node: MappingProxyType({int(name): one.int() for name, one in node.items()}),
    "tuple[tuple[int, int], ...] | None": _pairs,
    "tuple[tuple[str, float], ...]": lambda node: tuple(_numbers(node.items()).items()),
}
