"""Emulate matrix units on devices without them: plain GLSL (emulated.glsl) replaces matrices in the
shaders.

Emulation covers every shape of matrices and every subgroup size. Only hardware shows how a driver
distributes matrices over a subgroup, and which code it generates for loops.

Mesa 22.3's llvmpipe loses private arrays that are live across a barrier if loops index them. Therefore
loops are unrolled on llvmpipe, and compiling a shader takes seconds there.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import vkq
from vkq.device.capabilities import CooperativeMatrix
from vkq.runtime.buffer import Buffer
from vkq.runtime.builder import Builder
from vkq.runtime.builder import Value as Slot
from vkq.runtime.plan import Resident
from vkq.runtime.program import Program, refusals
from vkq.runtime.recording import Recording
from vkq.shader.catalog import shaders_folder
from vkq.shader.compile import text
from vkq.shader.spec import Binding, Value, Variant

from ..ops import doctored
from . import rewritten

ROW = CooperativeMatrix(16, 8, 32, "s8", "s8", "s32", "s32", False, "subgroup")
FEATURES = (
    "cooperativeMatrix",
    "vulkanMemoryModel",
    "shaderInt8",
    "shaderInt16",
    "shaderFloat16",
    "shaderBFloat16CooperativeMatrix",
    "storageBuffer16BitAccess",
    "subgroupSizeControl",
    "computeFullSubgroups",
)
LIMITS = {"maxComputeSharedMemorySize": 49152, "maxComputeWorkGroupInvocations": 1024}
EXTENSIONS = (
    "GL_KHR_cooperative_matrix", "GL_KHR_memory_scope_semantics", "GL_KHR_shader_subgroup_basic",
    "GL_EXT_shader_explicit_arithmetic_types_int8", "GL_EXT_shader_explicit_arithmetic_types_float16",
    "GL_EXT_shader_explicit_arithmetic_types_int16", "GL_EXT_bfloat16", "GL_EXT_shader_16bit_storage",
)  # fmt: skip
IN_PLACE = (  # (pattern of an expression in the shader, macro call that replaces it)
    (r"MatrixAcc (\S+) = matrix_of_zeros\(\);", r"MatrixAcc \1; clear(\1);"),
    (r"(\S+) = matrix_of_zeros\(\);", r"clear(\1);"),
    (r"\S+ = coopMatMulAdd\(matrix_of_ones\(\), (\S+), (\S+)\);", r"add_sums(\2, \1);"),
    (r"\S+ = coopMatMulAdd\((\S+), (\S+), (\S+)\);", r"add_product(\3, \1, \2);"),
)

# Number of repeated runs. Emulation is slow, so only hardware (VKQ_TEST_DEVICE names a GPU) gets many.
REPLAYS = 200 if "VKQ_TEST_DEVICE" in os.environ else 4

Wrong = tuple[str, str] | None  # a rewrite of the shader: (pattern, replacement)
NOTHING = (r"add_product\(.*\);", ";")  # removes all products, as a faulty driver might


def row(shape: str, form: str = "s8s8") -> CooperativeMatrix:
    """Return the cooperative-matrix entry for *shape*: ``MxNxK``, or ``MxNxK FORM``, where FORM replaces
    the argument *form*."""
    shape, _, own = shape.partition(" ")
    form = own or form
    m, n, k = map(int, shape.split("x"))
    element, total = {
        "s8s8": ("s8", "s32"),
        "u8u8": ("u8", "u32"),
        "f16": ("f16", "f32"),
        "f16f16": ("f16", "f16"),
        "bf16": ("bf16", "f32"),
    }[form]
    return dataclasses.replace(ROW, m=m, n=n, k=k, a=element, b=element, c=total, d=total)


def capabilities(
    device: vkq.Device, *shapes: str, form: str = "s8s8", subgroup: int = 32, **changes: Any
) -> vkq.Capabilities:  # fmt: skip
    """Return the capabilities of the device as if it had matrix units of these shapes (MxNxK)."""
    forms = ("f16f16", "f16") if form == "f16" else (form,)
    rows = tuple(row(shape, one) for one in forms for shape in shapes or ("16x16x32", "16x8x32"))
    sizes = {"minSubgroupSize": subgroup, "maxSubgroupSize": subgroup}
    has = dict.fromkeys(FEATURES, True)
    return doctored.capabilities(device, cooperative_matrices=rows, **{**has, **LIMITS, **sizes, **changes})


def emulate(
    device: vkq.Device, monkeypatch: pytest.MonkeyPatch, *shapes: str, wrong: Wrong = None,
    **options: Any,
) -> None:  # fmt: skip
    """Give the device emulated matrix units; *shapes* and *options* are those of `capabilities`.

    *wrong*: a rewrite of the shader that imitates a faulty driver.
    """
    make, dispatch, build = device.program, Recording.dispatch, Builder.dispatch
    made: dict[Any, Program] = {}

    def program(
        variant: Variant, constants: Mapping[str, Value] | None = None, subgroup_size: int = 0
    ) -> Program:
        if "cooperativeMatrix" not in variant.requires:
            return make(variant, constants, subgroup_size)
        values = variant.constants(constants or {})
        assert subgroup_size == values["SUBGROUP"]
        assert not refusals(variant, values, device.capabilities)
        key = variant, tuple(values.items())
        if key not in made:
            made[key] = _program(device, variant, values, wrong)
        return made[key]

    def dispatched(
        self: Recording, program: Program, buffers: Iterable[Buffer], push: Mapping[str, int | float],
        macs: int = 0
    ) -> None:  # fmt: skip
        size = _tile_bytes(program, push)
        dispatch(self, program, [*buffers, device.allocate(size)] if size else buffers, push, macs)

    def built(
        self: Builder, program: Program, slots: Sequence[Slot], push: Mapping[str, int | float],
        macs: int = 0, in_place: bool = False
    ) -> None:  # fmt: skip
        if size := _tile_bytes(program, push):
            tile = Resident(device, size, lambda: np.zeros(size, np.int8))
            slots = [*slots, self.constant(tile)]
        build(self, program, slots, push, macs, in_place)

    monkeypatch.setattr(device, "capabilities", capabilities(device, *shapes, **options))
    monkeypatch.setattr(device, "program", program)
    monkeypatch.setattr(Recording, "dispatch", dispatched)
    monkeypatch.setattr(Builder, "dispatch", built)


def _tile_bytes(program: Program, push: Mapping[str, int | float]) -> int:
    """Return the size in bytes of the buffer that replaces the shared memory of a dispatch's workgroups, or 0
    if the program has no such buffer."""
    if all(binding.name != "tile" for binding in program.variant.bindings):
        return 0
    workgroups = program.variant.workgroups({"first_group": 0, **push}, program.constants)
    return max(16 * _tile(program.variant, program.constants) * workgroups, 16)


def _program(device: vkq.Device, variant: Variant, values: dict[str, Value], wrong: Wrong) -> Program:
    number = len(variant.bindings)
    source = _source(variant, tuple(values.items()), number, "llvmpipe" in device.name, wrong)
    return rewritten.program(device, variant, values, source, Binding(number, "tile", "read_write", "uvec4"))


def _tile(variant: Variant, values: Mapping[str, Value]) -> int:
    """Return the size of a workgroup's shared memory in uvec4."""
    return variant.shared_bytes(values) // 16


