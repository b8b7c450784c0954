"""Tests of the rules for GLSL sources and for modules."""

import dataclasses
from pathlib import Path

import pytest

from tests.shader.sample import GLSL, HELPER, write_folder
from vkq.shader.catalog import catalog, load_catalog
from vkq.shader.glslang import find_compiler
from vkq.shader.reflect import reflect
from vkq.shader.rules import check_module, check_sources, check_text
from vkq.shader.spec import Constant
from vkq.shader.specialize import specialized

ALLOWED = """
// round( and return above a barrier() are only named here
/* AccSat */
#extension GL_EXT_integer_dot_product : require
void f() { if (a) return; }
void main() { for (;;) { barrier(); } x = roundEven(y); if (x) { return; } }
void g() {
  if (first) { x = 1; } else x = 2;
#if STORES
  [[unroll]] for (uint i = 0u; i < 2u; i++) {
    coopMatLoad(m[i], tile, min(i, 1u), 2, gl_CooperativeMatrixLayoutRowMajor);
    coopMatStore(m[i], tile, at(i, 2u), ROWS == 1 ? 0u : 2u,
        gl_CooperativeMatrixLayoutColumnMajor);
  }
#endif
}
#define LOAD(m)   \\
  if (a)          \\
    coopMatLoad(m, tile, 0, 2, \\
      gl_CooperativeMatrixLayoutRowMajor);
"""
STORED = """void f() {{
  {head}
    coopMatStore(m, tile, 0, 2, gl_CooperativeMatrixLayoutRowMajor);
}}"""


def test_allowed() -> None:
    assert check_text(ALLOWED, set()) == []


@pytest.mark.parametrize(
    ("code", "line", "rule"),
    [
        ("\n\nx = round (y);", 3, "use roundEven()"),
        ("// a\n/* b\n*/ x = dotPacked4x8AccSatEXT(a, b, c);", 3, "saturating"),
        ("memoryBarrierShared();", 1, "narrow barriers"),
        ("subgroupMemoryBarrierShared();", 1, "narrow barriers"),
        ("#extension GL_KHR_shader_subgroup_basic : require", 1, "no variant requires computeFullSubgroups"),
        ("void main() {\n if (a) { return; }\n barrier();\n}", 2, "return above a barrier()"),
        ("void f() {\n uint lane = gl_SubgroupInvocationID;\n}", 2, "own_lane"),
        ("coopMatLoad(m, tile, 0, 2, p.layout_);", 1, "the layout of a matrix must be a literal"),
        ("coopMatStore(m, tile, 0, 2, COLUMNS ? 1 : 0);", 1, "the layout of a matrix must be a literal"),
        (STORED.format(head="if (row < p.m)"), 3, "a store of a matrix under a condition"),
        (STORED.format(head="if (row < p.m) { y = 1; } else"), 3, "a store of a matrix under a condition"),
        (STORED.format(head="if (p.split) for (uint i = 0u; i < 2u; i++) {")[:-1] + "}}", 3, "a condition"),
        ("#extension GL_EXT_shader_8bit_storage : require", 1, "no variant requires storageBuffer8BitAccess"),
        (
            "\n  # extension GL_EXT_shader_explicit_arithmetic_types_int8: enable",
            2,
            "no variant requires shaderInt8",
        ),
    ],
)
def test_breaches(code: str, line: int, rule: str) -> None:
    ((found, what),) = check_text(code, set())
    assert found == line
    assert rule in what


def test_extensions_with_their_feature() -> None:
    code = "#extension GL_EXT_shader_8bit_storage : require"
    assert check_text(code, {"storageBuffer8BitAccess"}) == []
    assert check_text(code, None) == []


def test_folder(tmp_path: Path) -> None:
    clean = write_folder(tmp_path)
    assert check_sources(clean, load_catalog(clean)) == []
    glsl = GLSL.replace("roundEven", "round").replace(
        "#include", "#extension GL_EXT_shader_16bit_storage : require\n#include"
    )
    folder = write_folder(
        tmp_path, glsl=glsl, helper=HELPER + "// fine\nint f(float v) { return round(v); }\n"
    )
    assert check_sources(folder, load_catalog(folder)) == [
        "common/helper.glslh:4: round() leaves ties to the driver; use roundEven().",
        (
            "scale/scale.comp:3: GL_EXT_shader_16bit_storage is used, but no variant requires"
            " storageBuffer16BitAccess."
        ),
        "scale/scale.comp:26: round() leaves ties to the driver; use roundEven().",
    ]


