"""Push constants from one source. ``shaders/push.yaml`` has the blocks that several shaders share. The GLSL
declaration (``#include "push.glslh"``) is generated from a variant's push constants."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from vkq.shader.spec import PushConstant
from vkq.yamlfile import Node, load

FILE = "push.yaml"  # a file in the shaders folder
INCLUDE = "push.glslh"
# The first word of every block: the number of the dispatch's first workgroup, because large dispatches are
# split.
FIRST = ("uint", "first_group")
TYPES = ("int", "uint", "float")
MAX_BYTES = 128  # every Vulkan device allows this number (maxPushConstantsSize)

Words = tuple[tuple[str, str], ...]  # the words of a block: (type, name), in order

_LINE = re.compile(rf"({'|'.join(TYPES)}) ([A-Za-z_]\w*(?:, [A-Za-z_]\w*)*)")


def blocks(folder: Path) -> dict[str, Words]:
    """Return the shared blocks of a shaders folder, by name; none if it has no ``push.yaml``.

    Raises:
        SpecError: a line that is not ``type name, name``.
    """
    path = folder / FILE
    return {name: _words(lines) for name, lines in load(path).items()} if path.is_file() else {}


def _words(lines: Node) -> Words:
    found: list[tuple[str, str]] = []
    for line in lines.sequence():
        match = _LINE.fullmatch(line.str())
        if match is None:
            raise line.error(
                f"'{line.str()}' is not a declaration; write a type ({', '.join(TYPES)}) and names."
            )
        found += [(match[1], name) for name in match[2].split(", ")]
    return tuple(found)


def shared(node: Node | None, known: Mapping[str, Words]) -> Words:
    """Return the words of a shader's ``push: [block, ...]``; none if the shader has no key ``push``."""
    if node is None:
        return ()
    found = [FIRST]
    for entry in node.sequence():
        if entry.str() not in known:
            raise entry.error(f"there is no block '{entry.str()}' in {FILE}; there are: {', '.join(known)}.")
        found += known[entry.str()]
    return tuple(found)


def block(words: Words, place: Node) -> tuple[PushConstant, ...]:
    """Return the words with their offsets. *place*: the YAML node for errors about equal names or too many
    words."""
    if 4 * len(words) > MAX_BYTES:
        raise place.error(f"{4 * len(words)} bytes of push constants; Vulkan guarantees {MAX_BYTES}.")
    names = [name for _, name in words]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise place.error(f"the push constant '{twice[0]}' is declared twice; there are: {', '.join(names)}.")
    return tuple(PushConstant(name, kind, 4 * i) for i, (kind, name) in enumerate(words))


def glsl(push_constants: Sequence[PushConstant]) -> str:
    """Return the GLSL that declares a variant's push constants as ``p``.

    >>> print(glsl([PushConstant("first_group", "uint", 0), PushConstant("scale", "float", 4)]))
    layout(push_constant) uniform Push {
      uint first_group;
      float scale;
    } p;
    """
    words = "".join(f"  {constant.type} {constant.name};\n" for constant in push_constants)
    return f"layout(push_constant) uniform Push {{\n{words}}} p;"
