"""Tests of ``sizes``: specialization constants whose values a variant's axes set in the shader's YAML."""

from pathlib import Path

import pytest

from tests.shader.sample import sample
from vkq.errors import CompileError, SpecError
from vkq.shader.build import build, modules
from vkq.shader.catalog import catalog
from vkq.shader.compile import reflection, spirv, text
from vkq.shader.reflect import check
from vkq.shader.spec import Shader

MOST_MODULES, MOST_OF_MATRICES = 30, 8  # maximum number of modules of a shader, without and with matrix units
GEMM = "gemm_q8ta_q8csw__coopmat:q8to.s8s8.128x128"
TILES = (
    ("one: {defines: {TILE: 1}}", "one: {sizes: {TILE: 1, ACROSS: 4}}"),
    ("two: {defines: {TILE: 2}, specialization: {LOCAL_X: 16}", "two: {sizes: {TILE: 2, WIDE: 1, ACROSS: 8}"),
    ("(LOCAL_X + EXTRA) * 16", "(ACROSS + EXTRA) * 16 * TILE"),
    ("local_size: [LOCAL_X", "local_size: [ACROSS"),
    ("ceil_div(count, TILE * LOCAL_X)", "ceil_div(count, TILE * ACROSS)"),
    ("  - {name: LOCAL_X, id: 0, type: uint, default: 8}\n", ""),
)


def sized(root: Path, *changes: tuple[str, str], glsl: tuple[str, str] = ("", "")) -> Shader:
    """Return the sample shader, in which specialization constants (``sizes`` in the YAML) replace the
    ``defines`` of the tiles."""
    shader = sample(root, *TILES, *changes)
    source = shader.source.read_text()
    for old, new in (
        ("layout(local_size_x_id = 0) in;\nlayout(constant_id = 0) const uint LOCAL_X = 8;\n",
         '#include "sizes.glslh"\n'),
        ("words[LOCAL_X + EXTRA]", "words[(ACROSS + EXTRA) * TILE]"),
        ("words[LOCAL_X - 1 - i]", "words[WIDE > 0 ? 0 : ACROSS - 1 - i]"),
        glsl,
    ):  # fmt: skip
        assert old in source
        source = source.replace(old, new, 1)
    shader.source.write_text(source)
    return shader


def test_variants_that_differ_in_sizes_share_a_module(tmp_path: Path) -> None:
    shader = sized(tmp_path)
    one, two = shader.having(out="f32")
    assert text(shader.variant(one)) == text(shader.variant(two))
    assert [[each.name for each in module] for module in modules(shader.variants)] == [
        ["scale__plain:f32.one", "scale__plain:f32.two"],
        ["scale__plain:i32.one", "scale__plain:i32.two"],
    ]
    assert build(tmp_path / "out", 1, shader.variants) == 2
    assert len(list((tmp_path / "out").iterdir())) == 2
    assert build(tmp_path / "again", 1, shader.variants, tmp_path / "out") == 2


def test_each_variant_has_its_own_values(tmp_path: Path) -> None:
    one, two = sized(tmp_path).variants[:2]
    assert one.sizes == {"EXTRA": 3, "OUT": 0, "TILE": 1, "ACROSS": 4, "WIDE": 0}
    assert two.sizes == {"EXTRA": 3, "OUT": 0, "TILE": 2, "ACROSS": 8, "WIDE": 1}
    assert (one.local_size(), two.local_size()) == ((4, 1, 1), (8, 1, 1))
    assert (one.shared_bytes(), two.shared_bytes()) == (7 * 16, 11 * 32)
    assert two.workgroups({"count": 33}) == 3
    ids = {name: constant.id for name, constant in two.specialization.items()}
    assert ids == {"DOUBLED": 3, "TILE": 32, "ACROSS": 33, "WIDE": 34}
    assert two.pack_specialization()[33] == (8).to_bytes(4, "little")


def test_the_interface_is_compared_for_each_variant(tmp_path: Path) -> None:
    shader = sized(tmp_path)
    code = spirv(shader.variants[0])
    for variant in shader.variants[:2]:
        found = reflection(variant, code)
        assert check(variant, found) == []
        assert found.local_size == variant.local_size()
        assert found.shared_bytes == variant.shared_bytes()
    wrong = sized(tmp_path, glsl=("(ACROSS + EXTRA) * TILE", "(ACROSS + EXTRA) * 2 - 14 + ACROSS * TILE"))
    with pytest.raises(CompileError, match=r"^scale__plain:f32\.one: .*shared memory is 64 bytes"):
        build(tmp_path / "out", 1, wrong.variants)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ("TILE: 1.5", r"whole number"),
        ("2TILE: 1", r"does not match"),
        ("EXTRA: 1", r"'EXTRA' is declared twice"),
    ],
)
def test_what_is_no_size_is_refused(tmp_path: Path, size: str, message: str) -> None:
    with pytest.raises(SpecError, match=r"scale\.yaml:\d+: .*" + message):
        sized(tmp_path, ("one: {sizes: {TILE: 1", "one: {sizes: {TILE: 1, " + size if "TILE" not in size
                         else "one: {sizes: {" + size))  # fmt: skip


def test_the_tiles_of_matrix_units_are_sizes() -> None:
    """All tiles of a form share one module. Each shader has at most a few modules, because a wheel contains
    all modules."""
    shaders = catalog().shaders
    for name, shader in shaders.items():
        most = MOST_OF_MATRICES if name.endswith("_coopmat") else MOST_MODULES
        assert len(modules(shader.variants)) <= most, f"{name}: let variants differ in `sizes`, not `defines`"
    found = modules(shaders[GEMM.split(":")[0]].variants)
    (gemm,) = (each for each in found if GEMM in [variant.name for variant in each])
    tiles = shaders[GEMM.split(":")[0]].axes["tile"]
    assert len(gemm) == len({tuple(variant.sizes.values()) for variant in gemm}) == len(tiles)
