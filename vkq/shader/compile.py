"""Compile GLSL to SPIR-V. This module expands includes and defines, and caches the SPIR-V under the hash of
the expanded text.

The expanded text names its files relative to the shaders folder, so the hash is the same in a wheel, in a
checkout and on another machine.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from vkq import cache, files
from vkq.errors import CompileError
from vkq.layout.glsl import glsl_includes
from vkq.shader import sizes, stored
from vkq.shader.catalog import PACKAGED, shaders_folder
from vkq.shader.glslang import find_compiler
from vkq.shader.interface import INCLUDE, glsl
from vkq.shader.reflect import Reflection, check, reflect
from vkq.shader.spec import Variant, Written

FORMAT = 2  # version of the compiled files; raise it if the same text gets other SPIR-V or another format
DEBUG = "DEBUG"  # the define that makes shaders print (debugPrintfEXT)
DEBUG_VARIABLE = "VKQ_SHADER_DEBUG"  # the environment variable that sets this define
MOST_BYTES = 1 << 20  # maximum bytes of a source or an included file
MOST_LINES = 10_000  # maximum lines of expanded text, which nested includes can grow exponentially
MOST_DEPTH = 32  # maximum number of levels of nested includes

_INCLUDE = re.compile(r'\s*#\s*include\s+"([^"]+)"\s*(//.*)?')
_ANY_INCLUDE = re.compile(r"\s*#\s*include\b")
# A path that is not absolute and has no "..".
_INSIDE = re.compile(r"(?:[\w-][\w.-]{0,99}/){0,9}[\w-][\w.-]{0,99}")
_ONCE = re.compile(r"\s*#\s*pragma\s+once\b")
_VERSION = re.compile(r"\s*#\s*version\b")

Includes = tuple[tuple[str, str], ...]  # names and texts of includes that are not files


class Sources:
    """The source files of shaders. Each included name is searched once, and each file is read once."""

    def __init__(self, folders: Sequence[Path] = ()):
        self.folders = list(folders)
        self._found: dict[tuple[Path | None, str], Path | None] = {}
        self._texts: dict[Path, tuple[str, str]] = {}
        self.bodies: dict[tuple[Path, Includes], str] = {}  # expanded text below #version

    def read(self, path: Path) -> tuple[str, str]:
        """Return a file's name, relative to the folder with ``common``, and its text. The name is used in
        messages and in the hashed text."""
        found = self._texts.get(path)
        if found is None:
            found = self._texts[path] = _label(path, self.folders), _read(path)
        return found

    def find(self, wanted: str, beside: Path | None) -> Path | None:
        """Return the file of the included name *wanted*: in *beside* (the including file's folder), else in
        the include folders. Return None if there is none."""
        key = beside, wanted
        if key not in self._found:
            places = (folder / wanted for folder in self.looked(beside))
            self._found[key] = next((place for place in places if place.is_file()), None)
        return self._found[key]

    def looked(self, beside: Path | None) -> list[Path]:
        """Return the folders to search for an included name, in order. *beside*: see `find`."""
        return [folder for folder in ([beside] if beside else []) + self.folders if folder.is_dir()]


def expand(
    path: Path,
    include_dirs: Sequence[Path] | Sources = (),
    virtual: Mapping[str, str] | None = None,
    defines: Mapping[str, int | str] | None = None,
) -> str:
    """Return the GLSL file *path* as one text: ``#include "name"`` is replaced by the file, *defines* are
    set, and each part begins with a ``#line`` directive.

    A name is searched in the including file's folder, then in *include_dirs*, then in *virtual* ({name:
    text}). Each included file has an include guard, so the preprocessor uses only its first occurrence,
    even inside ``#if``.

    Raises:
        CompileError: an include that is missing or malformed (``file:line:``), or a file without
        ``#version``.
    """
    sources = include_dirs if isinstance(include_dirs, Sources) else Sources(include_dirs)
    name, text = sources.read(path)
    head = text.splitlines()
    version = next((number for number, line in enumerate(head, 1) if _VERSION.match(line)), None)
    if version is None:
        raise CompileError(
            f"{name}:1: there is no #version line; begin with one (only comments may stand above it)."
        )
    lines = [*head[:version], "#extension GL_GOOGLE_cpp_style_line_directive : require"]
    if DEBUG in (defines or {}):
        lines.append("#extension GL_EXT_debug_printf : require")
    lines += [f"#define {key} {value}" for key, value in (defines or {}).items()]
    key = path, tuple((virtual or {}).items())
    if key not in sources.bodies:
        sources.bodies[key] = _expanded("\n".join(head[version:]), version + 1, path, name, sources, key[1])
    return "\n".join([*lines, f'#line {version + 1} "{name}"', sources.bodies[key]]) + "\n"


def _expanded(text: str, first: int, path: Path, name: str, sources: Sources, virtual: Includes) -> str:
    """Expand the includes of *text*, the lines below #version. *first*: the number of the first line."""
    parts, count = [], 0
    for part in _body(text, first, path.parent, name, sources, dict(virtual), (name,)):
        parts.append(part)
        count += part.count("\n") + 1
        if count > MOST_LINES:
            raise CompileError(f"{name}:1: it has more than {MOST_LINES} lines, includes counted.")
    return "\n".join(parts)


