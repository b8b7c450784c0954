"""Tests of packing, compared with the scalar formula and the worked example of layouts/README.md, for every
kind of input array."""

import math
import re
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkq.errors import ArgumentError, DTypeError
from vkq.layout.glsl import glsl_includes
from vkq.layout.pack import (
    Int8x4,
    Layout,
    int8x4_pack,
    int8x4_unpack,
    layout,
    layouts,
    layouts_folder,
)

README = (layouts_folder() / "README.md").read_text(encoding="utf-8")
NAMES = sorted(layouts())
ACTIVATIONS = [name for name in NAMES if len(layout(name).dims) == 4]
EXAMPLES = {4: (1, 5, 2, 3), 3: (1, 6, 5)}  # the shapes of the README's drawings, by number of dims


def values(shape, seed=0):
    """Return random int8 values of the whole range, including -128."""
    return np.random.default_rng(seed).integers(-128, 128, shape, dtype=np.int8)


def hexadecimal(words):
    return [f"{word & 0xFFFFFFFF:08x}" for word in words.tolist()]


def packed_by_formula(found, array, fill):
    """Return the expected result of `pack`, computed one element at a time with Layout.index."""
    lanes = np.full((found.words(array.shape), 4), fill, np.int8)
    for element in product(*map(range, array.shape)):
        lanes[found.index(*element, shape=array.shape)] = array[element]
    return int8x4_pack(lanes)


@st.composite
def cases(draw):
    found = layout(draw(st.sampled_from(NAMES)))
    shape = tuple(draw(st.integers(0, 9)) for _ in found.dims)
    return found, values(shape, seed=draw(st.integers(0, 2**32 - 1))), draw(st.integers(-128, 127))


def test_worked_example():
    """The example with (N, C, H, W) = (1, 5, 2, 3), whose bytes are 0x10*c + 4*h + w, is packed as
    documented."""
    _, c, h, w = np.indices((1, 5, 2, 3))
    array = (0x10 * c + 4 * h + w).astype(np.int8)
    words = layout("kPackedInt8_4W4C").pack(array, fill=-1)
    expected = (
        "30201000 31211101 32221202 -------- ------40 ------41 ------42 -------- "
        "34241404 35251505 36261606 -------- ------44 ------45 ------46 --------"
    )
    assert " ".join(hexadecimal(words)) == expected.replace("-", "f")


