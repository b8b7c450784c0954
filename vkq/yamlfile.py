"""YAML files that a person maintains, read safely and with the line of every value kept.

Shader and layout descriptions use a plain subset: mappings with text keys, sequences and scalars. Tags,
anchors, aliases and merge keys are refused, so a file can neither build Python objects nor grow when it is
loaded. Every error is a ``SpecError`` that begins with ``path:line:``.
"""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from yaml.resolver import Resolver

from vkq import files
from vkq.errors import SpecError

# Limits of a description, which bound the time to read it (0.5 s) and its memory.
MAX_BYTES = 256 << 10
MAX_NODES = 20_000
MAX_DEPTH = 32
MAX_DIGITS = 20  # maximum number of digits of a number; 2**64 has 20
_SHOWN = 60  # maximum number of characters of a value in a message

# YAML 1.1's octal, binary and sexagesimal forms are read as text.
_INT = re.compile(r"[-+]?(0|[1-9][0-9]*)|0x[0-9a-fA-F]+")
_HALF = re.compile("[\ud800-\udfff]")
_BOOL = {"true": True, "false": False}  # YAML 1.1's yes, no, on, off are read as text
_WORDS = {"str": "text", "int": "number", "float": "number", "bool": "truth value"}


@dataclass(frozen=True)
class Node:
    """One value of a YAML file, with its position."""

    path: Path
    node: yaml.Node

    @property
    def where(self) -> str:
        """``path:line`` of the value, the first line being 1."""
        return f"{self.path}:{self.node.start_mark.line + 1}"

    def error(self, message: str) -> SpecError:
        """Return the error to raise about this value: *message* after its position."""
        return SpecError(f"{self.where}: {message}")

    def _tag(self) -> str:
        return self.node.tag.removeprefix("tag:yaml.org,2002:")

    def _kind(self) -> str:
        """Return the kind of value, in words for a message."""
        if isinstance(self.node, yaml.MappingNode):
            return "a mapping"
        if isinstance(self.node, yaml.SequenceNode):
            return "a list"
        return f"the {_WORDS.get(self._tag(), 'value')} '{_short(self.node.value)}'"

    def _entries(self) -> dict[str, tuple[Node, Node]]:
        """Return the entries of a mapping: {text of the key: (node of the key, node of the value)}."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error(f"found {self._kind()}; a mapping (key: value) is needed.")
        entries: dict[str, tuple[Node, Node]] = {}
        for key_node, value in self.node.value:
            key = Node(self.path, key_node)
            if not isinstance(key_node, yaml.ScalarNode):
                raise key.error(f"a key is {key._kind()}; keys must be plain text.")
            if key_node.value in entries:
                raise key.error(f"the key '{_short(key_node.value)}' appears a second time; write it once.")
            entries[key_node.value] = (key, Node(self.path, value))
        return entries

    def items(self) -> list[tuple[str, Node]]:
        """Return the entries of a mapping with free keys, in the order of the file. Raises an error for a
        duplicate key.

        A key is its text as written: ``8x8``, ``on`` and ``8`` are all text.
        """
        return [(text, value) for text, (_, value) in self._entries().items()]

    def mapping(self, required: Set[str], optional: Set[str] = frozenset()) -> dict[str, Node]:
        """Return the entries of a mapping with a fixed set of keys. Raises an error for unknown, duplicate
        and missing keys."""
        entries = self._entries()
        known = ", ".join(sorted(required | optional))
        for text, (key, _) in entries.items():
            if text not in required and text not in optional:
                raise key.error(f"unknown key '{_short(text)}'; the keys here are: {known}.")
        missing = sorted(required - entries.keys())
        if missing:
            raise self.error(f"the key '{missing[0]}' is missing; the keys here are: {known}.")
        return {text: value for text, (_, value) in entries.items()}

    def sequence(self) -> list[Node]:
        """Return the values of a list."""
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error(f"found {self._kind()}; a list is needed.")
        return [Node(self.path, value) for value in self.node.value]

    def and_also(self, more: Node) -> Node:
        """Return the entries of this mapping or list, then those of *more*, which replace entries with
        equal keys. Positions refer to the file of *more*."""
        if isinstance(self.node, yaml.SequenceNode):
            values = [value.node for value in (*self.sequence(), *more.sequence())]
            return Node(more.path, yaml.SequenceNode(more.node.tag, values, more.node.start_mark))
        entries = {**self._entries(), **more._entries()}
        pairs = [(key.node, value.node) for key, value in entries.values()]
        return Node(more.path, yaml.MappingNode(more.node.tag, pairs, more.node.start_mark))

    def scalar(self) -> str | int | float | bool:
        """Return a single value with its YAML type."""
        if not isinstance(self.node, yaml.ScalarNode):
            raise self.error(f"found {self._kind()}; a single value is needed.")
        tag, text = self._tag(), self.node.value
        if tag == "str":
            return str(text)
        if tag == "bool" and text.lower() in _BOOL:
            return _BOOL[text.lower()]
        if tag in ("int", "float") and len(text) > MAX_DIGITS + 4:
            raise self.error(
                f"'{_short(text)}' has {len(text)} characters; a number has at most {MAX_DIGITS}."
            )
        if tag == "int" and _INT.fullmatch(text):
            return int(text, 0)
        # Refuse sexagesimal floats, .inf and .nan.
        if tag == "float" and not re.search("[:_n]", text.lower()):
            value = float(text)
            if math.isfinite(value):
                return value
        raise self.error(
            f"'{_short(text)}' reads as YAML {tag}; put text in quotes, write numbers as 12, 0x1f or 0.5,"
            " and truth as true or false."
        )

    # The last three methods have the names of types. They are last, so that annotations of other methods do
    # not refer to them.

    def str(self) -> str:
        """Return the value as text. Raises SpecError if it is not text."""
        value = self.scalar()
        if not isinstance(value, str):
            raise self.error(f"found {self._kind()}; text is needed (put it in quotes).")
        return value

    def int(self) -> int:
        """Return an integer."""
        value = self.scalar()
        if isinstance(value, bool) or not isinstance(value, int):
            raise self.error(f"found {self._kind()}; a whole number is needed.")
        return value

    def bool(self) -> bool:
        """Return ``true`` or ``false``."""
        value = self.scalar()
        if not isinstance(value, bool):
            raise self.error(f"found {self._kind()}; true or false is needed.")
        return value


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


class _Plain:
    """A check for what the plain subset excludes. It runs on the parser's events, because composed nodes do
    not show anchors, aliases and tags."""

    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[attr-defined]
        problem = ""
        self.nodes += 1
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
            problem = "anchors (&) and aliases (*) are refused; write the value out"
        elif getattr(event, "tag", None):
            problem = f"the tag '{_short(event.tag)}' is refused; write a plain value"
        elif self.depth == MAX_DEPTH:
            problem = f"values are nested deeper than {MAX_DEPTH}"
        elif self.nodes > MAX_NODES:
            problem = f"the file has more than {MAX_NODES} values; split it"
        elif _HALF.search(getattr(event, "value", "")):
            problem = "half of a surrogate pair is not a character"
        if problem:
            raise yaml.MarkedYAMLError(problem=problem, problem_mark=event.start_mark)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)  # type: ignore[misc]
        self.depth -= 1
        return node


class _Loader(_Plain, yaml.SafeLoader):
    """Composes nodes, but constructs no values from them."""


def _quick() -> Any:
    """Return libyaml's composer, which takes a tenth of the time of Python's; None if PyYAML was built
    without it."""
    try:
        from yaml.cyaml import CParser  # type: ignore[attr-defined]
    except ImportError:
        return None

    class Quick(CParser, Resolver):
        def __init__(self, text: str):
            CParser.__init__(self, text)
            Resolver.__init__(self)

    return Quick


_Quick = _quick()


def _is_plain(events: Any) -> bool:
    """Return True if a text's events contain nothing that `_Plain` refuses."""
    depth = nodes = 0
    while events.check_event():
        event = events.get_event()
        if isinstance(event, yaml.NodeEvent):
            nodes += 1
            if (
                isinstance(event, yaml.AliasEvent)
                or event.anchor
                or getattr(event, "tag", None)
                or depth == MAX_DEPTH
                or nodes > MAX_NODES
                or _HALF.search(getattr(event, "value", ""))
            ):
                return False
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
    return True


