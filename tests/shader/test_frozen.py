"""Tests of the shader descriptions in a wheel, which need no YAML, no GLSL expansion and no SPIR-V
reflection."""

import cProfile
import dataclasses
import json
import pstats
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.shader.sample import sample
from vkq.errors import SpecError
from vkq.shader import build as shader_build
from vkq.shader import catalog as shader_catalog
from vkq.shader import compile as shader_compile
from vkq.shader import stored
from vkq.shader.build import COMPILER, build, compiler_of
from vkq.shader.catalog import Catalog, catalog, shaders_folder
from vkq.shader.compile import key, text
from vkq.shader.frozen import Frozen, freeze, thaw
from vkq.shader.glslang import find_compiler
from vkq.shader.spec import Shader, Variant

SHADERS = ("gemm_q8ta_q8csw__coopmat", "conv2d_q8ta_q8csw__direct", "argmax_q8__element")
# maximum number of Python calls to load a module; reflection of a module of 60 KB takes 5,000
MOST_CALLS = 60


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, Shader]]:
    """Yield (a package's folder with the sample, the sample from its YAML)."""
    shader, folder = sample(tmp_path), tmp_path / "_spirv"
    monkeypatch.setattr(shader_build, "catalog", lambda: Catalog({shader.name: shader}))
    build(folder, 1)
    monkeypatch.setattr(shader_compile, "PACKAGED", folder)
    monkeypatch.setattr(shader_catalog, "PACKAGED", folder)
    monkeypatch.setattr(shader_catalog, "shaders_folder", lambda: tmp_path / "shaders")
    catalog.cache_clear()
    yield folder, shader
    catalog.cache_clear()


def as_yaml_says(variant: Variant) -> Variant:
    return dataclasses.replace(variant, packaged=None)


@pytest.mark.parametrize("name", SHADERS)
def test_every_variant_is_as_its_yaml_says(name: str) -> None:
    shader = catalog().shaders[name]
    data = freeze(shader, lambda variant: "of " + variant.name)
    again = thaw(data, shaders_folder())
    assert (again.name, again.summary, again.path, again.source) == (
        shader.name, shader.summary, shader.path, shader.source
    )  # fmt: skip
    assert (again.axes, again.combinations) == (shader.axes, shader.combinations)
    assert len(again.variants) == len(shader.variants)
    for one, other in zip(again.variants, shader.variants, strict=True):
        assert one.packaged == "of " + other.name
        assert dataclasses.asdict(as_yaml_says(one)) == dataclasses.asdict(other)
        assert (one.sizes, one.local_size()) == (other.sizes, other.local_size())


def test_a_package_is_taken_as_it_is(packaged: tuple[Path, Shader], monkeypatch: pytest.MonkeyPatch) -> None:
    folder, shader = packaged
    assert isinstance(catalog().shaders, Frozen)
    assert list(catalog().variants) == [variant.name for variant in shader.variants]
    expected = [stored.read(folder / f"{key(text(variant))}.spv") for variant in shader.variants]
    for name in ("text", "check", "reflect", "build"):
        monkeypatch.delattr(shader_compile, name)
    assert [shader_compile.spirv(variant) for variant in catalog().variants.values()] == expected


def test_a_package_names_the_compiler_that_made_it(packaged: tuple[Path, Shader], tmp_path: Path) -> None:
    """A package names the compiler of its modules, also if they were compiled on another machine and
    copied."""
    folder, _ = packaged
    assert (folder / COMPILER).read_text() == f"{find_compiler().name}\n"
    (folder / COMPILER).write_text("glslang of another machine\n")
    build(tmp_path / "copied", given=folder)
    assert compiler_of(tmp_path / "copied") == "glslang of another machine"
    (folder / COMPILER).unlink()
    build(tmp_path / "copied", given=folder)
    assert compiler_of(tmp_path / "copied") == "unknown"


def test_it_takes_few_python_calls(packaged: tuple[Path, Shader]) -> None:
    """Loading a packaged shader takes few Python calls. (Without stored descriptions, the first convolution
    took 5,229 calls for reflection, and 1,057 calls to read the YAML.)"""
    profile = cProfile.Profile()
    profile.enable()
    for variant in catalog().variants.values():
        shader_compile.compiled(variant)
    profile.disable()
    calls = pstats.Stats(profile).total_calls  # type: ignore[attr-defined]
    assert calls < 4 * MOST_CALLS + 400, calls


def test_a_missing_module_is_compiled(packaged: tuple[Path, Shader], tmp_path: Path,
                                      monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    folder, _ = packaged
    monkeypatch.setenv("VKQ_CACHE_DIR", str(tmp_path / "cache"))
    for path in folder.glob("*.spv"):
        path.unlink()
    assert shader_compile.spirv(next(iter(catalog().variants.values())))[:4] == b"\x03\x02\x23\x07"


@pytest.mark.filterwarnings("ignore::vkq.cache.CacheWarning")
def test_a_damaged_description_is_told(packaged: tuple[Path, Shader]) -> None:
    folder, shader = packaged
    (folder / f"{shader.name}.json").write_bytes(b"{}")
    with pytest.raises(SpecError, match=r"scale__plain\.json:1: the description is damaged; install vkq"):
        catalog().shaders[shader.name]


def test_another_build_leaves_no_old_description(packaged: tuple[Path, Shader]) -> None:
    folder, shader = packaged
    (folder / "gone__plain.json").write_text(json.dumps({}))
    build(folder, 1)
    assert [path.name for path in folder.glob("*.json")] == [f"{shader.name}.json"]