@pytest.mark.parametrize(
    ("name", "word", "lane"),
    [
        ("kPackedInt8_4W4C", "4*(((n*H+h)*Wb + w//4)*Cb + c//4) + w%4", "c%4"),
        ("kPackedInt8_4H4W", "4*(((n*C+c)*Hb + h//4)*Wb + w//4) + h%4", "w%4"),
        ("kPackedInt8_4W", "((n*C+c)*H + h)*Wb + w//4", "w%4"),
        ("kPackedInt8_4C", "((n*H+h)*W + w)*Cb + c//4", "c%4"),
        ("kPackedInt8_4C1W", "((n*H+h)*Cb + c//4)*W + w", "c%4"),
        ("kPackedInt8_16C", "4*((((c//16)*N + n)*H + h)*W + w) + c%16//4", "c%4"),
    ],
)
def test_index_is_the_documented_formula(name, word, lane):
    for shape in [(2, 5, 3, 7), (1, 8, 4, 4), (3, 1, 6, 2), (2, 35, 2, 3)]:
        sizes = dict(zip("NCHW", shape, strict=True)) | {
            f"{d}b": -(-s // 4) for d, s in zip("NCHW", shape, strict=True)
        }
        for element in product(*map(range, shape)):
            names = sizes | dict(zip("nchw", element, strict=True))
            assert layout(name).index(*element, shape=shape) == (eval(word, names), eval(lane, names))


def test_weight_block_holds_4_outputs_by_4_k():
    weight = values((2, 7, 10))
    # The axes of a weight in kPackedInt8_4N4K are (g, k4, n4, r, b).
    words = int8x4_unpack(layout("kPackedInt8_4N4K").pack(weight).reshape(2, 3, 2, 4))
    padded = np.pad(weight, ((0, 0), (0, 1), (0, 2)))
    for g, k4, n4, r, b in product(range(2), range(3), range(2), range(4), range(4)):
        assert words[g, k4, n4, r, b] == padded[g, 4 * n4 + r, 4 * k4 + b]


@settings(max_examples=200, deadline=None)
@given(cases())
def test_pack_is_the_formula_and_unpack_its_inverse(case):
    found, array, fill = case
    before = array.copy()
    words = found.pack(array, fill)
    assert words.dtype == Int8x4
    assert words.shape == (found.words(array.shape),)
    np.testing.assert_array_equal(words, packed_by_formula(found, array, fill))
    back = found.unpack(words, array.shape)
    assert back.dtype == np.int8
    assert back.flags.c_contiguous
    np.testing.assert_array_equal(back, before)
    np.testing.assert_array_equal(array, before)


def test_nested_split(tmp_path):
    """NHWC in blocks of 32 channels is a valid layout: its order has a part of the form c%32/4."""
    path = tmp_path / "32C.yaml"
    path.write_text(
        "name: kPackedInt8_32C\nsummary: blocks of 32 channels\ndims: [n, c, h, w]\nsplit: {c: 32}\n"
        "order: [n, c/32, h, w, c%32/4]\nlane: c%4\n"
    )
    found = Layout.load(path)
    array = values((2, 37, 3, 2))
    words = found.pack(array, fill=7)
    assert found.padded(array.shape) == (2, 64, 3, 2)
    np.testing.assert_array_equal(words, packed_by_formula(found, array, 7))
    np.testing.assert_array_equal(found.unpack(words, array.shape), array)
    lanes = int8x4_unpack(words).reshape(2, 2, 3, 2, 32)
    np.testing.assert_array_equal(lanes[:, 0], array[:, :32].transpose(0, 2, 3, 1))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "kind", ["fortran", "reversed", "strided", "transposed", "broadcast", "read-only", "memmap"]
)
def test_any_strides_and_memory(name, kind, tmp_path):
    found = layout(name)
    array = values((3, 6, 5, 7)[: len(found.dims)])
    if kind == "fortran":
        given = np.asfortranarray(array)
    elif kind == "reversed":
        given = array[..., ::-1]
    elif kind == "strided":
        given = np.repeat(array, 2, axis=1)[:, ::2]
    elif kind == "transposed":
        given = np.swapaxes(array, 0, -1)
    elif kind == "broadcast":
        given = np.broadcast_to(array[:1], array.shape)
    elif kind == "read-only":
        given = array.copy()
        given.flags.writeable = False
    else:
        array.tofile(tmp_path / "array.bin")
        given = np.memmap(tmp_path / "array.bin", np.int8, "r", shape=array.shape)
    plain = given.tolist()
    words = found.pack(given, fill=3)
    np.testing.assert_array_equal(words, packed_by_formula(found, np.array(plain, np.int8), 3))
    assert given.tolist() == plain
    np.testing.assert_array_equal(found.unpack(words, given.shape), np.array(plain, np.int8))


@pytest.mark.parametrize("name", NAMES)
def test_results_are_new_memory(name):
    """Writing to a result does not change the input, even if the layout keeps the order of the elements."""
    found = layout(name)
    array = values((1, 4, 4, 4)[: len(found.dims)])
    words = found.pack(array)
    back = found.unpack(words, array.shape)
    assert not np.shares_memory(words, array)
    assert not np.shares_memory(back, words)
    assert words.flags.writeable
    assert back.flags.writeable


@pytest.mark.parametrize("name", NAMES)
def test_words_of_any_byte_order_and_stride(name):
    found = layout(name)
    array = values((2, 5, 3, 6)[: len(found.dims)])
    words = found.pack(array)
    swapped = words.astype(">i4")
    swapped.flags.writeable = False
    np.testing.assert_array_equal(found.unpack(swapped, array.shape), array)
    np.testing.assert_array_equal(found.unpack(np.repeat(words, 2)[::2], array.shape), array)


@pytest.mark.parametrize("name", NAMES)
def test_empty(name):
    found = layout(name)
    for empty in range(len(found.dims)):
        shape = tuple(0 if dim == empty else 5 for dim in range(len(found.dims)))
        words = found.pack(np.empty(shape, np.int8))
        assert words.shape == (0,)
        assert found.words(shape) == 0
        assert found.unpack(words, shape).shape == shape


