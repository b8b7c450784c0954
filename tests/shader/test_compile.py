"""Tests of includes, keys, and the lookup of a variant's SPIR-V in the package, the cache and the
compiler."""

import dataclasses
from pathlib import Path

import pytest

from tests.effort import little_work
from tests.shader.sample import GLSL, HELPER, YAML, sample, write_folder
from vkq import cache
from vkq.cache import CacheWarning
from vkq.errors import CompileError
from vkq.shader import compile as shader_compile
from vkq.shader import stored
from vkq.shader.catalog import catalog
from vkq.shader.compile import expand, key, spirv, text
from vkq.shader.glslang import find_compiler
from vkq.shader.load import load_shader
from vkq.shader.spec import Variant


@pytest.fixture
def variant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Variant:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path / "cache"))
    return sample(tmp_path).variants[0]


def forbid_compiling(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise CompileError("the compiler is not needed here")

    monkeypatch.setattr(shader_compile, "find_compiler", refuse)


def write(folder: Path, **files: str) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_comp", ".comp").replace("_glslh", ".glslh")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def test_expansion_is_exact(tmp_path: Path) -> None:
    write(
        tmp_path,
        op__a_comp='// a\n#version 450\n#include "b.glslh" // why\nint a;\n#include "layout/l.glslh"\n',
        op__b_glslh='#pragma once\n#include "c.glslh"\nint b;\n',
        common__c_glslh="int c;",
    )
    got = expand(
        tmp_path / "op/a.comp", [tmp_path / "common"], {"layout/l.glslh": "int l;"}, {"N": 3, "T": "ivec4"}
    )
    assert got.splitlines() == [
        "// a",
        "#version 450",
        "#extension GL_GOOGLE_cpp_style_line_directive : require",
        "#define N 3",
        "#define T ivec4",
        '#line 3 "op/a.comp"',
        "#ifndef VKQ_INCLUDED_op_b_glslh",
        "#define VKQ_INCLUDED_op_b_glslh",
        '#line 1 "op/b.glslh"',
        "",
        "#ifndef VKQ_INCLUDED_common_c_glslh",
        "#define VKQ_INCLUDED_common_c_glslh",
        '#line 1 "common/c.glslh"',
        "int c;",
        "#endif",
        '#line 3 "op/b.glslh"',
        "int b;",
        "#endif",
        '#line 4 "op/a.comp"',
        "int a;",
        "#ifndef VKQ_INCLUDED_layout_l_glslh",
        "#define VKQ_INCLUDED_layout_l_glslh",
        '#line 1 "layout/l.glslh"',
        "int l;",
        "#endif",
        '#line 6 "op/a.comp"',
    ]


def test_file_beside_wins_over_common_and_common_over_virtual(tmp_path: Path) -> None:
    write(tmp_path, op__a_comp='#version 450\n#include "b.glslh"\n', common__b_glslh="int common;")
    virtual = {"b.glslh": "int virtual;"}
    assert "int virtual;" in expand(tmp_path / "op/a.comp", [], virtual)
    assert "int common;" in expand(tmp_path / "op/a.comp", [tmp_path / "common"], virtual)
    write(tmp_path, op__b_glslh="int beside;")
    assert "int beside;" in expand(tmp_path / "op/a.comp", [tmp_path / "common"], virtual)


def test_an_include_counts_once_even_behind_a_false_condition(tmp_path: Path) -> None:
    write(
        tmp_path,
        op__a_comp=(
            '#version 450\nlayout(local_size_x = 1) in;\n#if 0\n#include "b.glslh"\n#endif\n#include'
            ' "b.glslh"\n#include "b.glslh"\n#include "c.glslh"\nlayout(binding = 0) buffer B { int x;'
            " };\nvoid main() { x = b() + c(); }\n"
        ),
        op__b_glslh="int b() { return 1; }\n",
        op__c_glslh='#include "d.glslh"\n#include "b.glslh"\nint c() { return b(); }\n',
        op__d_glslh='#include "c.glslh"\n',  # the files include each other
    )
    find_compiler().compile(expand(tmp_path / "op/a.comp", [tmp_path / "common"]), "a.comp")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (
            '#version 450\n\n#include "none.glslh"\n',
            r'op/a\.comp:3: include "none\.glslh" was not found; looked in .*/op',
        ),
        ("#version 450\n#include <b.glslh>\n", r"op/a\.comp:2: '#include <b\.glslh>' must be written"),
        ("int a;\n", r"op/a\.comp:1: there is no #version line"),
    ],
)
def test_expansion_refuses(tmp_path: Path, source: str, message: str) -> None:
    write(tmp_path, op__a_comp=source, common__x_glslh="")
    with pytest.raises(CompileError, match=message):
        expand(tmp_path / "op/a.comp", [tmp_path / "common"])


