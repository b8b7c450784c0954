"""Tests of layout files: invalid files are refused with file:line, and the generated GLSL, run as Python,
gives the same results as the formula."""

import re
from itertools import product
from types import SimpleNamespace

import pytest

from vkq.errors import SpecError
from vkq.layout.pack import Layout, layout, layouts, layouts_folder

NAMES = sorted(layouts())
INT8X4 = layouts_folder().parent / "shaders" / "common" / "int8x4.glslh"

GOOD = """\
name: kPackedInt8_Test
summary: for this test
dims: [n, c, h, w]
split: {c: 32, w: 4}
order: [n, c/32, h, w/4, c%32/4, w%4]
lane: c%4
"""


class Vector:
    """A uvec or ivec with its components as attributes x, y, z, w; it has no arithmetic."""

    def __init__(self, *values):
        for name, value in zip("xyzw", values * 4 if len(values) == 1 else values, strict=False):
            setattr(self, name, value)

    def values(self):
        return [getattr(self, name) for name in "xyzw" if hasattr(self, name)]


def run_as_python(glsl, **builtins):
    """Return the functions of a GLSL text as Python functions. The text may have only straight-line code
    with unsigned + * / %."""
    python = re.sub(r"//.*", "", glsl)
    python = re.sub(r"^ *#.*$", "", python, flags=re.MULTILINE)
    python = re.sub(r"\b(0x[0-9a-f]+|\d+)u\b", r"\1", python)
    python = python.replace("/", "//")
    python = re.sub(
        r"^\w+ (\w+)\((.*)\) \{$",
        lambda m: f"def {m[1]}({re.sub(r'[A-Za-z0-9]+ ', '', m[2])}):",
        python,
        flags=re.MULTILINE,
    )
    python = re.sub(r"^  (?:uint|[ui]vec\d) (\w+ =)", r"  \1", python, flags=re.MULTILINE)
    python = re.sub(r"^\}$", "", python, flags=re.MULTILINE).replace(";", "")
    names = dict(uvec2=Vector, uvec3=Vector, uvec4=Vector, **builtins)
    exec(python, names)
    return SimpleNamespace(**names)


def load(folder, text, stem="Test"):
    path = folder / f"{stem}.yaml"
    path.write_text(text, encoding="utf-8")
    return Layout.load(path)


@pytest.mark.parametrize("name", [*NAMES, "kPackedInt8_Test"])
def test_glsl_is_the_formula(name, tmp_path):
    found = layout(name) if name in NAMES else load(tmp_path, GOOD)
    shader = vars(run_as_python(found.glsl()))
    for shape in [(2, 5, 3, 6), (1, 4, 4, 4), (2, 37, 1, 3), (1, 1, 1, 1)]:
        shape = shape[: len(found.dims)]
        extent, words = Vector(*shape), found.words(shape)
        assert shader[f"{name}_words"](extent) == words
        seen = set()
        for element in product(*map(range, shape)):
            place = shader[f"{name}_word"](Vector(*element), extent), shader[f"{name}_lane"](Vector(*element))
            assert place == found.index(*element, shape=shape)
            assert tuple(shader[f"{name}_element"](*place, extent).values()[: len(shape)]) == element
            seen.add(place)
        for word, lane in set(product(range(words + 20), range(4))) - seen:
            element = shader[f"{name}_element"](word, lane, extent).values()
            assert any(at >= size for at, size in zip(element, shape, strict=False)), (word, lane)


def test_glsl_text():
    """The generated GLSL equals the text in this test, so that no change is overlooked."""
    text = layout("kPackedInt8_4N4K").glsl()
    assert "// e = (g, n, k) is an element of an array of sizes `extent`." in text
    assert "word = the row-major index over (g, k/4, n/4, n%4), lane = k%4" in text
    assert text.count("#ifndef LAYOUT_kPackedInt8_4N4K\n#define LAYOUT_kPackedInt8_4N4K\n") == 1
    assert text.rstrip().endswith("#endif")
    assert "uint kPackedInt8_4N4K_word(uvec3 e, uvec3 extent) {" in text
    assert "uint kPackedInt8_4N4K_lane(uvec3 e) {\n  return e.z % 4u;\n}" in text
    assert "uint kPackedInt8_4N4K_words(uvec3 extent) {" in text
    assert "uvec3 kPackedInt8_4N4K_element(uint word, uint lane, uvec3 extent) {" in text
    assert "  word = word * ((extent.z + 3u) / 4u) + e.z / 4u;\n" in text


def test_int8x4_glsl():
    """shaders/common/int8x4.glslh, run as Python with 32-bit ints that wrap, is correct for every byte
    value in every lane."""

    def bitfield_extract(word, offset, bits):
        return ((word >> offset & (1 << bits) - 1) ^ 1 << bits - 1) - (1 << bits - 1)

    text = INT8X4.read_text(encoding="utf-8")
    shader = run_as_python(text, bitfieldExtract=bitfield_extract, ivec4=Vector, vec4=lambda vector: vector)
    for value in range(-128, 128):
        for lane in range(4):
            lanes = [7, -3, -128, 127]
            lanes[lane] = value
            word = shader.int8x4_pack(Vector(*lanes)) & 0xFFFFFFFF
            assert word == int.from_bytes(bytes(at & 0xFF for at in lanes), "little")
            assert shader.int8x4_unpack(word).values() == lanes
            assert shader.int8x4_unpack_float(word).values() == lanes
            assert shader.int8x4_lane(word, lane) == value
        assert shader.int8x4_unpack(shader.int8x4_broadcast(value)).values() == [value] * 4
    assert "#define Int8x4 int\n" in text


