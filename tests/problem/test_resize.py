from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from vkq.errors import ArgumentError
from vkq.problem.resize import Resize


def test_size_and_scale_follow_each_other() -> None:
    assert Resize.of((1, 3, 4, 5), scale=(2, 0.5)).y_shape == (1, 3, 8, 2)
    halved = Resize.of((1, 3, 4, 6), size=(2, 12))
    assert (halved.y_shape, halved.scale) == ((1, 3, 2, 12), (0.5, 2.0))


def test_where_pixels_look() -> None:
    up = Resize.of((1, 1, 1, 2), size=(1, 4), mode="linear")
    np.testing.assert_array_equal(up.original(1), [-0.25, 0.25, 0.75, 1.25])
    np.testing.assert_array_equal(up.nearest(1), [0, 0, 1, 1])
    first, second, near, far = up.linear(1)
    np.testing.assert_array_equal([first, second], [[0, 0, 0, 1], [1, 1, 1, 1]])
    np.testing.assert_array_equal([near, far], [[0, 0.25, 0.75, 0.5], [1, 0.75, 0.25, 0.5]])
    corners = Resize.of((1, 1, 1, 5), size=(1, 3), coordinates="align_corners")
    np.testing.assert_array_equal(corners.original(1), [0, 2, 4])


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 4, 5), {"scale": 2}, r"x has shape \(1, 4, 5\); it must be \(N, C, H, W\)"),
        ((1, 1, 0, 5), {"scale": 2}, "with H and W at least 1"),
        ((1, 1, 4, 5), {}, "size is None and scale None; give one of the two"),
        ((1, 1, 4, 5), {"scale": 2, "size": (8, 10)}, "give one of the two"),
        ((1, 1, 4, 5), {"scale": 0.1}, r"the result would have \[0, 0\] rows and columns"),
        ((1, 1, 4, 5), {"scale": (2, -1)}, "give one positive number"),
        ((1, 1, 4, 5), {"scale": 2, "mode": "cubic"}, "mode is 'cubic'; it must be one of nearest, linear"),
    ],
)
def test_refuses(shape: tuple[int, ...], options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        Resize.of(shape, **options)
