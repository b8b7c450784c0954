"""Tests of the catalog's lookups. Every shader compiles, agrees with its YAML and obeys the rules."""

from pathlib import Path

import pytest

from tests.shader.sample import YAML, write_folder
from vkq.errors import ArgumentError, SpecError
from vkq.shader.catalog import Catalog, Described, catalog, load_catalog, shaders_folder
from vkq.shader.compile import reflection, spirv
from vkq.shader.reflect import check
from vkq.shader.rules import check_sources

PROJECT = catalog()


@pytest.fixture
def small(tmp_path: Path) -> Catalog:
    return load_catalog(write_folder(tmp_path))


def test_names(small: Catalog) -> None:
    assert list(small.shaders) == ["scale__plain"]
    assert all(small.variants[variant.name] is variant for variant in small.shaders["scale__plain"].variants)


def test_find(small: Catalog) -> None:
    assert small.find("scale__plain", out="i32", tile="two").name == "scale__plain:i32.two"


@pytest.mark.parametrize(
    ("name", "axes", "message"),
    [
        ("scale", {}, "there is no shader 'scale'; there are: scale__plain"),
        (
            "scale__plain",
            {"out": "f16"},
            "no axis out with value 'f16'; its axes are out: f32, i32; tile: one, two",
        ),
        ("scale__plain", {"size": "one"}, "no axis size"),
        (
            "scale__plain",
            {"out": "f32"},
            r"2 variants with out=f32; name one of: scale__plain:f32\.one, .*two",
        ),
        ("scale__plain", {}, "4 variants with no axes"),
    ],
)
def test_find_refuses(small: Catalog, name: str, axes: dict[str, str], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        small.find(name, **axes)


@pytest.mark.parametrize(
    ("pattern", "count"),
    [("", 4), ("f32", 2), ("scale__plain:f32.one", 1), ("*:*.two", 2), ("f32*", 0), ("F32", 0)],
)
def test_matching(small: Catalog, pattern: str, count: int) -> None:
    assert len(small.matching(pattern)) == count


def test_two_shaders_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "scale" / "twin.yaml").write_text(YAML)
    with pytest.raises(SpecError, match=r"twin\.yaml:1: the name 'scale__plain' is taken by .*scale\.yaml"):
        load_catalog(folder)


def test_a_variant_is_made_when_it_is_found_and_once(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    path = folder / "scale" / "scale.yaml"
    path.write_text(path.read_text().replace("{LOCAL_X: 16}", "{NOBODY: 16}"))
    small = Catalog(Described(folder))
    found = small.find("scale__plain", out="i32", tile="one")
    assert found is small.find("scale__plain", out="i32", tile="one")
    assert found is small.shaders["scale__plain"].variant({"out": "i32", "tile": "one"})
    with pytest.raises(SpecError, match="'NOBODY' is not declared under specialization"):
        small.find("scale__plain", out="i32", tile="two")
    with pytest.raises(SpecError, match="'NOBODY' is not declared under specialization"):
        load_catalog(folder)


def test_a_description_is_read_when_it_is_asked_for(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "scale" / "other.yaml").write_text("name: other\nsummary: what is needed is missing\n")
    (folder / "scale" / "quoted.yaml").write_text(YAML.replace("scale__plain", '"quoted"'))
    lazy = Catalog(Described(folder))
    assert (list(lazy.shaders), len(lazy.shaders)) == (["other", "quoted", "scale__plain"], 3)
    assert lazy.find("scale__plain", out="i32", tile="two") is lazy.shaders["scale__plain"].variants[3]
    assert lazy.shaders["quoted"].name == "quoted"
    with pytest.raises(SpecError, match=r"other\.yaml:1: the key"):
        _ = lazy.variants
    with pytest.raises(SpecError, match=r"other\.yaml:1: the key"):
        load_catalog(folder)


def test_an_empty_folder_has_no_shaders(tmp_path: Path) -> None:
    assert load_catalog(tmp_path).variants == {}


def test_the_project_has_its_shaders_beside_the_package() -> None:
    assert (shaders_folder() / "common").is_dir()


@pytest.mark.parametrize("name", PROJECT.variants)
def test_project_variant_compiles_and_agrees_with_its_yaml(name: str) -> None:
    variant = PROJECT.variants[name]
    assert check(variant, reflection(variant, spirv(variant))) == []


def test_project_sources_keep_the_rules() -> None:
    assert check_sources(shaders_folder(), PROJECT) == []
