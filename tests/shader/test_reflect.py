"""Tests of reading SPIR-V: its interface, every kind of disagreement with a YAML, and the float controls."""

import ctypes
import random
import struct
from pathlib import Path

import pytest

from tests.effort import little_work
from tests.shader.sample import sample
from vkq.errors import CompileError
from vkq.shader.compile import reflection, text
from vkq.shader.float_controls import with_float_controls
from vkq.shader.glslang import LibraryCompiler, find_compiler
from vkq.shader.reflect import check, reflect
from vkq.shader.spec import Binding, Constant, PushConstant
from vkq.shader.spirv import MAGIC, Instruction, assemble, parse

SOURCE = """#version 450
#extension GL_EXT_shader_8bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types : require
layout(local_size_x = 4, local_size_y_id = 7, local_size_z = 2) in;
layout(constant_id = 2) const int A = -3;
layout(constant_id = 3) const bool B = true;
layout(constant_id = 4) const float C = 0.5;
layout(constant_id = 5) const uint D = 6;
layout(binding = 0) readonly buffer R { uvec4 v[]; } r;
layout(binding = 1) writeonly buffer W { vec4 v[]; } w;
layout(binding = 2) buffer RW { uint head; f16vec4 v[]; } rw;
layout(binding = 5) readonly buffer Bytes { int8_t v[]; } bytes;
layout(binding = 6) uniform isamplerBuffer texels;
layout(binding = 7) uniform sampler2D picture;
layout(push_constant) uniform Push { uint n; int z; float f; } p;
struct Pair { float a; vec3 b; };
shared Pair pairs[D / 2];                            // 3 x 32 bytes
shared int words[(B ? D * 2 : D % 4) + (D << 1)];    // 24 x 4
shared f16vec2 halves[3];                            // 3 x 4
void main() {
  uint i = gl_LocalInvocationIndex;
  pairs[i].b.x = C; words[i] = A + p.z; halves[i].x = rw.v[i].x;
  barrier();
  rw.v[i] = f16vec4(pairs[0].b.x + words[p.n] + bytes.v[i] + halves[1].x);
  w.v[i] = vec4(r.v[i]) * p.f + texelFetch(texels, int(i)) + texelFetch(picture, ivec2(i), 0);
}
"""


@pytest.fixture(scope="module")
def spirv() -> bytes:
    return find_compiler().compile(SOURCE, "a.comp")


def test_reflection(spirv: bytes) -> None:
    found = reflect(spirv)
    assert found.bindings == (
        Binding(0, "r", "read", "uvec4"),
        Binding(1, "w", "write", "vec4"),
        Binding(2, "rw", "read_write", "f16vec4"),
        Binding(5, "bytes", "read", "int8_t"),
        Binding(6, "texels", "read", "isamplerBuffer"),
        Binding(7, "picture", "read", "?"),
    )
    assert [binding.number for binding in found.bindings if binding.texels] == [6]
    assert found.push_constants == (
        PushConstant("n", "uint", 0),
        PushConstant("z", "int", 4),
        PushConstant("f", "float", 8),
    )
    assert found.specialization == {
        2: ("A", Constant(2, "int", -3)),
        3: ("B", Constant(3, "bool", True)),
        4: ("C", Constant(4, "float", 0.5)),
        5: ("D", Constant(5, "uint", 6)),
        7: ("", Constant(7, "uint", 1)),
    }
    assert (found.local_size, found.local_size_ids) == ((4, 1, 2), (None, 7, None))
    assert found.shared_bytes == 3 * 32 + 24 * 4 + 3 * 4
    assert {1, 9, 39, 4448} <= found.capabilities
    assert "SPV_KHR_8bit_storage" in found.extensions


def test_specialization_changes_sizes(spirv: bytes) -> None:
    found = reflect(spirv, {3: False, 5: 9, 7: 16})
    assert found.local_size == (4, 16, 2)
    assert found.shared_bytes == 4 * 32 + (9 % 4 + 18) * 4 + 3 * 4


def test_big_endian_modules_are_read(spirv: bytes) -> None:
    words = struct.unpack(f"<{len(spirv) // 4}I", spirv)
    assert reflect(struct.pack(f">{len(words)}I", *words)).local_size == (4, 1, 2)


@pytest.mark.parametrize("data", [b"", b"\x03\x02\x23\x07", b"x" * 40, b"x" * 41])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(CompileError, match="SPIR-V"):
        reflect(data)