def test_padding_lanes_hold_fill():
    words = layout("kPackedInt8_4W4C").pack(np.zeros((1, 1, 1, 1), np.int8), fill=np.int64(-128))
    assert int8x4_unpack(words).tolist() == [[0, -128, -128, -128]] + [[-128] * 4] * 3


def test_large_array_is_packed_without_a_loop_over_elements():
    """Packing 16 million elements runs no Python loop over elements, in any layout. (With a loop, this test
    would take minutes.)"""
    for name in NAMES:
        found = layout(name)
        array = values((1, 18, 1023, 901) if name in ACTIVATIONS else (18, 1023, 901))
        words = found.pack(array)
        element = tuple(size - 1 for size in array.shape)
        word, lane = found.index(*element, shape=array.shape)
        assert int8x4_unpack(words[word])[lane] == array[element]
        assert np.array_equal(found.unpack(words, array.shape), array)


def test_int8x4_lowest_byte_first():
    lanes = np.array([[0x01, 0x02, 0x03, 0x04], [-1, 0, 127, -128]], np.int8)
    words = int8x4_pack(lanes)
    assert hexadecimal(words) == ["04030201", "807f00ff"]
    assert int8x4_unpack(words).tolist() == lanes.tolist()
    assert int8x4_unpack(words.astype(">i4")).tolist() == lanes.tolist()
    assert int8x4_pack(lanes[:, ::-1]).tolist() == int8x4_pack(lanes[:, ::-1].copy()).tolist()
    assert int8x4_pack(np.empty((0, 4), np.int8)).shape == (0,)
    assert int8x4_unpack(np.empty((2, 0), np.int32)).shape == (2, 0, 4)
    assert int8x4_pack(lanes[0]).shape == ()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: int8x4_pack(np.zeros(4, np.uint8)),
            DTypeError,
            "int8x4_pack: lanes has dtype uint8; it must be int8",
        ),
        (
            lambda: int8x4_pack(np.zeros((4, 3), np.int8)),
            ArgumentError,
            "shape (4, 3); its last axis must be 4",
        ),
        (lambda: int8x4_pack(np.int8(1)), ArgumentError, "lanes has shape ()"),
        (
            lambda: int8x4_unpack(np.zeros(4, np.uint32)),
            DTypeError,
            "words has dtype uint32; it must be int32",
        ),
        (lambda: int8x4_unpack([1, 2]), DTypeError, "it must be int32"),
    ],
)
def test_int8x4_refuses(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call()


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda f: f.pack(np.zeros((1, 1, 1, 4), np.uint8)),
            DTypeError,
            "4C.pack: array has dtype uint8; it must be int8",
        ),
        (lambda f: f.pack(np.zeros((1, 1, 1, 4), np.float32)), DTypeError, "dtype float32"),
        (
            lambda f: f.pack(np.zeros((8, 4), np.int8)),
            ArgumentError,
            "the array's shape is (8, 4); this layout takes 4",
        ),
        (
            lambda f: f.pack(np.zeros((1, 1, 1, 1), np.int8), 128),
            ArgumentError,
            "fill is 128; it must be in [-128, 127]",
        ),
        (
            lambda f: f.pack(np.zeros((1, 1, 1, 1), np.int8), 0.5),
            DTypeError,
            "fill is 0.5; it must be a whole number",
        ),
        (
            lambda f: f.unpack(np.zeros(3, np.int32), (1, 5, 1, 2)),
            ArgumentError,
            "words has shape (3,) but an array of",
        ),
        (
            lambda f: f.unpack(np.zeros(5, np.int32), (1, 5, 1, 2)),
            ArgumentError,
            "(n, c, h, w) takes 4 words",
        ),
        (
            lambda f: f.unpack(np.zeros((2, 2), np.int32), (1, 5, 1, 2)),
            ArgumentError,
            "words has shape (2, 2)",
        ),
        (
            lambda f: f.unpack(np.zeros(4, np.int64), (1, 5, 1, 2)),
            DTypeError,
            "words has dtype int64; it must be int32",
        ),
        (
            lambda f: f.unpack(np.zeros(4, np.int32), (5, 2)),
            ArgumentError,
            "unpack: shape is (5, 2); this layout takes 4",
        ),
        (lambda f: f.words((1, -5, 1, 2)), ArgumentError, "words: shape is (1, -5, 1, 2)"),
        (
            lambda f: f.words((1, 2.5, 1, 2)),
            DTypeError,
            "words: shape is (1, 2.5, 1, 2); it must be a sequence",
        ),
        (lambda f: f.padded(7), DTypeError, "padded: shape is 7; it must be a sequence of whole numbers"),
        (
            lambda f: f.index(0, 5, 0, 0, shape=(1, 5, 1, 2)),
            ArgumentError,
            "element (0, 5, 0, 0) is not in an array of",
        ),
        (lambda f: f.index(0, -1, 0, 0, shape=(1, 5, 1, 2)), ArgumentError, "element (0, -1, 0, 0)"),
        (lambda f: f.index(0, 0, 0, shape=(1, 5, 1, 2)), ArgumentError, "element (0, 0, 0)"),
        (lambda f: f.drawing((1, 5)), ArgumentError, "drawing: shape is (1, 5)"),
    ],
)
def test_refuses(call, error, message):
    with pytest.raises(error, match=re.escape(message)):
        call(layout("kPackedInt8_4C"))


