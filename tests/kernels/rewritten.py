"""Programs with rewritten shader text, for software drivers that lack features that the shaders require."""

from __future__ import annotations

import dataclasses
import functools
import weakref
from collections.abc import Mapping
from typing import Any

import vkq
from tests.conftest import lacks
from vkq.runtime.program import LazyPipeline, Program
from vkq.shader.glslang import find_compiler
from vkq.shader.spec import Binding, Value, Variant

# The compiled pipelines of each device, by (text, constants). Compiling a pipeline may take seconds, and
# many tests use the same pipeline.
_pipelines: weakref.WeakKeyDictionary[vkq.Device, dict[Any, LazyPipeline]] = weakref.WeakKeyDictionary()


def program(
    device: vkq.Device, variant: Variant, values: dict[str, Value], source: str, *more: Binding
) -> Program:
    """Return a program of the variant with *source* as its text and with the bindings *more* appended. The
    program is compiled when it is first recorded."""
    variant = dataclasses.replace(variant, bindings=(*variant.bindings, *more))
    made = _pipelines.setdefault(device, {})
    key = source, tuple(values.items()), len(more)
    if key not in made:
        made[key] = LazyPipeline(
            variant.name, functools.partial(_made, device.context, variant, values, source)
        )
    return Program(variant, values, made[key])


def _made(context: Any, variant: Variant, values: Mapping[str, Value], source: str) -> Any:
    packed = [(i, int.from_bytes(word, "little")) for i, word in variant.pack_specialization(values).items()]
    pushed = 4 * len(variant.push_constants)
    return context.program(
        variant.name, _spirv(source, variant.source.name), len(variant.bindings), pushed, packed, 0, 0
    )


@functools.cache
def _spirv(source: str, name: str) -> bytes:
    try:
        compiler = find_compiler()
    except vkq.CompileError as error:
        lacks(f"the test compiles a rewritten shader: {error}")
    return compiler.compile(source, name)