def test_damaged_modules_never_raise_anything_else(spirv: bytes) -> None:
    random.seed(1)
    refused = 0
    for _ in range(300):
        data = bytearray(spirv[: random.randrange(20, len(spirv)) & ~3])
        for _ in range(random.randrange(4)):
            data[random.randrange(len(data))] = random.randrange(256)
        try:
            reflect(bytes(data))
        except CompileError:
            refused += 1
    assert refused > 100


def test_other_descriptor_sets_are_refused() -> None:
    source = "#version 450\nlayout(set = 1, binding = 3) buffer B { int b; };\nvoid main() { b = 1; }\n"
    with pytest.raises(CompileError, match="binding 3 is in descriptor set 1"):
        reflect(find_compiler().compile(source, "a.comp"))


def differences(tmp_path: Path, *changes: tuple[str, str], glsl: tuple[str, str] = ("", "")) -> list[str]:
    variant = sample(tmp_path, *changes, glsl=glsl).variants[0]
    return check(variant, reflection(variant, find_compiler().compile(text(variant), "a.comp")))


def test_the_sample_agrees(tmp_path: Path) -> None:
    assert differences(tmp_path) == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("y: float}", "y: int}", "binding 1 ('y') is an array of float in the GLSL and of int in the YAML."),
        (
            "x, access: read",
            "x, access: read_write",
            "binding 0 ('x') is read in the GLSL (readonly, writeonly) and",
        ),
        (
            "push_c",
            "  - {name: z, access: read, type: int}\npush_c",
            "binding 2 ('z') is not used by the GLSL",
        ),
        (
            "offset, type: int",
            "offset, type: uint",
            "push constant 1 is 'offset' int at offset 4 in the GLSL and 'offset'",
        ),
        ("name: offset", "name: shift", "push constant 1 is 'offset' int"),
        ("  - {name: factor, type: float}\n", "", "a block of 3 push constants and the YAML names 2."),
        ("id: 3", "id: 4", "specialization constant 3 ('DOUBLED') is not in the YAML."),
        (
            "name: DOUBLED",
            "name: TWICE",
            "specialization constant 3 ('TWICE') is named 'DOUBLED' in the GLSL.",
        ),
        (
            "type: bool, default: false",
            "type: uint, default: 0",
            "specialization constant 3 ('DOUBLED') is bool",
        ),
        (
            "type: bool, default: false",
            "type: bool, default: true",
            "is False by default in the GLSL and True in the",
        ),
        ("default: 8", "default: 4", "('LOCAL_X') is 8 by default in the GLSL and 4 in the YAML."),
        (
            "[LOCAL_X, 1, 1]",
            "[LOCAL_X, 2, 1]",
            "the local size is (8, 1, 1) in the GLSL and (8, 2, 1) in the YAML.",
        ),
        (
            "[LOCAL_X, 1, 1]",
            "[8, 1, 1]",
            "local size x: constant_id is 0 in the GLSL, and the YAML says '8'.",
        ),
        ("(LOCAL_X + EXTRA) * 16", "16", "shared memory is 176 bytes in the GLSL and 16 in the YAML."),
    ],
)
def test_differences_are_told(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert any(message in difference for difference in differences(tmp_path, (old, new)))


def test_bindings_that_the_yaml_lacks(tmp_path: Path) -> None:
    found = differences(
        tmp_path, (", types: {y: float}", ""), ("  - {name: y, access: write, type: int}\n", "")
    )
    assert found == ["binding 1 ('Y') is not in the YAML."]


def test_optional_bindings_may_be_unused(tmp_path: Path) -> None:
    change = ("push_c", "  - {name: z, access: read, type: int, optional: true}\npush_c")
    assert differences(tmp_path, change) == []


def test_features_must_be_required(tmp_path: Path) -> None:
    dot = ("#include", "#extension GL_EXT_integer_dot_product : require\n#include")
    source = ("helper(words", "dotPacked4x8EXT(p.offset, p.offset) + helper(words")
    variant = sample(tmp_path).variants[0]
    code = text(variant).replace(*dot, 1).replace("#version 450", f"#version 450\n{dot[1].splitlines()[0]}")
    found = check(variant, reflection(variant, find_compiler().compile(code.replace(*source), "a.comp")))
    assert (
        "the SPIR-V has the capability DotProduct; add 'requires: {shaderIntegerDotProduct: true}'." in found
    )


def validate(spirv: bytes) -> bool:
    """Return True if SPIRV-Tools (in the compiler's library) accepts a module."""
    compiler = find_compiler()
    if not isinstance(compiler, LibraryCompiler):
        raise LookupError("these tests need the compiler of slangpy: pip install 'vkq[compile]'")
    validator = ctypes.CDLL(str(compiler.library)).glslang_validateSPIRV
    validator.argtypes, validator.restype = [ctypes.c_char_p, ctypes.c_int], ctypes.c_bool
    return bool(validator(spirv, len(spirv) // 4))


@pytest.mark.parametrize(("rte", "denorm_preserve"), [(True, False), (False, True), (True, True)])
def test_float_controls(spirv: bytes, rte: bool, denorm_preserve: bool) -> None:
    stated = with_float_controls(spirv, rte=rte, denorm_preserve=denorm_preserve)
    assert validate(stated)
    assert not validate(stated[:-4])
    wanted = {4467: rte, 4464: denorm_preserve}
    found = reflect(stated)
    assert found.capabilities - reflect(spirv).capabilities == {
        number for number, asked in wanted.items() if asked
    }
    assert found.extensions - reflect(spirv).extensions == {"SPV_KHR_float_controls"}
    modes = [instruction.words[1:] for instruction in parse(stated)[1] if instruction.op == 16]
    assert ((4462, 32) in modes, (4459, 32) in modes) == (rte, denorm_preserve)
    assert with_float_controls(stated, rte=rte, denorm_preserve=denorm_preserve) == stated


def test_no_float_controls_is_the_same_module(spirv: bytes) -> None:
    assert with_float_controls(spirv, rte=False, denorm_preserve=False) == spirv


def module(*instructions: tuple[int, ...]) -> bytes:
    """Return a module of instructions (opcode, operands...)."""
    return assemble(
        (MAGIC, 0x10300, 0, 100_000, 0), [Instruction(op, tuple(words)) for op, *words in instructions]
    )


@pytest.mark.parametrize(
    "instructions",
    [
        [(5,)],  # an OpName without operands
        [(71,)],
        [(72, 1)],
        [(43, 2)],
        [(17,), (16, 1)],
        [(52, 5, 3, 196, 2), (71, 3, 11, 25)],
        # As a Python integer, the constant 1 << 2^31 would take 256 MiB.
        [(21, 1, 32, 0), (43, 1, 2, 2**31), (52, 1, 5, 196, 2, 2), (71, 3, 11, 25), (51, 4, 3, 5, 5, 5)],
        # Each of 5000 instructions doubles the result of the previous one. The final value has 5000 bits. As
        # an expression, it has 2^5000 terms.
        [(21, 1, 32, 0), (43, 1, 2, 7), *((52, 1, n + 1, 128, n, n) for n in range(2, 5000)),
         (71, 9000, 11, 25),
         (51, 4, 9000, 5000, 5000, 5000)],
        # An array of arrays, nested many times.
        [(21, 1, 32, 0), (43, 1, 2, 4), *((28, n + 1, n, 2) for n in range(10, 5000)), (32, 9000, 4, 5000),
         (59, 9000, 9001, 4)],
    ],
)  # fmt: skip
def test_modules_that_lie_cost_no_time_and_raise_compile_errors(instructions: list[tuple[int, ...]]) -> None:
    with little_work(), pytest.raises(CompileError):
        reflect(module(*instructions))


def test_structures_of_structures_are_sized_once() -> None:
    # each structure has two members whose type is the previous structure: 2^22 words in total
    doubled = [(30, n + 1, n, n) for n in range(10, 32)]
    words = [(21, 10, 32, 0), *doubled, (32, 100, 4, 32), (59, 100, 101, 4), (16, 1, 17, 1, 1, 1)]
    with little_work():
        assert reflect(module(*words)).shared_bytes == 4 << 22


def test_sizes_are_those_of_32_bits() -> None:
    words = [(21, 1, 32, 0), (43, 1, 2, 2**31), (71, 3, 11, 25)]
    with pytest.raises(CompileError, match="a shift by 2147483648"):
        reflect(module(*words, (52, 1, 5, 196, 2, 2), (51, 4, 3, 5, 5, 5)))
    doubled = [(52, 1, n + 1, 128, n, n) for n in range(2, 80)]
    with pytest.raises(CompileError, match="computes a size of 64 bits"):
        reflect(module(*words[:2], *doubled, (71, 90, 11, 25), (51, 4, 90, 80, 80, 80)))
