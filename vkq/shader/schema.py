"""Read the keys of a shader's YAML: names, lists of named entries, types, files, expressions. A violation
is a ``SpecError`` with its file and line."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

from vkq.errors import ArgumentError
from vkq.shader.expression import Expression
from vkq.shader.spec import Value, encode
from vkq.yamlfile import Node, load

MAX_ENTRIES = 64  # maximum entries of a list or mapping of a description, such as bindings or rules
LOWER = re.compile(r"[a-z0-9_]+")
GLSL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

Entry = TypeVar("Entry")


def type_of(node: Node, types: tuple[str, ...]) -> str:
    if node.str() not in types:
        raise node.error(f"the type is '{node.str()}'; it must be one of: {', '.join(types)}.")
    return node.str()


def named(
    node: Node,
    required: set[str],
    optional: set[str] = frozenset(),  # type: ignore[assignment]
) -> Iterator[tuple[str, dict[str, Node]]]:
    """Yield the entries of a list of mappings that each have a unique ``name``."""
    seen: set[str] = set()
    for entry in bounded(node.sequence(), node):
        keys = entry.mapping(required | {"name"}, optional)
        name = keys["name"].str()
        check_name(keys["name"], name, GLSL_NAME)
        if name in seen:
            raise keys["name"].error(f"the name '{name}' appears a second time; use another.")
        seen.add(name)
        yield name, keys


def items(node: Node | None) -> list[tuple[str, Node]]:
    return bounded(node.items() if node else [], node)


def bounded(entries: list[Entry], node: Node | None) -> list[Entry]:
    """Return the entries. Raises SpecError for more than `MAX_ENTRIES`."""
    if node and len(entries) > MAX_ENTRIES:
        raise node.error(f"{len(entries)} entries are too many; at most {MAX_ENTRIES} are allowed.")
    return entries


def name_of(node: Node) -> str:
    check_name(node, node.str(), LOWER)
    return node.str()


def check_name(node: Node, name: str, pattern: re.Pattern[str]) -> None:
    if not pattern.fullmatch(name):
        raise node.error(f"the name '{name}' does not match {pattern.pattern}; rename it.")


def expression(node: Node, names: set[str]) -> Expression:
    try:
        expression = Expression(str(node.scalar()))
    except ArgumentError as error:
        raise node.error(str(error)) from error
    unknown = sorted(expression.names - names)
    if unknown:
        raise node.error(
            f"unknown name '{unknown[0]}' in '{expression.text}'; known are: {', '.join(sorted(names))}."
        )
    return expression


def beside(path: Path, node: Node, what: str) -> Path:
    """Return the file that a node names, in the description's folder."""
    if not re.fullmatch(r"[\w-][\w.-]{0,99}", node.str()):
        raise node.error(f"{what} must be the name of a file in the folder of the YAML.")
    file = path.parent / node.str()
    if not file.is_file():
        raise node.error(f"{what} '{file}' does not exist; it must be in the folder of the YAML.")
    return file


def values_of(path: Path, axis: str, node: Node) -> Node:
    """Return the values of an axis: the list in this file or, with ``like``, the list of the same axis in
    another YAML file of the folder."""
    if "like" not in dict(items(node)):
        return node
    like = node.mapping({"like"})["like"]
    other = beside(path, like, "the axis's like")
    values = dict(items(dict(load(other).items()).get("axes"))).get(axis)
    if values is None or "like" in dict(items(values)):
        raise like.error(f"'{other.name}' does not write out the axis '{axis}'; name a YAML that does.")
    return values


def default_of(node: Node, kind: str, name: str) -> Value:
    """Return the default of a constant, converted to its type *kind*."""
    value = node.scalar()
    try:
        encode(kind, value, f"the default of '{name}'")
    except ArgumentError as error:
        raise node.error(str(error)) from error
    return float(value) if kind == "float" or isinstance(value, str) else value
