"""All shaders of the shaders folder and their variants, by name."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from vkq.errors import ArgumentError, SpecError
from vkq.shader.interface import blocks
from vkq.shader.load import load_shader
from vkq.shader.spec import Shader, Variant

MEANT = {"linear": ("gemm_*", "gemv_*")}  # operators whose shaders have the names of their arithmetic
_LISTED = 12  # names that an error message lists at most


@dataclass(frozen=True)
class Catalog:
    """The shaders by name and the variants by full name, ``shader:value.value``."""

    shaders: Mapping[str, Shader]
    variants: Mapping[str, Variant]

    def find(self, shader_name: str, /, **axes: str) -> Variant:
        """The one variant of a shader whose axes have these values; an axis with no choice left may be
        omitted.

        Raises:
            ArgumentError: no such shader, axis or value, or several variants; the message lists what exists.
        """
        shader = self.shaders.get(shader_name)
        if shader is None:
            raise ArgumentError(
                f"there is no shader '{shader_name}'; there are: {_listed(list(self.shaders))}."
            )
        for axis, value in axes.items():
            if value not in shader.axes.get(axis, ()):
                known = (
                    "; ".join(f"{name}: {', '.join(values)}" for name, values in shader.axes.items())
                    or "none"
                )
                raise ArgumentError(
                    f"{shader_name} has no axis {axis} with value '{value}'; its axes are {known}."
                )
        found = [variant for variant in shader.variants if axes.items() <= variant.axes.items()]
        if len(found) != 1:
            names = _listed([variant.name for variant in found or shader.variants])
            given = ", ".join(f"{axis}={value}" for axis, value in axes.items()) or "no axes"
            raise ArgumentError(
                f"{shader_name} has {len(found)} variants with {given}; one is needed of: {names}."
            )
        return found[0]

    def matching(self, pattern: str = "") -> list[Variant]:
        """The variants whose full name matches: a glob where *pattern* holds ``*?[``, else a part of the
        name (or what people call it: `MEANT`)."""
        globs = [pattern] if set(pattern) & set("*?[") else [f"*{pattern}*", *MEANT.get(pattern, ())]
        return [v for name, v in self.variants.items() if any(fnmatch.fnmatchcase(name, g) for g in globs)]


def shaders_folder() -> Path:
    """The folder of the shaders: the package's own in a wheel, the checkout's otherwise."""
    package = Path(__file__).parent.parent
    packaged = package / "shaders"
    return packaged if packaged.is_dir() else package.parent / "shaders"


def load_catalog(folder: Path) -> Catalog:
    """Read every ``<folder>/<group>/<name>.yaml``.

    Raises:
        SpecError: a file breaks the schema, or two shaders have the same name.
    """
    shaders: dict[str, Shader] = {}
    known = blocks(folder)
    for path in sorted(folder.glob("*/*.yaml")):
        shader = load_shader(path, known)
        if shader.name in shaders:
            other = shaders[shader.name].path
            raise SpecError(f"{path}:1: the name '{shader.name}' is taken by {other}; names must differ.")
        shaders[shader.name] = shader
    variants = {variant.name: variant for shader in shaders.values() for variant in shader.variants}
    return Catalog(shaders, variants)


@cache
def catalog() -> Catalog:
    """The catalog of `shaders_folder`, read once."""
    return load_catalog(shaders_folder())


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "none") + more
