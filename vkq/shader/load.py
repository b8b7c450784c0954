"""Read a shader's YAML into `vkq.shader.spec`. A violation of the schema is a ``SpecError`` with its file
and line."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from vkq.errors import ArgumentError
from vkq.shader import sizes
from vkq.shader.expression import Expression
from vkq.shader.interface import TYPES, Words, block, blocks, shared
from vkq.shader.schema import (
    GLSL_NAME,
    LOWER,
    beside,
    bounded,
    check_name,
    default_of,
    expression,
    items,
    name_of,
    named,
    type_of,
    values_of,
)
from vkq.shader.spec import TEXELS, Binding, Constant, PushConstant, Shader, Variant
from vkq.yamlfile import Node, load

MAX_VARIANTS = 1024
REQUIRED = {"source", "bindings", "local_size", "workgroups"}
# The keys whose entries are added to those of the `like` description.
ADDED = {"axes", "defines", "sizes", "bindings", "push_constants", "specialization"}
KEYS = REQUIRED | ADDED | {"except", "push", "shared_bytes", "iterations", "requires"}
ACCESS = ("read", "write", "read_write")
ELEMENT = re.compile(r"([iu]?|f16|[iu]8|[iu]16|[iu]64)vec[234]|u?int((8|16|64)_t)?|float(16_t)?|" + TEXELS)


@dataclass(frozen=True)
class _Choice:
    """The settings that an axis value, or the file itself for all variants, adds to a variant."""

    defines: Mapping[str, int | str] = field(default_factory=dict)
    specialization: Mapping[str, Node] = field(default_factory=dict)
    requires: Mapping[str, int | bool] = field(default_factory=dict)
    types: Mapping[str, Node] = field(default_factory=dict)  # {binding's name: element types}
    sizes: Mapping[str, int] = field(default_factory=dict)


_Axes = dict[str, dict[str, _Choice]]


def load_shader(path: Path, known: Mapping[str, Words] | None = None) -> Shader:
    """Return the shader of the YAML file *path*, with all of its variants. Its GLSL source is in the same
    folder.

    *known*: the shared blocks of push constants, by default from the parent folder (`interface.blocks`).

    Raises:
        SpecError: the file breaks the schema; the message begins with ``path:line:``.
    """
    shader = described(path, blocks(path.parent.parent) if known is None else known)
    shader.check()
    return shader


def described(path: Path, known: Mapping[str, Words]) -> Shader:
    """Return the shader of the YAML file *path*. Each variant is checked at its first use."""
    top = _keys(path)
    source, axes = beside(path, top["source"], "the source"), _axes(path, top.get("axes"))
    left_out = _except(top.get("except"), axes)
    if math.prod(map(len, axes.values())) > MAX_VARIANTS:
        raise top["axes"].error(f"the axes multiply to more than {MAX_VARIANTS} variants; use fewer.")
    products = [dict(zip(axes, chosen, strict=True)) for chosen in itertools.product(*axes.values())]
    combinations = [each for each in products if not any(rule.items() <= each.items() for rule in left_out)]
    if not combinations:
        raise top["except"].error("every combination is left out; at least one variant must remain.")
    name, bindings, push = name_of(top["name"]), _bindings(top["bindings"], {}), _push_constants(top, known)
    common = _common(top)

    def choices(values: Mapping[str, str]) -> list[_Choice]:
        return [common, *(axes[axis][value] for axis, value in values.items())]

    known_sizes = [each.sizes for each in (common, *(e for values in axes.values() for e in values.values()))]
    first = [each.sizes for each in choices(combinations[0])]
    declared = {**_specialization(top.get("specialization")), **sizes.declare(known_sizes, first)}

    def variant(values: Mapping[str, str]) -> Variant:
        return _variant(top, name, source, values, choices(values), push, declared, bindings)

    left = {axis: {each[axis] for each in combinations} for axis in axes}
    shown = {axis: tuple(value for value in values if value in left[axis]) for axis, values in axes.items()}
    return Shader(name, top["summary"].str(), path, source, shown, tuple(combinations), variant)


def _keys(path: Path, within: tuple[Path, ...] = ()) -> dict[str, Node]:
    """Return the keys of a description, including the keys inherited through ``like``."""
    root = load(path)
    if "like" not in dict(root.items()):
        return root.mapping({"name", "summary"} | REQUIRED, KEYS)
    said = root.mapping({"name", "summary", "like"}, KEYS)
    like = said.pop("like")
    other, within = beside(path, like, "like"), (*within, path)
    if other in within:
        raise like.error(f"it is like '{other.name}', which is like this one; one of them must be complete.")
    found = _keys(other, within)
    added = {key: found[key].and_also(said[key]) for key in ADDED & found.keys() & said.keys()}
    return {**found, **said, **added}


def _variant(
    top: Mapping[str, Node],
    shader: str,
    source: Path,
    axes: Mapping[str, str],
    choices: list[_Choice],
    push: tuple[PushConstant, ...],
    declared: Mapping[str, Constant],
    bindings: tuple[Binding, ...],
) -> Variant:
    defines: dict[str, int | str] = {}
    requires: dict[str, int | bool] = {}
    for choice in choices:
        defines.update(choice.defines)
        for need, value in choice.requires.items():
            requires[need] = max(value, requires.get(need, value))
    constants = _constants(declared, choices)
    integers, pushed = _known_names(top["workgroups"], defines, constants, push)
    shared, rounds = top.get("shared_bytes"), top.get("iterations")
    types = {name: node for choice in choices for name, node in choice.types.items()}
    variant = Variant(
        shader=shader,
        name=":".join(filter(None, [shader, ".".join(axes.values())])),
        summary=top["summary"].str(),
        source=source,
        axes=axes,
        defines=defines,
        bindings=_bindings(top["bindings"], types) if types else bindings,
        push_constants=push,
        specialization=constants,
        requires=requires,
        local_size_text=_local_size(top["local_size"], integers),
        shared_bytes_text=expression(shared, integers) if shared else Expression("0"),
        workgroups_text=expression(top["workgroups"], integers | pushed),
        iterations_text=expression(rounds, integers | pushed) if rounds else Expression("0"),
    )
    _check_sizes(variant, top["local_size"])
    return variant


def _check_sizes(variant: Variant, node: Node) -> None:
    """Evaluate sizes with the defaults, to find a division by zero or a size of 0 before a device does."""
    try:
        variant.local_size()
        variant.shared_bytes()
    except ArgumentError as error:
        raise node.error(str(error)) from error


def _constants(declared: Mapping[str, Constant], choices: list[_Choice]) -> dict[str, Constant]:
    """Return the specialization constants with the defaults of the chosen axis values."""
    constants = sizes.chosen(declared, [choice.sizes for choice in choices])
    for name, node in (item for choice in choices for item in choice.specialization.items()):
        if name not in constants:
            raise node.error(f"'{name}' is not declared under specialization; declare it there.")
        default = default_of(node, constants[name].type, name)
        constants[name] = replace(constants[name], default=default, overridden=True)
    return constants


def _known_names(
    node: Node,
    defines: Mapping[str, int | str],
    constants: Mapping[str, Constant],
    push: tuple[PushConstant, ...],
) -> tuple[set[str], set[str]]:
    """Return (names of integer defines and constants, for all expressions; names of integer push constants,
    for the dispatch size only)."""
    integers = {name for name, value in defines.items() if isinstance(value, int)}
    integers |= {name for name, constant in constants.items() if constant.type != "float"}
    pushed = {constant.name for constant in push if constant.type != "float"}
    clash = sorted((pushed & integers) | (defines.keys() & constants.keys()))
    if clash:
        raise node.error(
            f"'{clash[0]}' is declared twice (defines, specialization, push constants); rename one."
        )
    return integers, pushed


def _local_size(node: Node, names: set[str]) -> tuple[Expression, Expression, Expression]:
    sizes = node.sequence()
    if len(sizes) != 3:
        raise node.error(f"found {len(sizes)} values; three (x, y, z) are needed.")
    x, y, z = (expression(size, names) for size in sizes)
    return x, y, z


def _axes(path: Path, node: Node | None) -> _Axes:
    axes: _Axes = {}
    for axis, said in items(node):
        check_name(said, axis, LOWER)
        values = values_of(path, axis, said)
        axes[axis] = {}
        for value, entry in items(values):
            check_name(entry, value, LOWER)
            keys = entry.mapping(set(), {"defines", "sizes", "specialization", "requires", "types"})
            specialization, types = dict(items(keys.get("specialization"))), dict(items(keys.get("types")))
            axes[axis][value] = replace(_common(keys), specialization=specialization, types=types)
        if not axes[axis]:
            raise values.error(f"the axis '{axis}' has no values; give it one or leave it out.")
    return axes


def _common(keys: Mapping[str, Node]) -> _Choice:
    defines: dict[str, int | str] = {}
    for name, node in items(keys.get("defines")):
        check_name(node, name, GLSL_NAME)
        value = node.scalar()
        if isinstance(value, (bool, float)) or "\n" in str(value):
            raise node.error(
                f"the define '{name}' is {value!r}; it must be a whole number or one line of text."
            )
        defines[name] = value
    requires: dict[str, int | bool] = {}
    for name, node in items(keys.get("requires")):
        check_name(node, name, GLSL_NAME)
        need = node.scalar()
        if need is False or isinstance(need, (str, float)):
            raise node.error(f"'{name}' requires {need!r}; write true, or the least whole number.")
        requires[name] = need
    return _Choice(defines, requires=requires, sizes=sizes.sizes_of(keys.get("sizes")))


def _except(node: Node | None, axes: _Axes) -> list[dict[str, str]]:
    rules = []
    for rule in bounded(node.sequence() if node else [], node):
        rules.append({axis: value.str() for axis, value in rule.mapping(set(), axes.keys()).items()})
        for axis, value in rule.items():
            if value.str() not in axes[axis]:
                raise value.error(
                    f"the axis '{axis}' has no value '{value.str()}'; it has: {', '.join(axes[axis])}."
                )
        if not rules[-1]:
            raise rule.error("an empty rule leaves out everything; name at least one axis.")
    return rules


def _bindings(node: Node, types: Mapping[str, Node]) -> tuple[Binding, ...]:
    """Return the bindings of a variant. *types*: {binding: element types that replace those in *node*}."""
    found: list[Binding] = []
    for name, keys in named(node, {"access", "type"}, {"layout", "optional", "in_place"}):
        access = keys["access"].str()
        if access not in ACCESS:
            raise keys["access"].error(f"the access is '{access}'; it must be one of: {', '.join(ACCESS)}.")
        layout = keys["layout"].str() if "layout" in keys else None
        optional, in_place = (name in keys and keys[name].bool() for name in ("optional", "in_place"))
        element = _element(types.get(name, keys["type"]))
        if element == TEXELS and access != "read":
            raise keys["access"].error(f"texels are only read; '{name}' says {access}.")
        found.append(Binding(len(found), name, access, element, layout, optional, in_place))
    for name in types.keys() - {binding.name for binding in found}:
        raise types[name].error(f"there is no binding '{name}'; name one of those under bindings.")
    return tuple(found)


def _element(node: Node) -> str:
    if not ELEMENT.fullmatch(node.str()):
        raise node.error(f"'{node.str()}' is not a GLSL element type such as int, ivec4 or float.")
    return node.str()


def _push_constants(top: Mapping[str, Node], known: Mapping[str, Words]) -> tuple[PushConstant, ...]:
    """Return the push constants of the shared blocks that the shader names, then the shader's own."""
    own, push = top.get("push_constants"), top.get("push")
    words = [(type_of(keys["type"], TYPES), name) for name, keys in (named(own, {"type"}) if own else ())]
    place = own or push
    return block((*shared(push, known), *words), place) if place else ()


def _specialization(node: Node | None) -> dict[str, Constant]:
    constants: dict[str, Constant] = {}
    for name, keys in named(node, {"id", "type", "default"}) if node else []:
        number, kind = keys["id"].int(), type_of(keys["type"], ("int", "uint", "float", "bool"))
        if number < 0 or number in {constant.id for constant in constants.values()}:
            raise keys["id"].error(
                f"the id {number} is negative or taken; give each constant an id of its own."
            )
        constants[name] = Constant(number, kind, default_of(keys["default"], kind, name))
    return constants
