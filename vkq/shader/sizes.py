"""Sizes of a shader, such as those of its tiles, which its axes choose. They are specialization constants,
so variants that differ only in sizes share one SPIR-V module. `vkq.shader.specialize` makes them literals
before a driver compiles the module.

A YAML lists sizes under the key ``sizes`` of the file or of an axis value; a size that a variant does not
list is 0. GLSL files declare no sizes: vkq generates ``#include "sizes.glslh"`` from the YAML.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from vkq.shader.schema import GLSL_NAME, check_name, items
from vkq.shader.spec import Constant
from vkq.yamlfile import Node

INCLUDE = "sizes.glslh"
FIRST_ID = 32  # constant_ids from this number on belong to sizes
TYPE = "int"  # the type of every size, also of one that the GLSL uses as unsigned


def sizes_of(node: Node | None) -> dict[str, int]:
    """Return the integers of a ``sizes`` mapping."""
    found = {}
    for name, value in items(node):
        check_name(value, name, GLSL_NAME)
        found[name] = value.int()
    return found


def declare(known: Iterable[Mapping[str, int]], first: Sequence[Mapping[str, int]]) -> dict[str, Constant]:
    """Return a constant for each size named in *known*. Its default, also in the GLSL, is the size in
    *first*, the sizes of the shader's first variant (0 if absent)."""
    names = dict.fromkeys(name for sizes in known for name in sizes)
    values = {name: value for sizes in first for name, value in sizes.items()}
    return {
        name: Constant(FIRST_ID + i, TYPE, values.get(name, 0), overridden=True, declared=values.get(name, 0))
        for i, name in enumerate(names)
    }


def chosen(declared: Mapping[str, Constant], given: Sequence[Mapping[str, int]]) -> dict[str, Constant]:
    """Return a variant's constants: a size has its last value in *given*, or 0; other constants do not
    change."""
    values = {name: value for sizes in given for name, value in sizes.items()}
    return {
        name: constant if constant.declared is None else replace(constant, default=values.get(name, 0))
        for name, constant in declared.items()
    }


def glsl(constants: Mapping[str, Constant], local_size: Iterable[str]) -> str:
    """Return the GLSL that declares the sizes among a variant's constants, and the local size if sizes
    define it. Each size is also a macro: an include can test whether the size exists (``#ifndef BURST``).

    Args:
        constants: specialization constants by name.
        local_size: the expressions for x, y and z.

    >>> sizes = declare([{"BM": 64, "INVOCATIONS": 128}], [{"BM": 64, "INVOCATIONS": 128}])
    >>> print(glsl(sizes, ["INVOCATIONS", "1", "1"]))
    layout(constant_id = 32) const int BM = 64;
    #define BM BM
    layout(constant_id = 33) const int INVOCATIONS = 128;
    #define INVOCATIONS INVOCATIONS
    layout(local_size_x_id = 33) in;
    """
    sizes = {name: constant for name, constant in constants.items() if constant.declared is not None}
    lines = [
        f"layout(constant_id = {each.id}) const {TYPE} {name} = {each.declared};\n#define {name} {name}"
        for name, each in sizes.items()
    ]
    axes = [
        f"local_size_{axis}_id = {sizes[text].id}"
        for axis, text in zip("xyz", local_size, strict=True)
        if text in sizes
    ]
    return "\n".join([*lines, f"layout({', '.join(axes)}) in;"] if axes else lines)