def _frozen(source: str, variant: Variant, values: Mapping[str, Value]) -> str:
    """Return *source* with specialization constants replaced by plain constants, so that the compiler
    unrolls loops as a driver with matrix units would."""

    def plain(match: re.Match[str]) -> str:
        kind, name = match[1], match[2]
        if name not in values:  # the constant is used only in code that the preprocessor removes
            return match[0]
        value = str(values[name]).lower()
        return f"const {kind} {name} = {value}{'u' if kind == 'uint' else ''};"

    x, y, z = variant.local_size(values)
    source = re.sub(r"layout\(constant_id = \d+\) const (\w+) (\w+) = [^;]+;", plain, source)
    return re.sub(
        r"layout\(local_size_x_id = \d+\) in;",
        f"layout(local_size_x = {x}, local_size_y = {y}, local_size_z = {z}) in;",
        source,
    )


@functools.cache
def _source(
    variant: Variant, values: tuple[tuple[str, Value], ...], number: int, unroll: bool, wrong: Wrong
) -> str:
    """Return the variant's GLSL with emulated matrices. A buffer replaces the shader's largest shared
    array, because few CPU devices have enough shared memory."""
    v = dict(values)
    size = _tile(variant, v)
    source = _frozen(text(variant), variant, v)
    for extension in EXTENSIONS:
        source = source.replace(f"#extension {extension} : require", "")
    source = source.replace("#pragma use_vulkan_memory_model", "").replace("writeonly buffer Y", "buffer Y")
    source = source.replace("gl_SubgroupID", "(gl_LocalInvocationIndex / SUBGROUP)").replace(
        "subgroupBarrier()", "barrier()"
    )
    buffer = f"layout(set = 0, binding = {number}) coherent buffer Tile {{ uvec4 tile_[][{size}]; }};"
    source = re.sub(r"shared uvec4 tile\[.*\];", f"{buffer}\n#define tile tile_[workgroup_index()]", source)
    source = re.sub(r"\bbarrier\(\);", "{ memoryBarrierBuffer(); barrier(); }", source)
    for pattern, call in IN_PLACE:
        source = re.sub(pattern, call, source)
    elements = int(v["MM"]) * int(v["MN"]) // int(v["SUBGROUP"])
    half = "shaderInt8" not in variant.requires  # the GLSL has the code of both types
    runs = int(v["MK"]) // (8 if half else 16)
    defines = (
        f"#define ELEMENTS {elements}u\n#define K_RUNS {runs}u\n#define HALF {int(half)}\n"
        "#define COOPMAT_TYPES_GLSLH\n#define COOPMAT_HALF_TYPES_GLSLH\n"
    )
    common = shaders_folder() / "common"
    forms = (common / "dot_forms.glslh").read_text()
    matrices = Path(__file__).with_suffix(".glsl").read_text().replace('#include "dot_forms.glslh"', forms)
    before, found, after = source.partition("layout(local_size_x")
    assert found
    old, new = ("[[dont_unroll]]", "[[unroll]]") if unroll else ("[[unroll]]", "[[dont_unroll]]")
    source = (before + defines + matrices + found + after).replace(old, new)
    if wrong:
        source, number = re.subn(*wrong, source)
        assert number
    return source
