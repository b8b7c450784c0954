"""Tests of reading a shader's YAML: its variants, and each violation of the schema with its line."""

from pathlib import Path

import pytest

from tests.shader.sample import YAML, sample, write_folder
from vkq.errors import SpecError
from vkq.shader.load import load_shader
from vkq.shader.spec import Shader


def test_variants_are_the_product_of_the_axes(tmp_path: Path) -> None:
    shader = sample(tmp_path)
    names = ["f32.one", "f32.two", "i32.one", "i32.two"]
    assert [variant.name for variant in shader.variants] == [f"scale__plain:{name}" for name in names]
    f32_two = shader.variants[1]
    assert f32_two.axes == {"out": "f32", "tile": "two"}
    assert f32_two.defines == {"EXTRA": 3, "OUT": 0, "TILE": 2}
    assert f32_two.requires == {"maxComputeSharedMemorySize": 20000}  # the larger of the two required values
    assert f32_two.specialization["LOCAL_X"].default == 16
    assert f32_two.specialization["LOCAL_X"].overridden
    assert [binding.type for binding in f32_two.bindings] == ["ivec4", "float"]
    assert [binding.type for binding in shader.variants[2].bindings] == ["ivec4", "int"]
    assert [binding.layout for binding in f32_two.bindings] == ["kPackedInt8_4C", None]
    assert [constant.offset for constant in f32_two.push_constants] == [0, 4, 8]


def test_exceptions_leave_out_combinations(tmp_path: Path) -> None:
    shader = sample(tmp_path, ("defines: {EXTRA: 3}", "defines: {EXTRA: 3}\nexcept: [{out: i32, tile: two}]"))
    assert [variant.name.split(":")[1] for variant in shader.variants] == ["f32.one", "f32.two", "i32.one"]
    shader = sample(tmp_path, ("defines: {EXTRA: 3}", "defines: {EXTRA: 3}\nexcept: [{out: f32}]"))
    assert [variant.name.split(":")[1] for variant in shader.variants] == ["i32.one", "i32.two"]
    assert shader.axes == {"out": ("i32",), "tile": ("one", "two")}


LIKE = """\
name: scale__other
summary: the same with more
like: scale.yaml
axes:
  tile:
    three: {defines: {TILE: 3}}
  sign:
    plus: {defines: {SIGN: 1}}
defines: {EXTRA: 4, MORE: 5}
bindings:
  - {name: z, access: read_write, type: uint}
push_constants:
  - {name: steps, type: uint}
workgroups: ceil_div(count, TILE * LOCAL_X) * steps
"""


def like(tmp_path: Path, text: str) -> Shader:
    write_folder(tmp_path)
    path = tmp_path / "shaders/scale/other.yaml"
    path.write_text(text)
    return load_shader(path)


def test_what_a_shader_is_like_holds_unless_it_is_said_anew(tmp_path: Path) -> None:
    """A shader with the key `like` inherits all keys of another shader that it does not replace. Its own
    axes, defines, bindings and constants are added to the inherited ones."""
    shader = like(tmp_path, LIKE)
    assert [variant.name for variant in shader.variants] == [
        "scale__other:f32.three.plus", "scale__other:i32.three.plus",
    ]  # fmt: skip
    one = shader.variants[0]
    assert one.source.name == "scale.comp"
    assert one.defines == {"EXTRA": 4, "MORE": 5, "OUT": 0, "TILE": 3, "SIGN": 1}
    assert [(binding.name, binding.type) for binding in one.bindings] == [
        ("x", "ivec4"), ("y", "float"), ("z", "uint"),
    ]  # fmt: skip
    assert [constant.name for constant in one.push_constants] == ["count", "offset", "factor", "steps"]
    assert list(one.specialization) == ["LOCAL_X", "DOUBLED"]
    assert one.requires == {"maxComputeSharedMemorySize": 16384}
    assert one.workgroups({"count": 48, "steps": 7}) == 14
    assert like(tmp_path, f"{LIKE}requires: {{}}\n").variants[0].requires == {}
    sums = LIKE.replace("scale.yaml", "other.yaml").replace("scale__other", "scale__third")
    (tmp_path / "shaders/scale/third.yaml").write_text(
        sums.replace("name: z", "name: s").replace("steps", "t")
    )
    third = load_shader(tmp_path / "shaders/scale/third.yaml").variants[0]
    assert [binding.name for binding in third.bindings] == ["x", "y", "z", "s"]


