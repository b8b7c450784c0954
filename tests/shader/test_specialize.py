"""Tests that specialization constants become literals in the module that a driver gets."""

from array import array
from pathlib import Path

import pytest

from tests.shader.test_sizes import sized
from vkq.errors import CompileError
from vkq.shader.catalog import catalog
from vkq.shader.compile import spirv
from vkq.shader.glslang import find_compiler
from vkq.shader.reflect import reflect
from vkq.shader.spec import Value, Variant
from vkq.shader.specialize import specialized
from vkq.shader.spirv import OP_CONSTANT, OP_FALSE, OP_TRUE, parse

SPEC_INSTRUCTIONS = range(48, 53)  # opcodes from OpSpecConstantTrue to OpSpecConstantOp
OP_STORE = 62
EXPRESSIONS = {  # GLSL expression -> its value for A = 13, B = -5, U = 0xfffffff0 and T = true
    "A + B": 8, "A - B": 18, "A * B": -65, "A / B": -2, "A % 4": 1, "-A": -13, "A << 2": 52, "B >> 1": -3,
    "A & 6": 4, "A | 2": 15, "A ^ 7": 10, "~A": -14, "int(U >> 4)": 0x0FFFFFFF, "int(U + 17u)": 1,
    "int(U / 16u)": 0x0FFFFFFF, "int(U % 7u)": 0xFFFFFFF0 % 7, "A > B ? 1 : 2": 1, "A <= B ? 1 : 2": 2,
    "U > 5u ? 1 : 2": 1, "A == 13 && !T ? 1 : 2": 2, "A != 13 || T ? 1 : 2": 1, "T == false ? 1 : 2": 2,
    "int(uint(B) >> 28)": 15, "A / 4 * 4 + A % 4": 13,
}  # fmt: skip
GLSL = """#version 450
layout(constant_id = 0) const int A = 1;
layout(constant_id = 1) const int B = 1;
layout(constant_id = 7) const uint U = 1u;
layout(constant_id = 9) const bool T = false;
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) buffer Y { int y[]; };
void main() {
STORES
}
"""


def literals(spirv: bytes) -> dict[int, int]:
    """Return the bits of each constant that is not a specialization constant, by its id."""
    _, instructions, _ = parse(spirv)
    values = {OP_TRUE: lambda words: 1, OP_FALSE: lambda words: 0, OP_CONSTANT: lambda words: words[2]}
    return {each.words[1]: values[each.op](each.words) for each in instructions if each.op in values}


def left(spirv: bytes) -> list[int]:
    """Return the opcodes of the specialization instructions in a module."""
    return [each.op for each in parse(spirv)[1] if each.op in SPEC_INSTRUCTIONS]


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_what_is_computed_of_constants_becomes_a_literal(expression: str) -> None:
    source = GLSL.replace("STORES", f"  y[0] = {expression};")
    module = find_compiler().compile(source, "folded.comp")
    folded = specialized(module, {0: 13, 1: -5 & 0xFFFFFFFF, 7: 0xFFFFFFF0, 9: 1})
    assert left(module)
    assert not left(folded)
    (store,) = (each for each in parse(folded)[1] if each.op == OP_STORE)
    assert literals(folded)[store.words[1]] == EXPRESSIONS[expression] & 0xFFFFFFFF


def test_what_has_no_value_stays(tmp_path: Path) -> None:
    """An instruction whose result is undefined stays in the module. Here it is a division by zero, in a
    branch that is not taken, which is left to the driver."""
    source = GLSL.replace("STORES", "  if (A != 0) y[0] = 8 / A;")
    folded = specialized(find_compiler().compile(source, "zero.comp"), {0: 0})
    assert left(folded) == [52]


def test_what_is_not_given_stays() -> None:
    """Specialization constants without given values stay, and so do results that depend on them. The local
    size depends on one constant with a value and one without, so it stays, too."""
    source = GLSL.replace("STORES", "  y[A * 2] = T ? int(U * 3u) + B : 6;")
    source = source.replace(
        "layout(local_size_x = 1) in", "layout(local_size_x_id = 0, local_size_y_id = 7) in"
    )
    module = find_compiler().compile(source, "open.comp")
    assert specialized(module, {}) == module
    folded = specialized(module, {0: 13, 9: 1})
    assert set(reflect(folded).specialization) == {1, 7}


def given(variant: Variant, values: dict[str, Value]) -> dict[int, int]:
    packed = variant.pack_specialization(values).items()
    return {number: int.from_bytes(word, "little") for number, word in packed}


def test_sizes_become_local_size_and_shared_memory(tmp_path: Path) -> None:
    for variant in sized(tmp_path).variants:
        folded = specialized(spirv(variant), given(variant, {"DOUBLED": True}))
        found = reflect(folded)
        assert found.specialization == {}
        assert found.local_size == variant.local_size()
        assert found.shared_bytes == variant.shared_bytes()


@pytest.mark.parametrize(
    "name",
    [
        "gemm_q8ta_q8csw__coopmat:q8to.s8s8.128x128",  # sizes determine tiles, local size and shared memory
        "gemv_q8ta_q8csw__split:float.3.q8to",  # two constants determine the local size; 3 rows
        "conv2d_q8csw__direct:4x4.float32",
    ],
)
def test_shaders_keep_no_specialization_constant(name: str) -> None:
    variant = catalog().variants[name]
    folded = specialized(spirv(variant), given(variant, {}))
    assert not left(folded)
    assert reflect(folded).local_size == variant.local_size()
    assert specialized(folded, given(variant, {})) == folded


def test_variants_of_a_module_differ_in_literals_alone() -> None:
    one, four = (catalog().variants[f"gemv_q8ta_q8csw__split:s8s8.{rows}.q8to"] for rows in (1, 4))
    assert spirv(one) == spirv(four)
    modules = [parse(specialized(spirv(each), given(each, {})))[1] for each in (one, four)]
    differing = [(a, b) for a, b in zip(*modules, strict=True) if a != b]
    assert differing
    assert {each.op for pair in differing for each in pair} <= {OP_TRUE, OP_FALSE, OP_CONSTANT}


@pytest.mark.parametrize("op", [71, 21, 20, 41, 43, 48, 50, 51, 52])
def test_a_short_instruction_is_refused(op: int) -> None:
    header = array("I", [0x07230203, 0x10300, 0, 10, 0])
    with pytest.raises(CompileError, match="at word 5 has length 1"):
        specialized(header.tobytes() + array("I", [1 << 16 | op]).tobytes(), {})
    with pytest.raises(CompileError, match="are not SPIR-V"):
        specialized(b"nothing", {})
