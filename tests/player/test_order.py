"""Tests of weights that kernels read in different orders: a file stores them once, and each plan names its
order."""

import numpy as np
import pytest

from vkq.layout.pack import layout
from vkq.player.order import AS_IT_IS, found, key, reordered

LAYOUTS = ("kPackedInt8_4N4K", "kPackedInt8_16K", "kPackedInt8_32K")


@pytest.mark.parametrize("shape", [(1, 16, 32), (1, 48, 96), (1, 112, 224), (3, 16, 64)])
def test_weights_are_found_in_another_order(shape: tuple[int, int, int]) -> None:
    weight = np.random.default_rng(0).integers(-128, 128, shape, np.int8)
    packed = {name: layout(name).pack(weight).tobytes() for name in LAYOUTS}
    one_group = shape[0] == 1
    for to, given in [(0, 1), (1, 0), *([(0, 2), (2, 0)] if one_group else [])]:
        wanted, data = packed[LAYOUTS[to]], packed[LAYOUTS[given]]
        order = found(wanted, data)
        assert order is not None
        assert order != AS_IT_IS
        assert reordered(np.frombuffer(data, np.uint32), order).tobytes() == wanted
        assert key(wanted) == key(data)


@pytest.mark.parametrize(("chunk", "taps"), [(32, 9), (16, 2)])
def test_weights_of_a_convolution(chunk: int, taps: int) -> None:
    """`found` finds the order that maps one layout of a convolution's weights to another, and `reordered`
    applies it."""
    weight = np.random.default_rng(0).integers(-128, 128, (48, taps, 128 // chunk, chunk), np.int8)
    lines = layout(LAYOUTS[0]).pack(weight.reshape(1, 48, -1)).tobytes()
    matrices = layout(LAYOUTS[1]).pack(weight.swapaxes(1, 2).reshape(1, 48, -1)).tobytes()
    for wanted, data in ((lines, matrices), (matrices, lines)):
        order = found(wanted, data)
        assert order is not None
        assert reordered(np.frombuffer(data, np.uint32), order).tobytes() == wanted


def test_what_is_in_no_order_is_not_found() -> None:
    """`found` returns None if no known order maps one array of words to the other, even if their keys are
    equal. Here the last two words are swapped."""
    weight = np.random.default_rng(0).integers(-128, 128, (1, 48, 96), np.int8)
    data = layout("kPackedInt8_4N4K").pack(weight).tobytes()
    wanted = bytearray(layout("kPackedInt8_16K").pack(weight).tobytes())
    wanted[-8:] = wanted[-4:] + wanted[-8:-4]
    assert found(bytes(wanted), data) is None
    assert key(bytes(wanted)) == key(data)
    assert found(data, data) == AS_IT_IS