@pytest.mark.parametrize(("old", "new", "line", "message"), [
    ("like: scale.yaml", "like: ../scale/scale.yaml", 3, "like must be the name of a file in the folder"),
    ("like: scale.yaml", "like: scales.yaml", 3, "scales.yaml' does not exist; it must be in the folder"),
    ("like: scale.yaml", "push: []", 1, "the key 'local_size' is missing"),
    ("name: z,", "name: x,", 11, "the name 'x' appears a second time"),
    ("EXTRA: 4, MORE", "MORE: 4, MORE", 9, "the key 'MORE' appears a second time"),
    ("  - {name: steps, type: uint}", "  steps: uint", 13, "found a mapping; a list is needed"),
    ("defines: {EXTRA: 4, MORE: 5}", "defines: [EXTRA]", 9, "found a list; a mapping"),
    ("summary", "sumary", 2, "unknown key 'sumary'"),
])  # fmt: skip
def test_what_is_alike_is_refused_with_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        like(tmp_path, LIKE.replace(old, new, 1))
    assert str(caught.value).startswith(f"{tmp_path}/shaders/scale/other.yaml:{line}: ")
    assert message in str(caught.value)


def test_one_of_those_that_are_alike_says_everything(tmp_path: Path) -> None:
    """Files whose ``like`` keys form a circle (a file like a second file, which is like the first) are
    refused."""
    for other in ("other.yaml", "third.yaml"):
        write_folder(tmp_path)
        (tmp_path / "shaders/scale/third.yaml").write_text(LIKE.replace("scale.yaml", "other.yaml"))
        with pytest.raises(SpecError, match=r"it is like 'other.yaml', which is like this one"):
            like(tmp_path, LIKE.replace("scale.yaml", other))


SIGNS = "{minus: {defines: {SIGN: 0}}, plus: {defines: {SIGN: 1}}}"


def test_an_axis_has_the_values_of_another_file(tmp_path: Path) -> None:
    """An axis with `like` has exactly the values that another YAML file in the folder lists."""
    text = LIKE.replace("    plus: {defines: {SIGN: 1}}\n", "    like: third.yaml\n")
    write_folder(tmp_path)
    third = tmp_path / "shaders/scale/third.yaml"
    third.write_text(f"axes:\n  sign: {SIGNS}\n")
    shader = like(tmp_path, text)
    assert shader.axes["sign"] == ("minus", "plus")
    assert [variant.defines["SIGN"] for variant in shader.variants[:2]] == [0, 1]
    for axes in ("{}", "{tile: {one: {}}}", "{sign: {like: other.yaml}}"):
        third.write_text(f"axes: {axes}\n")
        with pytest.raises(SpecError, match=r"other.yaml:8: 'third.yaml' does not write out the axis 'sign'"):
            like(tmp_path, text)
    with pytest.raises(SpecError, match=r"other.yaml:9: unknown key 'more'; the keys here are: like"):
        like(tmp_path, text.replace("third.yaml\n", "third.yaml\n    more: {}\n"))


