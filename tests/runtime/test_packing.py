"""Tests that the extension packs arrays as `vkq.layout.pack` does, for every layout, remainder and number
of lanes."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkq.layout.pack import layout, layouts
from vkq.runtime.packing import pack, packing, unpack

SIZES = [(1, 1, 1, 1), (2, 3, 5, 7), (1, 16, 4, 4), (3, 17, 1, 9), (1, 4, 8, 8), (2, 5, 4, 13), (1, 33, 2, 3)]


@pytest.mark.parametrize("name", layouts())
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("fill", [0, -7])
def test_it_packs_and_unpacks_as_the_oracle(name: str, sizes: tuple[int, ...], fill: int) -> None:
    one = layout(name)
    shape = sizes[-len(one.dims) :]
    array = np.random.default_rng(1).integers(-128, 128, shape, np.int8)
    want = one.pack(array, fill)
    got = pack(one, array, fill)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(unpack(one, got, shape), array)


@settings(deadline=None)
@given(st.sampled_from(sorted(layouts())), st.lists(st.integers(0, 20), min_size=4, max_size=4))
def test_any_sizes(name: str, sizes: list[int]) -> None:
    one = layout(name)
    shape = tuple(sizes[: len(one.dims)])
    array = np.random.default_rng(2).integers(-128, 128, shape, np.int8)
    got = pack(one, array)
    np.testing.assert_array_equal(got, one.pack(array))
    np.testing.assert_array_equal(unpack(one, got, shape), array)


@pytest.mark.parametrize("name", ["kPackedInt8_4W4C", "kPackedInt8_4H4W", "kPackedInt8_16C"])
def test_large_arrays_are_packed_by_several_threads(name: str) -> None:
    one, shape = layout(name), (3, 61, 173, 211)
    array = np.random.default_rng(3).integers(-128, 128, shape, np.int8)
    words = pack(one, array)
    np.testing.assert_array_equal(words, one.pack(array))
    np.testing.assert_array_equal(unpack(one, words, shape), array)


def test_arrays_in_any_order_of_memory() -> None:
    one = layout("kPackedInt8_4W4C")
    array = np.random.default_rng(4).integers(-128, 128, (4, 6, 10, 8), np.int8)
    frozen = array.copy()
    frozen.flags.writeable = False
    for view in (array[::2, ::-1], array.transpose(3, 2, 1, 0), np.asfortranarray(array), frozen):
        np.testing.assert_array_equal(pack(one, view), one.pack(view))


def test_uint8_is_moved_by_128() -> None:
    one, shape = layout("kPackedInt8_4H4W"), (1, 1, 3, 7)
    array = np.arange(21, dtype=np.uint8).reshape(shape) * 12
    words = np.empty(one.words(shape), np.int32)
    packing(one, shape).pack(words.view(np.uint8), array.reshape(-1), 0x80, 0)
    np.testing.assert_array_equal(words, one.pack((array ^ 0x80).view(np.int8)))


def test_wrong_sizes_are_refused() -> None:
    made = packing(layout("kPackedInt8_4W4C"), (1, 4, 4, 4))
    good, words = np.zeros(64, np.uint8), np.zeros(64, np.uint8)
    made.pack(words, good, 0, 0)
    for w, a in itertools.product((words, words[:60]), (good, good[:63])):
        if len(w) + len(a) < 128:
            with pytest.raises(ValueError, match="another size than the layout"):
                made.pack(w, a, 0, 0)
            with pytest.raises(ValueError, match="another size than the layout"):
                made.unpack(a, w, 0)