def test_compile_errors_name_the_file_and_line_they_are_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path / "cache"))
    for glsl, helper, place in (
        (GLSL, HELPER.replace("float(v)", "float(w)"), "common/helper.glslh:2"),
        (GLSL.replace("* p.factor", "* p.fraction"), HELPER, "scale/scale.comp:19"),
    ):
        folder = write_folder(tmp_path, YAML, glsl, helper)
        with pytest.raises(CompileError) as caught:
            spirv(load_shader(folder / "scale" / "scale.yaml").variants[0])
        assert str(caught.value).startswith(f"scale__plain:f32.one: {place}: '")


def test_key_follows_text_and_not_place(tmp_path: Path) -> None:
    here, there = (sample(tmp_path / name).variants for name in ("here", "there"))
    assert text(here[0]) == text(there[0])
    assert len({key(text(variant)) for variant in here}) == 4
    assert key("a") != key("b")


def test_second_time_comes_from_the_cache(variant: Variant, monkeypatch: pytest.MonkeyPatch) -> None:
    first = spirv(variant)
    forbid_compiling(monkeypatch)
    assert spirv(variant) == first


def test_damaged_cache_is_built_again(variant: Variant) -> None:
    first = spirv(variant)
    file = shader_compile.cache_folder() / f"{key(text(variant))}.spv"
    file.write_bytes(file.read_bytes()[:-4])
    with pytest.warns(CacheWarning, match="ignored and made again"):
        assert spirv(variant) == first
    assert stored.read(file) == first


def test_sealed_spirv_of_another_shader_is_built_again(tmp_path: Path, variant: Variant) -> None:
    """If a sealed file holds the SPIR-V of another shader, the shader is compiled again. A file that was
    copied from another name has a wrong seal. A file that was sealed under this name must have the shader's
    interface."""
    first = spirv(variant)
    file = shader_compile.cache_folder() / f"{key(text(variant))}.spv"
    other = catalog().find("selftest__arithmetic", test="requantize")
    spirv(other)
    wrong = shader_compile.cache_folder() / f"{key(text(other))}.spv"
    file.write_bytes(wrong.read_bytes())
    with pytest.warns(CacheWarning, match="its checksum is wrong"):
        assert spirv(variant) == first
    cache._warned.clear()
    for data in (stored.read(wrong) or b"", b"packaged", first[:400]):
        stored.write(file, data)
        with pytest.warns(CacheWarning, match=r"ignored and made again: it is not .*:"):
            assert spirv(variant) == first
        cache._warned.clear()
    assert stored.read(file) == first


def test_packaged_spirv_comes_first(
    variant: Variant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shader_compile, "PACKAGED", tmp_path / "packaged")
    stored.write(tmp_path / "packaged" / "module.spv", b"packaged")
    forbid_compiling(monkeypatch)
    assert spirv(dataclasses.replace(variant, packaged="module")) == b"packaged"
    assert not shader_compile.cache_folder().exists()


def test_spirv_that_differs_from_the_yaml_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path / "cache"))
    shader = sample(
        tmp_path, ("x, access: read", "x, access: read_write"), ("offset, type: int", "offset, type: uint")
    )
    with pytest.raises(CompileError, match=r"differs from the YAML: binding 0.*\n  push constant 1"):
        spirv(shader.variants[0])
    assert not shader_compile.cache_folder().exists()


@pytest.mark.parametrize("name", ["../common/helper.glslh", "/etc/hostname", "..", "a/../b.glslh", "./x", ""])
def test_an_include_stays_inside_its_folders(tmp_path: Path, name: str) -> None:
    (tmp_path / "shaders" / "common").mkdir(parents=True)
    (tmp_path / "shaders" / "common" / "helper.glslh").write_text("int a;\n")
    (tmp_path / "shaders" / "x").mkdir()
    source = tmp_path / "shaders" / "x" / "a.comp"
    source.write_text(f'#version 450\n#include "{name}"\n')
    with pytest.raises(
        CompileError, match=r"a\.comp:2: (include .* leaves its folder|.* must be written as)"
    ):
        expand(source, [tmp_path / "shaders" / "common"])


def test_includes_that_grow_without_end_are_refused(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"f{number}.glslh").write_text(f'#include "f{number + 1}.glslh"\n' * 2)
    (tmp_path / "f30.glslh").write_text("int a;\n")
    (tmp_path / "a.comp").write_text('#version 450\n#include "f0.glslh"\n')
    long = "more than 10000 lines, includes counted"
    with little_work(), pytest.raises(CompileError, match=long):
        expand(tmp_path / "a.comp")
    for number in range(60):
        (tmp_path / f"f{number}.glslh").write_text(f'#include "f{number + 1}.glslh"\n')
    with pytest.raises(CompileError, match="include each other more than 32 deep"):
        expand(tmp_path / "a.comp")
    (tmp_path / "f0.glslh").unlink()
    (tmp_path / "f0.glslh").symlink_to("/dev/zero")
    with pytest.raises(CompileError, match=r"f0\.glslh"):
        expand(tmp_path / "a.comp")
