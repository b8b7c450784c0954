"""Shaders and their variants: the Python form of ``shaders/<folder>/<name>.yaml``.

One YAML describes one GLSL source; the product of its axes is the list of variants. `vkq.shader.load` reads
the YAML. The classes here have the data for dispatching a variant: workgroups, push constants,
specialization, device requirements.
"""

from __future__ import annotations

import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from vkq.errors import ArgumentError
from vkq.shader.expression import Expression

Value = int | float | bool
_NOTHING: Mapping[str, Any] = {}
TEXELS, TEXEL_BYTES = "isamplerBuffer", 16
_RANGES = {"int": (-(2**31), 2**31 - 1), "uint": (0, 2**32 - 1)}


def encode(kind: str, value: object, what: str) -> bytes:
    """Return the four little-endian bytes of *value* as a GLSL ``int``, ``uint``, ``float`` or ``bool`` (a
    VkBool32).

    Raises:
        ArgumentError: the value has another type or is out of range; the message begins with *what*.
    """
    if kind in _RANGES:
        low, high = _RANGES[kind]
        try:
            number = operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            raise ArgumentError(f"{what} is {value!r}; a {kind} needs a whole number.") from None
        if isinstance(value, bool) or not low <= number <= high:
            raise ArgumentError(f"{what} is {value!r}; a {kind} must be a whole number in [{low}, {high}].")
        return struct.pack("<i" if kind == "int" else "<I", number)
    if kind == "bool":
        if not isinstance(value, bool):
            raise ArgumentError(f"{what} is {value!r}; a bool must be True or False.")
        return struct.pack("<I", value)
    try:
        if isinstance(value, (str, bytes, bool)):  # float() would accept these types
            raise TypeError
        return struct.pack("<f", float(value))  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise ArgumentError(f"{what} is {value!r}; a float needs a number.") from None
    except OverflowError:
        raise ArgumentError(f"{what} is {value!r}; a float must be within +-3.4028235e38.") from None


@dataclass(frozen=True)
class Binding:
    """A storage buffer of set 0: access ``read``, ``write`` or ``read_write``, and a GLSL element type such
    as ``ivec4``. With the type `TEXELS` it is a uniform texel buffer of four int32 a texel."""

    number: int
    name: str
    access: str
    type: str
    layout: str | None = None
    optional: bool = False  # the compiled code of a variant may lack the binding
    in_place: bool = False  # some dispatches overwrite the array that they read (`vkq.runtime.plan.step_of`)

    @property
    def texels(self) -> bool:
        return self.type == TEXELS


@dataclass(frozen=True)
class PushConstant:
    """A push constant of 4 bytes: ``int``, ``uint`` or ``float``."""

    name: str
    type: str
    offset: int


@dataclass(frozen=True)
class Constant:
    """A specialization constant."""

    id: int  # its constant_id
    type: str
    default: Value  # the variant's default
    overridden: bool = False  # an axis of the variant set the default, so the GLSL's default may differ
    declared: int | None = None  # for a size: the default in the GLSL that `vkq.shader.sizes` generates