def test_parts_read_back():
    found = layout("kPackedInt8_4W4C")
    assert [part.text(found.dims) for part in found.order] == ["n", "h", "w/4", "c/4", "w%4"]
    assert found.lane.text(found.dims) == "c%4"
    assert found.extents((2, 5, 3, 7)) == [2, 3, 2, 2, 4]
    assert found.padded((2, 5, 3, 7)) == (2, 8, 3, 8)


def test_good_file_is_good(tmp_path):
    """The layout file that the other tests change is valid."""
    found = load(tmp_path, GOOD)
    assert found.summary == "for this test"
    assert found.extents((2, 37, 3, 7)) == [2, 2, 3, 2, 8, 4]


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        (
            "kPackedInt8_Test",
            "kPackedInt8_Other",
            1,
            "the name is 'kPackedInt8_Other'; it must be 'kPackedInt8_' and",
        ),
        ("for this test", '"two\\nlines"', 2, "the summary must be one line"),
        ("for this test", "''", 2, "the summary must be one line"),
        ("summary: for this test\n", "", 1, "the key 'summary' is missing"),
        ("lane: c%4", "lane: c%4\nfill: 0", 7, "unknown key 'fill'"),
        ("lane: c%4", "lane: c%4\nlane: c%4", 7, "the key 'lane' appears a second time"),
        ("dims: [n, c, h, w]", "dims: nchw", 3, "a list is needed"),
        ("dims: [n, c, h, w]", "dims: [n, C, h, w]", 3, "the dim 'C' must be lower-case letters"),
        ("dims: [n, c, h, w]", "dims: [n, c, c, w]", 3, "there must be 2 to 4, to fit a uvec, each once"),
        ("dims: [n, c, h, w]", "dims: [n, c, d, h, w]", 3, "there must be 2 to 4"),
        ("dims: [n, c, h, w]", "dims: [c]", 3, "there must be 2 to 4"),
        ("w: 4}", "x: 4}", 4, "'x' is none of the dims n, c, h, w"),
        ("w: 4}", "w: four}", 4, "a whole number is needed"),
        ("w: 4}", "w: 0}", 5, "order and lane give w/4, w%4 for the dim w"),
        (
            "w: 4}",
            "w: 8}",
            5,
            "order and lane give w/4, w%4 for the dim w; they must give w/8 and the parts of w%8",
        ),
        (", w: 4}", "}", 5, "they must give w alone, for it is not split"),
        (
            "w: 4}",
            "w: 4, h: 4}",
            5,
            "order and lane give h for the dim h; they must give h/4 and the parts of h%4",
        ),
        ("[n, c/32, h,", "[n, c/32,", 5, "order and lane give nothing for the dim h; they must give h alone"),
        ("[n, c/32, h,", "[n, c/32, h, h,", 5, "order and lane give h, h for the dim h"),
        ("c%32/4", "c%32/8", 5, "order and lane give c/32, c%32/8, c%4 for the dim c"),
        ("c%32/4", "c%16/4", 5, "order and lane give c/32, c%16/4, c%4 for the dim c"),
        (", c%32/4", "", 5, "order and lane give c/32, c%4 for the dim c"),
        ("c%32/4", "c/4", 5, "order and lane give c/32, c/4, c%4 for the dim c"),
        (", w%4", "", 5, "order and lane give w/4 for the dim w"),
        ("w%4", "c%4", 5, "for the dim c"),
        ("w%4", "w*4", 5, "the part 'w*4' has none of the forms"),
        ("w%4", "w%0", 5, "the part 'w%0' has none of the forms"),
        ("w%4", "x%4", 5, "'x' is none of the dims"),
        ("w%4", "[w]", 5, "a single value is needed"),
        (
            "[n, c/32, h, w/4, c%32/4, w%4]",
            "[w%4, n, c/32, h, w/4, c%32/4]",
            5,
            "the outermost part is w%4; it must be",
        ),
        ("[n, c/32, h, w/4, c%32/4, w%4]", "[]", 5, "order and lane give nothing for the dim n"),
        ("lane: c%4", "lane: c%8", 6, "the lane is c%8; it must be c%4, the byte of a word of 4"),
        ("lane: c%4", "lane: c%8/2", 6, "the lane is c%8/2; it must be c%4"),
        ("lane: c%4", "lane: h", 6, "the lane is h; it must be h%4"),
        ("lane: c%4", "lane: h%4", 5, "for the dim c"),
        ("lane: c%4", "lane: !!python/name:os.system c%4", 6, "the tag"),
        ("lane: c%4", "lane: [", 6, ""),
    ],
)
def test_bad_file_is_refused_with_its_line(tmp_path, old, new, line, message):
    assert GOOD.count(old) >= 1
    head, _, tail = GOOD.rpartition(old)
    text = head + new + tail
    with pytest.raises(SpecError) as caught:
        load(tmp_path, text)
    assert re.match(rf"{re.escape(str(tmp_path / 'Test.yaml'))}:\d+: ", str(caught.value))
    assert message in str(caught.value)
    if message:  # if the YAML is invalid, the YAML parser chooses line and message
        assert f"Test.yaml:{line}: " in str(caught.value)


def test_file_name_must_make_an_identifier(tmp_path):
    text = GOOD.replace("kPackedInt8_Test", "kPackedInt8_4C__x")
    with pytest.raises(SpecError, match="the letters of the file name"):
        load(tmp_path, text, stem="4C__x")


def test_numbers_of_a_formula_are_bounded(tmp_path) -> None:
    good = (layouts_folder() / "4C.yaml").read_text()
    for sign, digits in product("/%", ("9" * 4400, "999999")):
        text = good.replace(f"c{sign}4", f"c{sign}{digits}")
        assert text != good
        path = tmp_path / "4C.yaml"
        path.write_text(text)
        with pytest.raises(SpecError, match="has none of the forms c, c/4"):
            Layout.load(path)
