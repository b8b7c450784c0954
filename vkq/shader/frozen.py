"""Descriptions of the shaders in a wheel: the content of each YAML, and the name of each variant's SPIR-V
module. The build of the wheel has checked the modules against the YAML, so nothing parses YAML, expands
GLSL or reflects SPIR-V at run time.

``<shader>.json`` in the folder of the modules describes one shader: ``axes``, ``combinations``, and
``variants`` in the order of the combinations.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from vkq import cache, files
from vkq.errors import SpecError
from vkq.shader.expression import Expression
from vkq.shader.spec import Binding, Constant, PushConstant, Shader, Variant

SUFFIX = ".json"


def freeze(shader: Shader, module: Callable[[Variant], str]) -> bytes:
    """Return the shader as JSON, with paths relative to the folder of all shaders. *module*: a function
    that returns the name of a variant's SPIR-V module."""
    made, folder = shader.variants, shader.path.parent.parent
    frozen = {
        "name": shader.name,
        "summary": shader.summary,
        "path": shader.path.relative_to(folder).as_posix(),
        "source": shader.source.relative_to(folder).as_posix(),
        "axes": shader.axes,
        "combinations": [list(each.values()) for each in shader.combinations],
        "push_constants": [dataclasses.astuple(each) for each in made[0].push_constants],
        "variants": [_frozen(variant, module(variant)) for variant in made],
    }
    return json.dumps(frozen, separators=(",", ":")).encode()


def _frozen(variant: Variant, module: str) -> dict[str, Any]:
    return {
        "module": module,
        "name": variant.name,
        "defines": variant.defines,
        "bindings": [dataclasses.astuple(each) for each in variant.bindings],
        "specialization": {name: dataclasses.astuple(each) for name, each in variant.specialization.items()},
        "requires": variant.requires,
        "local_size": [each.text for each in variant.local_size_text],
        "shared_bytes": variant.shared_bytes_text.text,
        "workgroups": variant.workgroups_text.text,
        "iterations": variant.iterations_text.text,
    }


def thaw(data: bytes, folder: Path) -> Shader:
    """Return the shader from the JSON of `freeze`."""
    found = files.parse_json(data)
    combinations = tuple(dict(zip(found["axes"], each, strict=True)) for each in found["combinations"])
    frozen = dict(zip(map(tuple, found["combinations"]), found["variants"], strict=True))
    source, push = folder / found["source"], tuple(PushConstant(*each) for each in found["push_constants"])

    def make(combination: Mapping[str, str]) -> Variant:
        said = frozen[tuple(combination.values())]
        x, y, z = map(Expression, said["local_size"])
        return Variant(
            shader=found["name"],
            name=said["name"],
            summary=found["summary"],
            source=source,
            axes=combination,
            defines=said["defines"],
            bindings=tuple(Binding(*each) for each in said["bindings"]),
            push_constants=push,
            specialization={name: Constant(*each) for name, each in said["specialization"].items()},
            requires=said["requires"],
            local_size_text=(x, y, z),
            shared_bytes_text=Expression(said["shared_bytes"]),
            workgroups_text=Expression(said["workgroups"]),
            iterations_text=Expression(said["iterations"]),
            packaged=said["module"],
        )

    axes = {axis: tuple(values) for axis, values in found["axes"].items()}
    return Shader(found["name"], found["summary"], folder / found["path"], source, axes, combinations, make)


class Frozen(Mapping[str, Shader]):
    """The shaders of a folder that `vkq.shader.build` filled, each read at its first use."""

    def __init__(self, packaged: Path, folder: Path):
        self._packaged, self._folder = packaged, folder
        self._names = tuple(sorted(path.stem for path in packaged.glob("*" + SUFFIX)))
        self._read: dict[str, Shader] = {}

    def __getitem__(self, name: str) -> Shader:
        found = self._read.get(name)
        if found is None:
            if name not in self._names:
                raise KeyError(name)
            path = self._packaged / (name + SUFFIX)
            data = cache.read(path)
            if data is None:
                raise SpecError(f"{path}:1: the description is damaged; install vkq again.")
            found = self._read.setdefault(name, thaw(data, self._folder))  # all readers get the same object
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names