@dataclass(frozen=True, eq=False)  # by identity: a catalog holds each variant once
class Variant:
    """One combination of a shader's axis values. `vkq.shader.compile.spirv` compiles it to SPIR-V."""

    shader: str
    name: str
    summary: str
    source: Path
    axes: Mapping[str, str]
    defines: Mapping[str, int | str]
    bindings: tuple[Binding, ...]
    push_constants: tuple[PushConstant, ...]
    specialization: Mapping[str, Constant]
    requires: Mapping[str, int | bool]
    local_size_text: tuple[Expression, Expression, Expression]
    shared_bytes_text: Expression
    workgroups_text: Expression
    iterations_text: Expression
    packaged: str | None = None  # name of the SPIR-V module in the package (`vkq.shader.frozen`)

    @property
    def texels(self) -> int:
        """A mask with the bit of each binding that is a uniform texel buffer."""
        return sum(1 << binding.number for binding in self.bindings if binding.texels)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The variant's sizes and its integer defines, by name."""
        sizes = {name: int(c.default) for name, c in self.specialization.items() if c.declared is not None}
        return {**{name: value for name, value in self.defines.items() if isinstance(value, int)}, **sizes}

    def constants(self, specialization: Mapping[str, Value] = _NOTHING) -> dict[str, Value]:
        """Return {name: value} of every specialization constant: the defaults, replaced by those in
        *specialization*.

        Raises:
            ArgumentError: an unknown name, or a value out of the range of its type.
        """
        for name, value in specialization.items():
            if name not in self.specialization:
                known = ", ".join(self.specialization) or "none"
                raise ArgumentError(
                    f"{self.name}: unknown specialization constant '{name}'; there are: {known}."
                )
            encode(self.specialization[name].type, value, f"{self.name}: specialization constant '{name}'")
        return {
            name: specialization.get(name, constant.default) for name, constant in self.specialization.items()
        }

    def pack_specialization(self, specialization: Mapping[str, Value] = _NOTHING) -> dict[int, bytes]:
        """Return {``constant_id``: 4 bytes for VkSpecializationInfo} of the variant's constants."""
        values = self.constants(specialization)
        return {
            constant.id: encode(constant.type, values[name], name)
            for name, constant in self.specialization.items()
        }

    def local_size(self, specialization: Mapping[str, Value] = _NOTHING) -> tuple[int, int, int]:
        """Return the workgroup size (x, y, z) in invocations."""
        values = self.integers(specialization)
        x, y, z = (expression.evaluate(values) for expression in self.local_size_text)
        if min(x, y, z) < 1:
            raise ArgumentError(f"{self.name}: the local size is ({x}, {y}, {z}); each must be at least 1.")
        return x, y, z

    def shared_bytes(self, specialization: Mapping[str, Value] = _NOTHING) -> int:
        """Return the shared memory of one workgroup in bytes."""
        return self.shared_bytes_text.evaluate(self.integers(specialization))

    def workgroups(
        self, push: Mapping[str, int | float], specialization: Mapping[str, Value] = _NOTHING
    ) -> int:
        """Return the number of workgroups of a dispatch with these push constants (others are ignored)."""
        return self.workgroups_of(push, self.integers(specialization))

    def workgroups_of(self, push: Mapping[str, int | float], integers: Mapping[str, int]) -> int:
        """Return the result of `workgroups`; *integers*: the result of `integers`."""
        needed = {name: int(push[name]) for name in self.workgroups_text.names if name in push}
        count = self.workgroups_text.evaluate({**integers, **needed})
        if count < 0:
            raise ArgumentError(
                f"{self.name}: '{self.workgroups_text.text}' is {count} with {needed}; it must be >= 0."
            )
        return count

    def iterations(
        self, push: Mapping[str, int | float], specialization: Mapping[str, Value] = _NOTHING
    ) -> int:
        """Return the maximum number of loop conditions that one invocation evaluates, in all of its loops
        together, in a dispatch with these push constants. A loop of n iterations counts n + 1."""
        return self.iterations_of(push, self.integers(specialization))

    def iterations_of(self, push: Mapping[str, int | float], integers: Mapping[str, int]) -> int:
        """Return the result of `iterations`; *integers*: the result of `integers`."""
        needed = {name: int(push[name]) for name in self.iterations_text.names if name in push}
        return self.iterations_text.evaluate({**integers, **needed})

    def pack_push(self, **values: int | float) -> bytes:
        """Return the push constant block: 4 little-endian bytes each, in the order of the YAML.

        Raises:
            ArgumentError: a missing or unknown name, or a value out of the range of its type.
        """
        names = [constant.name for constant in self.push_constants]
        for problem, found in (
            ("unknown", values.keys() - set(names)),
            ("missing", set(names) - values.keys()),
        ):
            if found:
                listed = ", ".join(names) or "none"
                raise ArgumentError(
                    f"{self.name}: {problem} push constant '{min(found)}'; there are: {listed}."
                )
        return b"".join(
            encode(constant.type, values[constant.name], f"{self.name}: push constant '{constant.name}'")
            for constant in self.push_constants
        )

    def missing(self, capabilities: Mapping[str, int | bool]) -> list[str]:
        """Return the reasons why a device with these Vulkan features and properties cannot run the variant.

        Examples: ``shaderIntegerDotProduct is false``, ``maxComputeSharedMemorySize is 8192, needs 16384``.
        """
        reasons = []
        for name, need in self.requires.items():
            have = capabilities.get(name)
            if have is None:
                reasons.append(f"{name} is unknown")
            elif need is True:
                reasons += [] if have else [f"{name} is false"]
            elif have < need:
                reasons.append(f"{name} is {have}, needs {need}")
        return reasons

    def integers(self, specialization: Mapping[str, Value]) -> dict[str, int]:
        """Return {name: value} of each integer that an expression may use, other than push constants."""
        constants = self.constants(specialization)
        return {
            **{name: value for name, value in self.defines.items() if isinstance(value, int)},
            **{name: int(value) for name, value in constants.items() if not isinstance(value, float)},
        }


class Written(Variant):
    """A variant without a source: *module* generates its SPIR-V (`vkq.shader.assembler`)."""

    module: Callable[[], bytes]

    def __init__(
        self, shader: str, name: str, summary: str, bindings: tuple[Binding, ...],
        push_constants: tuple[PushConstant, ...], local: int, workgroups: Expression, shared_bytes: int,
        module: Callable[[], bytes], iterations: str = "0",
    ):  # fmt: skip
        size = (Expression(str(local)), Expression("1"), Expression("1"))
        super().__init__(
            shader, name, summary, Path(), {}, {}, bindings, push_constants, {}, {}, size,
            Expression(str(shared_bytes)), workgroups, Expression(iterations),
        )  # fmt: skip
        object.__setattr__(self, "module", module)


@dataclass(frozen=True, eq=False)
class Shader:
    """One YAML: a GLSL source and its variants, in the order of the axes' product. Variants are made at
    their first use: a network uses one of the many variants of most shaders."""

    name: str
    summary: str
    path: Path
    source: Path
    axes: Mapping[str, tuple[str, ...]]
    combinations: tuple[Mapping[str, str], ...]  # the axis values of each variant
    make: Callable[[Mapping[str, str]], Variant]  # makes the variant of one combination
    _made: dict[tuple[str, ...], Variant] = field(default_factory=dict, init=False)

    def variant(self, combination: Mapping[str, str]) -> Variant:
        """Return the variant of a combination, made at its first use.

        Raises:
            SpecError: the variant's description breaks the schema.
        """
        key = tuple(combination.values())
        found = self._made.get(key)
        return found or self._made.setdefault(key, self.make(combination))  # all callers get the same object

    @property
    def variants(self) -> tuple[Variant, ...]:
        return tuple(map(self.variant, self.combinations))

    def check(self) -> None:
        """Make all variants, to raise their errors now."""
        for combination in self.combinations:
            self.variant(combination)

    def having(self, **axes: str) -> list[Mapping[str, str]]:
        """Return the combinations that have these axis values."""
        return [each for each in self.combinations if axes.items() <= each.items()]