CHOSEN = """#version 450
layout(constant_id = 3) const bool LONG = false;
layout(constant_id = 4) const uint COUNT = 8;
layout(local_size_x = 1) in;
layout(set = 0, binding = 0) buffer Y { uint y[]; };
shared uint tile[(LONG ? COUNT : 1u) + 1u];
void main() {
  for (uint i = 0; i < COUNT; i++) tile[min(i, 1)] = i;
  y[0] = tile[0];
}
"""


def test_a_length_that_a_driver_would_choose() -> None:
    """An OpSelect of specialization constants decides the length of an array. vkq computes the length, and
    does not change other instructions. A length that vkq cannot compute is refused."""
    module = find_compiler().compile(CHOSEN, "chosen.comp")
    constants = {"LONG": Constant(3, "bool", True), "COUNT": Constant(4, "uint", 8)}
    variant = dataclasses.replace(catalog().shaders["softmax_q8__row"].variants[0], specialization=constants)
    assert check_module(variant, module) == []
    for given, size in (({3: 1, 4: 9}, 40), ({3: 0, 4: 9}, 8)):
        found = reflect(specialized(module, {}, given))
        assert (found.shared_bytes, set(found.specialization)) == (size, {3, 4})
    del constants["LONG"]
    (said,) = check_module(variant, module)
    assert "Tencent/ncnn PR 6972" in said


STRIDED = """#version 450
#pragma use_vulkan_memory_model
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
layout(constant_id = 3) const uint LINE = 8;
layout(local_size_x = 32) in;
layout(set = 0, binding = 0) buffer Y { uint y[]; };
layout(push_constant) uniform Push { uint line; } p;
void main() {
  coopmat<uint, gl_ScopeSubgroup, 8, ROWS, gl_MatrixUseAccumulator> m;
  coopMatLoad(m, y, 0, LINE, gl_CooperativeMatrixLayoutRowMajor);
  coopMatStore(m, y, 0, STRIDE, gl_CooperativeMatrixLayoutRowMajor);
}
"""


@pytest.mark.parametrize(
    ("stride", "breaks"), [("2 * LINE", False), ("p.line", True), ("LINE + p.line", True)]
)
def test_strides_of_matrices(stride: str, breaks: bool) -> None:
    """The stride of a matrix load or store must be a literal or a specialization constant, which becomes a
    literal, because some drivers handle strides from push constants wrongly."""
    variant = dataclasses.replace(
        catalog().shaders["selftest__matrices"].variants[0], specialization={"LINE": Constant(3, "uint", 16)}
    )
    text = STRIDED.replace("STRIDE", stride).replace("ROWS", "8")
    found = check_module(variant, find_compiler().compile(text, "strided.comp"))
    assert ["stride of a load or store" in what for what in found] == [True] * breaks


@pytest.mark.parametrize(
    ("rows", "breaks"), [("8", False), ("LINE", False), ("N", True), ("(LINE + N)", True)]
)
def test_shapes_of_matrices(rows: str, breaks: bool) -> None:
    """The rows and columns of a matrix must be literals or constants of the variant, which become literals. A
    shape that stays a specialization constant breaks the rule."""
    constants = {"LINE": Constant(3, "uint", 16)}
    variant = dataclasses.replace(
        catalog().shaders["selftest__matrices"].variants[0], specialization=constants
    )
    text = STRIDED.replace("STRIDE", "LINE").replace("ROWS", rows)
    text = text.replace(
        "const uint LINE = 8;", "const uint LINE = 8;\nlayout(constant_id = 4) const uint N = 8;"
    )
    found = check_module(variant, find_compiler().compile(text, "shaped.comp"))
    assert ["the rows or columns of a matrix" in what for what in found] == [True] * breaks