def test_without_axes_there_is_one_variant(tmp_path: Path) -> None:
    start, end = YAML.index("axes:"), YAML.index("defines: {EXTRA")
    shader = sample(tmp_path, (YAML[start:end], ""), ("EXTRA: 3", "EXTRA: 3, OUT: 1, TILE: 1"))
    assert [variant.name for variant in shader.variants] == ["scale__plain"]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("name: scale__plain", "name: Scale", 1, "the name 'Scale' does not match"),
        ("summary: y", "sumary: y", 2, "unknown key 'sumary'"),
        ("scale.comp", "other.comp", 3, "does not exist"),
        ("out:", "Out:", 6, "the name 'Out' does not match"),
        ("    i32: {defines: {OUT: 1}}", "    f32: {}", 7, "'f32' appears a second time"),
        ("OUT: 0", "OUT: 0.5", 6, "the define 'OUT' is 0.5"),
        ("OUT: 0", "OUT: true", 6, "the define 'OUT' is True"),
        ("types: {y: float}", "types: {z: float}", 6, "there is no binding 'z'"),
        ("types: {y: float}", "types: {y: double}", 6, "'double' is not a GLSL element type"),
        ("LOCAL_X: 16", "LOCAL_Y: 16", 10, "'LOCAL_Y' is not declared under specialization"),
        ("LOCAL_X: 16", "LOCAL_X: -16", 10, "the default of 'LOCAL_X' is -16"),
        ("{maxComputeSharedMemorySize: 20000}", "{shaderInt8: false}", 10, "requires False"),
        ("{EXTRA: 3}", "{EXTRA: 3, LOCAL_X: 4}", 24, "'LOCAL_X' is declared twice"),
        (
            "access: read,",
            "access: reads,",
            13,
            "the access is 'reads'; it must be one of: read, write, read_write",
        ),
        ("type: ivec4, layout", "type: ivec5, layout", 13, "'ivec5' is not a GLSL element type"),
        ("write, type: int", "write, type: isamplerBuffer", 14, "texels are only read; 'y' says write"),
        ("name: y,", "name: x,", 14, "the name 'x' appears a second time"),
        ("name: y,", "name: y-1,", 14, "does not match"),
        (
            "count, type: uint",
            "count, type: bool",
            16,
            "the type is 'bool'; it must be one of: int, uint, float",
        ),
        ("id: 3", "id: 0", 21, "the id 0 is negative or taken"),
        ("default: false", "default: 0", 21, "the default of 'DOUBLED' is 0; a bool must be"),
        ("[LOCAL_X, 1, 1]", "[LOCAL_X, 1]", 22, "found 2 values; three"),
        ("[LOCAL_X, 1, 1]", "[LOCAL_X, 0, 1]", 22, "each must be at least 1"),
        ("[LOCAL_X, 1, 1]", "[count, 1, 1]", 22, "unknown name 'count'"),
        ("(LOCAL_X + EXTRA)", "(LOCAL_X + EXTA)", 23, "unknown name 'EXTA'"),
        ("ceil_div(count", "ceildiv(count", 24, "calls ceildiv"),
        ("ceil_div(count", "ceil_div(factor", 24, "unknown name 'factor'"),
        ("ceil_div(count, TILE * LOCAL_X)", "1.5", 24, "'1.5' holds '1.5'"),
        (
            "defines: {EXTRA: 3}",
            "defines: {EXTRA: 3}\nexcept: [{out: f16}]",
            12,
            "the axis 'out' has no value 'f16'",
        ),
        ("defines: {EXTRA: 3}", "defines: {EXTRA: 3}\nexcept: [{}]", 12, "an empty rule"),
        (
            "defines: {EXTRA: 3}",
            "defines: {EXTRA: 3}\nexcept: [{out: f32}, {out: i32}]",
            12,
            "every combination",
        ),
    ],
)
def test_refused_with_line(tmp_path: Path, old: str, new: str, line: int, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        sample(tmp_path, (old, new))
    place = f"{tmp_path}/shaders/scale/scale.yaml:"
    assert str(caught.value).startswith(place)
    assert message in str(caught.value)
    assert int(str(caught.value).removeprefix(place).split(":")[0]) == line


def test_too_many_variants_and_push_constants(tmp_path: Path) -> None:
    axis = "{" + ", ".join(f"v{number}: {{}}" for number in range(60)) + "}"
    with pytest.raises(SpecError, match="multiply to more than 1024"):
        sample(tmp_path, ("axes:\n", f"axes:\n  a: {axis}\n  b: {axis}\n"))
    many = "".join(f"  - {{name: p{number}, type: int}}\n" for number in range(30))
    with pytest.raises(SpecError, match="132 bytes of push constants; Vulkan guarantees 128"):
        sample(tmp_path, ("push_constants:\n", f"push_constants:\n{many}"))


@pytest.mark.parametrize(
    "source", ["../scale/scale.comp", "/etc/hostname", "..", "sub/scale.comp", ".hidden", "", "a" * 300]
)
def test_a_source_stands_beside_its_yaml(tmp_path: Path, source: str) -> None:
    with pytest.raises(
        SpecError, match=r"scale\.yaml:3: the source must be the name of a file in the folder of the YAML"
    ):
        sample(tmp_path, ("source: scale.comp", f"source: '{source}'"))


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        ("bindings:\n", "  - {{name: b{0}, access: read, type: int}}\n"),
        ("specialization:\n", "  - {{name: S{0}, id: {0}, type: int, default: 0}}\n"),
    ],
)
def test_no_list_is_longer_than_a_shader_can_need(tmp_path: Path, before: str, entry: str) -> None:
    many = "".join(entry.format(number) for number in range(100, 170))
    with pytest.raises(SpecError, match=r"7[0-9] entries are too many; at most 64 are allowed"):
        sample(tmp_path, (before, before + many))
