"""All shaders of the shaders folder and their variants, by name."""

from __future__ import annotations

import contextlib
import fnmatch
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

from vkq import files
from vkq.errors import ArgumentError, SpecError
from vkq.shader.frozen import Frozen
from vkq.shader.interface import Words, blocks
from vkq.shader.load import described, load_shader
from vkq.shader.spec import Shader, Variant
from vkq.turns import Turns
from vkq.yamlfile import MAX_BYTES

# {operator: patterns for the names of its shaders}, for names without the operator's name
MEANT = {"linear": ("gemm_*", "gemv_*")}
_NAME = re.compile(rb"^name: ([a-z0-9_]+)\r?$", re.MULTILINE)
# The folder with the files that `vkq.shader.build` puts into a wheel.
PACKAGED = Path(__file__).parent.parent / "_spirv"
_LISTED = 12  # maximum number of names that an error message lists


@dataclass(frozen=True)
class Catalog:
    """The shaders by name."""

    shaders: Mapping[str, Shader]

    @cached_property
    def variants(self) -> Mapping[str, Variant]:
        """The variants of all shaders by full name, ``shader:value.value``."""
        return {variant.name: variant for shader in self.shaders.values() for variant in shader.variants}

    def find(self, shader_name: str, /, **axes: str) -> Variant:
        """Return the variant of a shader whose axes have these values. An axis may be omitted if the others
        leave it only one value.

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
        found = shader.having(**axes)
        if len(found) != 1:
            names = _listed([shader.variant(each).name for each in found or shader.combinations])
            given = ", ".join(f"{axis}={value}" for axis, value in axes.items()) or "no axes"
            raise ArgumentError(
                f"{shader_name} has {len(found)} variants with {given}; name one of: {names}."
            )
        return shader.variant(found[0])

    def matching(self, pattern: str = "") -> list[Variant]:
        """Return the variants whose full name matches *pattern*: a glob if it contains ``*``, ``?`` or
        ``[``, else a part of the name (or an alias from `MEANT`)."""
        globs = [pattern] if set(pattern) & set("*?[") else [f"*{pattern}*", *MEANT.get(pattern, ())]
        return [v for name, v in self.variants.items() if any(fnmatch.fnmatchcase(name, g) for g in globs)]


def shaders_folder() -> Path:
    """Return the folder of the shaders: in the package in a wheel, else in the checkout."""
    package = Path(__file__).parent.parent
    packaged = package / "shaders"
    return packaged if packaged.is_dir() else package.parent / "shaders"


class Described(Mapping[str, Shader]):
    """The shaders of ``<folder>/<group>/<name>.yaml``. Each is read at its first use: a network uses a
    quarter of them, and reading all would delay its first result."""

    def __init__(self, folder: Path):
        self._paths: dict[str, Path] = {}
        self._known = blocks(folder)
        self._read: dict[str, Shader] = {}
        # A variant must be a single object. Without the lock, two threads could create one each.
        self._lock = Turns("reading a shader")
        for path in sorted(folder.glob("*/*.yaml")):
            name = _name(path, self._known)
            if name in self._paths:
                raise SpecError(
                    f"{path}:1: the name '{name}' is taken by {self._paths[name]}; names must differ."
                )
            self._paths[name] = path

    def __getitem__(self, name: str) -> Shader:
        with self._lock:
            if name not in self._read:
                self._read[name] = described(self._paths[name], self._known)
            return self._read[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._paths)

    def __len__(self) -> int:
        return len(self._paths)

    def __contains__(self, name: object) -> bool:
        return name in self._paths


def _name(path: Path, known: Mapping[str, Words]) -> str:
    """Return a description's name. The whole file is parsed only if the name line has an unusual form."""
    with contextlib.suppress(OSError):  # `load_shader` raises the same error with the file's name
        usual = _NAME.search(files.read(path, MAX_BYTES))
        if usual:
            return usual[1].decode()
    return load_shader(path, known).name


def load_catalog(folder: Path) -> Catalog:
    """Read every ``<folder>/<group>/<name>.yaml``.

    Raises:
        SpecError: a file breaks the schema, or two shaders have the same name.
    """
    found = dict(Described(folder))
    for shader in found.values():
        shader.check()
    return Catalog(found)


@cache
def catalog() -> Catalog:
    """Return the catalog of the package's descriptions, or of `shaders_folder` in a checkout. A description
    is read once, at its first use."""
    packaged = Frozen(PACKAGED, shaders_folder())
    return Catalog(packaged or Described(shaders_folder()))


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return (", ".join(names[:_LISTED]) or "none") + more