@functools.lru_cache(maxsize=1024)
def _parts(text: str, first: int, name: str) -> tuple[str | tuple[int, str], ...]:
    """Return the parts of a file in order: text without includes, or (line, file name) of an include."""
    parts: list[str | tuple[int, str]] = []
    block: list[str] = []
    for number, line in enumerate(text.splitlines(), first):
        if "#" not in line:  # most lines are not directives
            block.append(line)
        elif match := _INCLUDE.fullmatch(line):
            parts += ["\n".join(block), (number, match[1])] if block else [(number, match[1])]
            block = []
        elif _ANY_INCLUDE.match(line):
            raise CompileError(f"{name}:{number}: '{line.strip()}' must be written as #include \"name\".")
        else:
            block.append("" if _ONCE.match(line) else line)
    return (*parts, "\n".join(block)) if block else tuple(parts)


def _body(
    text: str,
    first: int,
    folder: Path | None,
    name: str,
    sources: Sources,
    virtual: Mapping[str, str],
    including: tuple[str, ...],
) -> Iterator[str]:
    for part in _parts(text, first, name):
        if isinstance(part, str):
            yield part
        else:
            number, wanted = part
            yield from _included(wanted, f"{name}:{number}", folder, sources, virtual, including)
            yield f'#line {number + 1} "{name}"'


def _included(
    wanted: str,
    where: str,
    folder: Path | None,
    sources: Sources,
    virtual: Mapping[str, str],
    including: tuple[str, ...],
) -> Iterator[str]:
    if not _INSIDE.fullmatch(wanted):
        raise CompileError(
            f"{where}: include {wanted[:60]!r} leaves its folder; name a file in the folder of the source or"
            " in one of the include folders."
        )
    if len(including) > MOST_DEPTH:
        raise CompileError(f"{where}: files include each other more than {MOST_DEPTH} deep.")
    found = sources.find(wanted, folder)
    if found is None and wanted not in virtual:
        places = ", ".join(str(place) for place in sources.looked(folder))
        raise CompileError(
            f'{where}: include "{wanted}" was not found; looked in {places} and the generated files.'
        )
    name, text = sources.read(found) if found else (wanted, virtual[wanted])
    if name in including:  # ignore an include of a file in itself, as #pragma once does
        return
    guard = "VKQ_INCLUDED_" + re.sub(r"[\W_]+", "_", name)
    yield f'#ifndef {guard}\n#define {guard}\n#line 1 "{name}"'
    yield from _body(text, 1, found and found.parent, name, sources, virtual, (*including, name))
    yield "#endif"


@functools.cache
def _resolved(path: Path) -> Path:
    return path.resolve()