def test_unknown_name_lists_those_there_are():
    with pytest.raises(
        ArgumentError, match=r"no layout is called 'NCHW'; there are kPackedInt8_16C, .*kPackedInt8_4W4C"
    ):
        layout("NCHW")


def test_catalog_is_read_once_and_cannot_be_spoiled():
    layouts().clear()
    assert layout("kPackedInt8_4C") is layouts()["kPackedInt8_4C"]
    assert {path.stem for path in layouts_folder().glob("*.yaml")} == {
        name.removeprefix("kPackedInt8_") for name in NAMES
    }
    assert sorted(glsl_includes()) == sorted(
        [f"layout/{name}.glslh" for name in NAMES] + ["layout/any.glslh"]
    )
    assert glsl_includes()["layout/kPackedInt8_4C.glslh"] == layout("kPackedInt8_4C").glsl()


def test_layouts_are_immutable_values():
    first = layout("kPackedInt8_4C")
    with pytest.raises(AttributeError):
        first.name = "other"
    again = Layout.load(layouts_folder() / "4C.yaml")
    assert again == first
    assert hash(again) == hash(first)


@pytest.mark.parametrize("name", NAMES)
def test_readme_drawing_is_current(name):
    found = layout(name)
    section = README.split(f"### {name}\n")[1].split("\n### ")[0]
    assert f"```text\n{found.drawing(EXAMPLES[len(found.dims)])}\n```" in section


def test_readme_describes_no_other_layout():
    assert sorted(re.findall(r"^### (\S+)$", README, re.MULTILINE)) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_drawing_shows_the_packed_words(name):
    """The drawing shows the words of `pack`: the test reads the values back from the drawing."""
    found = layout(name)
    shape = EXAMPLES[len(found.dims)]
    strides = (0, 0x10, 4, 1) if len(shape) == 4 else (0, 0x10, 1)
    array = sum(stride * axis for stride, axis in zip(strides, np.indices(shape), strict=True)).astype(
        np.int8
    )
    rows = found.drawing(shape).splitlines()[2:]
    drawn = " ".join(row.split("|")[1] for row in rows).split()
    assert [word.replace("-", "f") for word in drawn] == hexadecimal(found.pack(array, fill=-1))
    assert len(rows) == math.prod(found.extents(shape)[:-1])


def test_drawing_of_empty_and_wide():
    assert "0 words" in layout("kPackedInt8_4C").drawing((1, 0, 2, 2))
    wide = layout("kPackedInt8_4C").drawing((2, 100, 1, 1))  # values above 0xff have three hexadecimal digits
    assert "(2, 100, 1, 1): 50 words, element = 0x100*n + c" in wide
    assert "103102101100" in wide


def test_packaged_folder_is_preferred(tmp_path, monkeypatch):
    monkeypatch.setattr("vkq.layout.pack.__file__", str(tmp_path / "vkq" / "layout" / "pack.py"))
    (tmp_path / "layouts").mkdir()
    assert layouts_folder() == Path(tmp_path / "layouts")
    (tmp_path / "vkq" / "layouts").mkdir(parents=True)
    assert layouts_folder() == Path(tmp_path / "vkq" / "layouts")