def _composed(text: str) -> yaml.Node | None:
    """Return the document's top value. If libyaml or `_is_plain` refuses the text, the parser in Python
    reads it again, so that error messages do not depend on PyYAML's build."""
    if _Quick is not None:
        with contextlib.suppress(yaml.YAMLError, ValueError, OverflowError):
            if _is_plain(_Quick(text)):
                found: yaml.Node | None = _Quick(text).get_single_node()
                return found
    return _Loader(text).get_single_node()


def load(path: Path) -> Node:
    """Read the YAML file *path* (a regular file, at most 256 KiB, UTF-8, one document), and return its top
    value.

    Raises:
        SpecError: the file cannot be read, is too large, is not YAML, or is not in the plain subset.
    """
    try:
        data = files.read(path, MAX_BYTES)
    except (OSError, ValueError) as error:  # a name with a null byte raises ValueError
        raise SpecError(f"{path}:1: cannot be read: {getattr(error, 'strerror', None) or error}.") from error
    try:
        node = _composed(data.decode())
    except UnicodeDecodeError as error:
        line, byte = data.count(b"\n", 0, error.start) + 1, data[error.start]
        raise SpecError(f"{path}:{line}: byte 0x{byte:02x} is not UTF-8; save the file as UTF-8.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise SpecError(
            f"{path}:{mark.line + 1 if mark else 1}: {error.problem or error.context}."
        ) from error
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
    ) as error:  # an unknown character, such as "\UFFFFFFFF", is an error too
        raise SpecError(f"{path}:1: {' '.join(str(error).split())}.") from error
    if node is None:
        raise SpecError(f"{path}:1: the file is empty.")
    return Node(path, node)