def _label(path: Path, folders: list[Path]) -> str:
    resolved = _resolved(path)
    for folder in folders:
        if resolved.is_relative_to(_resolved(folder).parent):
            return resolved.relative_to(_resolved(folder).parent).as_posix()
    return path.name


def _read(path: Path) -> str:
    try:
        return files.read(path, MOST_BYTES).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError(f"{path}:1: cannot be read: {error}.") from error


@functools.cache
def _shipped() -> Sources:
    """Return the sources in vkq's folder. Each file is read once, at its first use."""
    return Sources([shaders_folder() / "common"])


def text(variant: Variant) -> str:
    """Return the GLSL to compile for *variant*: its expanded source, with its defines, its push constants
    and the layouts' functions."""
    common = variant.source.parent.parent / "common"
    debug = {DEBUG: 1} if _debugged() else {}
    declared = sizes.glsl(variant.specialization, [each.text for each in variant.local_size_text])
    virtual = {**glsl_includes(), INCLUDE: glsl(variant.push_constants), sizes.INCLUDE: declared}
    sources = _shipped() if common == _shipped().folders[0] else [common]
    return expand(variant.source, sources, virtual, {**variant.defines, **debug})


def _debugged() -> bool:
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


def cache_folder() -> Path:
    """Return the folder of this user's compiled variants."""
    return cache.cache_dir() / "spirv"


def key(text: str) -> str:
    """Return the file name for the SPIR-V of an expanded text."""
    return hashlib.sha256(f"vkq SPIR-V {FORMAT}\n{text}".encode()).hexdigest()


def build(variants: Sequence[Variant], source: str) -> bytes:
    """Compile the expanded text *source* of *variants* without a cache, and compare the SPIR-V with each
    variant's YAML.

    Raises:
        CompileError: the compiler's messages, or every difference from the YAML, under the variant's name.
    """
    variant = variants[0]
    try:
        spirv = find_compiler().compile(source, variant.source.name)
        for variant in variants:
            problems = check(variant, reflection(variant, spirv))
            if problems:
                raise CompileError("the SPIR-V differs from the YAML: " + "\n".join(problems))
    except CompileError as error:
        raise CompileError(f"{variant.name}: " + str(error).replace("\n", "\n  ")) from error
    return spirv


def reflection(variant: Variant, spirv: bytes) -> Reflection:
    """Return the interface of the SPIR-V under *variant*'s default specialization."""
    return reflect(spirv, {constant.id: constant.default for constant in variant.specialization.values()})


def spirv(variant: Variant) -> bytes:
    """Return the SPIR-V of *variant*: from the package, else from the user's cache, else compiled and cached.

    Raises:
        CompileError: no compiler was found, the GLSL does not compile, or the SPIR-V disagrees with the YAML.
    """
    data = compiled(variant)
    if data is None:
        source = text(variant)
        data = build([variant], source)
        cache.write(cache_folder() / f"{key(source)}.spv", stored.compressed(data))
    return data


def compiled(variant: Variant) -> bytes | None:
    """Return the SPIR-V of *variant* from the package or the user's cache, or None."""
    if isinstance(variant, Written):
        return variant.module()
    if variant.packaged and not _debugged():  # the package's build checked it against the YAML
        data = stored.read(PACKAGED / f"{variant.packaged}.spv")
        if data is not None:
            return data
    return checked_spirv(variant, cache_folder() / f"{key(text(variant))}.spv")


def checked_spirv(variant: Variant, path: Path) -> bytes | None:
    """Return the SPIR-V of a sealed file (`vkq.cache`) if its interface matches the YAML: the seal does not
    guarantee that. Else return None, with a warning if the file exists."""
    data = stored.read(path)
    if data is None:
        return None
    try:
        problems = check(variant, reflection(variant, data))
    except CompileError as error:
        problems = [str(error)]
    if problems:
        cache.ignore(path, f"it is not {variant.name}: {problems[0].rstrip('.')}")
        return None
    return data
