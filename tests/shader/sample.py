"""A small shaders folder for the tests of `vkq.shader`, which change single lines of its files."""

from __future__ import annotations

from pathlib import Path

from vkq.shader.load import load_shader
from vkq.shader.spec import Shader

YAML = """\
name: scale__plain
summary: y = x * factor, for the tests
source: scale.comp
axes:
  out:
    f32: {defines: {OUT: 0}, types: {y: float}}
    i32: {defines: {OUT: 1}}
  tile:
    one: {defines: {TILE: 1}}
    two: {defines: {TILE: 2}, specialization: {LOCAL_X: 16}, requires: {maxComputeSharedMemorySize: 20000}}
defines: {EXTRA: 3}
bindings:
  - {name: x, access: read, type: ivec4, layout: kPackedInt8_4C}
  - {name: y, access: write, type: int}
push_constants:
  - {name: count, type: uint}
  - {name: offset, type: int}
  - {name: factor, type: float}
specialization:
  - {name: LOCAL_X, id: 0, type: uint, default: 8}
  - {name: DOUBLED, id: 3, type: bool, default: false}
local_size: [LOCAL_X, 1, 1]
shared_bytes: (LOCAL_X + EXTRA) * 16
workgroups: ceil_div(count, TILE * LOCAL_X)
requires: {maxComputeSharedMemorySize: 16384}
"""

GLSL = """\
// y = x * factor
#version 450
#include "helper.glslh"
layout(local_size_x_id = 0) in;
layout(constant_id = 0) const uint LOCAL_X = 8;
layout(constant_id = 3) const bool DOUBLED = false;
layout(set = 0, binding = 0) readonly buffer X { ivec4 x[]; };
#if OUT == 0
layout(set = 0, binding = 1) writeonly buffer Y { float y[]; };
#else
layout(set = 0, binding = 1) writeonly buffer Y { int y[]; };
#endif
layout(push_constant) uniform Push { uint count; int offset; float factor; } p;
shared ivec4 words[LOCAL_X + EXTRA];
void main() {
  uint i = gl_LocalInvocationID.x;
  words[i] = x[gl_GlobalInvocationID.x * TILE];
  barrier();
  float value = helper(words[LOCAL_X - 1 - i].x + p.offset) * p.factor;
  if (DOUBLED) value *= 2.0;
  if (gl_GlobalInvocationID.x >= p.count) return;
#if OUT == 0
  y[gl_GlobalInvocationID.x] = value;
#else
  y[gl_GlobalInvocationID.x] = int(roundEven(value));
#endif
}
"""

HELPER = """\
#pragma once
float helper(int v) { return float(v); }
"""


def write_folder(root: Path, yaml: str = YAML, glsl: str = GLSL, helper: str = HELPER) -> Path:
    """Write the sample as a shaders folder below *root*; return the folder."""
    folder = root / "shaders"
    for name, text in (
        ("scale/scale.yaml", yaml),
        ("scale/scale.comp", glsl),
        ("common/helper.glslh", helper),
    ):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def sample(root: Path, *changes: tuple[str, str], glsl: tuple[str, str] = ("", "")) -> Shader:
    """Return the sample shader with replaced texts of its YAML (*changes*) and its GLSL."""
    yaml = YAML
    for old, new in changes:
        if old not in yaml:
            raise LookupError(f"the sample's YAML has no {old!r}")
        yaml = yaml.replace(old, new, 1)
    if glsl[0] not in GLSL:
        raise LookupError(f"the sample's GLSL has no {glsl[0]!r}")
    return load_shader(
        write_folder(root, yaml, GLSL.replace(*glsl, 1) if glsl[0] else GLSL) / "scale" / "scale.yaml"
    )
